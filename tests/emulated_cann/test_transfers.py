"""What the emulated HCCL does with sends that cross, without hyper_pp: why an order that CPU forgives is refused."""

from pathlib import Path

import pytest

launch = pytest.importorskip("launch")
REASON = launch.why_not()
if REASON is not None:
    pytest.skip(REASON, allow_module_level=True)

SCRIPT = Path(__file__).with_name("crossed_transfers.py")
pytestmark = pytest.mark.msrun


@pytest.mark.parametrize("how", ["send", "isend"])
def test_two_ranks_that_both_send_first_hang_until_the_time_out(tmp_path, how):
    result = launch.launch(SCRIPT, 2, tmp_path, how, timeout=90, HCCL_EXEC_TIMEOUT="5", MS_NODE_TIMEOUT="10")
    assert result.reports == [{"started": True}] * 2, str(result)
    assert result.returncode > 0, str(result)
    assert any("EI0002" in log for log in result.logs), str(result)


def test_a_batch_of_a_send_and_a_receive_does_not_hang(tmp_path):
    result = launch.launch(SCRIPT, 2, tmp_path, "batch", timeout=90, HCCL_EXEC_TIMEOUT="5", MS_NODE_TIMEOUT="10")
    received = [reported.get("received") for reported in result.reports]
    assert received == [[2.0] * 4, [1.0] * 4], str(result)
    assert result.returncode == 0
