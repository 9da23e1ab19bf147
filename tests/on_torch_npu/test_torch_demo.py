"""The demo on torch gives the losses that MindSpore gives in one process."""

import json

import pytest
from torchrun_launch import ROOT, launch

# scripts/train_gpt_single.py LICENSE --steps 20 --layers 4 --hidden 32 --context 32, MindSpore 2.10 on a CPU.
MINDSPORE = [
    5.528785, 5.526759, 5.496813, 5.503118, 5.430075, 5.408993, 5.368129, 5.333131, 5.274798, 5.279993,
    5.218626, 5.182215, 5.199888, 5.075575, 5.028467, 4.991639, 4.978420, 4.918762, 4.902157, 4.811394,
]


@pytest.mark.parametrize(
    "ranks, options",
    [
        (2, ["--schedule", "mpipe", "--num-transpose-layers", "1"]),
        (2, ["--schedule", "mpipe", "--micro-batches", "3"]),
        (2, ["--schedule", "interleaved"]),
        (1, ["--schedule", "1f1b"]),
    ],
)
def test_the_losses_are_those_of_mindspore_in_one_process(ranks, options, tmp_path):
    script = ROOT / "scripts" / "train_gpt_torch.py"
    sizes = ["--steps", "20", "--layers", "4", "--hidden", "32", "--context", "32", "--device", "CPU"]
    report = tmp_path / "losses.json"
    text = str(ROOT / "LICENSE")
    result = launch(script, ranks, tmp_path, text, *sizes, *options, "--losses-out", str(report))
    assert result.returncode == 0, result.output[-3000:]
    assert json.loads(report.read_text())["losses"] == pytest.approx(MINDSPORE, rel=1e-5)
