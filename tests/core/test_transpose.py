"""The schedule `transpose`: literal timetables, how short its steps are, what its options do, and what always holds."""

import functools
import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hyper_pp import Costs, PipelineShape, Plan, simulate, verify
from hyper_pp.actions import COMPUTE_OPS
from hyper_pp.cli import main
from hyper_pp.dependencies import Dependencies
from hyper_pp.rendezvous import run_two_queues
from hyper_pp.schedules.block_templates import peak_of_interleaved, spread_orders
from hyper_pp.schedules.transpose import owners_of

ROOT = Path(__file__).resolve().parents[2]


def orders_of(p, v, m, **options):
    plan = Plan.build("transpose", p, v, m, compute_only=True, **options)
    return [" ".join(map(str, order)) for order in plan.orders]


@functools.cache
def transpose_plan(p, v, m, costs, **options):
    return Plan.build("transpose", p, v, m, costs=costs, **options)


def step_time(p, v, m, costs, **options):
    return simulate(transpose_plan(p, v, m, costs, **options), costs).step_time


def spread_plan(p, v, m, costs=None):
    shape = PipelineShape(p, v, m)
    orders, transpose = spread_orders(shape, costs=costs)
    return Plan("spread", shape, orders, compute_only=True, transpose=transpose)


# ---- literal timetables ----


def test_two_ranks_and_four_micro_batches_have_no_bubble():
    assert orders_of(2, 1, 4) == [
        "0BCAST_T 0TF0 0RECV_TF1 0F0 0RECV_TF3 0F1 0TF2 0F2 0B0 0F3 0TB0 0B1 0SEND_TB1 0B2 0B3 0SEND_TB3 0TB2 "
        "0REDUCE_T",
        "0BCAST_T 0TF1 0SEND_TF1 0TF3 0SEND_TF3 1F0 1B0 1F1 1B1 1F2 1B2 1F3 0RECV_TB1 1B3 0TB1 0RECV_TB3 0TB3 "
        "0REDUCE_T",
    ]
    assert simulate(Plan.build("transpose", 2, 1, 4)).idle == (0, 0)


def test_inline_owners_run_the_block_next_to_stage_0_and_nothing_of_it_travels():
    assert orders_of(2, 1, 3, owners="inline") == [
        "0TF0 0F0 0TF1 0F1 0TF2 0F2 0B0 0TB0 0B1 0TB1 0B2 0TB2",
        "1F0 1B0 1F1 1B1 1F2 1B2",
    ]


def test_one_rank_has_no_collectives():
    assert orders_of(1, 1, 2) == ["0TF0 0F0 0B0 0TB0 0TF1 0F1 0B1 0TB1"]


def test_a_frozen_block_has_no_backward_and_neither_parameters_nor_gradients_travel():
    assert orders_of(2, 1, 3, frozen=True) == orders_of(2, 1, 3, num_layers=0)
    assert orders_of(2, 1, 3, frozen=True) == [
        "0TF0 0RECV_TF1 0F0 0F1 0TF2 0F2 0B0 0B1 0B2",
        "0TF1 0SEND_TF1 1F0 1B0 1F1 1B1 1F2 1B2",
    ]


def test_a_central_backward_runs_on_rank_0_from_the_inputs():
    assert orders_of(2, 1, 2, backward="central") == [
        "0BCAST_T 0TF0 0RECV_TF1 0RECV_TX1 0F0 0F1 0B0 0TB0 0B1 0TB1",
        "0BCAST_T 0TF1 0SEND_TF1 0SEND_TX1 1F0 1B0 1F1 1B1",
    ]


def test_the_spread_owner_order_has_all_of_the_block_before_and_after_the_body():
    plan = spread_plan(2, 1, 3)
    assert [" ".join(map(str, order)) for order in plan.orders] == [
        "0BCAST_T 0TF0 0RECV_TF1 0TF2 0F0 0F1 0F2 0B0 0B1 0SEND_TB1 0B2 0TB0 0TB2 0REDUCE_T",
        "0BCAST_T 0TF1 0SEND_TF1 1F0 1B0 1F1 1B1 1F2 1B2 0RECV_TB1 0TB1 0REDUCE_T",
    ]
    assert verify(plan).peak_activations == (3, 1)


