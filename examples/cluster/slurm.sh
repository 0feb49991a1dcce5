#!/bin/bash
#SBATCH --job-name=octune
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=16
#SBATCH --constraint=icelake
#SBATCH --exclusive
#SBATCH --time=04:00:00
#SBATCH --signal=B:INT@120
# One tuning run on Slurm: sbatch slurm.sh conf.yaml runs/first
# One class of CPU for all nodes (--constraint), whole nodes (--exclusive: speed is measured on the first one),
# and a file system that all nodes share. Two minutes before the time is over the run is interrupted, as by
# Ctrl-C; another job continues it: sbatch slurm.sh --resume runs/first
set -euo pipefail

if [[ $# -ne 2 ]]; then
    echo "usage: sbatch slurm.sh conf.yaml workspace, or sbatch slurm.sh --resume workspace" >&2
    exit 2
fi
command=(octune tune "$1" --workspace "$2")
if [[ $1 == --resume ]]; then
    command=(octune resume "$2")
fi

# shellcheck disable=SC1091
source "${OCTUNE_VENV:-$HOME/octune/.venv}/bin/activate"
export RAY_USAGE_STATS_ENABLED=0

# This script runs on the first node, which is the head. It has no CPUs for Ray: it tunes and times.
mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
address=$(hostname --ip-address | awk '{print $1}')
port=$((20000 + SLURM_JOB_ID % 10000))
ray start --head --node-ip-address="$address" --port="$port" --num-cpus=0 --disable-usage-stats
trap 'ray stop' EXIT
others=$((${#nodes[@]} - 1))
if ((others < 1)); then
    echo "slurm.sh needs at least two nodes: one that tunes, others that score" >&2
    exit 2
fi
srun --nodes="$others" --ntasks="$others" --nodelist="$(IFS=,; echo "${nodes[*]:1}")" \
    ray start --address="$address:$port" --num-cpus="$SLURM_CPUS_PER_TASK" --block &
sleep 15 # a node that comes later is taken in while the run goes on

set -m # without job control a process in the background would ignore the signal
"${command[@]}" --engine ray --address "$address:$port" &
run=$!
trap 'kill -INT "$run"' INT
status=0
wait "$run" || status=$?
if kill -0 "$run" 2>/dev/null; then # the signal ended the wait, and the run is about to end in order
    status=0
    wait "$run" || status=$?
fi
exit "$status"
