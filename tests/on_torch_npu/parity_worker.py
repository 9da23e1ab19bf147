"""Under torchrun: every schedule over a grid of shapes, beside a loop over the same micro-batches in one process."""

import copy
import os
import tempfile

import torch
import torch.distributed as dist
from block_kinds import KINDS, MAIN_KINDS, SEED, WIDTH, Join, Mixing, options_of
from torch import nn
from torchrun_launch import run_cases

from hyper_pp import Plan, owned_micro_batches
from hyper_pp.partition import partition_layers
from hyper_pp.shape import PipelineShape
from hyper_pp.torch_npu import (
    PipelineStage,
    Schedule1F1B,
    ScheduleFromPlan,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
    ScheduleLoopedBFS,
    ScheduleMPipeTranspose,
    ScheduleTranspose,
    ScheduleZBVZeroBubble,
)
from hyper_pp.torch_npu.model import Chain

BATCH = 11
MICRO_BATCHES = (1, 2, 3, 4, 7, 8)
SINGLE = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}
MULTI = {
    "interleaved": ScheduleInterleaved1F1B,
    "looped_bfs": ScheduleLoopedBFS,
    "interleaved_zb": ScheduleInterleavedZeroBubble,
}
DEVICE = torch.device("cpu")  # the pipeline's; what it is compared with runs on the CPU
OVERLAP = True  # False: wait at each transfer


def grid():
    """Return (schedule, V, M, T, kind) of every case.

    Kinds: none, those of ``block_kinds``, for mpipe trained, explicit and frozen, for zbv default and given: who says
    that the placement is a V; for from_plan json, csv and mpipe: a file, or a plan with a block.
    """
    cases = [(name, 1, m, 0, "none") for name in SINGLE for m in MICRO_BATCHES]
    cases += [(name, v, m, 0, "none") for name in MULTI for v in (1, 2, 3) for m in MICRO_BATCHES]
    cases += [("zbv", 2, m, 0, kind) for m in MICRO_BATCHES for kind in ("default", "given")]
    for v, m in ((1, 4), (2, 3), (2, 8)):
        cases += [("from_plan", v, m, 0, kind) for kind in ("json", "csv")] + [("from_plan", v, m, 1, "mpipe")]
    for v in (1, 2, 3):
        for m in MICRO_BATCHES:
            cases.append(("mpipe", v, m, 0, "none"))
            cases += [("mpipe", v, m, t, kind) for t in (1, 2) for kind in ("trained", "explicit", "frozen")]
    for v in (1, 2):
        for m in MICRO_BATCHES:
            cases += [("transpose", v, m, 0, "none")] + [("transpose", v, m, 1, kind) for kind in MAIN_KINDS]
        for m in (3, 7):
            cases += [("transpose", v, m, 0, kind) for kind in ("list", "sharded")]
            cases += [("transpose", v, m, 1, kind) for kind in KINDS if kind not in MAIN_KINDS]
            cases += [("transpose", v, m, 2, kind) for kind in ("owner", "central", "recompute dropout")]
    return cases


def name_of(case):
    name, v, m, t, kind = case
    return f"{name} V={v} M={m} T={t} {kind}"


def make_layers(case, num_stages):
    name, _, _, t, kind = case
    torch.manual_seed(7)
    if name != "transpose":
        layers = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(num_stages + 2 + t)]
    else:
        layers = [Mixing(kind.endswith("dropout")) for _ in range(t)] + [Join()]
        layers += [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(num_stages + 1)]
    for layer in layers[:t] if kind.startswith("frozen") else []:
        layer.requires_grad_(False)
    return layers


def one_process(layers, inputs, y, num_micro_batches, num_steps):
    """Return the losses and outputs of the last step; gradients of all steps are left in the layers."""
    model = Chain([(str(i), layer) for i, layer in enumerate(layers)])
    inputs, y_parts = [x.tensor_split(num_micro_batches) for x in inputs], y.tensor_split(num_micro_batches)
    for step in range(num_steps):
        losses, outputs = [], []
        for m, y_part in enumerate(y_parts):
            torch.manual_seed(SEED + step * num_micro_batches + m)
            output = model(*[parts[m] for parts in inputs])
            loss = nn.functional.mse_loss(output, y_part)
            (loss * (len(y_part) / len(y))).backward()
            losses.append(loss.detach())
            outputs.append(output.detach())
    return losses, torch.cat(outputs)


def close(found, expected):
    torch.testing.assert_close(found.cpu(), expected, rtol=1e-5, atol=1e-6)


