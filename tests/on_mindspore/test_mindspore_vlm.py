"""The vision-language example gives the losses of one process, on 2 ranks that each read only what they own."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("mindspore")

from msrun_launch import ROOT, launch

SIZES = ["--steps", "8", "--batch-size", "12", "--layers", "2", "--hidden", "32", "--tower-layers", "1"]
SIZES += ["--tower-hidden", "16", "--heads", "2", "--warmup-steps", "2", "--device", "CPU"]
# What scripts/train_vlm_single.py gave with these sizes.
LOSSES = {
    "trained": [5.542659, 5.496799, 5.393545, 5.326218, 5.132534, 5.057450, 4.959110, 4.941808],
    "frozen": [5.542659, 5.496997, 5.393792, 5.326532, 5.132698, 5.057639, 4.959344, 4.942103],
}


def losses_of(report):
    return json.loads(report.read_text())["losses"]


@pytest.mark.parametrize("tower", ["trained", "frozen"])
def test_one_process_gives_these_losses(tower, tmp_path):
    report = tmp_path / "losses.json"
    options = [*SIZES, *(["--frozen"] if tower == "frozen" else []), "--losses-out", str(report)]
    subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "train_vlm_single.py"), *options],
        env={**os.environ, "PYTHONPATH": str(ROOT), "GLOG_v": "3"},
        check=True,
        timeout=120,
    )
    # A frozen tower differs from a trained one by 3e-5 and more from the second step on.
    assert losses_of(report) == pytest.approx(LOSSES[tower], rel=3e-6)


PIPELINES = {
    "transpose": ("trained", ["--schedule", "transpose"]),
    "transpose, frozen": ("frozen", ["--schedule", "transpose", "--chunks", "2", "--micro-batches", "5", "--frozen"]),
    "mpipe": ("trained", ["--schedule", "mpipe", "--micro-batches", "5"]),
    "mpipe, frozen": ("frozen", ["--schedule", "mpipe", "--frozen"]),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Run all pipelines in one launch; return where their losses are."""
    folder = tmp_path_factory.mktemp("vlm")
    cases = [[*SIZES, *options, "--losses-out", str(folder / name)] for name, (_, options) in PIPELINES.items()]
    (folder / "cases.json").write_text(json.dumps(cases))
    result = launch(Path(__file__).with_name("vlm_worker.py"), 2, folder, str(folder / "cases.json"))
    assert result.returncode == 0, result
    assert result.logs[0].count("of 12 pages it has not seen are written right") == len(cases), result
    return folder


@pytest.mark.msrun
@pytest.mark.parametrize("name", PIPELINES)
def test_the_pipeline_gives_the_same(name, folder):
    assert losses_of(folder / name) == pytest.approx(LOSSES[PIPELINES[name][0]], rel=3e-6)
