"""Under torchrun, 4 ranks: two pipelines of two stages, laid out both ways, each on data of its own."""

import copy

import torch
import torch.distributed as dist
from torch import nn
from torchrun_launch import run_cases

from hyper_pp.torch_npu import PipelineStage, Schedule1F1B, ScheduleInterleaved1F1B, ScheduleMPipeTranspose

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
    uses_block = make is mpipe
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


def mpipe(stages, block):
    return ScheduleMPipeTranspose(stages, 3, nn.functional.mse_loss, preprocess=block)


def one_chunk(stages, _):
    return Schedule1F1B(stages[0], 3, nn.functional.mse_loss)


def two_chunks(stages, _):
    return ScheduleInterleaved1F1B(stages, 3, nn.functional.mse_loss)


CASES = {
    f"{layout} {make.__name__}": lambda layout=layout, make=make, v=v: two_pipelines(layout, make, v)
    for layout in LAYOUTS
    for make, v in ((one_chunk, 1), (two_chunks, 2), (mpipe, 2))
}


if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    run_cases(CASES, dist.get_rank())
    dist.destroy_process_group()
