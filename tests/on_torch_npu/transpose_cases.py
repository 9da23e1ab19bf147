"""ScheduleTranspose over several steps: updates, buffers, random numbers, evaluation; on 2 ranks."""

import copy

import torch
import torch.distributed as dist
from boundary_cases import CPU, rank
from torch import nn

from hyper_pp.torch_npu import PipelineStage, ScheduleTranspose

OPTIONS = (
    {},
    {"recompute": True},
    {"backward": "central"},
    {"max_live": 1, "owners": "round_robin"},
    {"owners": [1, 1, 0, 1]},
)


def schedule_of(block, body, **options):
    stage = PipelineStage(body if rank() else nn.Identity(), rank(), 2, CPU)
    return ScheduleTranspose([stage], 4, nn.functional.mse_loss, preprocess=block, **options)


def data(seed=8):
    torch.manual_seed(seed)
    return torch.randn(8, 4), torch.randn(8, 4)


def an_updated_block_trains_like_one_process():
    for options in OPTIONS:
        torch.manual_seed(3)
        block, body = nn.Linear(4, 4), nn.Linear(4, 4)
        reference = nn.Sequential(copy.deepcopy(block), copy.deepcopy(body))
        schedule = schedule_of(block, body, **options)
        # Optimizers write past the version counters of parameters in more than one way.
        optimizer = torch.optim.AdamW((body if rank() else block).parameters(), 0.1, foreach=True)
        expected = torch.optim.AdamW(reference.parameters(), 0.1, foreach=True)
        for step in range(5):
            x, target = data(step)
            losses = []
            schedule.step(x, target=target, losses=losses)
            loss = nn.functional.mse_loss(reference(x), target)
            loss.backward()
            if rank() == 1:
                torch.testing.assert_close(torch.stack(losses).mean(), loss.detach(), rtol=1e-5, atol=1e-6)
            if step != 1:  # the gradients of steps 1 and 2 add up
                for one in (optimizer, expected):
                    one.step()
                    one.zero_grad()
        found = schedule.eval(x)
        if rank() == 1:
            torch.testing.assert_close(found, reference(x).detach(), rtol=1e-5, atol=1e-6)


def parameters_travel_only_after_they_changed():
    x, target = data()
    block = nn.Linear(4, 4)
    schedule = schedule_of(block, nn.Linear(4, 4), owners="round_robin")
    sizes = []
    original = dist.broadcast
    dist.broadcast = lambda tensor, *args, **kwargs: (sizes.append(tensor.numel()), original(tensor, *args, **kwargs))
    try:
        for change in (False, False, True, False):
            if change and rank() == 0:
                block.weight.data.add_(1)
            schedule.step(x, target=target)
    finally:
        dist.broadcast = original
    assert [size for size in sizes if size > 1] == [20, 20]


def a_recompute_gives_the_same_bits():
    found = []
    for options in ({"owners": "round_robin"}, {"owners": "round_robin", "recompute": True}, {"backward": "central"}):
        torch.manual_seed(9)
        block, body = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)), nn.Linear(4, 4)
        x, target = data(21)
        torch.manual_seed(50 + rank())
        schedule = schedule_of(block, body, **options)
        losses = []
        for _ in range(2):
            schedule.step(x, target=target, losses=losses)
        found.append([*losses, *[parameter.grad for parameter in (body if rank() else block).parameters()]])
    kept, recomputed, central = found
    assert all(torch.equal(left, right) for left, right in zip(kept, recomputed, strict=True))
    for left, right in zip(kept, central, strict=True):  # which adds up in another order
        torch.testing.assert_close(left, right, rtol=1e-5, atol=1e-6)
    if rank() == 1:
        assert len(set(map(float, kept[:4]))) == 4, "every micro-batch draws its own mask"


def normalisation_counts_each_micro_batch_of_rank_0_once():
    x, target = data()
    parts = x.tensor_split(4)
    for options in ({}, {"recompute": True}, {"backward": "central"}):
        torch.manual_seed(9)
        block, body = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)), nn.Linear(4, 4)
        reference = copy.deepcopy(block)
        schedule = schedule_of(block, body, owners=[0, 1, 1, 0], **options)
        for _ in range(2):
            schedule.step(x, target=target)
            reference(parts[0])
            reference(parts[3])
        output = schedule.eval(x)
        if rank() == 0:
            assert block[1].num_batches_tracked.item() == 4
        # In an evaluation the replicas have rank 0's buffers; in training mode these are put back afterwards.
        torch.testing.assert_close(block[1].running_mean, reference[1].running_mean)
        assert (output is None) == (rank() == 0)


def a_block_that_nothing_trains_travels_once():
    x, target = data()
    torch.manual_seed(9)
    block, body = nn.Linear(4, 4).requires_grad_(False), nn.Linear(4, 4)
    expected = body(block(x)).detach()
    if rank() == 1:
        block.weight.data.fill_(float("nan"))
    schedule = schedule_of(block, body, owners=[1, 1, 1, 1])
    for _ in range(2):
        output = schedule.step(x, target=target)
        assert rank() == 0 or torch.allclose(output, expected)
    assert block.weight.grad is None


def options_that_do_not_fit_are_refused_by_name():
    faults = {
        "recompute is for backward owner": {"recompute": True, "backward": "central"},
        "owners holds one rank per micro-batch (micro-batches: 4, owners: 2)": {"owners": [0, 1]},
        "owners are ranks from 0 to 1 (got 2)": {"owners": [0, 1, 2, 0]},
        "max_live": {"max_live": 0},
        "num_layers": {"num_transpose_layers": 0, "frozen": False},
    }
    for text, options in faults.items():
        try:
            schedule_of(nn.Linear(4, 4), nn.Linear(4, 4), **options)
        except ValueError as error:
            assert text in str(error), error
        else:
            raise AssertionError(f"no error: {text}")
    schedule = schedule_of(nn.Linear(4, 4), nn.Linear(4, 4))
    try:
        schedule.step(torch.ones(8, 4, requires_grad=True), target=torch.ones(8, 4))
    except ValueError as error:
        assert "an input of shape [8, 4] requires a gradient, which stops at the preprocess block" in str(error), error
    else:
        raise AssertionError("no error")


CASES = [
    an_updated_block_trains_like_one_process,
    parameters_travel_only_after_they_changed,
    a_recompute_gives_the_same_bits,
    normalisation_counts_each_micro_batch_of_rank_0_once,
    a_block_that_nothing_trains_travels_once,
    options_that_do_not_fit_are_refused_by_name,
]
