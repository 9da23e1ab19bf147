"""Schedules that users derive from PipelineScheduleMulti by writing their order down, on 2 ranks."""

import copy

import torch
from boundary_cases import CPU, rank
from torch import nn
from torch.distributed.pipelining.schedules import _Action

from hyper_pp import ScheduleError
from hyper_pp.torch_npu import PipelineScheduleMulti, PipelineStage

V_SHAPED = {0: "0F0 . . 3F0 3B0 . . 0B0", 1: ". 1F0 2F0 . . 2B0 1B0"}
HALVES = {
    0: "0F0 0F1 2F0 2F1 . 2I0 2W0 0I0 2I1 0W0 0I1 2W1 0W1",
    1: ". 1F0 1F1 3F0 3I0 3F1 1I0 3I1 3W0 1I1 1W0 3W1 1W1",
}
WITH_TRANSFERS = {
    0: "0F0 0F1 0SEND_F0 0SEND_F1 0RECV_B0 0RECV_B1 0B0 0B1",
    1: "1RECV_F0 1RECV_F1 1F0 1F1 1B0 1B1 1SEND_B0 1SEND_B1",
}


def actions(text):
    return [None if word == "." else _Action.from_str(word) for word in text.split()]


class Written(PipelineScheduleMulti):
    """An order that is written down."""

    def __init__(self, stages, n_microbatches, order, **options):
        super().__init__(stages, n_microbatches, **options)
        self.pipeline_order = {number: actions(text) for number, text in order.items()}


def make_stages(layers, held):
    return [PipelineStage(layers[index], index, len(layers), CPU) for index in held[rank()]]


def an_order_that_is_written_down_gives_the_gradients_of_one_process():
    for order, count, held in (
        (V_SHAPED, 1, {0: [0, 3], 1: [1, 2]}),
        (HALVES, 2, {0: [0, 2], 1: [1, 3]}),
        (WITH_TRANSFERS, 2, {0: [0], 1: [1]}),
    ):
        torch.manual_seed(5)
        layers = [nn.Linear(3, 3) for _ in range(2 * len(held[0]))]
        reference = nn.Sequential(*copy.deepcopy(layers))
        schedule = Written(make_stages(layers, held), count, order, loss_fn=nn.MSELoss())
        x, target = torch.randn(4, 3), torch.randn(4, 3)
        holds_last = len(layers) - 1 in held[rank()]
        for _ in range(2):
            output = schedule.step(*((x,) if rank() == 0 else ()), **({"target": target} if holds_last else {}))
        expected = reference(x)
        (2 * nn.functional.mse_loss(expected, target)).backward()
        if holds_last:
            torch.testing.assert_close(output, expected.detach())
        for index in held[rank()]:
            for parameter, twin in zip(layers[index].parameters(), reference[index].parameters()):
                torch.testing.assert_close(parameter.grad, twin.grad, rtol=1e-5, atol=1e-6)
        written = {number: [a for a in actions(text) if a and "_" not in str(a)] for number, text in order.items()}
        assert schedule.pipeline_order == written
        try:
            schedule.pipeline_order = written
        except RuntimeError as error:
            assert "before the first step" in str(error)
        else:
            raise AssertionError("no error")


def an_order_that_can_not_run_is_refused():
    held = {0: [0], 1: [1]}
    faults = (
        ({0: "0F0 0B0"}, ValueError, "pipeline_order has a row for each of 2 ranks (got rows [0])"),
        ({0: "0F0 0B0", 1: "1F0 1B0"}, ValueError, "is for 2 ranks, 2 stages and 1 micro-batches, the schedule for 2"),
        ({0: "0F0 1F0 0B0 1B0", 1: ""}, ValueError, "is for 1 ranks, 2 stages and 1 micro-batches"),
        ({0: "0F0 1F0 0B0 1B0", 1: "2F0 2B0"}, ValueError, "pipeline_order can't be run: "),
        ({0: "0F0 0B0 0F1 0B1", 1: "1F1 1B1 1F0 1B0"}, ScheduleError, "the orders wait for each other: rank 0 at 0B0"),
        ({0: "0F0 0F1 0B0", 1: "1F0 1B0 1F1 1B1"}, ScheduleError, "0B1"),
    )
    for order, kind, text in faults:
        try:
            Written(make_stages([nn.Linear(3, 3) for _ in range(2)], held), 2, order)
        except kind as error:
            assert text in str(error), error
        else:
            raise AssertionError(f"no error: {text}")
    try:
        PipelineScheduleMulti(make_stages([nn.Linear(3, 3) for _ in range(2)], held), 2).step()
    except RuntimeError as error:
        assert "PipelineScheduleMulti has no order: set self.pipeline_order in its __init__" in str(error)
    else:
        raise AssertionError("no error")


CASES = [an_order_that_is_written_down_gives_the_gradients_of_one_process, an_order_that_can_not_run_is_refused]
