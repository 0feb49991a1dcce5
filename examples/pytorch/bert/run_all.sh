#!/usr/bin/env bash
# Tunes every task for which there is a model and data:
#
#     ./run_all.sh MODELS DATA [OUTPUT]
#
# MODELS holds one folder a task, whose name ends in it (bert-base-mrpc, minilm-l6-sst2). DATA holds glue/MRPC and so on, and squad.
# Results go to OUTPUT/TASK, ./result if left out. A task that fails does not stop the others; it makes the exit code 1.
set -uo pipefail
[ $# -ge 2 ] || { sed -n '2,7s/^# \{0,1\}//p' "$0" >&2; exit 2; }
models="$1" data="$2" output="${3:-./result}" here="$(dirname "$0")"
failed=() done_with=()

model_of() { find -L "$models" -mindepth 1 -maxdepth 1 -type d -iname "*[-_]$1" | sort | head -n 1; }

for task in cola sst2 mrpc stsb qqp mnli qnli rte wnli squad; do
  model="$(model_of "$task")"
  [ -n "$model" ] || continue
  echo "== $task: $model"
  if [ "$task" = squad ]; then
    python "$here/run_squad_tune.py" --model_name_or_path="$model" --data_dir="$data/squad" --output_dir="$output/$task"
  else
    python "$here/run_glue_tune.py" --task_name="$task" --model_name_or_path="$model" --data_dir="$data/glue" --output_dir="$output/$task"
  fi && done_with+=("$task") || failed+=("$task")
done

[ ${#done_with[@]} -gt 0 ] || [ ${#failed[@]} -gt 0 ] || { echo "no model in $models ends in the name of a task" >&2; exit 1; }
echo "tuned: ${done_with[*]:-none}; failed: ${failed[*]:-none}"
[ ${#failed[@]} -eq 0 ]
