"""However a rank fails, every rank and the launcher end within 15 s, and the first cause is shown."""

import re
import time
from pathlib import Path

import pytest
from torchrun_launch import launch

KINDS = {
    "raise": r"rank 1: 1F2 \(action \d+ of \d+, step 3\) failed: ZeroDivisionError: division by zero",
    "shape": r"rank 0: 0SEND_F0 \(action \d+ of \d+, step 1\) failed: stage 0 sends another value for micro-batch 0 "
    r"than before \(before: torch.float32\[2, 1\], now: torch.float32\[4, 1\]\); pass dynamic_shapes=True",
    "evaluation shape": r"rank 0: 0SEND_F0 .*before: torch.float32\[1, 1\], now: torch.float32\[4, 1\]",
    "vector loss": r"rank 1: 1F0 \(.*\) failed: the loss must be a scalar tensor of shape \(\) \(got shape \[2, 1\]\)",
    "short loader": r"rank 1 ended its script, while rank 0 waits for transfer",
    "block": r"rank 1: 0TF1 \(action 2 of \d+, step 0\) failed: ZeroDivisionError: division by zero",
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_failure_ends_every_rank_with_its_first_cause(kind, tmp_path):
    result = launch(Path(__file__).with_name("failure_worker.py"), 2, tmp_path, kind, timeout=90)
    ended = time.time()
    assert result.returncode not in (0, None), result.output[-3000:]
    assert len(re.findall(KINDS[kind], result.output)) >= 1, result.output[-3000:]
    faults = [float(at) for at in re.findall(r"fault at ([\d.]+)", result.output)]
    assert faults and ended - max(faults) < 15, f"{ended - max(faults):.1f} s after the fault"
    assert result.output.count("ended well") <= (1 if kind == "short loader" else 0)
    if kind == "raise":
        assert "gradients are as they were" in result.output
