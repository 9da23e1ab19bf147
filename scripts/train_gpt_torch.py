"""Trains the byte-level GPT through the pipeline on torch; scripts/torchrun_train.sh starts the processes.

The options are those of train_gpt.py, and so are weights, batches and losses.
"""
from __future__ import annotations

import argparse
import os

import torch
import torch.distributed as dist
from gpt_common import Progress, make_config, make_parser
from gpt_model_torch import build_layers, next_byte_loss
from gpt_optim_torch import make_optimizer
from text_data import Batches, read_text

from hyper_pp import PipelineShape, Plan
from hyper_pp.torch_npu import (
    PipelineStage,
    ScheduleFromPlan,
    ScheduleMPipeTranspose,
    get_schedule_class,
    split_model,
)
from hyper_pp.torch_npu.model import Chain, layers_of
from hyper_pp.torch_npu.schedules import PipelineScheduleSingle


def set_up(name: str) -> torch.device:
    """Joins the job's processes.

    Args:
        name: "CPU", "Ascend" or "auto", which takes the NPU where torch_npu offers one.

    Returns:
        This rank's device.
    """
    npu = getattr(torch, "npu", None)
    if name == "Ascend" or (name == "auto" and npu is not None and npu.is_available()):
        device = torch.device("npu", int(os.environ.get("LOCAL_RANK", "0")))
        torch.npu.set_device(device)
        dist.init_process_group("hccl")
        return device
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    dist.init_process_group("gloo")
    return torch.device("cpu")


def make_schedule(args: argparse.Namespace, device: torch.device):
    """Cuts the model and makes the schedule.

    Args:
        args: The command line.
        device: Where this rank computes.

    Returns:
        The schedule, and the parameters that this rank trains.
    """
    rank, num_ranks = dist.get_rank(), dist.get_world_size()
    plan = Plan.load(args.schedule) if os.path.exists(args.schedule) else None
    num_chunks = args.chunks if plan is None else plan.shape.num_chunks
    placement = "loop" if plan is None else plan.shape.placement
    if args.schedule in ("1f1b", "gpipe"):
        num_chunks = 1
    model = build_layers(make_config(args)).to(device)
    t = args.num_transpose_layers
    modules = split_model(model, num_ranks, num_chunks, rank, num_transpose_layers=t, placement=placement)
    block = Chain(layers_of(model)[:t]) if t else None
    shape = PipelineShape(num_ranks, num_chunks, args.micro_batches, placement)
    stages = [
        PipelineStage(module, index, shape.num_stages, device)
        for index, module in zip(shape.stages_of(rank), modules)
    ]
    trained = [*(block.parameters() if block is not None and rank == 0 else ())]
    trained += [parameter for module in modules for parameter in module.parameters()]
    if plan is not None:
        return ScheduleFromPlan(stages, plan, next_byte_loss, preprocess=block), trained
    if args.schedule == "mpipe":
        schedule = ScheduleMPipeTranspose(
            stages, args.micro_batches, next_byte_loss, preprocess=block, num_transpose_layers=t
        )
        return schedule, trained
    if t:
        raise SystemExit(f"{args.schedule} has no preprocess block (got --num-transpose-layers {t}): use mpipe")
    schedule_class = get_schedule_class(args.schedule)
    single = issubclass(schedule_class, PipelineScheduleSingle)
    return schedule_class(stages[0] if single else stages, args.micro_batches, next_byte_loss), trained


def main() -> None:
    """Runs the training that the command line describes."""
    parser = make_parser("Train a byte-level GPT through a pipeline (start it with scripts/torchrun_train.sh).")
    parser.add_argument("--schedule", default="mpipe", help="schedule's name or a plan file")
    parser.add_argument("--chunks", type=int, default=2, help="model chunks per rank")
    parser.add_argument("--num-transpose-layers", type=int, default=0, help="layers in the preprocess block")
    parser.add_argument("--micro-batches", type=int, default=8, help="micro-batches per step")
    args = parser.parse_args()
    device = set_up(args.device)
    rank, num_ranks = dist.get_rank(), dist.get_world_size()

    batches = Batches(read_text(args.text), args.batch_size, args.context, args.seed)
    schedule, trained = make_schedule(args, device)
    optimizer, warmup = make_optimizer(trained, args)
    last_rank = schedule.plan.shape.rank_of(schedule.plan.shape.num_stages - 1)
    label = f"{args.schedule} on {num_ranks} ranks, torch"
    if rank == last_rank:
        print(
            f"{label} ({device}): {schedule.plan.shape.num_chunks} chunks a rank, {args.micro_batches} micro-batches, "
            f"{args.num_transpose_layers} layers in the preprocess block",
            flush=True,
        )

    progress = Progress(label, args.batch_size * args.context, args.steps, quiet=rank != last_rank)
    sizes = [len(part) for part in torch.arange(args.batch_size).tensor_split(args.micro_batches)]
    for step in range(args.steps):
        ids, targets = (torch.from_numpy(part.copy()).to(device) for part in batches(step))
        losses: list[torch.Tensor] = []
        schedule.step(ids, target=targets, losses=losses, return_outputs=False)
        optimizer.step()
        warmup.step()
        optimizer.zero_grad()
        if rank == last_rank:
            progress.add(sum(float(loss) * size for loss, size in zip(losses, sizes)) / args.batch_size)
    if rank == last_rank:
        progress.write(args.losses_out)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
