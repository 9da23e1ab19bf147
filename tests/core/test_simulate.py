"""Prices of plans, against closed forms, a second simulator and exhaustive search."""

import itertools
import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from independent import random_costs, random_plan, slow_step_time

from hyper_pp import Action, Costs, Op, PipelineShape, Plan, ScheduleError, Transpose, simulate, verify
from hyper_pp.bound import one_machine_bound
from hyper_pp.simulate import TimedAction

seeds = st.integers(0, 10**9)


def actions(text):
    return tuple(Action.parse(word) for word in text.split())


def block_plan(rows, transpose, num_micro_batches, num_chunks=1):
    shape = PipelineShape(len(rows), num_chunks, num_micro_batches)
    return Plan("by hand", shape, tuple(map(actions, rows)), compute_only=True, transpose=transpose)


# ---- the timeline ----


def test_every_action_starts_when_its_rank_is_free_and_its_input_is_there():
    plan = Plan.build("1f1b", 2, 1, 2)
    assert [[(str(action), start, end) for action, start, end in row] for row in simulate(plan).timeline.ranks] == [
        [("0F0", 0, 1), ("0F1", 1, 2), ("0B0", 4, 6), ("0B1", 7, 9)],
        [("1F0", 1, 2), ("1B0", 2, 4), ("1F1", 4, 5), ("1B1", 5, 7)],
    ]


def test_a_message_takes_comm_between_ranks_and_nothing_within_one():
    assert simulate(Plan.build("gpipe", 2, 1, 1), Costs(comm=10)).step_time == 26
    assert simulate(Plan.build("gpipe", 1, 3, 1), Costs(comm=10)).step_time == 9


def test_messages_never_queue_and_never_occupy_a_rank():
    # Three messages of 100 are on their way at once, while rank 0 goes on at its own pace.
    timeline = simulate(Plan.build("gpipe", 2, 1, 3), Costs(comm=100)).timeline
    assert [item.start for item in timeline.ranks[0][:3]] == [0, 1, 2]
    assert [item.start for item in timeline.ranks[1][:3]] == [101, 102, 103]


def test_stages_may_differ_in_cost():
    # Rank 1 is busy from 1 on: 3 x 2 forward, 3 x 1 backward; the last backward of stage 0 follows.
    assert simulate(Plan.build("gpipe", 2, 1, 3), Costs(F=(1, 2), B=(4, 1))).step_time == 20


def test_costs_for_another_number_of_stages_are_an_error():
    with pytest.raises(ValueError, match=r"cost F holds one number per stage \(stages: 4, numbers: 2\)"):
        simulate(Plan.build("gpipe", 2, 2, 3), Costs(F=(1, 2)))


def test_a_split_backward_passes_its_gradient_on_before_the_weight_half():
    plan = Plan("by hand", PipelineShape(2, 1, 1), (actions("0F0 0I0 0W0"), actions("1F0 1I0 1W0")), compute_only=True)
    timeline = simulate(plan, Costs(I=3, W=5)).timeline
    assert timeline.ranks[0][1] == TimedAction(Action(0, Op.I, 0), 5, 8)
    assert timeline.ranks[1][2] == TimedAction(Action(1, Op.W, 0), 5, 10)


def test_orders_that_wait_for_each_other_are_an_error():
    plan = Plan("by hand", PipelineShape(1, 1, 1), (actions("0B0 0F0"),))
    with pytest.raises(ScheduleError, match="wait for each other: rank 0 at 0B0"):
        simulate(plan)


# ---- the preprocess block ----


def test_connected_mpipe_takes_193_on_eight_ranks():
    plan = Plan.build("mpipe", 8, 1, 32)
    assert simulate(plan, Costs(F=1, B=2, TF=1, TB=2)).step_time == 193


def test_a_central_backward_costs_a_recompute_that_is_not_useful():
    simulation = simulate(Plan.build("mpipe", 1, 1, 1), Costs(F=1, B=2, TF=10, TB=20))
    assert simulation.busy == (43,)  # TF 10, F 1, B 2, then TF 10 again and TB 20
    assert simulation.ideal == 33


def test_a_connected_backward_carries_the_blocks_and_all_of_it_is_useful():
    simulation = simulate(Plan.build("mpipe", 1, 1, 2), Costs(F=1, B=2, TF=10, TB=20))
    durations = {str(action): end - start for action, start, end in simulation.timeline.ranks[0]}
    assert durations == {"0TF0": 10, "0F0": 1, "0B0": 2, "0TB0": 30, "0TF1": 10, "0F1": 1, "0B1": 22}
    assert simulation.ideal == 66


