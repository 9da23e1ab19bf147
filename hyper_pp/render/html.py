"""Timetables and numbers as one page that needs nothing but a browser."""

from collections.abc import Iterable, Sequence
from html import escape

from hyper_pp.render.numbers import describe_costs, describe_plan, number, percent
from hyper_pp.render.svg import STYLE, drawing, scale_of, spaced
from hyper_pp.simulate import Simulation

_STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;margin:24px;color:#222;background:#fff}"
    "h1{font-size:22px}h2{font-size:17px;margin:32px 0 4px}p{margin:4px 0}"
    "table{border-collapse:collapse;margin:8px 0}th,td{padding:3px 12px 3px 0;text-align:right}"
    "th{font-weight:600;border-bottom:1px solid #999}th:first-child,td:first-child{text-align:left}"
    ".scroll{overflow-x:auto;padding:4px 0}.dim{opacity:.25}"
    "@media(prefers-color-scheme:dark){body{color:#dfe3e8;background:#16181c}}"
)
# Where the pointer is on an action, all others of its micro-batch stay, and the rest grows pale.
_SCRIPT = """
for (const svg of document.querySelectorAll("svg")) {
  const actions = svg.querySelectorAll("[data-m]");
  const mark = (m) => actions.forEach((one) => one.classList.toggle("dim", m !== null && one.dataset.m !== m));
  svg.addEventListener("pointerover", (event) => {
    const action = event.target.closest("[data-m]");
    mark(action === null ? null : action.dataset.m);
  });
  svg.addEventListener("pointerleave", () => mark(null));
}
"""


def render_html(*simulations: Simulation) -> str:
    """Return a page with a table that compares plans, and the timetable and the ranks' numbers of each.

    Args:
        *simulations: Of any plans; their timetables have the same scale.

    Returns:
        A whole HTML file in ASCII, with a newline at the end; it loads nothing.
    """
    names = ", ".join(dict.fromkeys(simulation.plan.schedule for simulation in simulations))
    title = escape(f"Pipeline schedules: {names if names.isprintable() else ascii(names)}")
    lines = [
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width">',
        f"<title>{title}</title>",
        f"<style>{STYLE}{_STYLE}</style>\n</head>\n<body>",
        f"<h1>{title}</h1>",
        _comparison(simulations),
    ]
    scale = scale_of(simulations)
    for simulation in simulations:
        lines += [
            f"<h2>{escape(spaced(describe_plan(simulation.plan)))}</h2>",
            f"<p>{escape(describe_costs(simulation))}</p>",
            f'<div class="scroll">{drawing(simulation, scale)}</div>',
            _ranks(simulation),
        ]
    lines.append(f"<script>{_SCRIPT}</script>\n</body>\n</html>")
    return "\n".join(lines).encode("ascii", "xmlcharrefreplace").decode() + "\n"


def _comparison(simulations: Sequence[Simulation]) -> str:
    titles = ("plan", "step time", "ideal", "efficiency", "bubble", "lower bound", "ratio", "peak activations")
    rows = (
        (
            describe_plan(simulation.plan),
            number(simulation.step_time),
            number(simulation.ideal),
            percent(simulation.efficiency),
            percent(simulation.bubble_ratio),
            number(simulation.lower_bound),
            f"{simulation.ratio:.3f}",
            str(max(simulation.peak_activations)),
        )
        for simulation in simulations
    )
    return _table(titles, rows)


def _ranks(simulation: Simulation) -> str:
    titles = ("rank", "busy", "idle", "peak activations", "peak preprocess graphs")
    columns = zip(simulation.busy, simulation.idle, simulation.peak_activations, simulation.peak_preprocess)
    rows = (
        (str(rank), number(busy), number(idle), str(activations), str(graphs))
        for rank, (busy, idle, activations, graphs) in enumerate(columns)
    )
    return _table(titles, rows)


def _table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = ["<tr>" + "".join(f"<th>{title}</th>" for title in titles) + "</tr>"]
    lines += ["<tr>" + "".join(f"<td>{escape(spaced(cell))}</td>" for cell in row) + "</tr>" for row in rows]
    return "<table>\n" + "\n".join(lines) + "\n</table>"
