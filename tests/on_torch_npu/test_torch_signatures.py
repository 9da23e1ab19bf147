"""The names, signatures and limits of torch.distributed.pipelining."""

import importlib
import inspect
import subprocess
import sys

import pytest
import torch
import torch.distributed as dist
import torch.distributed.pipelining as theirs
from torch import nn
from torch.distributed.pipelining import microbatch as their_microbatch
from torch.distributed.pipelining import schedules as their_schedules
from torch.testing._internal.distributed.fake_pg import FakeStore

import hyper_pp.torch_npu as ours

CPU = torch.device("cpu")
HERE = [*theirs.__all__, "PipelineScheduleSingle", "get_schedule_class", "TensorChunkSpec"]
HERE += ["split_args_kwargs_into_chunks", "merge_chunks"]


def their(name):
    for module in (theirs, their_schedules, their_microbatch):
        if hasattr(module, name):
            return getattr(module, name)
    raise LookupError(name)


@pytest.mark.parametrize("name", HERE)
def test_a_public_name_has_torchs_signature(name):
    assert name in ours.__all__
    assert inspect.signature(getattr(ours, name)) == inspect.signature(their(name))


@pytest.mark.parametrize("name", ["ScheduleGPipe", "Schedule1F1B", "ScheduleInterleaved1F1B", "ScheduleLoopedBFS"])
@pytest.mark.parametrize("method", ["step", "eval"])
def test_step_and_eval_have_torchs_signatures(name, method):
    assert inspect.signature(getattr(getattr(ours, name), method)) == inspect.signature(getattr(their(name), method))


@pytest.mark.parametrize("name", ["GPipe", "1F1B", "Interleaved1F1B", "LoopedBFS", "InterleavedZeroBubble"])
def test_a_schedule_is_found_by_torchs_name_in_any_case(name):
    for text in (name, name.lower(), name.upper()):
        assert ours.get_schedule_class(text).__name__ == their_schedules.get_schedule_class(name).__name__


def test_an_unknown_name_is_an_error_that_lists_the_known():
    with pytest.raises(ValueError, match=r"unknown schedule 'ScheduleX' \(known: gpipe, 1f1b, "):
        ours.get_schedule_class("ScheduleX")


MODULES = {
    "schedules": ["PipelineScheduleMulti", "ScheduleGPipe", "_PipelineSchedule", "_PipelineScheduleRuntime", "_Action"],
    "stage": ["PipelineStage", "_PipelineStageBase", "build_stage"],
    "microbatch": ["TensorChunkSpec", "merge_chunks", "split_args_kwargs_into_chunks"],
}


@pytest.mark.parametrize("module, name", [(module, name) for module, names in MODULES.items() for name in names])
def test_a_module_has_what_is_imported_from_torchs_module_of_its_name(module, name):
    assert hasattr(importlib.import_module(f"torch.distributed.pipelining.{module}"), name)
    found = getattr(importlib.import_module(f"hyper_pp.torch_npu.{module}"), name)
    runs_something = name.startswith(("Pipeline", "Schedule", "_PipelineSchedule"))
    assert found.__module__.startswith("hyper_pp." if runs_something else "torch.")


def test_a_module_has_no_other_of_torchs_names():
    with pytest.raises(AttributeError, match="no attribute _batch_p2p"):
        importlib.import_module("hyper_pp.torch_npu.schedules")._batch_p2p  # noqa: B018


def test_an_order_of_ours_passes_torchs_own_validation():
    from hyper_pp.torch_npu.schedules import _format_pipeline_order, _validate_schedule

    schedule = ours.ScheduleInterleavedZeroBubble(stages(0, 1, 2), 4)
    assert _validate_schedule(schedule.pipeline_order, 1, 3, 4) == {0: 0, 1: 0, 2: 0}
    assert "Step 00: 0F0" in _format_pipeline_order(schedule.pipeline_order)


