"""hyper_pp.torch_npu on torch_npu's own code: backend hccl, sends that block, streams, fresh memory full of NaN."""

import functools
from pathlib import Path

import launch_npu
import pytest

REASON = launch_npu.why_not()
if REASON is not None:
    pytest.skip(REASON, allow_module_level=True)

import crossed_worker  # noqa: E402 - needs what is checked above
import device_cases  # noqa: E402 - likewise
import twin_worker  # noqa: E402 - likewise
from crossed_cases import crossed_plan  # noqa: E402 - likewise

from hyper_pp import ScheduleError, verify  # noqa: E402 - likewise


@pytest.fixture(scope="module")
def launched(tmp_path_factory):
    """Return the launch on so many ranks; each is made at first use."""

    @functools.cache
    def on(num_ranks):
        folder = tmp_path_factory.mktemp(f"twin{num_ranks}")
        return launch_npu.launch(Path(twin_worker.__file__), num_ranks, folder)

    return on


CASES = [(num_ranks, name) for num_ranks in (2, 4) for name in twin_worker.cases_on(num_ranks)]


@pytest.mark.parametrize(("num_ranks", "name"), CASES, ids=[f"P={num_ranks} {name}" for num_ranks, name in CASES])
def test_losses_outputs_and_gradients_are_those_of_the_cpu(launched, num_ranks, name):
    launched(num_ranks).check(name)


@pytest.mark.parametrize("name", device_cases.CASES)
def test_the_emulated_device_itself(launched, name):
    launched(2).check(name)


@pytest.mark.parametrize("num_ranks", [2, 4])
def test_the_launch_ends_well(launched, num_ranks):
    assert launched(num_ranks).returncode == 0, launched(num_ranks).output[-4000:]


def test_the_verifier_refuses_a_plan_whose_sends_cross():
    with pytest.raises(ScheduleError, match=r"deadlock under blocking rendezvous"):
        verify(crossed_plan())


def test_a_plan_whose_sends_cross_hangs_until_the_time_out_where_the_right_order_runs(tmp_path):
    result = launch_npu.launch(Path(crossed_worker.__file__), 2, tmp_path, timeout=150, HCCL_EXEC_TIMEOUT="5")
    for report in result.reports:
        assert report.get("the right order") == "", result.output[-4000:]
        assert report.get("the crossed order") != "", "the step must not end"
    assert result.returncode not in (0, None), result.output[-4000:]
    assert "EI0002" in result.output, result.output[-4000:]
