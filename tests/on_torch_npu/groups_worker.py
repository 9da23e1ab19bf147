"""Under torchrun, 4 ranks: two pipelines of two stages, laid out both ways: each on its own data, or under DDP."""

import copy

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import init_device_mesh
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torchrun_launch import run_cases

from hyper_pp.torch_npu import (
    PipelineStage,
    Schedule1F1B,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
    ScheduleMPipeTranspose,
    ScheduleTranspose,
)

CPU = torch.device("cpu")
LAYOUTS = {"pp": ([0, 1], [2, 3]), "dp": ([0, 2], [1, 3])}


def two_pipelines(layout, make, v):
    groups = [dist.new_group(ranks) for ranks in LAYOUTS[layout]]  # in one order on all ranks
    replica = next(i for i, ranks in enumerate(LAYOUTS[layout]) if dist.get_rank() in ranks)
    group = groups[replica]
    rank = dist.get_rank(group)
    torch.manual_seed(1)
    block, layers = nn.Linear(4, 4), [nn.Linear(4, 4) for _ in range(2 * v)]
    torch.manual_seed(100 + replica)
    x, target = torch.randn(6, 4), torch.randn(6, 4)
    uses_block = make in (mpipe, transpose)
    reference = copy.deepcopy(nn.Sequential(*([block] if uses_block else []), *layers))
    nn.functional.mse_loss(reference(x), target).backward()
    mine = [rank + 2 * chunk for chunk in range(v)]
    stages = [PipelineStage(layers[i], i, 2 * v, CPU, group=group) for i in mine]
    schedule = make(stages, block)
    schedule.step(x, target=target)
    if uses_block and rank == 0:
        torch.testing.assert_close(block.weight.grad, reference[0].weight.grad)
    for i in mine:
        torch.testing.assert_close(layers[i].weight.grad, reference[i + uses_block].weight.grad)


class Layer(nn.Module):
    """A layer with a parameter that nothing uses, where that is asked for, and a keyword that only one stage takes."""

    def __init__(self, unused):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.unused = nn.Parameter(torch.ones(1)) if unused else None

    def forward(self, x):
        return torch.tanh(self.linear(x))


class Gained(Layer):
    def forward(self, x, *, gain):
        return super().forward(x) * gain


def replicas_add_up_their_gradients_once_a_step(layout, make, v, **options):
    """Two replicas of a pipeline, each stage under DDP: one all-reduce per stage and step, whatever M is."""
    groups = [dist.new_group(ranks) for ranks in LAYOUTS[layout]]
    others = [dist.new_group(ranks) for ranks in zip(*LAYOUTS[layout])]
    replica = next(i for i, ranks in enumerate(LAYOUTS[layout]) if dist.get_rank() in ranks)
    rank = dist.get_rank(groups[replica])
    unused = options.get("find_unused_parameters", False)
    torch.manual_seed(1)
    block, layers = Layer(unused), [Gained(unused), *[Layer(unused) for _ in range(2 * v - 1)]]
    uses_block = make in (mpipe, transpose)
    if uses_block:
        layers[0] = Layer(unused)
    torch.manual_seed(5)
    x, target, gain = torch.randn(2, 6, 4), torch.randn(2, 6, 4), torch.full((6, 1), 0.5)
    expected = copy.deepcopy([block, *layers] if uses_block else layers)
    keywords = {} if uses_block else {"gain": gain}
    for _ in range(2):
        for i in range(2):
            output = expected[0](x[i], **keywords)
            for layer in expected[1:]:
                output = layer(output)
            (nn.functional.mse_loss(output, target[i]) / 2).backward()
    counts = dict.fromkeys(range(-1, 2 * v), 0)

    def wrap(index, module):
        def counted(group, bucket):
            counts[index] += 1
            return allreduce_hook(group, bucket)

        wrapped = DistributedDataParallel(module, process_group=others[rank], **options)
        wrapped.register_comm_hook(others[rank], counted)
        return wrapped

    mine = [rank + 2 * chunk for chunk in range(v)]
    stages = [PipelineStage(wrap(i, layers[i]), i, 2 * v, CPU, group=groups[replica]) for i in mine]
    schedule = make(stages, wrap(-1, block) if uses_block else None)
    keywords = {"gain": gain} if not uses_block and rank == 0 else {}
    for _ in range(2):
        schedule.step(x[replica], target=target[replica], **keywords)
        schedule.eval(x[replica], **keywords)
    for i in mine:
        same_gradients(layers[i], expected[i + uses_block])
        assert counts[i] == 2
    if uses_block and rank == 0:
        same_gradients(block, expected[0])
        assert counts[-1] == 2


