#!/usr/bin/env bash
# Puts BERT-large, fine-tuned on SQuAD v1.1, into a folder: a TensorFlow 1 checkpoint with its bert_config.json and vocab.txt.
#
#     bash prepare_model.sh --output_dir=./model                    # 3.4 GB and 1.2 GB
#     bash prepare_model.sh --output_dir=./model --local DIR        # DIR holds the two archives, or a checkpoint of either kind
#
# The checkpoint is Intel's, the configuration and the vocabulary are those of google-research's BERT-large, Uncased (Whole Word Masking).
set -euo pipefail
source "$(dirname "$0")/fetch.sh"
read_arguments "$@"

CHECKPOINT=https://storage.googleapis.com/intel-optimized-tensorflow/models/v1_8/bert_large_checkpoints.zip
GOOGLE=https://storage.googleapis.com/bert_models/2019_05_30/wwm_uncased_L-24_H-1024_A-16.zip

# take ARCHIVE PATTERN...: takes files out of an archive, without its folders; the archive's own CRC sums are checked on the way.
take() {
  local archive="$1"
  shift
  unzip -o -q -j "$archive" "$@" -d "$output_dir" || fail "$archive is broken or lacks $*. Delete it and fetch it again."
}

# A checkpoint that is unpacked already, of google-research's kind or of Hugging Face's, is linked: it may be large.
if [ -n "$local_dir" ] && { [ -f "$local_dir/bert_config.json" ] || [ -f "$local_dir/config.json" ]; }; then
  ln -sf "$(realpath "$local_dir")"/* "$output_dir/"
else
  archives="${local_dir:-$output_dir}"
  for url in "$CHECKPOINT" "$GOOGLE"; do
    archive="$archives/$(basename "$url")"
    if [ -n "$local_dir" ]; then
      [ -f "$archive" ] || fail "$local_dir has neither $(basename "$url") nor a checkpoint (bert_config.json or config.json)."
    else
      download "$url" "$archive"
      [ ! -f "$archive.headers" ] || check_stated "$archive" "$archive.headers"
    fi
  done
  take "$archives/$(basename "$CHECKPOINT")" '*model.ckpt-*'
  take "$archives/$(basename "$GOOGLE")" '*bert_config.json' '*vocab.txt'
  [ -n "$local_dir" ] || rm -f "$archives"/*.zip "$archives"/*.headers
fi

if [ -f "$output_dir/bert_config.json" ]; then
  compgen -G "$output_dir/*.ckpt*.index" > /dev/null || fail "$output_dir has no checkpoint (model.ckpt-*.index)."
  [ -f "$output_dir/vocab.txt" ] || fail "$output_dir has no vocab.txt."
fi
echo "the model is in $output_dir"
