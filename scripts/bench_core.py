"""Time building, lowering and verifying a large interleaved plan, and how that grows with the micro-batches."""

import argparse
import gc
import statistics
import sys
import time
from itertools import pairwise
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from hyper_pp import Plan, verify

NUM_RANKS, NUM_CHUNKS = 16, 4
SMALL, LARGE = 256, 1024  # micro-batches
MOST_SECONDS = 3.0  # for SMALL
MOST_RATIO = 4.5  # LARGE to SMALL, four times as many actions


def seconds_of(num_micro_batches: int) -> tuple[float, float, float]:
    """Return the CPU time of building, lowering and verifying one plan."""
    gc.collect()
    times = [time.process_time()]
    plan = Plan.build("interleaved", NUM_RANKS, NUM_CHUNKS, num_micro_batches, compute_only=True)
    times.append(time.process_time())
    lowered = plan.lowered()
    times.append(time.process_time())
    verify(lowered)
    times.append(time.process_time())
    build, lower, verification = (end - start for start, end in pairwise(times))
    return build, lower, verification


def main() -> None:
    """Print the times and the ratio; exit 1 if one is over its limit."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5, help="times each size is run; medians count")
    repeats = parser.parse_args().repeats
    totals: dict[int, list[float]] = {SMALL: [], LARGE: []}
    # In turn, so that a busy spell of the machine meets both sizes.
    for _ in range(repeats):
        for num_micro_batches in (SMALL, LARGE):
            parts = seconds_of(num_micro_batches)
            totals[num_micro_batches].append(sum(parts))
            print("M={:<5} build {:.2f} s, lower {:.2f} s, verify {:.2f} s".format(num_micro_batches, *parts))
    small, large = (statistics.median(totals[size]) for size in (SMALL, LARGE))
    print(f"interleaved P={NUM_RANKS} V={NUM_CHUNKS} M={SMALL}: {small:.2f} s (limit {MOST_SECONDS:g} s)")
    print(f"M={LARGE} to M={SMALL}: {large / small:.2f} (limit {MOST_RATIO:g})")
    if small >= MOST_SECONDS or large / small > MOST_RATIO:
        raise SystemExit("over the limit")


if __name__ == "__main__":
    main()
