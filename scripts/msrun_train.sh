#!/usr/bin/env bash
# Starts a training script in one process per rank with MindSpore's msrun, on CPU or Ascend alike:
#
#     bash scripts/msrun_train.sh --ranks 4 --schedule mpipe --num-transpose-layers 1 --steps 20
#
# --ranks N (4), --timeout SECONDS (600), --log-dir DIR (a temporary folder, kept if the run fails) and --script FILE
# (scripts/train_gpt.py) are read here, everything else goes to the script. Rank 0's output is shown as it comes.
set -euo pipefail

usage() { sed -n '2,7s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; }

scripts="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
ranks=4 limit=600 log_dir="" script="$scripts/train_gpt.py"
arguments=()
while [ $# -gt 0 ]; do
  case "$1" in
    --help | -h) usage; exit 0 ;;
    --ranks | --timeout | --log-dir | --script)
      if [ $# -lt 2 ]; then echo "msrun_train.sh: $1 needs a value" >&2; exit 2; fi
      case "$1" in
        --ranks) ranks="$2" ;;
        --timeout) limit="$2" ;;
        --log-dir) log_dir="$2" ;;
        --script) script="$2" ;;
      esac
      shift 2 ;;
    *) arguments+=("$1"); shift ;;
  esac
done
for pair in "--ranks $ranks" "--timeout $limit"; do
  if ! [[ "${pair#* }" =~ ^[1-9][0-9]*$ ]]; then
    echo "msrun_train.sh: ${pair% *} must be a whole number of at least 1 (got ${pair#* })" >&2
    exit 2
  fi
done

source "$scripts/environment.sh" || exit 1

keep_logs=yes
if [ -z "$log_dir" ]; then
  log_dir="$(mktemp -d "${TMPDIR:-/tmp}/hyper_pp-msrun.XXXXXX")"
  keep_logs=no
fi
mkdir -p "$log_dir"
log_dir="$(cd "$log_dir" && pwd)"
rm -f "$log_dir"/worker_*.log "$log_dir"/scheduler.log
: >"$log_dir/worker_0.log"

# msrun's workers live in sessions of their own and outlive it. They are found again by a mark in their environment, so
# that nothing but this run's processes is ever ended.
mark="HYPER_PP_RUN=$$-$RANDOM$RANDOM"
launcher="" viewer=""
end_workers() {
  local environment pid
  # grep also fails for processes that are gone by now or belong to others.
  { grep -lzsx "$mark" /proc/[0-9]*/environ || true; } | while read -r environment; do
    pid="${environment#/proc/}"
    kill -KILL "${pid%/environ}" 2>/dev/null || true
  done
  [ -z "$launcher" ] || wait "$launcher" 2>/dev/null || true
}
finish() {
  local status=$?
  trap - EXIT INT TERM
  end_workers
  [ -z "$viewer" ] || kill "$viewer" 2>/dev/null || true
  if [ "$status" = 0 ] && [ "$keep_logs" = no ]; then rm -rf "$log_dir"; fi
  exit "$status"
}
last_error() { { grep '^[A-Za-z_.]*\(Error\|Exception\|Interrupt\)\b' "$1" || true; } | tail -n 1; }
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

port="$(python -c 'import socket
with socket.socket() as s:
    s.bind(("127.0.0.1", 0))
    print(s.getsockname()[1])')"
# With few cores per rank each rank gets cores of its own: MindSpore's helper threads would otherwise spin on the cores
# that other ranks compute on, which takes twice the time.
cores_per_rank=$(($(nproc) / ranks))
binding=()
if [ "$cores_per_rank" -lt 4 ] && command -v taskset >/dev/null; then
  binding=("--bind_core=$(python -c 'import json, os, sys
ranks, cores = int(sys.argv[1]), sorted(os.sched_getaffinity(0))
share = max(1, len(cores) // ranks)
mine = lambda rank: [str(cores[(rank * share + index) % len(cores)]) for index in range(share)]
print(json.dumps({f"device{rank}": mine(rank) for rank in range(ranks)}))' "$ranks")")
fi

# GLOG_v=3 leaves errors only. The node time-out is how long the scheduler waits before it gives a silent rank up.
env "$mark" GLOG_v="${GLOG_v:-3}" OMP_NUM_THREADS="${OMP_NUM_THREADS:-$((cores_per_rank > 0 ? cores_per_rank : 1))}" \
  MS_NODE_TIMEOUT="${MS_NODE_TIMEOUT:-10}" PYTHONUNBUFFERED=1 \
  timeout --kill-after=10 "$limit" \
  python -m mindspore.parallel.cluster.run --worker_num="$ranks" --local_worker_num="$ranks" \
  --master_addr=127.0.0.1 --master_port="$port" --log_dir="$log_dir" --join=True --cluster_time_out=120 \
  "${binding[@]}" \
  "$script" "${arguments[@]}" >"$log_dir/msrun.log" 2>&1 &
launcher=$!
# The lines left out are MindSpore's, about sockets, and come at every end.
tail -n +1 -F --sleep-interval=0.5 --pid="$launcher" "$log_dir/worker_0.log" 2>/dev/null |
  grep --line-buffered -v '^\[INFO\] DISTRIBUTED' &
viewer=$!

status=0
wait "$launcher" || status=$?
wait "$viewer" 2>/dev/null || true
viewer=""
if [ "$status" != 0 ]; then
  keep_logs=yes
  {
    if [ "$status" = 124 ] || [ "$status" = 137 ]; then
      echo "msrun_train.sh: not finished after $limit s (--timeout); all ranks were ended"
    else
      # A rank that a signal ended may have had no time to say anything.
      signal="$({ grep -o 'Error code: -[0-9]*' "$log_dir/msrun.log" || true; } | sed -n '1s/.*-//p')"
      echo "msrun_train.sh: the run failed${signal:+; a rank was ended by signal $signal (SIG$(kill -l "$signal"))}"
    fi
    # Rank 0's output has been shown above; of ranks that say the same, one is enough.
    shown=" $(last_error "$log_dir/worker_0.log")"
    for log in "$log_dir"/worker_*.log; do
      grep -q '^Traceback' "$log" || continue
      last="$(last_error "$log")"
      if [ "$(basename "$log")" = worker_0.log ] || grep -qxF -e " $last" <<<"$shown"; then continue; fi
      shown+=$'\n'" $last"
      echo "--- $(basename "$log")"
      sed -n '/^Traceback/,$p' "$log" | grep -v '^\[INFO\] DISTRIBUTED' | head -n 60
    done
    echo "logs: $log_dir"
  } >&2
  exit 1
fi