def sharded_stages_have_the_gradients_of_one_process(make, v):
    """Two replicas of a pipeline, the parameters of each stage sharded over them by ``fully_shard``."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "pp"))
    rank, replica = mesh["pp"].get_local_rank(), mesh["dp"].get_local_rank()
    torch.manual_seed(1)
    layers = [nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(2 * v)]
    x, target = torch.randn(2, 6, 4), torch.randn(2, 6, 4)
    expected = nn.Sequential(*copy.deepcopy(layers))
    for _ in range(2):
        for i in range(2):
            (nn.functional.mse_loss(expected(x[i]), target[i]) / 2).backward()
    mine = [rank + 2 * chunk for chunk in range(v)]
    group = mesh["pp"].get_group()
    stages = [PipelineStage(fully_shard(layers[i], mesh=mesh["dp"]), i, 2 * v, CPU, group=group) for i in mine]
    try:
        ScheduleTranspose(stages, 3, nn.functional.mse_loss, preprocess=fully_shard(nn.Linear(4, 4), mesh=mesh["dp"]))
    except ValueError as error:
        assert "preprocess is sharded by fully_shard" in str(error), error
    else:
        raise AssertionError("no error")
    schedule = make(stages, None)
    calls = []
    scatter = dist.reduce_scatter_single
    dist.reduce_scatter_single = lambda *args, **kwargs: (calls.append(1), scatter(*args, **kwargs))[1]
    try:
        for _ in range(2):
            schedule.step(x[replica], target=target[replica])
    finally:
        dist.reduce_scatter_single = scatter
    assert len(calls) == 2 * v, "each stage once a step"
    for i in mine:
        for parameter, twin in zip(layers[i].parameters(), expected[i].parameters(), strict=True):
            torch.testing.assert_close(parameter.grad.full_tensor(), twin.grad, rtol=1e-5, atol=1e-6)


def same_gradients(module, twin):
    for parameter, other in zip(module.linear.parameters(), twin.linear.parameters(), strict=True):
        torch.testing.assert_close(parameter.grad, other.grad, rtol=1e-5, atol=1e-6)


def mpipe(stages, block):
    return ScheduleMPipeTranspose(stages, 3, nn.functional.mse_loss, preprocess=block)


def transpose(stages, block):
    return ScheduleTranspose(stages, 3, nn.functional.mse_loss, preprocess=block)


def one_chunk(stages, _):
    return Schedule1F1B(stages[0], 3, nn.functional.mse_loss)


def two_chunks(stages, _):
    return ScheduleInterleaved1F1B(stages, 3, nn.functional.mse_loss)


def split_backward(stages, _):
    return ScheduleInterleavedZeroBubble(stages, 3, nn.functional.mse_loss)


ALONE = ((one_chunk, 1), (two_chunks, 2), (mpipe, 2), (transpose, 2))
DDP = (*ALONE, (split_backward, 2))
OPTIONS = ({}, {"find_unused_parameters": True}, {"gradient_as_bucket_view": True})
CASES = {
    f"{layout} {make.__name__}": lambda layout=layout, make=make, v=v: two_pipelines(layout, make, v)
    for layout in LAYOUTS
    for make, v in ALONE
}
REPLICATED = {
    f"{layout} {make.__name__} {' '.join(options)}": lambda layout=layout, make=make, v=v, options=options: (
        replicas_add_up_their_gradients_once_a_step(layout, make, v, **options)
    )
    for layout in LAYOUTS
    for make, v in DDP
    for options in OPTIONS
}

SHARDED = {
    make.__name__: lambda make=make, v=v: sharded_stages_have_the_gradients_of_one_process(make, v)
    for make, v in ((one_chunk, 1), (two_chunks, 2), (split_backward, 2))
}


if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    replicated = {f"ddp {name}": case for name, case in REPLICATED.items()}
    sharded = {f"sharded {name}": case for name, case in SHARDED.items()}
    run_cases({**CASES, **replicated, **sharded}, dist.get_rank())
    dist.destroy_process_group()
