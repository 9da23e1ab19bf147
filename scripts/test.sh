#!/usr/bin/env bash
# Runs the checks, stage by stage, and stops at the first that fails:
#
#     bash scripts/test.sh [lint] [core] [mindspore] [torch] [emulated] [emulated_npu] [repository]   # default: all
#
# The last line tells how many tests passed and failed. A stage that executed no test counts as failed.
set -euo pipefail

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
all=(lint core mindspore torch emulated emulated_npu repository)
case "${1:-}" in --help | -h) sed -n '2,6s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;; esac
stages=("$@")
[ $# -gt 0 ] || stages=("${all[@]}")
for stage in "${stages[@]}"; do
  if [[ " ${all[*]} " != *" $stage "* ]]; then
    echo "test.sh: a stage must be one of ${all[*]} (got $stage)" >&2
    exit 2
  fi
done
layers=base
if [[ " ${stages[*]} " =~ " torch "|" emulated_npu " ]]; then layers="base torch"; fi  # and npu, when its stage comes
HYPER_PP_LAYERS="$layers" source "$root/scripts/environment.sh" || exit 1
cd "$root"
# With torch-npu installed and no CANN, torch does not load unless told not to look for it.
export TORCH_DEVICE_BACKEND_AUTOLOAD="${TORCH_DEVICE_BACKEND_AUTOLOAD:-0}"
export GLOG_v="${GLOG_v:-3}" OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"

reports="$(mktemp -d "${TMPDIR:-/tmp}/hyper_pp-test.XXXXXX")"
trap 'rm -rf "$reports"' EXIT
passed=0 failed=0 skipped=0

# Runs pytest on $2… for stage $1 and adds up what its report says. 25 minutes are a limit for hangs, not a goal.
run_pytest() {
  local status=0 counts
  timeout --kill-after=30 1500 python -m pytest -q --junitxml="$reports/$1.xml" "${@:2}" || status=$?
  counts="$(python - "$reports/$1.xml" <<'PY'
import sys, xml.etree.ElementTree
try:
    suites = list(xml.etree.ElementTree.parse(sys.argv[1]).getroot().iter("testsuite"))
except (OSError, xml.etree.ElementTree.ParseError):
    suites = []
total, bad, skip = (sum(int(s.get(k, 0)) for s in suites for k in keys)
                    for keys in (("tests",), ("failures", "errors"), ("skipped",)))
print(total - bad - skip, bad, skip)
PY
)"
  read -r ok bad skip <<<"$counts"
  passed=$((passed + ok)) failed=$((failed + bad)) skipped=$((skipped + skip))
  if [ "$status" = 124 ] || [ "$status" = 137 ]; then echo "stage $1: not finished after 1500 s"; fi
  if [ "$status" = 0 ] && [ "$ok" = 0 ]; then echo "stage $1: no test was executed"; return 1; fi
  return "$status"
}

stage_lint() {
  local script
  python -m ruff check . || return 1
  python -m mypy || return 1
  for script in scripts/*.sh ci/*.sh .ci/run; do bash -n "$script" || return 1; done
}
stage_core() { run_pytest core tests/core; }
stage_mindspore() { run_pytest mindspore tests/on_mindspore; }
stage_torch() { run_pytest torch tests/on_torch_npu; }
# MindSpore and torch_npu with their own NPU code, on stand-ins for CANN's libraries that are compiled here.
can_emulate() {
  if [ "$(uname -m)" != x86_64 ]; then echo "skipped: the emulated CANN needs x86-64 (got $(uname -m))"; return 1; fi
  if ! command -v g++ >/dev/null; then echo "skipped: the emulated CANN needs g++ (got none)"; return 1; fi
}
stage_emulated() { ! can_emulate || run_pytest emulated tests/emulated_cann --ignore tests/emulated_cann/on_torch_npu; }
stage_emulated_npu() {
  can_emulate || return 0
  if ! HYPER_PP_LAYERS="base torch npu" source "$root/scripts/environment.sh"; then
    echo "skipped: torch-npu can't be installed; why is said above"
    return
  fi
  if ! python -c 'import importlib.util, sys; sys.exit(importlib.util.find_spec("torch_npu") is None)'; then
    echo "skipped: HYPER_PP_PYTHON has no torch-npu (got $HYPER_PP_PYTHON)"
    return
  fi
  run_pytest emulated_npu tests/emulated_cann/on_torch_npu
}
stage_repository() { run_pytest repository tests/repository; }

outcome=0
for stage in "${stages[@]}"; do
  started=$SECONDS
  printf '\n== %s\n' "$stage"
  if "stage_$stage"; then
    printf '== %s: passed in %d s\n' "$stage" "$((SECONDS - started))"
  else
    printf '== %s: FAILED after %d s\n' "$stage" "$((SECONDS - started))"
    # A stage may fail without a failed test: a lint error, a crash, nothing collected.
    [ "$failed" -gt 0 ] || failed=1
    outcome=1
    break
  fi
done
printf '\n%d passed, %d failed, %d skipped\n' "$passed" "$failed" "$skipped"
exit "$outcome"
