#!/usr/bin/env bash
# Usage: bash run_scripts/doctor.sh [--runs DIR] [--data DIR] [--min-free-gb GB] [--wait SECONDS] [--json]
#
# Is this machine fit to train? A line for each check: ok, warning or failed, and what to do. Installs nothing, needs any Python.
# Checked: Python, compiler, packages, cards, driver, CANN, disk, memory, /dev/shm, limits, clock, port. On several nodes at once, with
# NNODES NODE_RANK MASTER_ADDR MASTER_PORT as for training: also whether they share --runs, reach the master, and are equal.
# Exit code 0, or 1 if a check has failed. Environment: PYTHON, MINDGPT_NO_VENV (see setup.sh).
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
help_on_request "$@"
any_python
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 8))' 2>/dev/null || {
    echo "failed   python     $("$python" --version 2>&1) ($python): MindSpore needs >=$low,<$high: install one, name it by PYTHON=..."
    exit 1
}
PYTHONPATH="$root${PYTHONPATH:+:$PYTHONPATH}" exec "$python" -m parallel.doctor "$@"