# ---- how short a step is ----

GRID = list(itertools.product([(4, 8), (8, 16), (8, 32), (16, 64)], [1, 2], [0.25, 1, 2]))
MOST = {1: {0.25: 1.00, 1: 1.00, 2: 1.06}, 2: {0.25: 1.02, 1: 1.05, 2: 1.09}}
MOST_4_RANKS = {1: MOST[1], 2: {0.25: 1.03, 1: 1.10, 2: 1.13}}  # the yardstick itself is out of reach there


def grid_costs(v, ratio, comm=0.0):
    return Costs(F=1, B=2, TF=ratio * v, TB=2 * ratio * v, comm=comm)


def yardstick(p, v, m, costs):
    """The longest of two bounds: the last rank's stages between a first and last micro-batch, and the mean work."""
    return max(m * v * 3 + (p - 1) * 3 + costs.TF + costs.TB, (m * v * p * 3 + m * (costs.TF + costs.TB)) / p)


@pytest.mark.parametrize("ranks_and_micro_batches, v, ratio", GRID)
def test_steps_come_close_to_the_yardstick(ranks_and_micro_batches, v, ratio):
    p, m = ranks_and_micro_batches
    costs = grid_costs(v, ratio)
    plan = transpose_plan(p, v, m, costs)
    found = simulate(plan, costs)
    most = (MOST_4_RANKS if p == 4 else MOST)[v][ratio]
    assert found.step_time <= most * yardstick(p, v, m, costs) + 1e-9
    assert found.step_time <= simulate(spread_plan(p, v, m, costs), costs).step_time
    assert found.step_time <= step_time(p, v, m, costs, owners="inline")
    assert max(verify(plan).peak_activations) <= (v - 1) * p + 2 * (p - 1) + 1


@pytest.mark.parametrize(
    "shape, ratio, ours, spread, inline, mpipe",
    [
        ((8, 1, 32), 1, 120, 129, 192, 193),
        ((4, 1, 8), 1, 36, 39, 48, 49),
        ((8, 1, 16), 2, 75, 81, 144, 146),
        ((8, 2, 32), 0.25, 214.5, 219, 248, 248.5),
    ],
)
def test_literal_step_times_beside_other_orders(shape, ratio, ours, spread, inline, mpipe):
    costs = grid_costs(shape[1], ratio)
    assert step_time(*shape, costs) == ours
    assert simulate(spread_plan(*shape, costs), costs).step_time == spread
    assert step_time(*shape, costs, owners="inline") == inline
    assert simulate(Plan.build("mpipe", *shape), costs).step_time == mpipe


@pytest.mark.parametrize("ranks_and_micro_batches, v, ratio", [case for case in GRID if case[0] in ((4, 8), (8, 32))])
def test_two_live_graphs_per_rank_cost_at_most_a_tenth(ranks_and_micro_batches, v, ratio):
    p, m = ranks_and_micro_batches
    costs = grid_costs(v, ratio)
    found = simulate(transpose_plan(p, v, m, costs, max_live=2), costs)
    assert max(found.peak_preprocess) <= 2
    without_limit = yardstick(p, v, m, costs) if v == 1 else step_time(p, v, m, costs)
    assert found.step_time <= 1.10 * without_limit + 1e-9


@pytest.mark.parametrize("v, ratio", [(1, 0.25), (1, 1), (1, 2), (2, 0.25), (2, 1), (2, 2)])
def test_message_latency_is_planned_for(v, ratio):
    costs = grid_costs(v, ratio, comm=0.05)
    longest_way = 0.05 * 2 * (8 * v)
    assert step_time(8, v, 16, costs) <= MOST[v][ratio] * yardstick(8, v, 16, costs) + longest_way


