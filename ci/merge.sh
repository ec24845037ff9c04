#!/usr/bin/env bash
# Merges the shards under a folder into one record, one report and one JUnit file.
set -euo pipefail
cd "$(dirname "$0")/.."
harness=${HARNESS:-.venv/bin/harness}
code=0
"$harness" report --merge "$1" || code=$?
"$harness" report "$1/merged" --format junit
"$harness" report "$1/merged" --format markdown -o "${GITHUB_STEP_SUMMARY:-$1/merged/summary.md}"
exit "$code"
