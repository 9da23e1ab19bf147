"""Schedules that users derive from PipelineScheduleMulti by writing their order down, on 2 ranks."""

import copy
import os
import tempfile
from pathlib import Path

import torch
from boundary_cases import CPU, rank
from torch import nn
from torch.distributed.pipelining import schedules as theirs

from hyper_pp import ScheduleError
from hyper_pp.torch_npu import PipelineScheduleMulti, PipelineStage, ScheduleFromPlan
from hyper_pp.torch_npu.schedules import ScheduleInterleavedZeroBubble, _Action, _PipelineScheduleRuntime

V_SHAPED = {0: "0F0 . . 3F0 3B0 . . 0B0", 1: ". 1F0 2F0 . . 2B0 1B0"}
UNBALANCED = {0: "0F0 1F0 . . 4F0 4B0 . . 1B0 0B0", 1: ". . 2F0 3F0 . . 3B0 2B0"}
PAIRS = {
    0: "0F0 1F0 0F1 1F1 1B0 0B0 1B1 0B1",
    1: "2F0 3F0 3B0 2B0 2F1 3F1 3I1 2I1 3W1 2W1",
}
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


def make_layers(held):
    return [nn.Linear(3, 3) for indices in held.values() for _ in indices]


def compare_with_one_process(schedule, layers, held):
    """Run two steps; every rank has to hold the gradients of the whole model's layers in a row."""
    reference = nn.Sequential(*copy.deepcopy(layers))
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


def an_order_that_is_written_down_gives_the_gradients_of_one_process():
    for order, count, held in (
        (V_SHAPED, 1, {0: [0, 3], 1: [1, 2]}),
        (UNBALANCED, 1, {0: [0, 1, 4], 1: [2, 3]}),
        (PAIRS, 2, {0: [0, 1], 1: [2, 3]}),
        (HALVES, 2, {0: [0, 2], 1: [1, 3]}),
        (WITH_TRANSFERS, 2, {0: [0], 1: [1]}),
    ):
        torch.manual_seed(5)
        layers = make_layers(held)
        schedule = Written(make_stages(layers, held), count, order, loss_fn=nn.MSELoss())
        compare_with_one_process(schedule, layers, held)
        homes = {index: number for number, indices in held.items() for index in indices}
        assert schedule.stage_index_to_group_rank == dict(sorted(homes.items()))
        written = {number: [a for a in actions(text) if a and "_" not in str(a)] for number, text in order.items()}
        assert schedule.pipeline_order == written
        expect(RuntimeError, "before the first step", setattr, schedule, "pipeline_order", written)


def an_order_that_can_not_run_is_refused():
    held = {0: [0], 1: [1]}
    faults = (
        ({0: "0F0 0B0"}, ValueError, "pipeline_order has a row for each of 2 ranks (got rows [0])"),
        ({0: "0F0 0B0", 1: "1F0 1B0"}, ValueError, "is for 2 ranks, 2 stages and 1 micro-batches, the schedule for 2"),
        ({0: "0F0 1F0 0B0 1B0", 1: ""}, ValueError, "is for 1 ranks, 2 stages and 1 micro-batches"),
        ({0: "0F0 1F0 0B0 1B0", 1: "1F1 1B1"}, ValueError, "can't be run: a stage lives on one rank (stage 1 has"),
        ({0: "0F0 1F0 0B0 1B0", 1: "2F0 2B0"}, ValueError, "is for 2 ranks, 3 stages and 1 micro-batches"),
        ({0: "0F0 0B0", 1: "2F0 2B0"}, ValueError, "every stage has a forward (stages: 3, without one: [1])"),
        ({0: "0F0 0B0 0F1 0B1", 1: "1F1 1B1 1F0 1B0"}, ScheduleError, "the orders wait for each other: rank 0 at 0B0"),
        ({0: "0F0 0F1 0B0", 1: "1F0 1B0 1F1 1B1"}, ScheduleError, "0B1"),
    )
    for order, kind, text in faults:
        expect(kind, text, Written, make_stages(make_layers(held), held), 2, order)
    elsewhere = make_stages(make_layers({0: [0, 1], 1: [2, 3]}), {0: [0, 2], 1: [1, 3]})
    held_there, text = [[0, 1], [2, 3]][rank()], f"on rank {rank()} (placement map), but got stages"
    expect(ValueError, f"has stages {held_there} {text}", Written, elsewhere, 2, PAIRS)
    no_order = PipelineScheduleMulti(make_stages(make_layers(held), held), 2)
    expect(RuntimeError, "PipelineScheduleMulti has no order: set self.pipeline_order in its __init__", no_order.step)


