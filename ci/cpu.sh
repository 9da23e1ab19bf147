#!/usr/bin/env bash
# What runs a framework on a CPU: the executors' tests, the emulated Ascend, and the demo.
set -euo pipefail
cd "$(dirname "$0")/.."
bash scripts/test.sh mindspore torch emulated emulated_npu repository
bash scripts/demo.sh
