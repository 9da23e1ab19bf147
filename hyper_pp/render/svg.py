"""The timetable as a picture: one row per rank, time from left to right, colours for ops."""

import math
from collections.abc import Iterable, Iterator, Sequence
from html import escape

from hyper_pp.actions import COMPUTE_OPS, Action, Op
from hyper_pp.render.numbers import (
    describe_costs,
    describe_peaks,
    describe_plan,
    describe_times,
    instant_ops,
    number,
    ticks,
)
from hyper_pp.simulate import Simulation, TimedAction

LEAST_WIDTH, MOST_WIDTH = 900.0, 12_000.0  # pixels of a timetable
_MARGIN, _ROW, _BAR, _LINE, _GAP = 68, 30, 26, 20, 26  # pixels
_CHARACTER = 6.7  # pixels of a character of a label, at most
_SHORTEST = 3 * _CHARACTER + 4  # pixels of the shortest action: room for 0F0

# Told apart without red and green, and light enough for dark letters on them.
_COLOURS = {
    Op.F: "#7cb5ec",
    Op.B: "#f5a55b",
    Op.I: "#f7c38f",
    Op.W: "#d9cf6b",
    Op.TF: "#63cdb4",
    Op.TB: "#c8a2e0",
}
_WORDS = {
    Op.F: "forward",
    Op.B: "backward",
    Op.I: "backward of the input",
    Op.W: "backward of the weights",
    Op.TF: "preprocess forward",
    Op.TB: "preprocess backward",
    Op.BCAST_T: "broadcast of the preprocess parameters",
    Op.REDUCE_T: "sum of the preprocess gradients",
}
STYLE = (
    "svg{font:12px ui-monospace,Menlo,Consolas,monospace;background:#fff;fill:#222}"
    ".head{font-weight:bold;font-size:14px}.idle{fill:#eef0f2}.grid{stroke:#d5d8dc}"
    "g text{text-anchor:middle;fill:#1a1a1a;font-size:11px}.all{fill:#c9ced6}"
    + "".join(f".{op}{{fill:{colour}}}" for op, colour in _COLOURS.items())
    + "@media(prefers-color-scheme:dark){svg{background:#16181c;fill:#dfe3e8}}"
)


def render_svg(*simulations: Simulation) -> str:
    """Return timetables as one SVG picture, below each other and in the same scale.

    Args:
        *simulations: Of any plans.

    Returns:
        A whole SVG file in ASCII, with a newline at the end. An action tells its full name and times when the pointer
        rests on it.
    """
    scale = scale_of(simulations)
    parts, height, width = [], 0, 0.0
    for simulation in simulations:
        heads = [describe_plan(simulation.plan), describe_times(simulation)]
        heads += [describe_peaks(simulation), describe_costs(simulation)]
        part, part_width, part_height = _timetable(simulation, scale, height, heads)
        parts += part
        height += part_height + (_GAP if simulation is not simulations[-1] else 0)
        width = max(width, part_width)
    return _file(parts, width, height) + "\n"


def drawing(simulation: Simulation, scale: float) -> str:
    """Return a timetable as an SVG element for a page that tells the numbers beside it, and has ``STYLE``.

    Args:
        simulation: Of any plan.
        scale: Pixels of a unit of time.
    """
    parts, width, height = _timetable(simulation, scale, 0, ())
    return _file(parts, width, height, style="")


def scale_of(simulations: Sequence[Simulation]) -> float:
    """Return how many pixels a unit of time takes so that the names of most actions fit, within reasonable widths."""
    end = max((simulation.timeline.end for simulation in simulations), default=0.0)
    if end <= 0:
        return 1.0
    lengths = [item.end - item.start for item in _drawn(simulations) if item.end - item.start > end * 1e-4]
    wanted = _SHORTEST / min(lengths, default=end)
    return min(max(wanted, LEAST_WIDTH / end), MOST_WIDTH / end)


def describe(item: TimedAction) -> str:
    """Return what an action is and when it runs, in words."""
    action, start, end = item
    words = _WORDS.get(action.op, str(action.op)) if isinstance(action.op, Op) else str(action.op)
    where = f" of stage {action.stage}" if action.op in (Op.F, Op.B, Op.I, Op.W) else ""
    which = "" if action.micro_batch is None else f", micro-batch {action.micro_batch}"
    return f"{action}: {words}{where}{which}, {number(start)} to {number(end)} ({number(end - start)})"


def _drawn(simulations: Iterable[Simulation]) -> Iterator[TimedAction]:
    """Yield the compute actions that take time."""
    for simulation in simulations:
        for row in simulation.timeline.ranks:
            yield from (item for item in row if item.end > item.start)


