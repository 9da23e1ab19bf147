"""Timetables as SVG pictures, as pages and as traces, read back from what was written."""

import itertools
import json
import random
import re
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from independent import random_costs, random_plan

from hyper_pp import Action, Costs, PipelineShape, Plan, simulate
from hyper_pp.render import render_html, render_perfetto, render_svg

SVG = "{http://www.w3.org/2000/svg}"
COMPUTE = ("F", "B", "I", "W", "TF", "TB")


def bars_of(element):
    """Every drawn action: its title's words, its rectangle (x, y, width) and its label."""
    found = []
    for group in element.iter(f"{SVG}g"):
        rect, title = group.find(f"{SVG}rect"), group.find(f"{SVG}title").text
        text = group.find(f"{SVG}text")
        place = tuple(float(rect.get(name)) for name in ("x", "y", "width"))
        found.append((title, place, "" if text is None else text.text, rect.get("class")))
    return found


def random_simulation(seed):
    rng = random.Random(seed)
    plan = random_plan(rng)
    return simulate(plan, Costs(**random_costs(rng, plan.shape.num_stages)))


def test_an_action_stands_where_and_as_long_as_it_runs():
    root = ElementTree.fromstring(render_svg(simulate(Plan.build("1f1b", 2, 1, 2))))
    bars = {title.split(":")[0]: (place, label, kind) for title, place, label, kind in bars_of(root)}
    assert set(bars) == {"0F0", "0F1", "0B0", "0B1", "1F0", "1F1", "1B0", "1B1"}
    (x0, y0, _), _, _ = bars["0F0"]
    unit = bars["0F1"][0][0] - x0
    expected = {"0F0": (0, 1), "0F1": (1, 1), "1F0": (1, 1), "1B0": (2, 2), "0B0": (4, 2), "0B1": (7, 2)}
    for name, (start, length) in expected.items():
        (x, y, width), label, kind = bars[name]
        assert x == pytest.approx(x0 + start * unit)
        assert width == pytest.approx(length * unit - 1)  # a pixel keeps neighbours apart
        assert (y > y0) == (name[0] == "1")
        assert (label, kind) == (name, name[1])
    titles = [title for title, *_ in bars_of(root)]
    assert "1B0: backward of stage 1, micro-batch 0, 2 to 4 (2)" in titles


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**9))
def test_every_action_that_takes_time_is_drawn_once_in_its_ranks_row_and_none_covers_another(seed):
    simulation = random_simulation(seed)
    root = ElementTree.fromstring(render_svg(simulation))
    rows = {}
    for title, (x, y, width), label, _ in bars_of(root):
        assert len(label) * 6.7 <= max(width, 0) + 1e-6
        assert width > 0
        rows.setdefault(y, []).append((x, x + width, title.split(":")[0]))
    timeline = simulation.timeline
    expected = [[str(item.action) for item in row if item.end > item.start] for row in timeline.ranks]
    expected.append([str(item.action) for item in timeline.collectives if item.end > item.start])
    drawn = [[name for _, _, name in sorted(row)] for _, row in sorted(rows.items())]
    assert drawn == [names for names in expected if names]
    width = float(root.get("width"))
    for row in rows.values():
        row.sort()
        assert all(one[1] <= other[0] + 0.02 for one, other in itertools.pairwise(row))
        assert row[-1][1] <= width


def test_plans_in_one_picture_have_one_scale_and_do_not_overlap():
    short, long = simulate(Plan.build("1f1b", 2, 1, 2)), simulate(Plan.build("1f1b", 2, 1, 40))
    root = ElementTree.fromstring(render_svg(short, long))
    widths = {}
    for title, (_, _, width), *_ in bars_of(root):
        widths.setdefault(title.split(":")[0], set()).add(width)
    assert all(len(found) == 1 for found in widths.values())
    ys = [place[1] for title, place, *_ in bars_of(root) if title.startswith("0F")]
    assert len(set(ys)) == 2
    assert float(root.get("height")) > max(ys)


def test_what_no_bar_can_show_is_said():
    svg = render_svg(simulate(Plan.build("mpipe", 2, 2, 2), Costs(TF=0, TB=0)))
    assert "not drawn, as they take no time: TB, TF" in svg
    assert "paler: a rank's later chunks" in svg
    assert "nothing takes any time" in render_svg(simulate(Plan.build("gpipe", 2, 1, 2), Costs(F=0, B=0)))


def test_collectives_that_take_time_have_a_row_of_their_own():
    bars = bars_of(ElementTree.fromstring(render_svg(simulate(Plan.build("mpipe", 2, 1, 2), Costs(collective=0.5)))))
    (_, y, _) = next(place for title, place, *_ in bars if title.startswith("0BCAST_T: broadcast"))
    assert y > max(place[1] for title, place, *_ in bars if not title.startswith(("0BCAST_T", "0REDUCE_T")))