@pytest.fixture
def fake_group():
    dist.init_process_group("fake", rank=0, world_size=1, store=FakeStore())
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("rows", ["0F0 0F1 1F0 1F1 1B0 1B1 0B0 0B1", "0F0 1F0 1I0 0I0 0F1 1F1 1B1 0B1 1W0 0W0"])
def test_one_rank_runs_an_order_of_ones_own_on_a_fake_group(fake_group, rows):
    from hyper_pp.torch_npu.schedules import _Action, _PipelineScheduleRuntime

    own = stages(0, 1)
    schedule = _PipelineScheduleRuntime(own, 2, nn.MSELoss(reduction="sum"), scale_grads=False)
    schedule._prepare_schedule_with_comms({0: [_Action.from_str(row) for row in rows.split()]}, format="compute_comms")
    x = torch.randn(4, 2)
    losses = []
    output = schedule.step(x, target=-x, losses=losses)
    torch.testing.assert_close(schedule.eval(x), output)
    found = [stage.submod.weight.grad for stage in own]
    for stage in own:
        stage.submod.zero_grad()
    expected = own[1].submod(own[0].submod(x))
    loss = nn.functional.mse_loss(expected, -x, reduction="sum")
    loss.backward()
    torch.testing.assert_close(output, expected.detach())
    torch.testing.assert_close(sum(losses), loss.detach())
    torch.testing.assert_close(found, [stage.submod.weight.grad for stage in own])


@pytest.mark.parametrize("schedule", [ours.ScheduleInterleavedZeroBubble, ours.ScheduleZBVZeroBubble])
def test_a_compiled_module_is_refused_where_the_backward_is_split(schedule):
    compiled = torch.compile(nn.Linear(2, 2), backend="eager")
    whole = ours.PipelineStage(compiled, 0, 1, CPU)
    part = ours.PipelineStage(nn.Sequential(nn.Linear(2, 2), compiled), 0, 1, CPU)
    for stage, name in ((whole, "the whole"), (part, "1")):
        with pytest.raises(RuntimeError, match=rf"under torch\.compile \(got {name} of stage 0\): leave it"):
            schedule([stage], 2)


def test_a_compiled_module_is_refused_in_an_order_of_ones_own_only_if_it_splits_the_backward():
    stage = ours.PipelineStage(torch.compile(nn.Linear(2, 2), backend="eager"), 0, 1, CPU)
    schedule = ours.PipelineScheduleMulti([stage], 1, nn.MSELoss())
    with pytest.raises(RuntimeError, match=r"under torch\.compile"):
        schedule.pipeline_order = {0: ["0F0", "0I0", "0W0"]}
    schedule.pipeline_order = {0: ["0F0", "0B0"]}
    x = torch.randn(3, 2)
    torch.testing.assert_close(schedule.step(x, target=x), stage.submod(x).detach())


def test_dualpipev_is_refused_by_name():
    stage = ours.PipelineStage(nn.Linear(2, 2), 0, 1, CPU)
    with pytest.raises(NotImplementedError, match="ScheduleDualPipeV is not supported"):
        ours.ScheduleDualPipeV([stage], 2)


def stages(*indices, count=None):
    return [ours.PipelineStage(nn.Linear(2, 2), index, count or len(indices), CPU) for index in indices]


@pytest.mark.parametrize("m, error", [(0, ValueError), (-1, ValueError), (True, TypeError), (2.0, TypeError)])
def test_a_wrong_number_of_micro_batches_is_an_error(m, error):
    with pytest.raises(error, match="n_microbatches must be"):
        ours.ScheduleGPipe(stages(0)[0], m)


def test_stages_and_placement_must_fit():
    with pytest.raises(ValueError, match="stage_index must be below num_stages"):
        ours.PipelineStage(nn.Linear(2, 2), 3, 3, CPU)
    with pytest.raises(ValueError, match=r"schedule gpipe has 1 \(P=1 V=1 M=2\), but num_stages is 2"):
        ours.ScheduleGPipe(stages(0, count=2)[0], 2)
    with pytest.raises(ValueError, match=r"has stages \[0, 1\] on rank 0 \(placement loop\), but got stages \[0, 0\]"):
        ours.ScheduleInterleaved1F1B(stages(0, 0), 2)
    elsewhere = stages(0, 1)
    elsewhere[0].stage_index_to_group_rank = {0: 0, 1: 3}
    with pytest.raises(ValueError, match=r"stage_index_to_group_rank is \{0: 0, 1: 3\}"):
        ours.ScheduleInterleaved1F1B(elsewhere, 2)
    with pytest.raises(ValueError, match="at least one stage"):
        ours.ScheduleInterleaved1F1B([], 2)


