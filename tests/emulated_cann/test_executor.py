"""hyper_pp.mindspore on MindSpore's own Ascend backend: sends that block, streams, fresh memory full of NaN."""

from pathlib import Path

import launch
import pytest

from hyper_pp import ScheduleError, verify

REASON = launch.why_not()
if REASON is not None:
    pytest.skip(REASON, allow_module_level=True)

import crossed_cases  # noqa: E402 - needs what is checked above
import executor_cases  # noqa: E402 - likewise

pytestmark = pytest.mark.msrun


@pytest.fixture(scope="module", params=[2, 4])
def launched(request, tmp_path_factory):
    return launch.launch(Path(executor_cases.__file__), request.param, tmp_path_factory.mktemp("executor"))


@pytest.mark.parametrize("case", [*executor_cases.CASES, *executor_cases.GPT_CASES, executor_cases.OPTIMIZER_CASE])
def test_steps_and_evaluation_are_those_of_one_process(launched, case):
    reports = [reported.get(case, "not reached") for reported in launched.reports]
    assert reports == [{}] * len(reports), str(launched)


def test_the_verifier_refuses_a_plan_whose_sends_cross():
    with pytest.raises(ScheduleError, match=r"deadlock under blocking rendezvous, and with separate .* queues too"):
        verify(crossed_cases.crossed_plan())


def test_a_plan_whose_sends_cross_hangs_until_the_time_out(tmp_path):
    result = launch.launch(
        Path(crossed_cases.__file__), 2, tmp_path, timeout=150, HCCL_EXEC_TIMEOUT="5", MS_NODE_TIMEOUT="10"
    )
    assert [list(reported) for reported in result.reports] == [["the right order"]] * 2, str(result)
    assert result.returncode != 0
    assert any("EI0002" in log for log in result.logs), str(result)


def test_the_same_plan_in_its_own_order_runs(tmp_path):
    result = launch.launch(Path(crossed_cases.__file__), 2, tmp_path, "right", timeout=150, HCCL_EXEC_TIMEOUT="5")
    assert [list(reported) for reported in result.reports] == [["the right order", "the other order"]] * 2, str(result)
    assert result.returncode == 0
