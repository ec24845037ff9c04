#!/usr/bin/env bash
# Runs one shard (I/N) into reports/KEY and leaves record, report and JUnit file there.
set -euo pipefail
cd "$(dirname "$0")/.."
shard=$1 key=$2
shift 2
exec "${HARNESS:-.venv/bin/harness}" run --shard "$shard" -o "reports/$key" \
    --junit "reports/$key/junit.xml" --report "reports/$key/report.html" "$@"
