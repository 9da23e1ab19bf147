"""Timelines as trace events, for the Perfetto UI and chrome://tracing.

Source: Google, Trace Event Format: complete (``X``), flow (``s``, ``f``), counter (``C``) and metadata (``M``) events.
"""

import json
from collections.abc import Iterator, Sequence
from typing import Any

from hyper_pp.actions import Op
from hyper_pp.dependencies import Dependencies
from hyper_pp.render.numbers import describe_costs, describe_plan
from hyper_pp.simulate import Simulation, TimedAction

MICROSECONDS = 1000.0  # of a unit of time, which is drawn as a millisecond


def render_perfetto(*simulations: Simulation) -> str:
    """Return timelines as a trace: a process for each plan, a thread for each rank, an arrow for each message, and a
    counter of the stage inputs that each rank holds.

    Args:
        *simulations: Of any plans. A unit of the costs is shown as a millisecond.

    Returns:
        A whole JSON file in ASCII, with a newline at the end.
    """
    events = [event for process, simulation in enumerate(simulations) for event in _events(simulation, process)]
    numbers = json.dumps([simulation.to_json() for simulation in simulations])
    lines = ",\n".join(json.dumps(event) for event in events)
    return f'{{"displayTimeUnit": "ms", "otherData": {{"simulations": {numbers}}},\n"traceEvents": [\n{lines}\n]}}\n'


def _events(simulation: Simulation, process: int) -> Iterator[dict[str, Any]]:
    timeline, plan = simulation.timeline, simulation.plan
    rows = [(f"rank {rank}", row) for rank, row in enumerate(timeline.ranks)]
    rows += [("together", timeline.collectives)] if timeline.collectives else []
    name = f"{describe_plan(plan)}   {describe_costs(simulation)}"
    yield {"ph": "M", "pid": process, "name": "process_name", "args": {"name": name}}
    yield {"ph": "M", "pid": process, "name": "process_sort_index", "args": {"sort_index": process}}
    for thread, (name, row) in enumerate(rows):
        yield {"ph": "M", "pid": process, "tid": thread, "name": "thread_name", "args": {"name": name}}
        yield {"ph": "M", "pid": process, "tid": thread, "name": "thread_sort_index", "args": {"sort_index": thread}}
        for action, start, end in row:
            args = {"stage": action.stage}
            if action.micro_batch is not None:
                args["micro_batch"] = action.micro_batch
            event = {"ph": "X", "pid": process, "tid": thread, "name": str(action), "cat": str(action.op)}
            yield {**event, "ts": start * MICROSECONDS, "dur": (end - start) * MICROSECONDS, "args": args}
    yield from _messages(simulation, process)
    for rank, row in enumerate(timeline.ranks):
        counter = {"ph": "C", "pid": process, "name": f"stage inputs on rank {rank}"}
        for time, live in _live(row):
            yield {**counter, "ts": time * MICROSECONDS, "args": {"live": live}}


def _messages(simulation: Simulation, process: int) -> Iterator[dict[str, Any]]:
    """Yield an arrow's two ends for each message between actions that take time."""
    plan = simulation.plan
    dependencies = Dependencies(plan.shape, plan.transpose, plan.orders)
    place = {item.action: (rank, item) for rank, row in enumerate(simulation.timeline.ranks) for item in row}
    number = 0
    for rank, item in place.values():
        for producer, carrier in dependencies.needs(item.action):
            if carrier is None or producer not in place:
                continue
            sender, sent = place[producer]
            if sent.end <= sent.start or item.end <= item.start:
                continue
            arrow = {"pid": process, "name": "message", "cat": "message", "id": f"{process}.{number}"}
            # An arrow belongs to the action around its time: that of the start must lie before the action's end.
            inside = sent.start + 0.999 * (sent.end - sent.start)
            yield {**arrow, "ph": "s", "tid": sender, "ts": inside * MICROSECONDS}
            yield {**arrow, "ph": "f", "bp": "e", "tid": rank, "ts": item.start * MICROSECONDS}
            number += 1


def _live(row: Sequence[TimedAction]) -> Iterator[tuple[float, int]]:
    """Yield when the number of stage inputs that a rank holds changes, and to what."""
    live = 0
    for action, start, end in row:
        if action.op is Op.F:
            live += 1
            yield start, live
        elif action.op in (Op.B, Op.W):
            live -= 1
            yield end, live
