"""Runs scripts/train_vlm.py once for each list of arguments in a file, in one launch."""

import json
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parents[2] / "scripts")]

from msrun_launch import settle  # noqa: E402  the folders have to be on the path first

settle()  # before MindSpore is imported

import train_vlm  # noqa: E402

for case in json.loads(Path(sys.argv[1]).read_text()):
    sys.argv = ["train_vlm.py", *case]
    train_vlm.main()
