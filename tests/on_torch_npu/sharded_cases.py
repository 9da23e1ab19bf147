"""Each rank passes only the micro-batches it owns, on 2 ranks."""

import copy

import torch
from boundary_cases import CPU, Scale, rank
from torch import nn

from hyper_pp import Plan, owned_micro_batches
from hyper_pp.torch_npu import OwnedBatchSampler, PipelineStage, ScheduleFromPlan, ScheduleMPipeTranspose


def each_rank_may_bring_only_what_it_owns():
    torch.manual_seed(8)
    block, body = nn.Linear(4, 4), nn.Linear(4, 4)
    x, target = torch.randn(7, 4), torch.randn(7, 4)
    for preprocess in (block, None):
        stage = PipelineStage(body if rank() else nn.Identity(), rank(), 2, CPU)
        schedule = ScheduleMPipeTranspose(
            [stage], 3, nn.functional.mse_loss, preprocess=preprocess, sharded_inputs=True
        )
        parts = x.tensor_split(3)
        mine = parts[1] if rank() else torch.cat([parts[0], parts[2]])
        losses = []
        output = schedule.step(mine, target=target, losses=losses)
        if rank() == 1:
            expected = body(block(x) if preprocess else x)
            torch.testing.assert_close(output, expected.detach())
        wrong = x[:4]
        try:
            schedule.step(wrong, target=target)
        except ValueError as error:
            assert "with sharded_inputs=True each rank passes what it owns" in str(error)
        else:
            raise AssertionError("no error")


def each_rank_reads_what_a_transpose_plan_says():
    torch.manual_seed(8)
    block, body = nn.Linear(4, 4), nn.Linear(4, 4)
    reference = nn.Sequential(copy.deepcopy(block), copy.deepcopy(body))
    x, target = torch.randn(14, 4), torch.randn(14, 4)
    own = {"backward": "owner"}, {"backward": "owner", "recompute": True}, {"backward": "central"}
    options = [{"owners": [1, 0, 1], **choice} for choice in own] + [{"owners": [0, 0, 0]}, {"owners": [1, 1, 1]}]
    for choice in [*options, {"num_layers": 0, "owners": [1, 0, 1]}]:
        has_block = choice.get("num_layers") != 0
        plan = Plan.build("transpose", 2, 1, 3, **choice)
        stage = PipelineStage(body if rank() else nn.Identity(), rank(), 2, CPU)
        schedule = ScheduleFromPlan(
            [stage], plan, nn.functional.mse_loss, preprocess=block if has_block else None, sharded_inputs=True
        )
        own = owned_micro_batches(2, 3, rank(), plan)
        mine = OwnedBatchSampler(14, 7, 3, own, seed=3)
        reference.zero_grad()
        block.zero_grad()
        body.zero_grad()
        model = reference if has_block else reference[1]
        for indices, everything in zip(mine, OwnedBatchSampler(14, 7, 3, seed=3)):
            losses = []
            inputs = (x[indices],) if own else ()
            output = schedule.step(*inputs, target=target[everything], losses=losses)
            loss = nn.functional.mse_loss(model(x[everything]), target[everything])
            loss.backward()
            if rank() == 1:
                weighted = sum(size * float(part) for size, part in zip((3, 2, 2), losses)) / 7
                torch.testing.assert_close(weighted, loss.item(), rtol=1e-6, atol=1e-7)
                torch.testing.assert_close(output, model(x[everything]).detach())
        trained, expected = (body, reference[1]) if rank() else (block, reference[0])
        if rank() or has_block:
            for parameter, other in zip(trained.parameters(), expected.parameters()):
                torch.testing.assert_close(parameter.grad, other.grad, rtol=1e-5, atol=1e-6)


def a_wrong_share_is_an_error_on_every_rank():
    schedule = ScheduleFromPlan(
        [PipelineStage(Scale(1), rank(), 2, CPU)],
        Plan.build("transpose", 2, 1, 3, num_layers=0, owners=[1, 0, 1]),
        nn.functional.mse_loss,
        sharded_inputs=True,
    )
    x, target = torch.ones(7, 1), torch.ones(7, 1)
    faults = {
        "rank 0 owns micro-batches [1] with 2 of the batch's 6 samples (got 1)": (x[:1], x[:5]),
        "rank 1: the inputs disagree on the batch size: 5 and 4 (shape [4, 1])": (x[:2], [x[:5], x[:4]]),
        "rank 0 owns micro-batches [1] with 1 of the batch's 3 samples (got 3)": (x[:3], None),
    }
    for text, (first, second) in faults.items():
        given = second if rank() else first
        try:
            schedule.step(*(() if given is None else (given,)), target=target)
        except ValueError as error:
            assert text in str(error), error
        else:
            raise AssertionError("no error")


def sizes_are_agreed_on_once_where_shapes_are_static():
    plan = Plan.build("transpose", 2, 1, 3, num_layers=0, owners=[1, 0, 1])
    x, target = torch.ones(7, 1), torch.ones(7, 1)
    mine = x[:5] if rank() else x[:2]
    for dynamic_shapes in (False, True):
        stage = PipelineStage(Scale(1), rank(), 2, CPU)
        schedule = ScheduleFromPlan(
            [stage], plan, nn.functional.mse_loss, sharded_inputs=True, dynamic_shapes=dynamic_shapes
        )
        transport, seen = schedule.engine.transport, []
        gather = transport.all_gather_object
        transport.all_gather_object = lambda value, gather=gather, seen=seen: (seen.append(value), gather(value))[1]
        for _ in range(3):
            schedule.step(mine, target=target)
        assert len(seen) == (3 if dynamic_shapes else 1), seen
        if not dynamic_shapes and rank() == 1:
            for given, wanted, text in (
                (mine, target[:6], "inputs and target disagree on the batch size: 7 and 6"),
                (x[:4], target, "pass dynamic_shapes=True if the batch size changes between steps"),
            ):
                try:
                    schedule.step(given, target=wanted)
                except ValueError as error:
                    assert text in str(error), error
                else:
                    raise AssertionError(f"no error: {text}")


CASES = [
    each_rank_may_bring_only_what_it_owns,
    each_rank_reads_what_a_transpose_plan_says,
    a_wrong_share_is_an_error_on_every_rank,
    sizes_are_agreed_on_once_where_shapes_are_static,
]
