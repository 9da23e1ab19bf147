"""The timetable as text: one line per rank, time from left to right.

``1f1b`` with P=2, M=3::

    time    0       5         10
    rank 0  F0 F1 .  .  B0--- F2 B1--- .  .  B2---
    rank 1  .  F0 B0--- F1 B1--- .  F2 B2--- .  .
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from hyper_pp.actions import PREPROCESS_OPS, Action, Op
from hyper_pp.render.numbers import (
    describe_costs,
    describe_peaks,
    describe_plan,
    describe_times,
    instant_ops,
    number,
    ticks,
)
from hyper_pp.shape import PipelineShape
from hyper_pp.simulate import Simulation, TimedAction, Timeline

WIDTH = 160  # characters a line may take before a more compact form is tried
Label = Callable[[Action], str]


def render_text(simulation: Simulation, width: int = WIDTH) -> str:
    """Return a simulation's numbers and its timetable.

    Args:
        simulation: Of any plan.
        width: Most characters of a line; longer timetables are continued below.

    Returns:
        Lines of ASCII text, with a newline at the end.
    """
    lines = [describe_plan(simulation.plan), describe_times(simulation)]
    lines += [describe_peaks(simulation), describe_costs(simulation)]
    lines += _timetable(simulation.timeline, simulation.plan.shape, width)
    lines += [
        f"{item.action}: {number(item.start)} to {number(item.end)}, beside the compute"
        for item in simulation.timeline.collectives
        if item.end > item.start
    ]
    return "\n".join(lines) + "\n"


@dataclass(frozen=True)
class _Form:
    """One way to draw: how long a column is, how actions are named, and how wide columns are for that.

    Args:
        unit: Time of one column.
        label: Names an action.
        gap: Blanks that must follow a name.
        cell: Characters of one column.
    """

    unit: float
    label: Label
    gap: int
    cell: int

    def place(self, time: float) -> int:
        """Return the character at which a time stands."""
        return round(time / self.unit * self.cell)


def _timetable(timeline: Timeline, shape: PipelineShape, width: int) -> list[str]:
    actions = [item for row in timeline.ranks for item in row if item.end > item.start]
    if not actions:
        return ["(nothing takes any time)"]
    margins = [text.ljust(len(f"rank {len(timeline.ranks) - 1}  ")) for text in ["time"]]
    margins += [f"rank {rank}".ljust(len(margins[0])) for rank in range(len(timeline.ranks))]
    room = max(width - len(margins[0]), 20)
    forms = _forms(actions, shape)
    # If nothing fits, the timetable is cut anyhow: full names then, as they are easiest to read.
    form = next((form for form in forms if form.place(timeline.end) <= room), forms[0])
    columns = math.ceil(timeline.end / form.unit - 1e-6)
    size = columns * form.cell
    rows = [_line(row, form, size) for row in timeline.ranks]
    length = max(room // form.cell, 1) * form.cell
    lines: list[str] = []
    for first in range(0, size, length):
        last = min(first + length, size)
        parts = [_ruler(form, first, last)] + [row[first:last] for row in rows]
        lines += [""] if first else []
        lines += [(margin + part).rstrip() for margin, part in zip(margins, parts)]
    if form.label is not str and shape.num_chunks == 2:
        lines.append("(capitals: a rank's first chunk; small letters: its second)")
    hidden = instant_ops(timeline)
    if hidden:
        lines.append(f"(not drawn, as they take no time: {', '.join(hidden)})")
    return lines


def _forms(actions: Sequence[TimedAction], shape: PipelineShape) -> list[_Form]:
    """Return ways to draw, widest first."""
    unit = _unit(actions)
    forms = [_Form(unit, str, 1, _cell(actions, unit, str, 1))]
    # Without stages: the line gives the rank, and upper or lower case the chunk if there are no more than two.
    if shape.num_chunks <= 2:
        short = _short_label(shape)
        forms += [_Form(unit, short, gap, _cell(actions, unit, short, gap)) for gap in (1, 0)]
        # As a last resort, the shorter actions of the block may have their names cut.
        body = [item for item in actions if item.action.op not in PREPROCESS_OPS] or actions
        shortest = min(item.end - item.start for item in body)
        forms.append(_Form(shortest, short, 0, _cell(body, shortest, short, 0)))
    return forms


def _short_label(shape: PipelineShape) -> Label:
    def short(action: Action) -> str:
        op = "T" if action.op is Op.TF else action.op.value
        if shape.chunk_of(action.stage) == 1:
            op = op.lower()
        return f"{op}{'' if action.micro_batch is None else action.micro_batch}"

    return short


def _unit(actions: Sequence[TimedAction]) -> float:
    """Return the time of one column: what divides all durations if there is such a thing, else the shortest of them."""
    longest = max(item.end - item.start for item in actions)
    # Rounded, as differences of times are equal only nearly.
    durations = {round((item.end - item.start) / longest, 9) for item in actions} - {0.0} or {1.0}
    shortest = min(durations)
    common = Fraction(1)
    for duration in durations:
        ratio = Fraction(duration / shortest).limit_denominator(4)
        if len(durations) > 16 or abs(float(ratio) * shortest - duration) > 1e-6:
            # Measured, or as odd as if it were: times are drawn to the next character.
            return max(shortest, 1 / 8) * longest
        common = Fraction(1, math.lcm(common.denominator, ratio.denominator))
    return float(common) * shortest * longest


def _cell(actions: Sequence[TimedAction], unit: float, label: Label, gap: int) -> int:
    """Return how many characters a column needs so that names fit, those of very short actions aside."""
    needed = 1
    for action, start, end in actions:
        columns = (end - start) / unit
        if columns > 0.2:
            needed = max(needed, math.ceil((len(label(action)) + gap) / columns - 1e-6))
    return needed


def _line(row: Sequence[TimedAction], form: _Form, size: int) -> str:
    line = [" "] * size
    free = 0
    for action, start, end in row:
        first, last = min(form.place(start), size), min(form.place(end), size)
        _dots(line, free, first, form.cell)
        text = form.label(action)
        # Dashes show how long an action takes; a blank keeps neighbours apart where there is room.
        if last - first > form.cell:
            text = text.ljust(last - first - form.gap, "-")
        line[first:last] = text[: last - first].ljust(last - first)
        free = last
    _dots(line, free, size, form.cell)
    return "".join(line)


def _dots(line: list[str], first: int, last: int, cell: int) -> None:
    """Mark idle time: one dot per column."""
    for position in range(first, last, cell):
        line[position] = "."


def _ruler(form: _Form, first: int, last: int) -> str:
    """Return times at round distances, for the characters from first to last."""
    line = [" "] * (last - first)
    for time in ticks(last / form.cell * form.unit, least=8 / form.cell * form.unit):  # eight characters for each
        place, text = form.place(time) - first, number(time)
        if place >= 0 and place + len(text) <= len(line):
            line[place : place + len(text)] = text
    return "".join(line)
