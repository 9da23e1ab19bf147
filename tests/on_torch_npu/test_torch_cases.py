"""What crosses boundaries, how losses are weighted, what a step leaves behind: on 2 ranks."""

from pathlib import Path

import pytest
from cases_worker import CASES
from torchrun_launch import launch


@pytest.fixture(scope="module")
def launched(tmp_path_factory):
    return launch(Path(__file__).with_name("cases_worker.py"), 2, tmp_path_factory.mktemp("cases"))


@pytest.mark.parametrize("case", CASES)
def test_on_two_ranks(launched, case):
    launched.check(case)


def test_the_launch_ends_well(launched):
    assert launched.returncode == 0, launched.output[-4000:]
