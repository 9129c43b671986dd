#!/usr/bin/env bash
# Usage: bash run_scripts/run_distributed.sh [CONFIG] [--set key=value ...] [--workers N]
#
# Set up if needed, prepare the data if needed, train with all cards of this node (Ascend: those visible; CPU: 2 workers).
# CONFIG is run_scripts/configs/smoke.yaml unless given. One node of many: NNODES NODE_RANK MASTER_ADDR MASTER_PORT.
# Environment: PYTHON, MINDGPT_NO_VENV (see setup.sh).
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
help_on_request "$@"
config="$root/run_scripts/configs/smoke.yaml"
if [[ $# -gt 0 && "$1" != -* ]]; then config="$1"; shift; fi
setup
exec "$python" -m train.launch --config "$config" "$@"
