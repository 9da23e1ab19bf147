"""Finds the helpers of these tests, and keeps an installed torch_npu from being loaded where CANN isn't."""

import os
import sys
from pathlib import Path

os.environ.setdefault("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")
sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]
