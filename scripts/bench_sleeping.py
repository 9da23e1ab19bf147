"""One rank of bench_schedules.py's real run: schedules on layers that sleep, measured beside their own simulation.

    bash scripts/torchrun_train.sh --ranks 4 --script scripts/bench_sleeping.py --framework torch
    bash scripts/msrun_train.sh --ranks 4 --script scripts/bench_sleeping.py --framework mindspore

A layer sleeps a fixed time in its forward and twice that in its backward, so that ranks overlap on any number of
cores; the preprocess block is such a layer too. ``transpose`` and ``mpipe`` take turns. Simulated is what the run's
own costs give: of each op the lower quartile of its durations (the others waited for a message), of a message half the
time from a send to its answer, of a collective the shortest that a rank spent in one. Rank 0 prints a row for each.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from hyper_pp import Costs, Plan, simulate
from hyper_pp.actions import Op

RANKS, MICRO_BATCHES, WIDTH, ROUNDS = 4, 8, 16, 7
MOST_OVER_SIMULATED, MOST_OVER_MPIPE = 1.05, 0.80
COLLECTIVES = (Op.BCAST_T, Op.REDUCE_T)


class Runner(NamedTuple):
    """A schedule ready to run."""

    plan: Plan
    engine: Any
    step: Callable[[], None]


def durations(runner: Runner) -> dict[str, list[float]]:
    """Return the seconds of every action of the last step on this rank, by op."""
    found: dict[str, list[float]] = {}
    for action, start, end in runner.engine.timeline:
        found.setdefault(str(action.op), []).append(end - start)
    return found


def latency(transport: Any, tensors: Any, spec: Any, times: int = 40) -> float:
    """Return the seconds of one message between ranks 0 and 1; 0 on other ranks."""
    if transport.rank > 1:
        return 0.0
    peer, message, taken = 1 - transport.rank, tensors.full(spec, 1.0), []
    for _ in range(times):
        start = time.perf_counter()
        if transport.rank == 0:
            transport.send([message], peer).wait()
            transport.recv([spec], peer).wait()
        else:
            transport.recv([spec], peer).wait()
            transport.send([message], peer).wait()
        taken.append((time.perf_counter() - start) / 2)
    return statistics.median(taken)


def costs_of(seconds: list[dict[str, list[float]]], message: float) -> Costs:
    """Return the costs that a run showed.

    Args:
        seconds: By rank and op.
        message: Latency of a message.
    """

    def quartile(op: str) -> float:
        values = sorted(value for rank in seconds for value in rank.get(op, ()))
        return values[len(values) // 4] if values else 0.0

    collective = [min(rank[str(op)]) for rank in seconds for op in COLLECTIVES if str(op) in rank]
    forward = quartile("TF")
    # A central TB runs the forward again, which the simulation adds by itself.
    central = 0.0 if "RECV_TB" in {op for rank in seconds for op in rank} else forward
    return Costs(
        F=quartile("F"),
        B=quartile("B"),
        TF=forward,
        TB=max(0.0, quartile("TB") - central),
        comm=message,
        collective=min(collective, default=0.0),
    )


def measure(runners: dict[str, Runner], gather: Callable[[Any], list[Any]], message: float) -> None:
    """Run the schedules in turn; print the rows on rank 0."""
    taken: dict[str, list[float]] = {name: [] for name in runners}
    spent: dict[str, dict[str, list[float]]] = {name: {} for name in runners}
    for number in range(ROUNDS + 2):
        for name, runner in runners.items():
            runner.engine.timeline = []
            gather(None)
            start = time.perf_counter()
            runner.step()
            gather(None)
            if number >= 2:
                taken[name].append(time.perf_counter() - start)
                for op, values in durations(runner).items():
                    spent[name].setdefault(op, []).extend(values)
    everybody = gather((taken, spent, message))
    if runners["mpipe"].engine.rank != 0:
        return
    message = max(latency for _, _, latency in everybody)
    medians = {name: statistics.median(values) for name, values in taken.items()}
    for name, runner in runners.items():
        costs = costs_of([found[name] for _, found, _ in everybody], message)
        simulated = simulate(runner.plan, costs).step_time
        ratio, to_mpipe = medians[name] / simulated, medians[name] / medians["mpipe"]
        good = name == "mpipe" or (ratio <= MOST_OVER_SIMULATED and to_mpipe <= MOST_OVER_MPIPE)
        milliseconds = f"{1e3 * medians[name]:.0f} | {1e3 * simulated:.0f}"
        own = f"F={1e3 * costs.F:.1f}, TF={1e3 * costs.TF:.1f}, comm={1e3 * costs.comm:.2f}"
        verdict = "" if good else " MISSED"
        print(f"ROW| {name} | {milliseconds} | {ratio:.3f} | {to_mpipe:.3f} | {own} |{verdict}", flush=True)


def plans() -> dict[str, Plan]:
    """Return what is compared: a block as long as a stage, both with a backward twice as long."""
    costs = Costs(F=1, B=2, TF=1, TB=2)
    return {
        "transpose": Plan.build("transpose", RANKS, 1, MICRO_BATCHES, num_layers=1, costs=costs),
        "mpipe": Plan.build("mpipe", RANKS, 1, MICRO_BATCHES, num_layers=1, explicit_backward=True),
    }


def on_torch(seconds: float) -> None:
    """Measure the torch twin, on gloo."""
    import torch
    import torch.distributed as dist
    from bench_torch import CPU, SleepingLayer

    from hyper_pp.torch_npu import PipelineStage, ScheduleFromPlan

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    x = torch.ones(2 * MICRO_BATCHES, WIDTH)
    runners = {}
    for name, plan in plans().items():
        stage = PipelineStage(SleepingLayer(seconds), rank, RANKS, CPU)
        loss = torch.nn.functional.mse_loss
        schedule = ScheduleFromPlan([stage], plan, loss, preprocess=SleepingLayer(seconds))
        keywords = {"target": x} if rank == RANKS - 1 else {}

        def step(schedule: Any = schedule, keywords: dict[str, Any] = keywords) -> None:
            schedule.step(x, **keywords)

        runners[name] = Runner(schedule.plan, schedule.engine, step)
    engine = runners["mpipe"].engine
    message = latency(engine.transport, engine.tensors, engine.tensors.spec(x[:2]))
    measure(runners, engine.transport.all_gather_object, message)
    dist.destroy_process_group()


def on_mindspore(seconds: float) -> None:
    """Measure the MindSpore executor, on mccl."""
    import mindspore as ms
    import numpy as np
    from mindspore import Parameter, Tensor, mint, nn
    from mindspore.communication import init

    from hyper_pp.mindspore import PipelineCell

    class Sleep(nn.Cell):
        def construct(self, x: Tensor, weight: Tensor) -> Tensor:
            time.sleep(seconds)
            return x * 1.0

        def bprop(self, x: Tensor, weight: Tensor, output: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
            time.sleep(2 * seconds)
            return grad * 1.0, weight * 0.0

    class SleepingLayer(nn.Cell):
        """Passes its input on after a fixed time."""

        def __init__(self) -> None:
            super().__init__()
            self.weight = Parameter(Tensor(np.zeros((1,), np.float32)), name="weight")
            self.sleep = Sleep()

        def construct(self, x: Tensor) -> Tensor:
            return self.sleep(x, self.weight)

    ms.set_context(mode=ms.PYNATIVE_MODE, device_target="CPU")
    ms.runtime.launch_blocking()
    init()
    x = Tensor(np.ones((2 * MICRO_BATCHES, WIDTH), np.float32))
    runners = {}
    for name, plan in plans().items():
        net = PipelineCell(
            [SleepingLayer() for _ in range(RANKS + 1)],
            lambda output, target: mint.mean(mint.square(output - target)),
            micro_size=MICRO_BATCHES,
            schedule=plan,
            num_transpose_layers=1,
            overlap_p2p=True,
        )

        def step(net: Any = net) -> None:
            net(x, x).asnumpy()

        runners[name] = Runner(net.plan, net.engine, step)
    engine = runners["mpipe"].engine
    message = latency(engine.transport, engine.tensors, engine.tensors.spec(x[:2]))
    measure(runners, engine.transport.all_gather_object, message)


def main() -> None:
    """Run this rank."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--framework", required=True, choices=("torch", "mindspore"))
    parser.add_argument("--milliseconds", type=float, help="a forward sleeps (default: torch 20, MindSpore 100)")
    options = parser.parse_args()
    if options.framework == "torch":
        on_torch((options.milliseconds or 20.0) / 1e3)
    else:
        on_mindspore((options.milliseconds or 100.0) / 1e3)


if __name__ == "__main__":
    main()