def test_a_frozen_block_runs_inside_the_forwards_of_rank_0s_own_micro_batches():
    simulation = simulate(Plan.build("mpipe", 1, 1, 2, frozen=True), Costs(F=1, B=2, TF=10, TB=20))
    durations = {str(action): end - start for action, start, end in simulation.timeline.ranks[0]}
    assert durations == {"0TF0": 10, "0F0": 1, "0B0": 2, "0F1": 11, "0B1": 2}
    assert simulation.efficiency == 1


@pytest.mark.parametrize("recompute, busy", [(False, 33), (True, 43)])
def test_an_owner_repeats_the_forward_only_if_it_kept_no_graph(recompute, busy):
    transpose = Transpose((0,), backward="owner", recompute=recompute)
    simulation = simulate(block_plan(["0TF0 0F0 0B0 0TB0"], transpose, 1), Costs(F=1, B=2, TF=10, TB=20))
    assert simulation.busy == (busy,)
    assert simulation.ideal == 33


def test_collectives_start_when_the_last_rank_arrives_and_end_later_beside_the_compute():
    transpose = Transpose((1,), backward="owner")
    rows = [
        "0BCAST_T 0RECV_TF0 0F0 0B0 0SEND_TB0 0REDUCE_T",
        "0BCAST_T 0TF0 0SEND_TF0 1F0 1B0 0RECV_TB0 0TB0 0REDUCE_T",
    ]
    simulation = simulate(block_plan(rows, transpose, 1), Costs(collective=0.5))
    assert [(str(action), start, end) for action, start, end in simulation.timeline.collectives] == [
        ("0BCAST_T", 0, 0.5),
        ("0REDUCE_T", 9.5, 10),
    ]
    assert simulation.step_time == 10
    assert simulation.busy == (3, 6)


def test_a_rank_goes_on_past_a_collective_that_others_have_not_reached():
    transpose = Transpose((0,), backward="owner")
    shape = PipelineShape(2, 1, 1)
    orders = actions("0TF0 0F0 0B0 0TB0 0REDUCE_T"), actions("0REDUCE_T 1F0 1B0")
    simulation = simulate(Plan("by hand", shape, orders, compute_only=True, transpose=transpose), Costs(collective=3))
    assert [item.start for item in simulation.timeline.ranks[1]] == [2, 3]
    assert simulation.step_time == 12


# ---- reported numbers ----


def test_the_numbers_of_a_small_step():
    simulation = simulate(Plan.build("1f1b", 2, 1, 2))
    assert simulation.to_json() == {
        "schedule": "1f1b",
        "step_time": 9,
        "ideal": 6,
        "efficiency": 6 / 9,
        "lower_bound": 9,
        "ratio": 1,
        "bubble_ratio": 6 / 18,
        "ranks": [
            {"busy": 6, "idle": 3, "peak_activations": 2, "peak_preprocess": 0},
            {"busy": 6, "idle": 3, "peak_activations": 1, "peak_preprocess": 0},
        ],
    }


def test_a_stage_input_lives_to_the_end_of_its_weight_half():
    plan = Plan("by hand", PipelineShape(1, 1, 2), (actions("0F0 0I0 0F1 0I1 0W0 0W1"),))
    assert simulate(plan).peak_activations == (2,)
    plan = Plan("by hand", PipelineShape(1, 1, 2), (actions("0F0 0I0 0W0 0F1 0I1 0W1"),))
    assert simulate(plan).peak_activations == (1,)


@pytest.mark.parametrize(
    "row, transpose, peak",
    [
        ("0TF0 0TF1 0F0 0F1 0B0 0TB0 0B1 0TB1", Transpose((0, 0), backward="owner"), 2),
        ("0TF0 0F0 0B0 0TB0 0TF1 0F1 0B1 0TB1", Transpose((0, 0), backward="owner"), 1),
        ("0TF0 0TF1 0F0 0F1 0B0 0TB0 0B1 0TB1", Transpose((0, 0), backward="owner", recompute=True), 1),
        ("0TF0 0TF1 0F0 0F1 0B0 0B1 0TB0 0TB1", Transpose((0, 0), explicit_backward=True), 1),
        ("0TF0 0F0 0TF1 0F1 0B0 0TB0 0B1", Transpose((0, 0)), 2),  # 1 is connected while 0 recomputes
        ("0TF0 0F0 0B0 0TB0 0TF1 0F1 0B1", Transpose((0, 0)), 1),
        ("0TF0 0F0 0F1 0B0 0B1", Transpose((0, 0), frozen=True), 0),
    ],
)
def test_graphs_of_the_block_live_from_forward_to_backward_or_while_they_are_recomputed(row, transpose, peak):
    assert simulate(block_plan([row], transpose, 2)).peak_preprocess == (peak,)