@pytest.mark.parametrize("render", [render_svg, render_html])
def test_pictures_are_ascii_and_load_nothing_whatever_a_plan_is_called(render):
    orders = ((Action.parse("0F0"), Action.parse("0B0")),)
    for name in ("<b>&\"'", "two\nlines", "\ud800", "管道"):
        text = render(simulate(Plan(name, PipelineShape(1, 1, 1), orders)))
        assert text.isascii()
        assert "<b>" not in text
        assert re.sub(r'xmlns="[^"]*"', "", text).count("http") == 0
        assert " src=" not in text and "href" not in text and "url(" not in text


class Reader(HTMLParser):
    def __init__(self):
        super().__init__()
        self.open, self.rows, self.titles = [], [], 0

    def handle_starttag(self, tag, attributes):
        if tag != "meta":
            self.open.append(tag)
        if tag == "tr":
            self.rows.append([])

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_startendtag(self, tag, attributes):
        pass

    def handle_data(self, data):
        if self.open and self.open[-1] in ("td", "th"):
            self.rows[-1].append(data)


def test_the_page_compares_plans_and_lists_each_ones_ranks():
    mpipe, transpose = (simulate(Plan.build(name, 4, 1, 8)) for name in ("mpipe", "transpose"))
    reader = Reader()
    reader.feed(render_html(mpipe, transpose))
    reader.close()
    assert reader.open == []
    assert reader.rows[1][1:] == ["49", "30", "61.2%", "36.7%", "49", "1.000", "7"]
    assert reader.rows[2][1:] == ["36", "30", "83.3%", "16.7%", "36", "1.000", "5"]
    assert len(reader.rows) == 3 + 2 * 5
    assert reader.rows[4] == ["0", "49", "0", "7", "5"]


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**9))
def test_a_trace_holds_the_timeline_with_an_arrow_for_each_message_that_waits_for_one(seed):
    simulation = random_simulation(seed)
    events = json.loads(render_perfetto(simulation))["traceEvents"]
    timeline = simulation.timeline
    slices = {event["name"]: event for event in events if event["ph"] == "X"}
    everything = [(rank, item) for rank, row in enumerate(timeline.ranks) for item in row]
    everything += [(len(timeline.ranks), item) for item in timeline.collectives]
    assert len(slices) == len(everything) == sum(event["ph"] == "X" for event in events)
    for thread, (action, start, end) in everything:
        event = slices[str(action)]
        assert (event["tid"], event["cat"]) == (thread, action.op.value)
        assert event["ts"] == pytest.approx(1000 * start)
        assert event["dur"] == pytest.approx(1000 * (end - start))
    starts = {event["id"]: event for event in events if event["ph"] == "s"}
    ends = {event["id"]: event for event in events if event["ph"] == "f"}
    assert starts.keys() == ends.keys()
    for number, start in starts.items():
        end = ends[number]
        assert start["tid"] != end["tid"]
        assert start["ts"] < end["ts"]
        own = [e for e in slices.values() if e["tid"] == start["tid"]]
        around = [e for e in own if e["ts"] <= start["ts"] < e["ts"] + e["dur"]]
        assert len(around) == 1
        assert any(e["tid"] == end["tid"] and e["ts"] == end["ts"] for e in slices.values())


def test_a_traces_arrows_are_the_messages_and_its_counters_reach_the_peaks():
    simulation = simulate(Plan.build("interleaved_zb", 3, 2, 5))
    trace = json.loads(render_perfetto(simulation))
    events = trace["traceEvents"]
    # Between 6 stages in a loop over 3 ranks every value goes to another rank: 5 forwards, 5 backwards, 5 times each.
    assert sum(event["ph"] == "s" for event in events) == 2 * 5 * 5
    for rank, peak in enumerate(simulation.peak_activations):
        live = [e["args"]["live"] for e in events if e["ph"] == "C" and e["name"] == f"stage inputs on rank {rank}"]
        assert max(live) == peak
        assert live[-1] == 0
    assert trace["otherData"]["simulations"] == [simulation.to_json()]


def test_plans_in_one_trace_are_processes_of_their_own():
    plans = [simulate(Plan.build(name, 2, 1, 2)) for name in ("gpipe", "1f1b")]
    events = json.loads(render_perfetto(*plans))["traceEvents"]
    names = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert names == {0: "gpipe   P=2 V=1 M=2   costs F=1 B=2", 1: "1f1b   P=2 V=1 M=2   costs F=1 B=2"}
    assert len({event["id"] for event in events if event["ph"] == "s"}) == 2 * 4
