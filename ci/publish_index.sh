#!/usr/bin/env bash
# publish_index.sh DIST SITE [check]: adds DIST's files to the index whose files are the assets of the release "index", and
# leaves in SITE the pages to serve. Nothing is changed before the new index is made, which refuses a wheel that is not what
# its provenance attests, and with "check" nothing at all. Files go up before the pages name them; a file that the pages do
# not name is removed.
set -euo pipefail
dist=$1 site=$2 mode=${3:-publish}
: "${GITHUB_REPOSITORY:?owner/name}" "${GITHUB_SERVER_URL:?address of GitHub}"
export GH_REPO=$GITHUB_REPOSITORY
state=$(mktemp -d)
trap 'rm -rf "$state"' EXIT
listed() { find "$1" -maxdepth 1 -type f -printf '%f\n' | LC_ALL=C sort; }
remove() { while read -r file; do gh release delete-asset index "$file" --yes; rm -f "$state/$file"; done; }

there=no
releases=$(gh release list --limit 1000 --json tagName --jq '.[].tagName')  # an outage ends here
if grep -qx index <<< "$releases"; then
    there=yes
    gh release download index --dir "$state"
fi
mkdir -p "$site"
leftovers=$(listed "$state")  # of an interrupted run, all but what the index names
if [ -e "$state/simple.tar.gz" ]; then
    tar -xzf "$state/simple.tar.gz" -C "$site"
    rm "$state/simple.tar.gz"
    mkdir "$site/files"
    python -c 'import json, sys; [print(file["filename"]) for file in json.load(sys.stdin)["files"]]' \
        < "$site/simple/flash-attn/index.json" | while read -r file; do
        cp "$state/$file"* "$site/files/"
    done
    leftovers=$(comm -23 <(listed "$state") <(listed "$site/files"))
fi

owner=${GITHUB_REPOSITORY%%/*} name=${GITHUB_REPOSITORY#*/}
python -m tools index "$dist" --output "$site" --keep 30 --attested --url "https://$owner.github.io/$name/simple/" \
    --files-url "$GITHUB_SERVER_URL/$GITHUB_REPOSITORY/releases/download/index"
[ "$mode" = publish ] || exit 0

if [ "$there" = no ]; then
    gh release create index --prerelease --latest=false --title "Files of the package index" \
        --notes "What the package index links to. Install from the index, not from here."
fi
[ -z "$leftovers" ] || remove <<< "$leftovers"
comm -13 <(listed "$state") <(listed "$site/files") | while read -r file; do
    gh release upload index "$site/files/$file"
done
tar -czf "$state/simple.tar.gz" -C "$site" simple index.html
gh release upload index "$state/simple.tar.gz" --clobber
rm "$state/simple.tar.gz"
comm -23 <(listed "$state") <(listed "$site/files") | remove
rm -r "$site/files"
