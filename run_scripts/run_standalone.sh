#!/usr/bin/env bash
# Usage: bash run_scripts/run_standalone.sh [CONFIG] [--set key=value ...]
#
# Set up if needed, prepare the data if needed, train in one process. CONFIG is run_scripts/configs/smoke.yaml unless
# given; the run's name gets the suffix -standalone unless --set run.name=... gives one.
# Environment: PYTHON, MINDGPT_NO_VENV (see setup.sh).
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
help_on_request "$@"
config="$root/run_scripts/configs/smoke.yaml"
if [[ $# -gt 0 && "$1" != -* ]]; then config="$1"; shift; fi
setup
exec "$python" -m train.launch --standalone --config "$config" "$@"
