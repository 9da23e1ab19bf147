"""Compare orders of a step whose first layers are a trainable preprocess block, as Markdown tables.

    python scripts/bench_schedules.py [--latency 0.05]     # by simulation
    python scripts/bench_schedules.py --run torch          # for real, on 4 ranks whose layers sleep
    python scripts/bench_schedules.py --run mindspore

Each cell of the simulated table holds step time, efficiency, and the most stage inputs and block graphs that a rank
holds at a time. Costs are F=1 and B=2 for each chunk, TB = 2·TF. The real run measures ``transpose`` and ``mpipe``
beside their simulation with the run's own costs (``bench_sleeping.py``). Exit status 1 if ``transpose`` misses a bound
or takes too long to build.
"""

import argparse
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from hyper_pp import Costs, PipelineShape, Plan, Simulation, simulate, verify
from hyper_pp.schedules.block_templates import spread_orders

RANKS_AND_MICRO_BATCHES = ((4, 8), (8, 16), (8, 32), (16, 64))
CHUNKS = (1, 2)
RATIOS = (0.25, 1, 2)  # TF / (V·F)
MOST_SECONDS = 2.0  # to build and lower one plan

# The most that a step may take, as a multiple of the yardstick, by ratio.
WANTED = {
    1: dict(zip(RATIOS, (1.00, 1.00, 1.06))),
    2: dict(zip(RATIOS, (1.02, 1.05, 1.09))),
}
WANTED_2_CHUNKS_4_RANKS = dict(zip(RATIOS, (1.03, 1.10, 1.13)))


class Case(NamedTuple):
    """One row: a shape, and how long the block's forward takes beside a rank's own."""

    num_ranks: int
    num_chunks: int
    num_micro_batches: int
    ratio: float
    latency: float

    @property
    def shape(self) -> tuple[int, int, int]:
        """P, V and M."""
        return self[:3]

    @property
    def costs(self) -> Costs:
        """What actions and messages cost."""
        forward = self.ratio * self.num_chunks
        return Costs(F=1, B=2, TF=forward, TB=2 * forward, comm=self.latency)

    @property
    def yardstick(self) -> float:
        """T*: the last rank without a bubble between a first and a last micro-batch, or all work spread evenly."""
        p, v, m = self.shape
        block = self.costs.TF + self.costs.TB
        return max(3 * m * v + 3 * (p - 1) + block, 3 * m * v + m * block / p)

    @property
    def wanted(self) -> float:
        """The most that transpose may take, in units of T*."""
        if self.num_ranks == 4 and self.num_chunks == 2:
            return WANTED_2_CHUNKS_4_RANKS[self.ratio]
        return WANTED[self.num_chunks][self.ratio]


def cases(latency: float) -> Iterator[Case]:
    """Yield the rows of the table."""
    for num_ranks, num_micro_batches in RANKS_AND_MICRO_BATCHES:
        for num_chunks in CHUNKS:
            for ratio in RATIOS:
                yield Case(num_ranks, num_chunks, num_micro_batches, ratio, latency)


def _spread(case: Case) -> Plan:
    shape = PipelineShape(*case.shape)
    orders, transpose = spread_orders(shape, costs=case.costs)
    return Plan("spread", shape, orders, compute_only=True, transpose=transpose).lowered(case.costs)


ORDERS: dict[str, Callable[[Case], Plan]] = {
    "inline": lambda case: Plan.build("transpose", *case.shape, owners="inline", costs=case.costs),
    "mpipe": lambda case: Plan.build("mpipe", *case.shape),
    "mpipe, explicit": lambda case: Plan.build("mpipe", *case.shape, explicit_backward=True),
    "spread owners": _spread,
    "transpose": lambda case: Plan.build("transpose", *case.shape, costs=case.costs),
    "transpose, max_live=2": lambda case: Plan.build("transpose", *case.shape, costs=case.costs, max_live=2),
}


def cell(simulation: Simulation) -> str:
    """Return a cell's text."""
    inputs, graphs = max(simulation.peak_activations), max(simulation.peak_preprocess)
    return f"{simulation.step_time:g} · {simulation.efficiency:.0%} · {inputs}/{graphs}"


def simulated(latency: float) -> bool:
    """Print the table; return whether transpose keeps to its bounds."""
    print(f"| P | V | M | TF/(V·F) | T* | {' | '.join(ORDERS)} | transpose / T* | wanted |")
    print(f"|{'---|' * (7 + len(ORDERS))}")
    slowest, good = 0.0, True
    for case in cases(latency):
        texts = []
        for name, build in ORDERS.items():
            start = time.process_time()
            plan = build(case)
            slowest = max(slowest, time.process_time() - start)
            verify(plan)
            simulation = simulate(plan, case.costs)
            texts.append(cell(simulation))
            if name == "transpose":
                reached = simulation.step_time / case.yardstick
        good &= reached <= case.wanted + 1e-9
        p, v, m = case.shape
        print(f"| {p} | {v} | {m} | {case.ratio:g} | {case.yardstick:g} | {' | '.join(texts)} ", end="")
        print(f"| {reached:.3f} | {case.wanted:.2f} |", flush=True)
    print(f"\nSlowest to build and lower: {slowest:.2f} s of one core (limit {MOST_SECONDS:g} s)")
    return good and slowest <= MOST_SECONDS


def real(framework: str) -> bool:
    """Run bench_sleeping.py on 4 ranks and print its table; return whether transpose keeps to its bounds."""
    here = Path(__file__).resolve().parent
    launcher = here / ("torchrun_train.sh" if framework == "torch" else "msrun_train.sh")
    command = ["bash", launcher, "--ranks", "4", "--script", here / "bench_sleeping.py", "--framework", framework]
    result = subprocess.run(list(map(str, command)), stdout=subprocess.PIPE, text=True, check=False)
    rows = [line.removeprefix("ROW") for line in result.stdout.splitlines() if line.startswith("ROW")]
    if result.returncode or not rows:
        raise SystemExit(f"{launcher.name} failed (exit status {result.returncode}):\n{result.stdout[-2000:]}")
    print(f"{framework}, P=4 V=1 M=8; measured and simulated in ms\n")
    print("| schedule | measured | simulated | measured / simulated | measured / mpipe | costs of the run, ms |")
    print("|---|---|---|---|---|---|")
    print("\n".join(rows))
    return not any("MISSED" in row for row in rows)


def main() -> None:
    """Print a table; exit 1 if a bound is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--latency", type=float, default=0.0, help="of a message, where a forward takes 1 (default: 0)")
    parser.add_argument("--run", choices=("torch", "mindspore"), help="measure for real, on this framework")
    options = parser.parse_args()
    if not (real(options.run) if options.run else simulated(options.latency)):
        raise SystemExit("a bound is missed")


if __name__ == "__main__":
    main()
