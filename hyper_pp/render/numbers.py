"""The numbers of a simulation as text."""

import math

from hyper_pp.plan import Plan
from hyper_pp.simulate import Simulation, Timeline


def render_numbers(simulation: Simulation) -> str:
    """Return what ``hyper-pp simulate`` prints: plan, times and costs, then a table with a line per rank."""
    titles = ("rank", "busy", "idle", "peak activations", "peak preprocess graphs")
    rows = zip(simulation.busy, simulation.idle, simulation.peak_activations, simulation.peak_preprocess)
    cells = [(str(rank), number(busy), number(idle), str(a), str(p)) for rank, (busy, idle, a, p) in enumerate(rows)]
    widths = [max(map(len, column)) for column in zip(titles, *cells)]
    table = ["   ".join(f"{cell:>{width}}" for cell, width in zip(row, widths)) for row in (titles, *cells)]
    lines = [describe_plan(simulation.plan), describe_times(simulation), describe_costs(simulation), *table]
    return "\n".join(lines) + "\n"


def describe_plan(plan: Plan) -> str:
    """Return the line that says which plan this is."""
    name = plan.schedule if plan.schedule.isprintable() else ascii(plan.schedule)
    line = f"{name}   {plan.shape}"
    if plan.transpose is None:
        return line
    kind = "frozen" if plan.transpose.frozen else f"{plan.transpose.backward} backward"
    return f"{line}   preprocess block: {kind}{', explicit' if plan.transpose.explicit_backward else ''}"


def describe_times(simulation: Simulation) -> str:
    """Return the line that says how good a plan is."""
    return "   ".join(
        (
            f"step time {number(simulation.step_time)}",
            f"ideal {number(simulation.ideal)}",
            f"efficiency {percent(simulation.efficiency)}",
            f"bubble {percent(simulation.bubble_ratio)}",
            f"lower bound {number(simulation.lower_bound)} (ratio {simulation.ratio:.3f})",
        )
    )


def describe_peaks(simulation: Simulation) -> str:
    """Return the line that says what each rank holds at most."""
    line = f"peak activations {' '.join(map(str, simulation.peak_activations))}"
    if any(simulation.peak_preprocess):
        line += f"   peak preprocess graphs {' '.join(map(str, simulation.peak_preprocess))}"
    return line


def describe_costs(simulation: Simulation) -> str:
    """Return the line that says what was assumed, as far as it mattered."""
    ops = {action.op.value for order in simulation.plan.orders for action in order}
    names = [name for name in ("F", "B", "I", "W") if name in ops]
    if simulation.plan.transpose is not None:
        names += ["TF"] if simulation.plan.transpose.frozen else ["TF", "TB"]
    names += [name for name in ("comm", "collective") if getattr(simulation.costs, name)]
    return f"costs {simulation.costs.text(names)}"


def instant_ops(timeline: Timeline) -> list[str]:
    """Return the ops of which some action takes no time, so that no picture can show it."""
    return sorted({item.action.op.value for row in timeline.ranks for item in row if item.end <= item.start})


def ticks(end: float, least: float) -> list[float]:
    """Return times from 0 to an end, at the smallest distance of 1, 2, 5, 10, ... that is at least ``least``."""
    power = 10.0 ** math.floor(math.log10(least))
    step = next(size * power for size in (1, 2, 5, 10) if size * power >= least * (1 - 1e-9))
    return [index * step for index in range(math.floor(end / step + 1e-9) + 1)]


def number(value: float) -> str:
    """Return a time as text."""
    return f"{value:.6g}"


def percent(value: float) -> str:
    """Return a share as text."""
    return f"{100 * value:.1f}%"
