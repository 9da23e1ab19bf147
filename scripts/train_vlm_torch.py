"""Trains the vision-language model through the pipeline on torch, each rank reading only what it owns:

    bash scripts/torchrun_train.sh --script scripts/train_vlm_torch.py --ranks 2 --schedule transpose

The options are those of train_vlm.py, and so are weights, pages and losses.
"""
from __future__ import annotations

import argparse
from collections.abc import Iterator

import numpy as np
import torch
import torch.distributed as dist
from digits_data import Inputs, Pages, Targets, written_right
from gpt_common import Progress
from gpt_optim_torch import make_optimizer
from torch.utils.data import DataLoader
from train_gpt_torch import set_up
from vlm_common import VlmConfig, add_pipeline_options, data_options, make_config, make_parser, transpose_options
from vlm_model_torch import Tower, build_decoder, count_bytes, text_loss

from hyper_pp import PipelineShape, owned_micro_batches
from hyper_pp.torch_npu import (
    OwnedBatchSampler,
    PipelineStage,
    ScheduleMPipeTranspose,
    ScheduleTranspose,
    split_model,
)


def make_schedule(args: argparse.Namespace, pages: Pages, config: VlmConfig, device: torch.device):
    """Cuts the decoder and makes the schedule.

    Args:
        args: The command line.
        pages: What is trained on.
        config: The model's sizes.
        device: Where this rank computes.

    Returns:
        The schedule, and the parameters that this rank trains.
    """
    rank, num_ranks = dist.get_rank(), dist.get_world_size()
    shape = PipelineShape(num_ranks, args.chunks, args.micro_batches)
    tower = Tower(config, args.frozen).to(device)
    modules = [module.to(device) for module in split_model(build_decoder(config), num_ranks, args.chunks, rank)]
    stages = [
        PipelineStage(module, index, shape.num_stages, device)
        for index, module in zip(shape.stages_of(rank), modules)
    ]
    trained = [parameter for module in [*modules, *([] if rank else [tower])] for parameter in module.parameters()]
    options = {"preprocess": tower, "weight_fn": count_bytes, "sharded_inputs": True, "dynamic_shapes": True}
    if args.schedule == "mpipe":
        schedule = ScheduleMPipeTranspose(stages, args.micro_batches, text_loss, **options)
    else:
        options.update(transpose_options(args, pages, config, num_ranks))
        schedule = ScheduleTranspose(stages, args.micro_batches, text_loss, **options)
    return schedule, [parameter for parameter in trained if parameter.requires_grad]


def columns(source: Inputs | Targets, sampler: OwnedBatchSampler, device: torch.device) -> Iterator[list[torch.Tensor]]:
    """Reads what the sampler chooses.

    Args:
        source: The inputs or the targets of the pages.
        sampler: Chooses the pages.
        device: Where they are wanted.

    Yields:
        The columns of one step, epoch after epoch; endless empty lists if the sampler chooses nothing.
    """
    if not sampler.order.samples_per_batch:
        while True:
            yield []
    loader = DataLoader(source, batch_sampler=sampler)
    while True:
        for batch in loader:
            yield [column.to(device) for column in batch]
        sampler.set_epoch(sampler.epoch + 1)


def main() -> None:
    """Runs the training that the command line describes."""
    parser = make_parser("Train a vision-language model through a pipeline (start it with scripts/torchrun_train.sh).")
    args = add_pipeline_options(parser).parse_args()
    device = set_up(args.device)
    rank, num_ranks = dist.get_rank(), dist.get_world_size()

    pages = Pages(args.max_images, args.seed)
    config = make_config(args, pages)
    schedule, trained = make_schedule(args, pages, config, device)
    optimizer, warmup = make_optimizer(trained, args)
    own = owned_micro_batches(num_ranks, args.micro_batches, rank, schedule.plan)
    is_last = rank == num_ranks - 1
    label = f"{args.schedule} on {num_ranks} ranks, torch"
    print(f"{label} ({device}): rank {rank} sees the images of micro-batches {list(own)}", flush=True)

    options = data_options(args, pages)
    inputs = columns(Inputs(pages), OwnedBatchSampler(**options, micro_batches=own), device)
    targets = columns(Targets(pages), OwnedBatchSampler(**options), device)
    progress = Progress(label, args.batch_size * pages.context, args.steps, quiet=not is_last)
    for _ in range(args.steps):
        losses: list[torch.Tensor] = []
        target = next(targets)[0] if is_last else None
        schedule.step(*next(inputs), target=target, losses=losses, return_outputs=False)
        optimizer.step()
        warmup.step()
        optimizer.zero_grad()
        if is_last:
            weights = [int(count_bytes(part)) for part in target.tensor_split(args.micro_batches)]
            progress.add(sum(float(loss) * weight for loss, weight in zip(losses, weights)) / sum(weights))
    if is_last:
        progress.write(args.losses_out)

    held_out = Pages(args.max_images, args.seed, held_out=True)
    batch = range(args.batch_size)
    parts = np.array_split(batch, args.micro_batches)
    shown = [held_out.inputs(page) for m in own for page in parts[m]]
    logits = schedule.eval(*(torch.from_numpy(np.stack(column)).to(device) for column in zip(*shown)))
    if is_last:
        right = written_right(logits.cpu().numpy(), np.stack([held_out.targets(page) for page in batch]))
        print(f"{label}: {right} of {len(batch)} pages it has not seen are written right", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
