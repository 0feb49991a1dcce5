#!/usr/bin/env bash
# Puts SQuAD v1.1 into a folder: dev-v1.1.json to score on, train-v1.1.json to calibrate on.
#
#     bash prepare_dataset.sh --output_dir=./data
#     bash prepare_dataset.sh --output_dir=./data --local /folder/with/the/files     # without a network
set -euo pipefail
source "$(dirname "$0")/fetch.sh"
read_arguments "$@"

SOURCE=https://rajpurkar.github.io/SQuAD-explorer/dataset
DEV=95aa6a52d5d6a735563366753ca50492a658031da74f301ac5238b03966972c9
TRAIN=3527663986b8295af4f7fcdff1ba1ff3f72d07d61a20f487cb238a6ef92fd955

if [ -n "$local_dir" ]; then
  [ -f "$local_dir/dev-v1.1.json" ] || fail "$local_dir has no dev-v1.1.json."
  cp "$local_dir/dev-v1.1.json" "$output_dir/"
  if [ -f "$local_dir/train-v1.1.json" ]; then
    cp "$local_dir/train-v1.1.json" "$output_dir/"
  else
    # A part of the training questions is enough to calibrate on; its sum cannot be known.
    part="$(find "$local_dir" -maxdepth 1 -name 'train*v1.1*.json' | sort | head -n 1)"
    [ -n "$part" ] || fail "$local_dir has no train-v1.1.json, nor a part of it (train*v1.1*.json). Calibration needs training questions."
    echo "note: calibration will use $(basename "$part"), whose sum is not checked" >&2
    cp "$part" "$output_dir/"
  fi
  chmod u+w "$output_dir"/*.json
else
  download "$SOURCE/dev-v1.1.json" "$output_dir/dev-v1.1.json"
  download "$SOURCE/train-v1.1.json" "$output_dir/train-v1.1.json"
  rm -f "$output_dir"/*.headers
fi
check_sha256 "$output_dir/dev-v1.1.json" "$DEV"
[ ! -f "$output_dir/train-v1.1.json" ] || check_sha256 "$output_dir/train-v1.1.json" "$TRAIN"
echo "SQuAD v1.1 is in $output_dir"
