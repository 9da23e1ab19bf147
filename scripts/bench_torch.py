"""Times our schedules on torch beside torch.distributed.pipelining: the same stages, alternating, in one run.

    python scripts/bench_torch.py              # starts torchrun by itself; a few minutes
    python scripts/bench_torch.py --only b     # one of a, b, c

(a) Layers that sleep, twice as long in backward, so that 4 ranks overlap on any number of cores; P=4, V=2.
(b) Layers that do nothing, the same shapes: what the runtime itself costs.
(c) A small GPT, P=2, one thread each.

In (a) and (b) a bare loop over the same order, without checks and for these layers only, runs beside both: how little
there can be on this machine.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
import torch.distributed.pipelining as theirs
from gpt_common import GptConfig
from gpt_model_torch import build_layers, next_byte_loss
from torch import nn

import hyper_pp.torch_npu as ours
from hyper_pp import Plan
from hyper_pp.actions import Op
from hyper_pp.costs import Costs
from hyper_pp.passes import receives_earlier
from hyper_pp.simulate import simulate

CPU = torch.device("cpu")


class _Sleep(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, seconds):
        ctx.seconds = seconds
        if seconds:
            time.sleep(seconds)
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        if ctx.seconds:
            time.sleep(2 * ctx.seconds)
        return grad, None, None


class SleepingLayer(nn.Module):
    """Passes its input on after a fixed time.

    Args:
        seconds: Time of the forward; the backward takes twice that.
    """

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))
        self.seconds = seconds

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Sleep."""
        return _Sleep.apply(x, self.weight, self.seconds)


def time_alternating(steps: dict[str, Callable[[], None]], rounds: int) -> dict[str, float]:
    """Runs the steps in turn.

    Args:
        steps: Functions by name.
        rounds: How often each is timed, after 3 rounds of warm-up.

    Returns:
        Median seconds by name, of the slowest rank; and under "<name>/theirs" the median of the rounds' ratios, which
        a load that comes and goes on the machine disturbs less than a ratio of medians.
    """
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for number in range(rounds + 3):
        order = list(steps.items())
        for name, step in order if number % 2 else reversed(order):
            dist.barrier()
            start = time.perf_counter()
            step()
            dist.barrier()
            if number >= 3:
                seconds[name].append(time.perf_counter() - start)
    ratios = {
        f"{name}/theirs": statistics.median(one / theirs for one, theirs in zip(values, seconds["theirs"]))
        for name, values in seconds.items()
    }
    return {**ratios, **{name: statistics.median(values) for name, values in seconds.items()}}


def step_of(schedule, x: torch.Tensor, target: torch.Tensor) -> Callable[[], None]:
    """Returns a function that runs one training step with the arguments where they belong."""
    rank, last = dist.get_rank(), dist.get_world_size() - 1

    def step() -> None:
        args = (x,) if rank == 0 else ()
        keywords = {"target": target, "losses": []} if rank == last else {}
        schedule.step(*args, **keywords)

    return step


def bare_step_of(
    plan: Plan, modules: dict[int, nn.Module], x: torch.Tensor, target: torch.Tensor
) -> Callable[[], None]:
    """Returns a function that runs one training step in a plain loop: what is left when nothing is checked or general.

    Args:
        plan: Compute-only or lowered.
        modules: This rank's stages by global stage; each takes and returns one tensor of the shape of ``x``'s part.
        x: Whole batch's input.
        target: Whole batch's target, of the same shape.
    """
    plan = plan.lowered()
    rank, last, group = dist.get_rank(), plan.shape.num_stages - 1, dist.group.WORLD
    order = receives_earlier(plan.orders[rank], 64)
    num_micro_batches, rank_of = plan.shape.num_micro_batches, plan.shape.rank_of
    size = x.shape[0] // num_micro_batches

    def step() -> None:
        xs, targets = x.split(size), target.split(size)
        ahead, grads, inputs, outputs, works = {}, {}, {}, {}, {}
        sent = []
        for stage, op, m in order:
            key = stage, m
            if op is Op.F:
                if key in works:
                    works.pop(key).wait()
                leaf = xs[m] if stage == 0 else ahead.pop(key).requires_grad_()
                output = modules[stage](leaf)
                inputs[key] = leaf
                outputs[key] = output if stage < last else nn.functional.mse_loss(output, targets[m])
                if stage + 1 in modules:
                    ahead[stage + 1, m] = output.detach()
            elif op is Op.B:
                if (*key, op) in works:
                    works.pop((*key, op)).wait()
                output = outputs.pop(key)
                torch.autograd.backward(output, torch.tensor(1 / len(xs)) if stage == last else grads.pop(key))
                grad = inputs.pop(key).grad
                if stage - 1 in modules:
                    grads[stage - 1, m] = grad
                elif stage > 0:
                    inputs[key] = grad
            elif op is Op.SEND_F:
                wire = outputs[key].detach()
                sent.append((wire, group.send([wire], rank_of(stage + 1), 0)))
            elif op is Op.SEND_B:
                wire = inputs.pop(key)
                sent.append((wire, group.send([wire], rank_of(stage - 1), 0)))
            else:
                buffer = torch.empty_like(xs[m])
                if op is Op.RECV_F:
                    ahead[key], works[key] = buffer, group.recv([buffer], rank_of(stage - 1), 0)
                else:
                    grads[key], works[(*key, Op.B)] = buffer, group.recv([buffer], rank_of(stage + 1), 0)
        for _, work in sent:
            work.wait()

    return step


