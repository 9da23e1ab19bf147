"""The transport between real processes: one launch, one test per case."""

from pathlib import Path

import pytest

pytest.importorskip("mindspore")

import mindspore_transport_cases
from msrun_launch import launch

pytestmark = pytest.mark.msrun


@pytest.fixture(scope="module")
def launched(tmp_path_factory):
    return launch(Path(mindspore_transport_cases.__file__), 3, tmp_path_factory.mktemp("transport"))


@pytest.mark.parametrize("case", mindspore_transport_cases.CASES)
def test_transport(launched, case):
    outcomes = [reported.get(case, "not reached") for reported in launched.reports]
    assert outcomes == ["ok"] * 3, f"{outcomes}\n{launched}"


def test_the_launch_ends_well(launched):
    assert launched.returncode == 0, str(launched)
