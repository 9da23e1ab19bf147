#!/usr/bin/env bash
# The core: schedules, passes, verifier, simulator, engine; no framework runs.
cd "$(dirname "$0")/.." && exec bash scripts/test.sh core
