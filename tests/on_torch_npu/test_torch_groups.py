"""Two pipelines side by side: activations come from the right global rank in either layout."""

from pathlib import Path

import pytest
from groups_worker import CASES
from torchrun_launch import launch


@pytest.fixture(scope="module")
def launched(tmp_path_factory):
    return launch(Path(__file__).with_name("groups_worker.py"), 4, tmp_path_factory.mktemp("groups"))


@pytest.mark.parametrize("case", CASES)
def test_each_pipeline_trains_on_its_own_data(launched, case):
    launched.check(case)
