#!/usr/bin/env bash
# Opens the issue that says the nightly is broken, or adds to the one that is open: the run, and the jobs that failed.
set -euo pipefail
: "${GITHUB_REPOSITORY:?owner/name}" "${GITHUB_SERVER_URL:?address of GitHub}" "${GITHUB_RUN_ID:?the run}"
export GH_REPO=$GITHUB_REPOSITORY
title="The nightly is broken"
body=$(mktemp)
trap 'rm -f "$body"' EXIT
{
    echo "$GITHUB_SERVER_URL/$GITHUB_REPOSITORY/actions/runs/$GITHUB_RUN_ID (commit ${GITHUB_SHA:-unknown}) failed in:"
    echo
    gh run view "$GITHUB_RUN_ID" --json jobs --jq '.jobs[] | select(.conclusion == "failure") | "- [\(.name)](\(.url))"'
} > "$body"
number=$(gh issue list --state open --search "in:title \"$title\"" --json number,title \
    --jq "map(select(.title == \"$title\")) | .[0].number // empty")
if [ -n "$number" ]; then
    gh issue comment "$number" --body-file "$body"
else
    gh issue create --title "$title" --body-file "$body"
fi
