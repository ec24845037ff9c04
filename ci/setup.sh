#!/usr/bin/env bash
# Installs the harness and what it needs into .venv.
set -euo pipefail
cd "$(dirname "$0")/.."
make setup
