"""Code that was written for torch's own classes and finds ours behind their names, on 2 ranks."""

import copy

import torch
from boundary_cases import CPU, rank
from torch import nn
from torch.distributed.pipelining import schedules as theirs
from torch.distributed.pipelining import stage as their_stage

from hyper_pp import torch_npu as ours

HELD = {0: [0, 2], 1: [1, 3]}


def stages_of(layers, held=None):
    return [ours.PipelineStage(layers[index], index, len(layers), CPU) for index in held or HELD[rank()]]


def train(schedule, x, target, **options):
    losses = []
    args = (x,) if rank() == 0 else ()
    if rank() == 1:
        options.update(target=target, losses=losses)
    return schedule.step(*args, **options), losses


def a_stage_runs_in_torchs_own_schedules():
    for schedule_class in (theirs.ScheduleInterleaved1F1B, theirs.ScheduleInterleavedZeroBubble):
        torch.manual_seed(8)
        layers = [nn.Linear(3, 3) for _ in range(4)]
        reference = nn.Sequential(*copy.deepcopy(layers))
        stages = stages_of(layers)
        assert all(isinstance(stage, their_stage.PipelineStage) for stage in stages)
        x, target = torch.randn(8, 3), torch.randn(8, 3)
        expected = reference(x)
        nn.functional.mse_loss(expected, target).backward()
        # The same stages go from torch's schedule to ours.
        schedule = schedule_class(stages, 4, nn.MSELoss())
        for one in (schedule, ours.ScheduleInterleaved1F1B(stages, 4, nn.MSELoss())):
            for layer in layers:
                layer.zero_grad()
            output, losses = train(one, x, target)
            if rank() == 1:
                torch.testing.assert_close(output, expected)
                assert len(losses) == 4
            for index in HELD[rank()]:
                torch.testing.assert_close(layers[index].weight.grad, reference[index].weight.grad)


def a_stage_shows_the_outputs_of_the_last_step():
    layers = [nn.Linear(3, 3) for _ in range(2)]
    (stage,) = stages_of(layers, [rank()])
    schedule = ours.ScheduleGPipe(stage, 4, nn.MSELoss())
    assert stage.has_backward and not stage.output_chunks
    x = torch.randn(8, 3)
    for _ in range(2):
        output, _ = train(schedule, x, x)
        assert len(stage.output_chunks) == (0, 4)[rank()]
        assert not stage.fwd_cache and not stage.bwd_cache
    if rank() == 1:
        torch.testing.assert_close(torch.cat(stage.output_chunks), output)
        assert not stage.output_chunks[0].requires_grad
    stage.clear_runtime_states()
    assert not stage.output_chunks
    train(schedule, x, x)
    train(schedule, x, x, return_outputs=False)
    assert not stage.output_chunks, "nothing is kept where no output was asked for"
    assert not ours.ScheduleGPipe(stages_of(layers, [rank()])[0], 4).stages[0].has_backward


CASES = [a_stage_runs_in_torchs_own_schedules, a_stage_shows_the_outputs_of_the_last_step]