def test_a_step_that_takes_no_time_has_no_bubble():
    simulation = simulate(Plan.build("gpipe", 2, 1, 2), Costs(F=0, B=0))
    assert (simulation.step_time, simulation.bubble_ratio, simulation.efficiency, simulation.ratio) == (0, 0, 1, 1)


# ---- closed forms ----

GRID = [(p, m, f, b) for p in (1, 2, 3, 4, 8) for m in (1, 2, 3, 8, 16) for f, b in ((1, 2), (1, 1), (2, 3))]


@pytest.mark.parametrize("p, m, f, b", GRID)
def test_gpipe_and_1f1b_have_a_bubble_of_p_minus_1_forwards_and_backwards(p, m, f, b):
    for schedule in ("gpipe", "1f1b"):
        simulation = simulate(Plan.build(schedule, p, 1, m), Costs(F=f, B=b))
        assert simulation.step_time == (m + p - 1) * (f + b)
        assert simulation.idle == ((p - 1) * (f + b),) * p
        assert simulation.bubble_ratio == pytest.approx((p - 1) / (m + p - 1))
        assert simulation.ratio == 1


@pytest.mark.parametrize("p, v, m", [(p, v, k * p) for p in (2, 3, 4) for v in (2, 3, 4) for k in (1, 2, 4)])
def test_interleaved_has_a_bubble_of_p_minus_1_forwards_and_backwards_of_one_chunk(p, v, m):
    simulation = simulate(Plan.build("interleaved", p, v, m), Costs(F=1, B=2))
    assert simulation.step_time == m * v * 3 + (p - 1) * 3
    assert simulation.ratio == 1


# ---- against the second simulator ----


@settings(max_examples=150, deadline=None)
@given(seeds)
def test_random_plans_take_as_long_as_in_a_second_simulator(seed):
    rng = random.Random(seed)
    plan = random_plan(rng)
    costs = random_costs(rng, plan.shape.num_stages)
    assert simulate(plan, Costs(**costs)).step_time == pytest.approx(slow_step_time(plan, costs))


@settings(max_examples=60, deadline=None)
@given(seeds)
def test_lowered_and_compute_only_plans_take_the_same_time(seed):
    rng = random.Random(seed)
    plan = random_plan(rng)
    costs = Costs(**random_costs(rng, plan.shape.num_stages))
    assert simulate(plan.lowered(), costs).timeline == simulate(plan, costs).timeline


@pytest.mark.parametrize("options", [{}, {"explicit_backward": True}, {"frozen": True}])
@pytest.mark.parametrize("p, v, m", [(1, 1, 3), (2, 2, 5), (4, 1, 8), (4, 3, 2), (3, 2, 7)])
def test_mpipe_takes_as_long_as_in_a_second_simulator(p, v, m, options):
    costs = {"F": 1.0, "B": 2.5, "I": 1.0, "W": 1.0, "TF": 0.75, "TB": 1.25, "comm": 0.25, "collective": 0.5}
    plan = Plan.build("mpipe", p, v, m, **options)
    assert simulate(plan, Costs(**costs)).step_time == pytest.approx(slow_step_time(plan, costs))


# ---- the lower bound ----


@settings(max_examples=150, deadline=None)
@given(seeds)
def test_no_plan_is_faster_than_its_lower_bound(seed):
    rng = random.Random(seed)
    plan = random_plan(rng)
    simulation = simulate(plan, Costs(**random_costs(rng, plan.shape.num_stages)))
    assert simulation.lower_bound <= simulation.step_time
    assert simulation.ideal <= simulation.step_time + 1e-9


def orders_of(stages, num_micro_batches):
    """Yield every order of one rank's forwards and backwards that has each backward behind its forward."""
    items = [Action(s, op, m) for s in stages for m in range(num_micro_batches) for op in (Op.F, Op.B)]
    for order in itertools.permutations(items):
        position = {action: step for step, action in enumerate(order)}
        if all(position[a] < position[a._replace(op=Op.B)] for a in items if a.op is Op.F):
            yield order