def bench_layers(seconds: float, num_micro_batches: int, rounds: int) -> dict[str, float]:
    """Times interleaved 1F1B on sleeping layers."""
    rank, num_ranks = dist.get_rank(), dist.get_world_size()
    x, target = torch.randn(2 * num_micro_batches, 16), torch.randn(2 * num_micro_batches, 16)
    steps = {}
    for name, library in (("theirs", theirs), ("ours", ours)):
        stages = [
            library.PipelineStage(SleepingLayer(seconds), index, 2 * num_ranks, CPU)
            for index in (rank, rank + num_ranks)
        ]
        schedule = library.ScheduleInterleaved1F1B(stages, num_micro_batches, nn.functional.mse_loss)
        steps[name] = step_of(schedule, x, target)
    plan = Plan.build("interleaved", num_ranks, 2, num_micro_batches)
    modules = {index: SleepingLayer(seconds) for index in (rank, rank + num_ranks)}
    steps["bare"] = bare_step_of(plan, modules, x, target)
    found = time_alternating(steps, rounds)
    found["simulated"] = simulate(plan, Costs(F=seconds, B=2 * seconds)).step_time
    return found


def bench_gpt(rounds: int) -> dict[str, float]:
    """Times 1F1B on a small GPT."""
    rank, num_ranks = dist.get_rank(), dist.get_world_size()
    config = GptConfig(num_blocks=6, hidden=128, num_heads=4, context=128)
    ids, targets = (torch.randint(0, 256, (8, config.context)) for _ in range(2))
    steps = {}
    for name, library in (("theirs", theirs), ("ours", ours)):
        layers = build_layers(config)
        half = len(layers) // 2
        module = layers[:half] if rank == 0 else layers[half:]
        stage = library.PipelineStage(module, rank, num_ranks, CPU)
        steps[name] = step_of(library.Schedule1F1B(stage, 8, next_byte_loss), ids, targets)
    return time_alternating(steps, rounds)


def run(args: argparse.Namespace) -> None:
    """Runs this rank's part of a launch and lets rank 0 write what came out."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rows = []
    if args.launched == "c":
        rows.append(("(c) GPT, 6 blocks, P=2, M=8", bench_gpt(args.rounds or 20), 1.00, None))
    else:
        for m in (8, 16):
            if args.launched == "b":
                rows.append((f"(b) empty layers, P=4 V=2 M={m}", bench_layers(0.0, m, args.rounds or 60), 0.70, None))
            else:
                name = f"(a) layers of {args.sleep:g} ms, P=4 V=2 M={m}"
                rows.append((name, bench_layers(args.sleep / 1e3, m, args.rounds or 12), 0.98, 1.05))
    if dist.get_rank() == 0:
        with open(args.report, "w", encoding="utf-8") as file:
            json.dump(rows, file)
    dist.destroy_process_group()


def launch(args: argparse.Namespace) -> int:
    """Starts a launch for each part and prints the table.

    Returns:
        0 if every ratio is within its bound, else 1.
    """
    good = True
    print(f"torch {torch.__version__}, Python {platform.python_version()}, {os.cpu_count()} CPU cores, gloo")
    print("| case | theirs, ms | ours, ms | ours / theirs | bound | bare loop / theirs | ours / simulated | bound |")
    print("|---|---|---|---|---|---|---|---|", flush=True)
    for part, ranks in (("a", 4), ("b", 4), ("c", 2)):
        if args.only and part not in args.only:
            continue
        command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks)]
        command += ["--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0", os.path.abspath(__file__)]
        command += ["--launched", part, "--report", args.report, "--sleep", str(args.sleep)]
        command += ["--rounds", str(args.rounds)]
        subprocess.run(command, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"}, stderr=subprocess.PIPE)
        with open(args.report, encoding="utf-8") as file:
            rows = json.load(file)
        os.remove(args.report)
        for name, found, bound, simulated_bound in rows:
            ratio = found["ours/theirs"]
            cells = [name, f"{found['theirs'] * 1e3:.1f}", f"{found['ours'] * 1e3:.1f}", f"{ratio:.3f}", f"{bound:.2f}"]
            cells.append(f"{found['bare/theirs']:.3f}" if "bare" in found else "")
            good = good and ratio <= bound
            if simulated_bound is None:
                cells += ["", ""]
            else:
                to_simulated = found["ours"] / found["simulated"]
                cells += [f"{to_simulated:.3f}", f"{simulated_bound:.2f}"]
                good = good and to_simulated <= simulated_bound
            print("| " + " | ".join(cells) + " |", flush=True)
    print("OK: every ratio is within its bound" if good else "FAILED: a ratio is above its bound")
    return 0 if good else 1


def main() -> int:
    """Runs what the command line says."""
    parser = argparse.ArgumentParser(description="Time our schedules beside torch.distributed.pipelining.")
    parser.add_argument("--only", default="", help="letters of the parts to run, for example ab")
    parser.add_argument("--sleep", type=float, default=20.0, help="forward time of a sleeping layer, ms")
    parser.add_argument("--rounds", type=int, default=0, help="timed steps of each; 0: as fits the part")
    parser.add_argument("--launched", choices=("a", "b", "c"), help=argparse.SUPPRESS)
    parser.add_argument("--report", default=f"bench_torch-{os.getpid()}.json", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.launched:
        run(args)
        return 0
    return launch(args)


if __name__ == "__main__":
    sys.exit(main())
