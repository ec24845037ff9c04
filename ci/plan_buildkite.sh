#!/usr/bin/env bash
# Prints the Buildkite steps of the matrix; each step sets itself up and runs its shard.
set -euo pipefail
cd "$(dirname "$0")/.."
exec "${HARNESS:-.venv/bin/harness}" list --buildkite --shards "${SHARDS:-4}" \
    --setup 'ci/setup.sh && export PATH="$$PWD/.venv/bin:$$PATH"'