@pytest.mark.parametrize("p, v, m", [(1, 1, 3), (2, 1, 2), (3, 1, 2), (2, 2, 1), (3, 2, 1)])
@pytest.mark.parametrize("seed", range(3))
def test_the_best_of_all_orders_is_not_below_the_lower_bound(p, v, m, seed):
    rng = random.Random(seed)
    costs = {name: rng.choice((0.5, 1, 2, 3.25)) for name in ("B", "I", "W", "TF", "TB", "comm", "collective")}
    costs["F"] = tuple(rng.choice((0.5, 1, 2, 3.25)) for _ in range(p * v))
    shape = PipelineShape(p, v, m)
    choices = [list(orders_of(shape.stages_of(rank), m)) for rank in range(p)]
    times = []
    for orders in itertools.product(*choices):
        time = slow_step_time(Plan("all", shape, orders, compute_only=True), costs)
        if time is not None:
            times.append(time)
    bound = simulate(Plan.build("gpipe", p, v, m), Costs(**costs)).lower_bound
    assert bound <= min(times) * (1 + 1e-9)


def test_the_lower_bound_of_an_imbalanced_pipeline_is_its_slowest_rank_with_head_and_tail():
    # Rank 1 computes 4 x (5 + 7); before it 2 + 0.5, after it 0.5 + 3 of rank 0.
    simulation = simulate(Plan.build("1f1b", 2, 1, 4), Costs(F=(2, 5), B=(3, 7), comm=0.5))
    assert simulation.lower_bound == 54


def test_the_lower_bound_counts_collectives_before_and_behind_the_block():
    transpose = Transpose((1,), backward="owner")
    rows = [
        "0BCAST_T 0RECV_TF0 0F0 0B0 0SEND_TB0 0REDUCE_T",
        "0BCAST_T 0TF0 0SEND_TF0 1F0 1B0 0RECV_TB0 0TB0 0REDUCE_T",
    ]
    assert simulate(block_plan(rows, transpose, 1), Costs(collective=5)).lower_bound == 19


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 9), st.integers(0, 30)), min_size=1, max_size=8))
def test_the_one_machine_bound_is_the_worst_set_of_jobs(jobs):
    worst = max(
        min(head for head, _, _ in chosen) + sum(length for _, length, _ in chosen) + min(tail for _, _, tail in chosen)
        for size in range(1, len(jobs) + 1)
        for chosen in itertools.combinations(jobs, size)
    )
    assert one_machine_bound(jobs) == worst


# ---- costs ----


def test_costs_are_read_from_text():
    assert Costs.parse("F=1, B=2.5,TF=.5,comm=1e-2") == Costs(F=1, B=2.5, TF=0.5, comm=0.01)
    assert Costs.parse("F=1:2:3").F == (1.0, 2.0, 3.0)
    assert str(Costs(F=(1, 2))) == "F=1:2 B=2 I=1 W=1 TF=1 TB=2 comm=0 collective=0"


@pytest.mark.parametrize(
    "text, message",
    [
        ("F", r"NAME=NUMBER pairs joined by commas, such as F=1,B=2 \(got 'F'\)"),
        ("", r"\(got ''\)"),
        ("G=1", r"costs are F, B, I, W, TF, TB, comm, collective \(got 'G'\)"),
        ("F=x", r"cost F must be a number of at least 0 \(got 'x'\)"),
        ("F=-1", r"cost F must be a finite number of at least 0 \(got -1\)"),
        ("F=nan", r"cost F must be a finite number of at least 0 \(got nan\)"),
        ("comm=inf", r"cost comm must be a finite number of at least 0 \(got inf\)"),
        ("F=1,F=1", "cost F is given twice"),
        ("TF=1:2", r"cost TF is the same for all stages: one number \(got '1:2'\)"),
    ],
)
def test_costs_that_can_not_be_read_are_errors(text, message):
    with pytest.raises(ValueError, match=message):
        Costs.parse(text)


@pytest.mark.parametrize("value", [True, None, "1", 10**400])
def test_a_cost_must_be_a_number(value):
    with pytest.raises(ValueError, match="cost B must be a"):
        Costs(B=value)


def test_costs_that_add_up_to_infinity_are_an_error():
    with pytest.raises(ValueError, match="use a larger unit of time"):
        simulate(Plan.build("gpipe", 1, 1, 4), Costs(F=1e308, B=0))


def test_a_large_plan_is_simulated_like_a_small_one():
    simulation = simulate(Plan.build("interleaved", 16, 4, 64, compute_only=True))
    assert simulation.step_time == 64 * 4 * 3 + 15 * 3
    assert math.fsum(simulation.busy) == 16 * 64 * 4 * 3
    assert verify(simulation.plan).peak_activations == simulation.peak_activations
