#!/usr/bin/env bash
# Usage: bash run_scripts/tensorboard.sh [RUN] [TensorBoard's options]
#
# Set up if needed, then show RUN (a folder, or a name below the project's runs/), or all of runs/, in TensorBoard.
# Environment: PYTHON, MINDGPT_NO_VENV (see setup.sh).
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
help_on_request "$@"
folder="$root/runs"
if [[ $# -gt 0 && "$1" != -* ]]; then
    folder="$1"
    [[ -d "$folder" ]] || folder="$root/runs/$1"
    shift
fi
[[ -d "$folder" ]] || refuse "there is no run in $folder yet"
setup test
exec "$python" -m tensorboard.main --logdir "$folder" "$@"
