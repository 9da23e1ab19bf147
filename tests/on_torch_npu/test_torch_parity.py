"""Losses, outputs and gradients of every schedule over the grid equal those of one process."""

from pathlib import Path

import pytest
from parity_worker import grid, name_of, run_case
from torchrun_launch import launch

WORKER = Path(__file__).with_name("parity_worker.py")


@pytest.mark.parametrize("case", grid(), ids=name_of)
def test_one_rank(case):
    run_case(case)


@pytest.fixture(scope="module", params=[2, 4])
def launched(request, tmp_path_factory):
    return launch(WORKER, request.param, tmp_path_factory.mktemp(f"parity{request.param}"), timeout=400)


@pytest.mark.parametrize("case", grid(), ids=name_of)
def test_several_ranks(launched, case):
    launched.check(name_of(case))


def test_the_launch_ends_well(launched):
    assert launched.returncode == 0, launched.output[-4000:]
