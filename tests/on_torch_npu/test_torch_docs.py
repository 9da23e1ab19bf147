"""The script on the migration page trains the same before and after."""

import re
from pathlib import Path

import pytest
from torchrun_launch import ROOT, launch

PAGE = ROOT / "docs" / "migrating_from_torch_pipelining.md"


def script_of(side):
    (diff,) = re.findall(r"```diff\n(.*?)```", PAGE.read_text(), re.DOTALL)
    return "".join(line[1:] + "\n" for line in diff.splitlines() if line[:1] in (" ", side, ""))


def losses_of(side, folder: Path):
    script = folder / "train.py"
    script.write_text(script_of(side).replace("__file__", repr(str(PAGE))))
    result = launch(script, 2, folder)
    assert result.returncode == 0, result.output[-3000:]
    return [float(loss) for loss in re.findall(r"step \d+: ([\d.]+)", result.output)]


def test_the_diff_changes_one_import_and_no_loss(tmp_path_factory):
    before, after = (losses_of(side, tmp_path_factory.mktemp("page")) for side in "-+")
    assert len(before) == 20 and before[-1] < before[0] - 1
    assert after == pytest.approx(before, abs=2e-4)
