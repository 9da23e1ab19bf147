#!/usr/bin/env bash
# A smoke test for a host with Ascend NPUs: trains a few steps in one process and through the pipeline, and compares.
#
#     HYPER_PP_PYTHON=/path/to/python bash ci/npu_smoke.sh      # an interpreter with MindSpore for your CANN
#
# This script has not been run on hardware. RANKS (2) must be at most the number of NPUs. The tolerance is wider than the
# CPU's because NPU kernels may sum in another order for other shapes.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/environment.sh || exit 1
ranks="${RANKS:-2}"
if ! python -c 'import sys, mindspore as ms; sys.exit(0 if ms.hal.is_available("Ascend") else 1)' >/dev/null 2>&1; then
  echo "npu_smoke.sh: MindSpore of $HYPER_PP_PYTHON finds no Ascend backend (is CANN's set_env.sh sourced?)" >&2
  exit 1
fi
work="$(mktemp -d "${TMPDIR:-/tmp}/hyper_pp-npu.XXXXXX")"
shapes=(--device Ascend --steps 20 --batch-size 8 --layers 6 --hidden 64 --heads 2 --context 64)
python scripts/train_gpt_single.py "${shapes[@]}" --losses-out "$work/single.json"
for schedule in 1f1b interleaved mpipe; do
  chunks=2 transposed=0
  [ "$schedule" != 1f1b ] || chunks=1
  [ "$schedule" != mpipe ] || transposed=1
  bash scripts/msrun_train.sh --ranks "$ranks" --log-dir "$work/$schedule" --schedule "$schedule" --chunks "$chunks" \
    --num-transpose-layers "$transposed" --micro-batches 4 "${shapes[@]}" --losses-out "$work/$schedule.json"
done
python scripts/compare_losses.py "$work"/{single,1f1b,interleaved,mpipe}.json --max-difference 1e-2 --min-fall 0.3
echo "logs and losses: $work"
