#!/usr/bin/env bash
# report_nightly.sh broken|passed: opens the issue that says the nightly is broken, or adds to the one that is open, with the
# run and the jobs that failed; or closes it, with the run that passed.
set -euo pipefail
state=${1:-}
: "${GITHUB_REPOSITORY:?owner/name}" "${GITHUB_SERVER_URL:?address of GitHub}" "${GITHUB_RUN_ID:?the run}"
export GH_REPO=$GITHUB_REPOSITORY
title="The nightly is broken"
run="$GITHUB_SERVER_URL/$GITHUB_REPOSITORY/actions/runs/$GITHUB_RUN_ID (commit ${GITHUB_SHA:-unknown})"
open_issues() {
    gh issue list --state open --search "in:title \"$title\"" --json number,title \
        --jq "map(select(.title == \"$title\")) | .[].number"
}

case $state in
    broken)
        body=$(mktemp)
        trap 'rm -f "$body"' EXIT
        {
            echo "$run failed in:"
            echo
            gh run view "$GITHUB_RUN_ID" --json jobs \
                --jq '.jobs[] | select(.conclusion | IN("failure", "cancelled", "timed_out")) | "- [\(.name)](\(.url))"'
        } > "$body"
        numbers=$(open_issues)
        if [ -n "$numbers" ]; then
            gh issue comment "${numbers%%$'\n'*}" --body-file "$body"
        else
            gh issue create --title "$title" --body-file "$body"
        fi
        ;;
    passed)
        numbers=$(open_issues)
        for number in $numbers; do
            gh issue close "$number" --reason completed --comment "$run passed."
        done
        ;;
    *)
        echo "report_nightly.sh: \"$state\" is no state of a nightly; say broken or passed." >&2
        exit 2
        ;;
esac
