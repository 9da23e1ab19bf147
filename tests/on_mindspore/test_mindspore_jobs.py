"""What a job on several ranks must get right besides the grid: one launch on 2 ranks and one on 4."""

from pathlib import Path

import pytest

pytest.importorskip("mindspore")

import mindspore_job_cases
from msrun_launch import launch

pytestmark = pytest.mark.msrun


@pytest.fixture(scope="module", params=[2, 4])
def launched(request, tmp_path_factory):
    return launch(Path(mindspore_job_cases.__file__), request.param, tmp_path_factory.mktemp("jobs"), timeout=300)


@pytest.mark.parametrize("case", mindspore_job_cases.CASES)
def test_on_every_rank(launched, case):
    reports = [reported.get(case, "not reached") for reported in launched.reports]
    assert reports == ["ok"] * len(reports), f"{reports}\n{launched}"
