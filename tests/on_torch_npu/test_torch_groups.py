"""Two pipelines side by side: messages from the right global rank in either layout, and replicas of one model."""

from pathlib import Path

import pytest
from groups_worker import CASES, REPLICATED, SHARDED
from torchrun_launch import launch


@pytest.fixture(scope="module")
def launched(tmp_path_factory):
    return launch(Path(__file__).with_name("groups_worker.py"), 4, tmp_path_factory.mktemp("groups"))


@pytest.mark.parametrize("case", CASES)
def test_each_pipeline_trains_on_its_own_data(launched, case):
    launched.check(case)


@pytest.mark.parametrize("case", REPLICATED)
def test_replicas_add_up_their_gradients_once_a_step(launched, case):
    launched.check(f"ddp {case}")


@pytest.mark.parametrize("case", SHARDED)
def test_sharded_stages_have_the_gradients_of_one_process(launched, case):
    launched.check(f"sharded {case}")


def test_the_launch_ends_well(launched):
    assert launched.returncode == 0, launched.output[-4000:]
