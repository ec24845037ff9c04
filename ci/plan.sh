#!/usr/bin/env bash
# Prints `matrix=JSON`, one line, for GitHub's job output. SHARDS sets how many jobs.
set -euo pipefail
cd "$(dirname "$0")/.."
printf 'matrix=%s\n' "$("${HARNESS:-.venv/bin/harness}" list --github-matrix --shards "${SHARDS:-4}")"
