#!/usr/bin/env bash
# Style and types: ruff, mypy, shell syntax.
cd "$(dirname "$0")/.." && exec bash scripts/test.sh lint