def test_the_command_line_plans_for_its_costs(capsys):
    words = ["simulate", "transpose", "--ranks", "8", "--micro-batches", "32", "--format", "json"]
    assert main([*words, "--cost", "F=1,B=2,TF=2", "--cost", "TB=4"]) == 0
    assert json.loads(capsys.readouterr().out)["step_time"] == 123
    assert main([*words, "--cost", "F=1,B=2,TF=2,TB=4", "--max-live", "2"]) == 0
    limited = json.loads(capsys.readouterr().out)
    assert limited["step_time"] <= 135
    assert max(rank["peak_preprocess"] for rank in limited["ranks"]) == 2


# ---- what always holds ----

per_stage = st.one_of(st.just(1.0), st.floats(0.1, 4), st.lists(st.floats(0, 4), min_size=12, max_size=12))


@st.composite
def cases(draw):
    p, v, m = draw(st.integers(1, 4)), draw(st.integers(1, 3)), draw(st.integers(1, 9))
    forward, backward = (
        cost if isinstance(cost, float) else cost[: p * v] for cost in (draw(per_stage), draw(per_stage))
    )
    ratio = draw(st.sampled_from([0, 0.05, 0.3, 1, 2.5, 8]))
    costs = Costs(
        F=forward,
        B=backward,
        TF=ratio * v,
        TB=draw(st.sampled_from([0, 1, 2])) * ratio * v,
        comm=draw(st.sampled_from([0, 0.05, 2])),
        collective=draw(st.sampled_from([0, 0, 1])),
    )
    options = draw(
        st.sampled_from(
            [{}, {"frozen": True}, {"num_layers": 0}, {"backward": "central"}, {"recompute": True}, {"max_live": 1}]
        )
    )
    if draw(st.booleans()):
        options = {**options, "less_memory": True}
    return (p, v, m), costs, options


@settings(max_examples=60, deadline=None)
@given(cases())
def test_plans_verify_in_both_models_in_micro_batch_order_and_keep_to_their_limits(case):
    (p, v, m), costs, options = case
    plan = Plan.build("transpose", p, v, m, costs=costs, compute_only=True, **options)
    limit = peak_of_interleaved(plan.shape, options.get("less_memory", False))
    interleaved = Plan.build("interleaved", p, v, m, less_memory="less_memory" in options)
    assert limit == max(verify(interleaved).peak_activations)
    verify(plan, max_activations=limit)
    for order in plan.orders:
        for kind in {(stage, op) for stage, op, _ in order if op in COMPUTE_OPS}:
            micro_batches = [m for stage, op, m in order if (stage, op) == kind]
            assert micro_batches == sorted(micro_batches)
    lowered = plan.lowered(costs)
    assert lowered == Plan.build("transpose", p, v, m, costs=costs, **options)
    verify(lowered)
    assert run_two_queues(lowered.orders, Dependencies(lowered.shape, lowered.transpose, lowered.orders)) is None
    found = simulate(lowered, costs)
    assert found.step_time == simulate(plan, costs).step_time
    assert max(found.peak_preprocess) <= options.get("max_live", m)


@settings(max_examples=30, deadline=None)
@given(cases())
def test_a_step_is_never_longer_than_with_the_block_inline(case):
    (p, v, m), costs, options = case
    assert step_time(p, v, m, costs, **options) <= step_time(p, v, m, costs, owners="inline", **options)


@settings(max_examples=30, deadline=None)
@given(cases())
def test_a_step_is_never_longer_than_in_the_spread_owner_order(case):
    (p, v, m), costs, _ = case
    spread = simulate(spread_plan(p, v, m, costs), costs).step_time
    assert step_time(p, v, m, costs) <= spread * (1 + 1e-9)  # on one rank the same sum, added up in another order


@pytest.mark.parametrize("p, v, m", [(2, 1, 3), (3, 2, 7), (4, 1, 2), (5, 3, 11)])
def test_trainable_plans_broadcast_first_and_reduce_after_the_last_backward_on_every_rank(p, v, m):
    for order in Plan.build("transpose", p, v, m, owners="round_robin").orders:
        texts = [str(action) for action in order]
        assert (texts[0], texts[-1]) == ("0BCAST_T", "0REDUCE_T")
        assert (texts.count("0BCAST_T"), texts.count("0REDUCE_T")) == (1, 1)


