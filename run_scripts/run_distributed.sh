#!/usr/bin/env bash
# Usage: bash run_scripts/run_distributed.sh [CONFIG] [--set key=value ...] [--workers N] [--supervise] [--hostfile FILE]
#
# Set up if needed, prepare the data if needed, train with all cards of this node (Ascend: those visible; CPU: 2 workers).
# CONFIG is run_scripts/configs/smoke.yaml unless given. One node of many: NNODES NODE_RANK MASTER_ADDR MASTER_PORT.
# --supervise: start again from the newest good checkpoint when a rank fails or hangs (python -m train.supervise).
# --hostfile FILE: the same on each host of FILE by ssh; lines `host [slots=N]` (python -m train.hosts).
# Environment: MINDGPT_GRACE_SECONDS to save in after SIGTERM (30), PYTHON, MINDGPT_NO_VENV (see setup.sh).
# Clusters: run_scripts/README.md.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
help_on_request "$@"
trap '' USR1  # which asks a run to save: until it trains there is nothing to save
module=train.launch hostfile="" supervise=() words=()
while (($#)); do
    case "$1" in
    --supervise) module=train.supervise supervise=(--supervise) ;;
    --hostfile) hostfile="${2-}"; [[ -n "$hostfile" ]] || refuse "--hostfile needs a file"; shift ;;
    *) words+=("$1") ;;
    esac
    shift
done
set -- "${words[@]}"
setup
if [[ -n "$hostfile" ]]; then
    exec "$python" -m train.hosts "$hostfile" bash "$root/run_scripts/run_distributed.sh" "$@" "${supervise[@]}"
fi
config="$root/run_scripts/configs/smoke.yaml"
if [[ $# -gt 0 && "$1" != -* ]]; then config="$1"; shift; fi
exec "$python" -m "$module" --config "$config" "$@"
