"""Losses and gradients of every schedule equal those of one process: one launch per number of ranks."""

from pathlib import Path

import pytest

pytest.importorskip("mindspore")

import mindspore_parity_cases
from msrun_launch import launch

pytestmark = pytest.mark.msrun
CASES = [mindspore_parity_cases.name_of(case) for case in mindspore_parity_cases.cases()]


@pytest.fixture(scope="module", params=[1, 2, 4])
def launched(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("parity")
    return launch(Path(mindspore_parity_cases.__file__), request.param, folder, timeout=600)


@pytest.mark.parametrize("case", CASES)
def test_loss_and_gradients_are_those_of_one_process(launched, case):
    reports = [reported.get(case, {"error": "not reached"}) for reported in launched.reports]
    assert [report.get("error") for report in reports] == [None] * len(reports), str(launched)
    assert [report["outside"] for report in reports] == [{}] * len(reports)
    names = sorted(name for report in reports for name in report["names"])
    assert names == sorted(reports[0]["all"]), "the ranks together train every parameter once"
