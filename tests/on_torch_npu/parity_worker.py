"""Under torchrun: every schedule over a grid of shapes, beside a loop over the same micro-batches in one process."""

import copy

import torch
import torch.distributed as dist
from torch import nn
from torchrun_launch import run_cases

from hyper_pp.partition import partition_layers
from hyper_pp.shape import PipelineShape
from hyper_pp.torch_npu import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleLoopedBFS,
    ScheduleMPipeTranspose,
)
from hyper_pp.torch_npu.model import Chain

WIDTH, BATCH = 4, 11
MICRO_BATCHES = (1, 2, 3, 4, 7, 8)
SINGLE = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}
MULTI = {"interleaved": ScheduleInterleaved1F1B, "looped_bfs": ScheduleLoopedBFS}
DEVICE = torch.device("cpu")  # the pipeline's; what it is compared with runs on the CPU


def grid():
    """Return (schedule, V, M, T, kind of block) of every case; kind: none, trained, explicit, frozen."""
    cases = [(name, 1, m, 0, "none") for name in SINGLE for m in MICRO_BATCHES]
    cases += [(name, v, m, 0, "none") for name in MULTI for v in (1, 2, 3) for m in MICRO_BATCHES]
    for v in (1, 2, 3):
        for m in MICRO_BATCHES:
            cases.append(("mpipe", v, m, 0, "none"))
            cases += [("mpipe", v, m, t, kind) for t in (1, 2) for kind in ("trained", "explicit", "frozen")]
    return cases


def name_of(case):
    name, v, m, t, kind = case
    return f"{name} V={v} M={m} T={t} {kind}"


def make_layers(count):
    torch.manual_seed(7)
    return [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(count)]


def one_process(layers, x, y, num_micro_batches, num_steps):
    """Return the losses and outputs of the last step; gradients of all steps are left in the layers."""
    for _ in range(num_steps):
        losses, outputs = [], []
        for x_part, y_part in zip(x.tensor_split(num_micro_batches), y.tensor_split(num_micro_batches)):
            output = nn.Sequential(*layers)(x_part)
            loss = nn.functional.mse_loss(output, y_part)
            (loss * (len(x_part) / len(x))).backward()
            losses.append(loss.detach())
            outputs.append(output.detach())
    return losses, torch.cat(outputs)


def close(found, expected):
    torch.testing.assert_close(found.cpu(), expected, rtol=1e-5, atol=1e-6)


def run_case(case):
    name, v, m, t, kind = case
    rank, p = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    shape = PipelineShape(p, v, m)
    layers = make_layers(shape.num_stages + 2 + t)
    for layer in layers[:t] if kind == "frozen" else []:
        layer.requires_grad_(False)
    reference = copy.deepcopy(layers)
    layers = [layer.to(DEVICE) for layer in layers]
    ranges = partition_layers(len(layers), shape.num_stages, num_transpose_layers=t)
    mine = {stage: [str(i) for i in ranges[stage]] for stage in shape.stages_of(rank)}
    stages = [
        PipelineStage(Chain([(key, layers[int(key)]) for key in keys]), stage, shape.num_stages, DEVICE)
        for stage, keys in mine.items()
    ]
    loss_fn = nn.functional.mse_loss
    if name in SINGLE:
        schedule = SINGLE[name](stages[0], m, loss_fn)
    elif name in MULTI:
        schedule = MULTI[name](stages, m, loss_fn)
    else:
        block = Chain([(str(i), layers[i]) for i in range(t)]) if t else None
        if block is not None and rank > 0:
            for parameter in block.parameters():
                parameter.data.fill_(float("nan"))  # a replica's own values must not matter
        schedule = ScheduleMPipeTranspose(
            stages, m, loss_fn, preprocess=block, num_transpose_layers=t, explicit_backward=kind == "explicit"
        )
    torch.manual_seed(11)
    x, y = torch.randn(BATCH, WIDTH), torch.randn(BATCH, WIDTH)
    is_last = shape.num_stages - 1 in mine
    needs_inputs = rank == 0 or name == "mpipe"
    losses = []
    for _ in range(2):
        output = schedule.step(
            *([x.to(DEVICE)] if needs_inputs else []),
            **({"target": y.to(DEVICE)} if is_last else {}),
            losses=losses,
            return_outputs=is_last,
        )
    expected_losses, expected_output = one_process(reference, x, y, m, 2)
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
    if rank > 0:
        for i in range(t):
            assert all(parameter.grad is None for parameter in layers[i].parameters()), "a replica keeps no gradient"
            for parameter, twin in zip(layers[i].parameters(), reference[i].parameters()):
                assert torch.equal(parameter.cpu(), twin), "a replica follows rank 0"


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    run_cases({name_of(case): lambda case=case: run_case(case) for case in grid()}, dist.get_rank())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
