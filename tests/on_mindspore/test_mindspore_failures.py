"""A fault on one rank ends every rank within seconds, with the same first cause."""

import re
from pathlib import Path

import pytest

pytest.importorskip("mindspore")

import mindspore_failing_job
from msrun_launch import launch

pytestmark = pytest.mark.msrun


@pytest.mark.parametrize(
    "how, cause",
    [
        ("raise", r"rank 1: 1F2 \(action \d+ of \d+, step 2\) failed: KeyError: 'no such token'"),
        (
            "shape",
            r"rank 0: 0SEND_F0 \(action \d+ of \d+, step 2\) failed: stage 0 sends another value for micro-batch 0",
        ),
    ],
)
def test_every_rank_ends_with_the_first_cause(tmp_path, how, cause):
    result = launch(Path(mindspore_failing_job.__file__), 3, tmp_path, how, timeout=120, MS_NODE_TIMEOUT="5")
    assert result.returncode != 0
    assert [list(reported) for reported in result.reports] == [["two steps"]] * 3, str(result)
    for log in result.logs:
        assert re.search(cause, log), str(result)
    assert result.seconds < 60, str(result)