def file_of_torch(path, order, held, count):
    """Write an order as torch's own runtime dumps it: with sends and receives, and what sharding and replicas add."""
    homes = {index: number for number, indices in held.items() for index in indices}
    with_all = {number: theirs._add_unshard_reshard(actions(text)) for number, text in order.items()}
    with_all = {number: theirs._add_reduce_grad(row, count) for number, row in with_all.items()}
    with_all = theirs._add_send_recv(with_all, stage_to_rank=homes.__getitem__, num_stages=len(homes))
    text = "".join(",".join(map(str, with_all[number])) + "\n" for number in sorted(with_all))
    assert "UNSHARD" in text and "REDUCE_GRAD" in text and "SEND_F" in text
    Path(path).write_text(text, encoding="utf-8")


def a_file_of_torchs_runtime_runs_and_comes_back():
    for order, count, held in (
        (UNBALANCED, 1, {0: [0, 1, 4], 1: [2, 3]}),
        (HALVES, 2, {0: [0, 2], 1: [1, 3]}),
        (V_SHAPED, 1, {0: [0, 3], 1: [1, 2]}),
    ):
        torch.manual_seed(6)
        layers = make_layers(held)
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "order")  # torch's own need not end in .csv either
            file_of_torch(path, order, held, count)
            schedule = _PipelineScheduleRuntime(make_stages(layers, held), count, nn.MSELoss())
            expect(ValueError, "compute_only has no sends and receives", schedule._load_csv, path)
            schedule._load_csv(path, format="compute_comms")
            again = _PipelineScheduleRuntime(make_stages(layers, held), count, nn.MSELoss())
            for form in ("compute_only", "compute_comms"):
                schedule._dump_csv(path, format=form)
                again._load_csv(path, format=form)
                assert again.pipeline_order == schedule.pipeline_order
            assert again.pipeline_order_with_comms == schedule.pipeline_order_with_comms
            schedule._dump_csv(path)
            assert "SEND_F" in Path(path).read_text(encoding="utf-8")
            os.rename(path, path + ".csv")
            from_file = ScheduleFromPlan(make_stages(layers, held), path + ".csv", nn.MSELoss())
            for one in (schedule, from_file):
                for layer in layers:
                    layer.zero_grad()
                compare_with_one_process(one, layers, held)


def the_order_of_a_schedule_runs_in_the_runtime_class():
    held = {0: [0, 2], 1: [1, 3]}
    torch.manual_seed(7)
    layers = make_layers(held)
    built = ScheduleInterleavedZeroBubble(make_stages(layers, held), 4, nn.MSELoss())
    assert isinstance(built, _PipelineScheduleRuntime)
    for order, form in ((built.pipeline_order, "compute_only"), (built.pipeline_order_with_comms, "compute_comms")):
        schedule = _PipelineScheduleRuntime(make_stages(layers, held), 4, nn.MSELoss())
        schedule._prepare_schedule_with_comms(order, format=form)
        assert schedule.plan.orders == built.plan.orders
    compare_with_one_process(schedule, layers, held)
    empty = _PipelineScheduleRuntime(make_stages(layers, held), 4, nn.MSELoss())
    expect(RuntimeError, "_PipelineScheduleRuntime has no order", empty.step)
    expect(ValueError, "format must be compute_only or compute_comms (got 'x')", built._dump_csv, "x", "x")


def expect(kind, text, function, *args):
    try:
        function(*args)
    except kind as error:
        assert text in str(error), error
    else:
        raise AssertionError(f"no error: {text}")


CASES = [
    an_order_that_is_written_down_gives_the_gradients_of_one_process,
    a_file_of_torchs_runtime_runs_and_comes_back,
    the_order_of_a_schedule_runs_in_the_runtime_class,
    an_order_that_can_not_run_is_refused,
]