def _file(parts: Sequence[str], width: float, height: int, style: str = f"<style>{STYLE}</style>") -> str:
    size = f'width="{math.ceil(width)}" height="{height}" viewBox="0 0 {math.ceil(width)} {height}"'
    lines = [f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">{style}', *parts, "</svg>"]
    return "\n".join(lines).encode("ascii", "xmlcharrefreplace").decode()


def _timetable(simulation: Simulation, scale: float, top: int, heads: Sequence[str]) -> tuple[list[str], float, int]:
    """Return a timetable's elements, its width and its height.

    Args:
        simulation: Of any plan.
        scale: Pixels of a unit of time.
        top: Where it begins.
        heads: Lines above it.
    """
    parts, y = [], top
    for index, head in enumerate(heads):
        parts.append(_text(8, y + 16, head, "head" if index == 0 else ""))
        y += _LINE
    y += 8
    timeline, shape = simulation.timeline, simulation.plan.shape
    rows = [(f"rank {rank}", row) for rank, row in enumerate(timeline.ranks)]
    together = [item for item in timeline.collectives if item.end > item.start]
    rows += [("together", tuple(together))] if together else []
    length, bottom = timeline.end * scale, y + _ROW * len(rows)
    # Idle time is what shows between the actions.
    parts += [
        f'<rect class="idle" x="{_MARGIN}" y="{y + _ROW * place}" width="{_px(length)}" height="{_BAR}"/>'
        for place in range(len(timeline.ranks))
    ]
    labels = []
    for time in ticks(timeline.end, 60 / scale):
        x = _px(_MARGIN + time * scale)
        parts.append(f'<path class="grid" d="M{x} {y - 4}V{bottom}"/>')
        labels.append(_text(x, bottom + 14, number(time)))
    for place, (name, row) in enumerate(rows):
        parts.append(_text(8, y + _ROW * place + 17, name))
        parts += [
            _bar(item, y + _ROW * place, scale, _opacity(item.action, simulation))
            for item in row
            if item.end > item.start
        ]
    parts += labels
    y = bottom + _LINE
    legend, legend_width = _legend(simulation, y)
    parts += legend
    if legend:
        y += _LINE
    notes = ["nothing takes any time"] if timeline.end <= 0 else []
    hidden = instant_ops(timeline) if timeline.end > 0 else []
    notes += [f"not drawn, as they take no time: {', '.join(hidden)}"] if hidden else []
    notes += ["paler: a rank's later chunks"] if shape.num_chunks > 1 else []
    for note in notes:
        parts.append(_text(8, y + 14, note))
        y += _LINE
    widths = [_MARGIN + length + 24, legend_width, *(16 + _CHARACTER * 1.25 * len(line) for line in [*heads, *notes])]
    return parts, max(widths), y + 6 - top


def _bar(item: TimedAction, y: int, scale: float, opacity: str) -> str:
    action, start, end = item
    x, width = _MARGIN + start * scale, (end - start) * scale
    # The gap to the next action is cut off each, as far as there is something left.
    shown = max(width - 1, width / 2)
    name = str(action.op) if action.op in COMPUTE_OPS else "all"
    which = "" if action.micro_batch is None else f' data-m="{action.micro_batch}"'
    bar = f'<rect class="{name}" x="{_px(x)}" y="{y}" width="{_px(shown)}" height="{_BAR}"{opacity}/>'
    label = _label(action, shown)
    text = f'<text x="{_px(x + shown / 2)}" y="{y + 17}">{label}</text>' if label else ""
    return f"<g{which}><title>{describe(item)}</title>{bar}{text}</g>"


def _label(action: Action, width: float) -> str:
    """Return the longest name of an action that fits; the row and the colour tell what is left out."""
    m = "" if action.micro_batch is None else str(action.micro_batch)
    for name in (str(action), f"{action.op}{m}", m):
        if len(name) * _CHARACTER + 2 <= width:
            return name
    return ""


def _opacity(action: Action, simulation: Simulation) -> str:
    shape = simulation.plan.shape
    if shape.num_chunks == 1 or action.op not in (Op.F, Op.B, Op.I, Op.W):
        return ""
    chunk = shape.chunk_of(action.stage)
    return f' opacity="{1 - 0.6 * chunk / (shape.num_chunks - 1):.3g}"' if chunk else ""


def _legend(simulation: Simulation, y: int) -> tuple[list[str], float]:
    """Return swatches of the ops that are drawn, and how far they reach."""
    present = {item.action.op for item in _drawn([simulation])}
    parts, x = [], 8.0
    for op, words in _WORDS.items():
        if op in present:
            parts.append(f'<rect class="{op}" x="{_px(x)}" y="{y + 4}" width="14" height="12"/>')
            parts.append(_text(x + 20, y + 14, f"{op} {words}"))
            x += 20 + 1.15 * _CHARACTER * (len(words) + 4) + 14
    return parts, x


def _text(x: float | str, y: int, text: str, name: str = "") -> str:
    kind = f' class="{name}"' if name else ""
    return f'<text{kind} x="{x if isinstance(x, str) else _px(x)}" y="{y}">{escape(spaced(text), quote=False)}</text>'


def spaced(text: str) -> str:
    """Return a line of numbers with dots for its wide gaps, which pages would draw as one blank."""
    return text.replace("   ", " \N{MIDDLE DOT} ")


def _px(value: float) -> str:
    """Return a length in pixels as text."""
    return f"{value:.2f}".rstrip("0").rstrip(".")