def test_a_training_step_needs_its_target():
    schedule = ours.ScheduleGPipe(stages(0)[0], 2, nn.MSELoss())
    with pytest.raises(ValueError, match="the rank of the last stage needs a target"):
        schedule.step(torch.ones(4, 2))


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_a_training_step_needs_gradients(mode):
    x = torch.ones(4, 2)
    with mode():
        schedule = ours.ScheduleInterleaved1F1B(stages(0), 2, nn.MSELoss())
        with pytest.raises(RuntimeError, match=r"step\(\) computes gradients .*: call eval\(\)"):
            schedule.step(x, target=x)
        assert schedule.eval(x, target=x).shape == (4, 2)
        assert ours.ScheduleGPipe(stages(0)[0], 2).step(x).shape == (4, 2)


@pytest.mark.parametrize("schedule_class", [ours.ScheduleInterleaved1F1B, ours.ScheduleLoopedBFS])
def test_a_schedule_may_say_that_its_backward_needs_no_grad_mode(schedule_class):
    (stage,) = stages(0)
    schedule = schedule_class([stage], 2, nn.MSELoss(), backward_requires_autograd=False)
    with torch.no_grad():
        schedule.step(torch.ones(4, 2), target=torch.ones(4, 2))
    assert stage.submod.weight.grad is not None


def test_declared_inputs_are_checked():
    stage = ours.PipelineStage(nn.Linear(2, 2), 0, 1, CPU, input_args=torch.ones(2, 2))
    schedule = ours.ScheduleGPipe(stage, 2)
    assert schedule.step(torch.ones(4, 2)).shape == (4, 2)
    with pytest.raises(ValueError, match=r"torch.float32\[2, 2\] is declared, torch.int32\[2, 2\] was given"):
        schedule.step(torch.ones(4, 2, dtype=torch.int32))


def test_configure_comes_before_the_first_step():
    schedule = ours.ScheduleGPipe(stages(0)[0], 2)
    schedule.step(torch.ones(4, 2))
    with pytest.raises(RuntimeError, match="configure must be called before the first step"):
        schedule.configure(dynamic_shapes=True)


def test_the_order_is_shown_as_torch_writes_it():
    schedule = ours.ScheduleGPipe(stages(0)[0], 2)
    assert [str(action) for action in schedule.pipeline_order[0]] == ["0F0", "0F1", "0B0", "0B1"]


def test_mpipe_refuses_what_does_not_fit_its_block():
    with pytest.raises(TypeError, match="preprocess must be a module"):
        ours.ScheduleMPipeTranspose(stages(0), 2, preprocess=print)
    schedule = ours.ScheduleMPipeTranspose(stages(0), 2, preprocess=nn.Linear(2, 2), frozen=True)
    with pytest.raises(ValueError, match="the block has trainable parameters"):
        schedule.step(torch.ones(4, 2))


def test_the_core_loads_no_torch():
    code = "import sys, hyper_pp, hyper_pp.engine; assert 'torch' not in sys.modules and 'numpy' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_torch_npu_without_cann_is_a_clear_error(tmp_path):
    package = tmp_path / "torch_npu"
    package.mkdir()
    (package / "__init__.py").write_text("raise ImportError('libhccl.so: cannot open shared object file')")
    code = "import hyper_pp.torch_npu"
    for autoload, fails in (("1", True), ("0", False)):
        env = {"PYTHONPATH": f"{tmp_path}:.", "TORCH_DEVICE_BACKEND_AUTOLOAD": autoload, "PATH": "/usr/bin:/bin"}
        done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
        assert (done.returncode != 0) == fails, done.stderr
        if fails:
            assert "torch_npu is installed, but it can't be loaded (libhccl.so" in done.stderr
            assert "set TORCH_DEVICE_BACKEND_AUTOLOAD=0 to run on the CPU" in done.stderr
