#!/usr/bin/env bash
# Usage: bash run_scripts/cluster/boot.sh [CONFIG] [--set key=value ...]
#
# What a container starts with, on Kubernetes with Volcano (volcano.yaml) and on ModelArts: takes nodes and ranks from the variables
# that both set, sets CANN's environment if it is not set, and becomes run_distributed.sh --supervise.
#   MA_NUM_HOSTS or VC_WORKER_NUM -> NNODES, VC_TASK_INDEX -> NODE_RANK, the first of VC_WORKER_HOSTS -> MASTER_ADDR
# RANK_TABLE_FILE, where there is one, is waited for until it is filled in; it must agree with these. RANK_TABLE_FILE_V_1_0, which
# some clusters set beside it, goes before it. A table of the old form (group_list), which nothing here needs, is done without.
# MINDGPT_WAIT_SECONDS: for the table and for the first host's name (600).
set -euo pipefail
unset CDPATH  # with it `cd` prints the folder
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)"
refuse() { echo "boot.sh: $*" >&2; exit 2; }

# wait_for WHAT COMMAND...: until the command succeeds.
wait_for() {
    local end=$((SECONDS + ${MINDGPT_WAIT_SECONDS:-600}))
    until "${@:2}"; do
        ((SECONDS < end)) || refuse "$1, after ${MINDGPT_WAIT_SECONDS:-600} s"
        sleep 1
    done
}

export NNODES="${MA_NUM_HOSTS:-${VC_WORKER_NUM:-1}}"
if [[ "$NNODES" != 1 ]]; then
    [[ -n "${VC_WORKER_HOSTS-}" && -n "${VC_TASK_INDEX-}" ]] ||
        refuse "$NNODES nodes, but VC_WORKER_HOSTS and VC_TASK_INDEX are not set: is the task named worker, with the plugins svc and env?"
    export NODE_RANK="$VC_TASK_INDEX" MASTER_ADDR="${VC_WORKER_HOSTS%%,*}" MASTER_PORT="${MASTER_PORT:-8118}"
    resolves() { getent hosts "$MASTER_ADDR" >/dev/null; }
    wait_for "the name $MASTER_ADDR is not known" resolves  # pods start one after the other
fi
[[ -z "${RANK_TABLE_FILE_V_1_0-}" ]] || export RANK_TABLE_FILE="$RANK_TABLE_FILE_V_1_0"
if [[ -n "${RANK_TABLE_FILE-}" ]]; then
    completed() { grep -Eqs '"status" *: *"completed"' "$RANK_TABLE_FILE"; }
    wait_for "the status of RANK_TABLE_FILE=$RANK_TABLE_FILE is not completed" completed
    if grep -q '"group_list"' "$RANK_TABLE_FILE"; then unset RANK_TABLE_FILE; fi
fi
if [[ -z "${ASCEND_HOME_PATH-}" ]]; then
    for cann in cann ascend-toolkit; do
        if [[ -f "${ASCEND_ROOT:-/usr/local/Ascend}/$cann/set_env.sh" ]]; then
            set +eu
            # shellcheck disable=SC1090  # CANN's own
            source "${ASCEND_ROOT:-/usr/local/Ascend}/$cann/set_env.sh"
            set -eu
            break
        fi
    done
fi
export MINDGPT_GRACE_SECONDS="${MINDGPT_GRACE_SECONDS:-540}"  # to save in, of the 600 that volcano.yaml leaves
exec bash "$root/run_scripts/run_distributed.sh" --supervise "$@"
