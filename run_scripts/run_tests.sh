#!/usr/bin/env bash
# Usage: bash run_scripts/run_tests.sh [pytest's arguments; paths are relative to the project's folder]
#
# Set up if needed (with the extra `test`), then run the tests. Without arguments: all but those marked oracle.
# Environment: PYTHON, MINDGPT_NO_VENV (see setup.sh).
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
help_on_request "$@"
setup test
cd "$root"
unset PYTHONSAFEPATH
exec "$python" -m pytest "$@"
