#!/usr/bin/env bash
# Starts a training script in one process per rank with torchrun, on CPU or NPU alike:
#
#     bash scripts/torchrun_train.sh --ranks 4 --schedule mpipe --num-transpose-layers 1 --steps 20
#
# --ranks N (4), --timeout SECONDS (600) and --script FILE (scripts/train_gpt_torch.py) are read here, everything else
# goes to the script.
set -euo pipefail

scripts="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
ranks=4 limit=600 script="$scripts/train_gpt_torch.py"
arguments=()
while [ $# -gt 0 ]; do
  case "$1" in
    --help | -h) sed -n '2,7s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
    --ranks | --timeout | --script)
      if [ $# -lt 2 ]; then echo "torchrun_train.sh: $1 needs a value" >&2; exit 2; fi
      case "$1" in
        --ranks) ranks="$2" ;;
        --timeout) limit="$2" ;;
        --script) script="$2" ;;
      esac
      shift 2 ;;
    *) arguments+=("$1"); shift ;;
  esac
done
for pair in "--ranks $ranks" "--timeout $limit"; do
  if ! [[ "${pair#* }" =~ ^[1-9][0-9]*$ ]]; then
    echo "torchrun_train.sh: ${pair% *} must be a whole number of at least 1 (got ${pair#* })" >&2
    exit 2
  fi
done

HYPER_PP_LAYERS="${HYPER_PP_LAYERS:-base torch}"
source "$scripts/environment.sh" || exit 1

threads=$(($(nproc) / ranks))
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-$((threads > 0 ? threads : 1))}" PYTHONUNBUFFERED=1
# Where torch_npu is installed without CANN, loading it would fail.
if [ -z "${TORCH_DEVICE_BACKEND_AUTOLOAD:-}" ] && [ -z "${ASCEND_HOME_PATH:-}" ]; then
  export TORCH_DEVICE_BACKEND_AUTOLOAD=0
fi
status=0
timeout --kill-after=10 "$limit" python -m torch.distributed.run --nproc-per-node "$ranks" \
  --rdzv-backend c10d --rdzv-endpoint localhost:0 "$script" "${arguments[@]}" || status=$?
if [ "$status" = 124 ] || [ "$status" = 137 ]; then
  echo "torchrun_train.sh: not finished after $limit s (--timeout); all ranks were ended" >&2
fi
exit "$status"
