#!/usr/bin/env bash
# What runs MindSpore on a CPU: the executor's tests, the emulated Ascend, and the demo.
set -euo pipefail
cd "$(dirname "$0")/.."
bash scripts/test.sh mindspore emulated repository
bash scripts/demo.sh
