"""Timetables as text."""
# ruff: noqa: E501 - a timetable is as wide as it is

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from independent import random_costs, random_plan

from hyper_pp import Action, Costs, PipelineShape, Plan, Transpose, simulate
from hyper_pp.render import render_numbers, render_text


def drawn(schedule, *shape, costs=None, width=160, **options):
    return render_text(simulate(Plan.build(schedule, *shape, **options), costs), width).splitlines()


def test_a_timetable_shows_every_action_for_as_long_as_it_takes_and_a_dot_for_each_idle_unit():
    assert drawn("1f1b", 2, 1, 3) == [
        "1f1b   P=2 V=1 M=3",
        "step time 12   ideal 9   efficiency 75.0%   bubble 25.0%   lower bound 12 (ratio 1.000)",
        "peak activations 2 1",
        "costs F=1 B=2",
        "time    0       2       4       6       8       10",
        "rank 0  0F0 0F1 .   .   0B0---- 0F2 0B1---- .   0B2----",
        "rank 1  .   1F0 1B0---- 1F1 1B1---- 1F2 1B2---- .   .",
    ]


def test_four_ranks_two_chunks_and_eight_micro_batches_fit_into_120_columns():
    lines = drawn("interleaved", 4, 2, 8, width=130)
    assert lines[4:] == [
        "time    0         5         10        15        20        25        30        35        40        45        50        55",
        "rank 0  F0F1F2F3f0f1f2f3F4F5F6. . . b0--F7b1--. f4b2--f5b3--f6B0--f7B1--B2--. B3--. b4--. b5--. b6--. b7--B4--B5--B6--B7--",
        "rank 1  . F0F1F2F3f0f1f2f3F4. . b0--F5b1--F6b2--F7b3--f4B0--f5B1--f6B2--f7B3--. b4--. b5--. b6--. b7--B4--B5--B6--B7--. .",
        "rank 2  . . F0F1F2F3f0f1f2. b0--f3b1--F4b2--F5b3--F6B0--F7B1--f4B2--f5B3--f6b4--f7b5--. b6--. b7--B4--B5--B6--B7--. . . .",
        "rank 3  . . . F0F1F2F3f0b0--f1b1--f2b2--f3b3--F4B0--F5B1--F6B2--F7B3--f4b4--f5b5--f6b6--f7b7--B4--B5--B6--B7--. . . . . .",
        "(capitals: a rank's first chunk; small letters: its second)",
    ]


def test_the_block_is_drawn_like_the_body():
    assert drawn("mpipe", 2, 1, 3, explicit_backward=True)[2:] == [
        "peak activations 3 1   peak preprocess graphs 1 0",
        "costs F=1 B=2 TF=1 TB=2",
        "time    0         2         4         6         8         10        12        14        16        18",
        "rank 0  0TF0 0F0  0F1  0TF2 0F2  0B0------ 0TB0---------- 0B1------ 0TB1---------- 0B2------ 0TB2----------",
        "rank 1  0TF1 .    1F0  1B0------ 1F1  1B1------ 1F2  1B2------ .    .    .    .    .    .    .    .    .",
    ]


def test_a_timetable_that_is_too_wide_is_continued_below_under_its_own_times():
    assert drawn("gpipe", 1, 3, 2, width=40)[4:] == [
        "time    0       2       4       6",
        "rank 0  0F0 0F1 1F0 1F1 2F0 2F1 2B0----",
        "",
        "time    8       10      12      14",
        "rank 0  2B1---- 1B0---- 1B1---- 0B0----",
        "",
        "time    16",
        "rank 0  0B1----",
    ]


def test_costs_that_share_no_unit_are_drawn_to_the_next_character():
    assert drawn("gpipe", 2, 1, 2, costs=Costs(F=1, B=2.37, comm=0.1))[4:] == [
        "time    0       2       4       6       8       10",
        "rank 0  0F0 0F1 .   .   .   . 0B0------ 0B1----- .",
        "rank 1  .   1F0 1F1 1B0------ 1B1----- .   .   .   .",
    ]


def test_collectives_are_listed_below_as_they_run_beside_the_compute():
    lines = drawn("mpipe", 2, 1, 2, costs=Costs(collective=0.5))
    assert lines[-1] == "0BCAST_T: 0 to 0.5, beside the compute"


def test_actions_that_take_no_time_are_named_instead_of_drawn():
    assert drawn("mpipe", 2, 1, 2, costs=Costs(TF=0, TB=0))[-1] == "(not drawn, as they take no time: TB, TF)"
    assert drawn("gpipe", 2, 1, 2, costs=Costs(F=0, B=0))[-1] == "(nothing takes any time)"


def test_a_schedules_name_from_a_file_can_not_break_the_line():
    plan = Plan("two\nlines", PipelineShape(1, 1, 1), ((Action.parse("0F0"), Action.parse("0B0")),))
    assert render_text(simulate(plan)).splitlines()[0] == r"'two\nlines'   P=1 V=1 M=1"


@pytest.mark.parametrize("width", [40, 120, 160])
@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**9))
def test_no_line_is_wider_than_asked_for_and_every_rank_has_its_lines(width, seed):
    rng = random.Random(seed)
    plan = random_plan(rng)
    text = render_text(simulate(plan, Costs(**random_costs(rng, plan.shape.num_stages))), width)
    lines = text.splitlines()
    table = [line for line in lines if line.startswith(("time", "rank"))]
    assert all(len(line) <= width for line in table)
    assert len(table) % (plan.shape.num_ranks + 1) == 0
    assert text.isascii()


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**9))
def test_a_timetable_in_full_holds_the_names_of_all_actions_in_order(seed):
    plan = random_plan(random.Random(seed), max_micro_batches=4)
    lines = render_text(simulate(plan), 100_000).splitlines()
    for rank, order in enumerate(plan.orders):
        (line,) = (line for line in lines if line.startswith(f"rank {rank} "))
        names = [word.rstrip("-") for word in line.split()[2:] if word != "."]
        assert names == [str(action) for action in order if action.op.value in ("F", "B", "I", "W", "TF", "TB")]


def test_the_numbers_come_as_a_table_with_a_line_per_rank():
    assert render_numbers(simulate(Plan.build("mpipe", 2, 1, 4), Costs(comm=0.25))).splitlines() == [
        "mpipe   P=2 V=1 M=4   preprocess block: central backward",
        "step time 25.5   ideal 18   efficiency 70.6%   bubble 25.5%   lower bound 25 (ratio 1.020)",
        "costs F=1 B=2 TF=1 TB=2 comm=0.25",
        "rank   busy   idle   peak activations   peak preprocess graphs",
        "   0     25    0.5                  3                        3",
        "   1     13   12.5                  1                        0",
    ]


def test_the_kind_of_block_is_told():
    shape = PipelineShape(1, 1, 1)
    orders = (tuple(map(Action.parse, ("0TF0", "0F0", "0B0", "0TB0"))),)
    plan = Plan("by hand", shape, orders, transpose=Transpose((0,), backward="owner"))
    assert render_numbers(simulate(plan)).splitlines()[0] == "by hand   P=1 V=1 M=1   preprocess block: owner backward"