def make_schedule(case, stages, layers, rank):
    name, v, m, t, kind = case
    loss_fn = nn.functional.mse_loss
    if name in SINGLE:
        return SINGLE[name](stages[0], m, loss_fn)
    if name in MULTI:
        return MULTI[name](stages, m, loss_fn)
    if name == "zbv":
        if kind == "given":
            shape = PipelineShape(stages[0].group_size, v, m, "v")
            for stage in stages:
                stage.stage_index_to_group_rank = {i: shape.rank_of(i) for i in range(shape.num_stages)}
        return ScheduleZBVZeroBubble(stages, m, loss_fn)
    if kind in ("json", "csv"):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, f"plan.{kind}")
            Plan.build("interleaved", stages[0].group_size, v, m).save(path)
            return ScheduleFromPlan(stages, path, loss_fn)
    block = Chain([(str(i), layers[i]) for i in range(t)]) if t else None
    if block is not None and rank > 0:
        for tensor in [*block.parameters(), *block.buffers()]:
            tensor.data.fill_(float("nan"))  # a replica's own values must not matter
    if name == "mpipe":
        return ScheduleMPipeTranspose(
            stages, m, loss_fn, preprocess=block, num_transpose_layers=t, explicit_backward=kind == "explicit"
        )
    if name == "from_plan":
        plan = Plan.build("mpipe", stages[0].group_size, v, m, num_layers=t)
        return ScheduleFromPlan(stages, plan, loss_fn, preprocess=block)
    options = {} if kind == "none" else options_of(kind, stages[0].group_size, m)
    return ScheduleTranspose(stages, m, loss_fn, preprocess=block, num_transpose_layers=t, **options)


def run_case(case):
    name, v, m, t, kind = case
    rank, p = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    shape = PipelineShape(p, v, m, "v" if name == "zbv" else "loop")
    layers = make_layers(case, shape.num_stages)
    reference = copy.deepcopy(layers)
    layers = [layer.to(DEVICE) for layer in layers]
    ranges = partition_layers(len(layers), shape.num_stages, num_transpose_layers=t)
    mine = {stage: [str(i) for i in ranges[stage]] for stage in shape.stages_of(rank)}
    stages = [
        PipelineStage(Chain([(key, layers[int(key)]) for key in keys]), stage, shape.num_stages, DEVICE)
        for stage, keys in mine.items()
    ]
    schedule = make_schedule(case, stages, layers, rank).configure(overlap_p2p=OVERLAP)
    torch.manual_seed(SEED)
    inputs, y = [torch.randn(BATCH, WIDTH) for _ in range(1 + (name == "transpose"))], torch.randn(BATCH, WIDTH)
    torch.manual_seed(SEED + 100 * rank)
    is_last = shape.num_stages - 1 in mine
    passed = [x.to(DEVICE) for x in inputs] if rank == 0 or name in ("mpipe", "transpose") or kind == "mpipe" else []
    if kind == "sharded":
        own = owned_micro_batches(p, m, rank, schedule.plan)
        passed = [torch.cat([x.tensor_split(m)[i] for i in own]) for x in passed] if own else []
    # The second input is passed by position, or by name to the block.
    named = {"z": passed.pop()} if name == "transpose" and v == 2 and passed else {}
    losses = []
    for _ in range(2):
        output = schedule.step(
            *passed,
            **named,
            **({"target": y.to(DEVICE)} if is_last else {}),
            losses=losses,
            return_outputs=is_last,
        )
    expected_losses, expected_output = one_process(reference, inputs, y, m, 2)
    if is_last:
        close(torch.stack(losses), torch.stack(expected_losses))
        close(output, expected_output)
    else:
        assert output is None and losses == []
    keys = [key for keys in mine.values() for key in keys] + ([str(i) for i in range(t)] if rank == 0 else [])
    for key in keys:
        for parameter, twin in zip(layers[int(key)].parameters(), reference[int(key)].parameters()):
            if twin.grad is None:
                assert parameter.grad is None
            else:
                close(parameter.grad, twin.grad)
    check_block(schedule, layers[:t], reference[:t], rank)


def check_block(schedule, layers, reference, rank):
    """Check that replicas follow rank 0, and that rank 0 counts what it ran itself, each micro-batch once."""
    transpose = schedule.plan.transpose
    has_replicas = transpose is not None and (any(transpose.owners) or transpose.frozen)
    for layer, twin in zip(layers, reference):
        if rank > 0:
            assert all(parameter.grad is None for parameter in layer.parameters()), "a replica keeps no gradient"
            for parameter, other in zip(layer.parameters(), twin.parameters()):
                assert not has_replicas or torch.equal(parameter.cpu(), other), "a replica follows rank 0"
        if isinstance(layer, Mixing):
            assert layer.scale.item() == 1.5
        if isinstance(layer, Mixing) and rank == 0:
            assert layer.seen.item() == 2 * transpose.owners.count(0)


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    run_cases({name_of(case): lambda case=case: run_case(case) for case in grid()}, dist.get_rank())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
