"""Build, lower and verify every plan of the built-in schedules up to P = 8, V = 4, M = 24, with all their options.

``transpose``, which searches for its orders, is checked up to P = 4, V = 4, M = 12, with one option at a time.
"""

import argparse
import itertools
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from hyper_pp import Plan, ScheduleError, simulate, verify
from hyper_pp.dependencies import Dependencies
from hyper_pp.rendezvous import run_two_queues
from hyper_pp.schedules import SCHEDULES, Schedule

# What each option is tried with; None leaves it out.
VALUES: dict[str, tuple[Any, ...]] = {
    "less_memory": (None, True),
    "frozen": (None, True),
    "explicit_backward": (None, True),
    "num_layers": (None,),  # 0 is frozen, other numbers change no order
    "backward": (None,),  # central, the only one it takes
}
SEARCHED = "transpose"
MOST_SEARCHED = (4, 4, 12)
SEARCHED_OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    {"owners": "round_robin"},
    {"owners": "inline"},
    {"frozen": True},
    {"backward": "central"},
    {"recompute": True},
    {"max_live": 1},
    {"max_live": 2, "recompute": True},
    {"less_memory": True},
)


def option_sets(schedule: Schedule) -> Iterator[dict[str, Any]]:
    """Yield every combination of the schedule's options that it takes."""
    if schedule.name == SEARCHED:
        yield from SEARCHED_OPTIONS
        return
    for values in itertools.product(*(VALUES[option] for option in schedule.options)):
        yield {option: value for option, value in zip(schedule.options, values) if value is not None}


def plans(max_ranks: int, max_chunks: int, max_micro_batches: int) -> Iterator[tuple[str, tuple[int, int, int], dict]]:
    """Yield name, (P, V, M) and options of every plan in the range."""
    for schedule in SCHEDULES.values():
        chunks = range(1, max_chunks + 1) if schedule.num_chunks is None else (schedule.num_chunks,)
        for shape in itertools.product(range(1, max_ranks + 1), chunks, range(1, max_micro_batches + 1)):
            if schedule.name == SEARCHED and any(count > most for count, most in zip(shape, MOST_SEARCHED)):
                continue
            for options in option_sets(schedule):
                yield schedule.name, shape, options


def main() -> None:
    """Check them all, or as many as the arguments say; exit 1 at the first fault."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--max-ranks", type=int, default=8)
    parser.add_argument("--max-chunks", type=int, default=4)
    parser.add_argument("--max-micro-batches", type=int, default=24)
    args = parser.parse_args()
    start, counts = time.perf_counter(), dict.fromkeys(SCHEDULES, 0)
    for name, shape, options in plans(args.max_ranks, args.max_chunks, args.max_micro_batches):
        try:
            plan = Plan.build(name, *shape, compute_only=True, **options)
            lowered = plan.lowered()
            verify(lowered)  # blocking rendezvous; the second model is asked for by itself
            dependencies = Dependencies(lowered.shape, lowered.transpose, lowered.orders)
            if run_two_queues(lowered.orders, dependencies) is not None:
                raise ScheduleError("two queues deadlock")
            simulation = simulate(lowered)
            if simulation.lower_bound > simulation.step_time:
                raise ScheduleError(f"the lower bound {simulation.lower_bound} is above {simulation.step_time}")
            if simulation.step_time != simulate(plan).step_time:
                raise ScheduleError("lowered and compute-only plans differ in step time")
        except (ScheduleError, ValueError) as error:
            raise SystemExit(f"{name} P={shape[0]} V={shape[1]} M={shape[2]} {options}: {error}") from error
        counts[name] += 1
    seconds = time.perf_counter() - start
    for name, count in counts.items():
        print(f"{name:<14} {count:>6} plans verified")
    print(f"{sum(counts.values())} plans in {seconds:.0f} s")


if __name__ == "__main__":
    main()
