#!/usr/bin/env bash
# Usage: bash run_scripts/bench.sh [--quick] [--rounds N] [--out FOLDER]
#
# Set up if needed (with the extra `bench`: PyTorch), then measure what a run costs here: the step against PyTorch, in turn, start
# and compilation by depth, where a whole run's time goes. A table as bench.md and bench.json in FOLDER (runs/bench).
# --quick: some minutes instead of most of an hour. Environment: PYTHON, MINDGPT_NO_VENV (see setup.sh).
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
help_on_request "$@"
setup bench
unset PYTHONSAFEPATH
exec "$python" "$root/tests/bench/bench.py" "$@"
