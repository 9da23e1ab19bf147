"""Finds the helpers of these tests, and makes MindSpore run each operator where it is called."""

import sys
from importlib import util
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1])]

if util.find_spec("mindspore") is not None:
    import mindspore

    # Before the first operator: many times faster on CPU, where the pipeline's threads fight for cores.
    mindspore.set_context(mode=mindspore.PYNATIVE_MODE, device_target="CPU")
    mindspore.runtime.launch_blocking()
