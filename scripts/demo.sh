#!/usr/bin/env bash
# Trains a byte-level GPT three times on the same text, weights and batches, and compares the losses step by step:
# in one process with MindSpore alone, then through the pipeline on 4 ranks with two schedules.
#
#     bash scripts/demo.sh [TEXT FILE…]      # without files: the sources of Python's standard library
#
# Exit status 1 if any loss differs from one process by more than 1e-4, relatively, or the loss fell by less than 1 nat.
# HYPER_PP_DEMO_STEPS (50) is the number of steps.
set -euo pipefail

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
case "${1:-}" in
  --help | -h) sed -n '2,8s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
  -*) echo "demo.sh: takes text files only (got $1)" >&2; exit 2 ;;
esac
text=()
for file in "$@"; do
  if [ ! -f "$file" ] || [ ! -r "$file" ]; then echo "demo.sh: $file is not a readable file" >&2; exit 2; fi
  text+=("$(cd "$(dirname "$file")" && pwd)/$(basename "$file")")
done
source "$root/scripts/environment.sh" || exit 1

ranks=4 chunks=2 micro_batches=8
work="$(mktemp -d "${TMPDIR:-/tmp}/hyper_pp-demo.XXXXXX")"
trap 'rm -rf "$work"' EXIT
cd "$work"
training=(--device CPU --steps "${HYPER_PP_DEMO_STEPS:-50}" --seed 1)
started=$SECONDS
headline() { printf '\n== %s (%d s so far)\n' "$*" "$((SECONDS - started))"; }

headline "1/4 one process, MindSpore alone"
GLOG_v="${GLOG_v:-3}" OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}" python "$root/scripts/train_gpt_single.py" "${training[@]}" \
  --losses-out single.json "${text[@]}"

pipeline() {  # schedule, layers in the preprocess block
  bash "$root/scripts/msrun_train.sh" --ranks "$ranks" --log-dir "$work/$1-logs" --schedule "$1" --chunks "$chunks" \
    --micro-batches "$micro_batches" --num-transpose-layers "$2" "${training[@]}" \
    --losses-out "$work/$1.json" "${text[@]}" && return
  trap - EXIT  # the logs named above stay
  exit 1
}
headline "2/4 mpipe: the embedding is the preprocess block, computed by all ranks"
pipeline mpipe 1
headline "3/4 interleaved: the embedding belongs to stage 0"
pipeline interleaved 0

headline "4/4 what ran, and what came out"
python -m hyper_pp show mpipe --ranks "$ranks" --chunks "$chunks" --micro-batches "$micro_batches" \
  --num-layers 1 --explicit-backward
echo
python "$root/scripts/compare_losses.py" single.json mpipe.json interleaved.json --max-difference 1e-4 --min-fall 1