def test_stage_0_starts_as_soon_as_the_first_output_is_there():
    costs = Costs(TF=3, TB=6)
    row = simulate(Plan.build("transpose", 4, 1, 8, costs=costs), costs).timeline.ranks[0]
    assert next(start for action, start, _ in row if str(action) == "0F0") == 3


def test_the_same_arguments_give_the_same_plan_in_another_process():
    program = (
        "from hyper_pp import Costs, Plan; "
        "print(Plan.build('transpose', 4, 2, 8, costs=Costs(TF=2, TB=4.5, comm=.1)).to_json(), end='')"
    )
    texts = {
        subprocess.run(
            [sys.executable, "-c", program],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert texts == {Plan.build("transpose", 4, 2, 8, costs=Costs(TF=2, TB=4.5, comm=0.1)).to_json()}


# ---- options ----


def test_owners_are_dealt_out_in_turn():
    assert Plan.build("transpose", 3, 1, 5).transpose.owners == (0, 1, 2, 0, 1)
    assert owners_of(PipelineShape(3, 1, 5), "inline") == (0, 0, 0, 0, 0)


def test_owners_of_ones_own_are_kept():
    plan = Plan.build("transpose", 2, 1, 3, owners=[1, 1, 0])
    verify(plan)
    assert plan.transpose.owners == (1, 1, 0)
    assert {str(action) for action in plan.orders[1] if action.op.value == "TF"} == {"0TF0", "0TF1"}


def test_the_block_stays_inline_where_sending_it_around_takes_longer():
    costs = Costs(F=1, B=2, TF=0.1, TB=0.2, comm=5)
    plan = Plan.build("transpose", 2, 1, 4, costs=costs)
    assert plan.transpose.owners == (0, 0, 0, 0)
    assert Plan.build("transpose", 2, 1, 4, costs=costs, owners="round_robin").transpose.owners == (0, 1, 0, 1)


def test_the_plan_tells_how_the_block_runs():
    def told(**options):
        transpose = Plan.build("transpose", 2, 1, 3, **options).transpose
        return transpose.backward, transpose.frozen, transpose.recompute, transpose.max_live, transpose.num_layers

    assert told() == ("owner", False, False, None, None)
    assert told(recompute=True, max_live=2, num_layers=4) == ("owner", False, True, 2, 4)
    assert told(backward="central") == ("central", False, False, None, None)
    assert told(num_layers=0) == ("owner", True, False, None, 0)


def test_an_owner_that_recomputes_pays_for_it():
    costs = Costs(F=1, B=2, TF=2, TB=4)
    assert step_time(4, 1, 8, costs, recompute=True) > step_time(4, 1, 8, costs)
    assert simulate(Plan.build("transpose", 4, 1, 8, costs=costs, recompute=True), costs).busy == (40, 40, 40, 40)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"owners": "everybody"}, r"owners must be round_robin, inline or .* \(got 'everybody'\)"),
        ({"owners": [0, 1]}, r"owners holds one rank per micro-batch \(micro-batches: 3, owners: 2\)"),
        ({"owners": [0, 1, 2]}, r"owners are ranks from 0 to 1 \(got 2\)"),
        ({"owners": [0, 1, True]}, r"owners are ranks from 0 to 1 \(got True\)"),
        ({"backward": "both"}, r"backward must be owner or central \(got 'both'\)"),
        ({"backward": "central", "recompute": True}, "a central backward always recomputes"),
        ({"max_live": 0}, r"max_live must be at least 1 \(got 0\)"),
        ({"num_layers": 0, "frozen": False}, "frozen must be true"),
        ({"explicit_backward": True}, "transpose has no option explicit_backward"),
        ({"costs": Costs(F=(1, 1, 1))}, r"cost F holds one number per stage \(stages: 2, numbers: 3\)"),
    ],
)
def test_options_that_make_no_plan_are_errors(options, message):
    with pytest.raises(ValueError, match=message):
        Plan.build("transpose", 2, 1, 3, **options)
