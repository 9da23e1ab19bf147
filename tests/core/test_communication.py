"""The communication pass: what it adds, and that what comes out can't deadlock."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from independent import has_total_order, parts, random_plan, runs_with_blocking_transfers
from two_queues import two_queue_time

from hyper_pp import Action, Costs, PipelineShape, Plan, ScheduleError, Transpose, simulate
from hyper_pp.actions import BODY_P2P_OPS, RECV_OPS
from hyper_pp.passes import insert_communication

seeds = st.integers(0, 10**9)
RECEIVES = {Action(0, op, m) for op in RECV_OPS for m in range(6)}


def actions(text):
    return tuple(Action.parse(word) for word in text.split())


def texts(orders):
    return [" ".join(map(str, order)) for order in orders]


def test_1f1b_on_two_ranks_gets_each_transfer_where_its_result_is_ready():
    assert texts(Plan.build("1f1b", 2, 1, 3).orders) == [
        "0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B0 0B0 0F2 0RECV_B1 0SEND_F2 0B1 0RECV_B2 0B2",
        "1RECV_F0 1F0 1RECV_F1 1B0 1SEND_B0 1F1 1B1 1SEND_B1 1RECV_F2 1F2 1B2 1SEND_B2",
    ]


def test_stages_on_one_rank_exchange_nothing():
    assert texts(Plan.build("interleaved", 1, 2, 1).orders) == ["0F0 1F0 1B0 0B0"]
    shape = PipelineShape(2, 2, 1, "v")
    lowered = insert_communication((actions("0F0 3F0 3B0 0B0"), actions("1F0 2F0 2B0 1B0")), shape)
    assert texts(lowered) == [
        "0F0 0SEND_F0 3RECV_F0 3F0 3B0 3SEND_B0 0RECV_B0 0B0",
        "1RECV_F0 1F0 2F0 2SEND_F0 2RECV_B0 2B0 1B0 1SEND_B0",
    ]


def test_a_split_backward_sends_its_gradient_before_the_weight_half():
    lowered = insert_communication((actions("0F0 0I0 0W0"), actions("1F0 1I0 1W0")), PipelineShape(2, 1, 1))
    assert texts(lowered) == ["0F0 0SEND_F0 0RECV_B0 0I0 0W0", "1RECV_F0 1F0 1I0 1SEND_B0 1W0"]


def test_transfers_of_the_block_keep_their_places():
    plan = Plan.build("mpipe", 2, 1, 2, compute_only=True)
    for before, after in zip(plan.orders, plan.lowered().orders):
        assert tuple(action for action in after if action.op not in BODY_P2P_OPS) == before


def test_a_receive_of_the_block_that_stands_behind_its_send_moves_up_to_it():
    orders = actions("0TF0 0F0 0TF2 0F2 0RECV_TF1 0F1 0B0 0B2 0B1"), actions("0TF1 0SEND_TF1 1F0 1B0 1F2 1B2 1F1 1B1")
    lowered = insert_communication(orders, PipelineShape(2, 1, 3), Transpose((0, 1, 0), frozen=True))
    assert texts(lowered)[0].startswith("0TF0 0RECV_TF1 0F0 0SEND_F0 0TF2 0F2 0SEND_F2")
    assert texts(lowered)[1].startswith("0TF1 0SEND_TF1 1RECV_F0 1F0 1B0 1RECV_F2")


def test_a_receive_of_the_block_in_front_of_its_send_keeps_its_place():
    orders = actions("0RECV_TF0 0TF1 0F0 0F1 0B0 0B1"), actions("0TF0 0SEND_TF0 1F0 1B0 1F1 1B1")
    lowered = insert_communication(orders, PipelineShape(2, 1, 2), Transpose((1, 0), frozen=True))
    assert texts(lowered)[0].startswith("0RECV_TF0 0TF1 0F0")


def test_costs_decide_which_of_two_transfers_comes_first():
    plan = Plan.build("1f1b", 2, 1, 3, compute_only=True)
    assert texts(plan.lowered(Costs(F=1, B=(2, 5))).orders)[0] == (
        "0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B0 0B0 0F2 0SEND_F2 0RECV_B1 0B1 0RECV_B2 0B2"
    )
    assert plan.lowered().orders == Plan.build("1f1b", 2, 1, 3).orders != plan.lowered(Costs(B=(2, 5))).orders


@pytest.mark.parametrize("name, v", [("interleaved", 1), ("zbv", 2), ("mpipe", 1), ("transpose", 1), ("transpose", 2)])
@pytest.mark.parametrize("costs", [Costs(), Costs(TF=2, TB=4), Costs(F=1, B=1.5, TF=0.3, TB=0.5, comm=0.05)])
def test_plans_lowered_for_their_costs_run_as_simulated_on_two_queues(name, v, costs):
    plan = Plan.build(name, 4, v, 8, compute_only=True, **({"costs": costs} if name == "transpose" else {}))
    expected = simulate(plan, costs).step_time
    # Messages that take time occupy a queue, which the simulation leaves out.
    assert two_queue_time(plan.lowered(costs), costs) == pytest.approx(expected, rel=0.002 if costs.comm else 1e-9)


def test_nothing_is_changed_in_place():
    plan = Plan.build("gpipe", 2, 1, 2, compute_only=True)
    before = texts(plan.orders)
    plan.lowered()
    assert texts(plan.orders) == before and plan.compute_only


def test_orders_that_wait_for_each_other_are_an_error_that_shows_where():
    plan = Plan(
        "by hand",
        PipelineShape(2, 1, 2),
        (actions("0F0 0B0 0F1 0B1"), actions("1F0 1F1 1B0 1B1")),
        compute_only=True,
    )
    with pytest.raises(ScheduleError) as caught:
        plan.lowered()
    assert caught.value.reason == "the orders wait for each other: rank 0 at 0B0, rank 1 at 1F1"
    assert caught.value.grid == "rank 0, step 0:   0F0 [0B0]   0F1   0B1\nrank 1, step 0:   1F0 [1F1]   1B0   1B1"


@settings(max_examples=200, deadline=None)
@given(seeds)
def test_lowered_orders_without_transfers_are_the_compute_orders(seed):
    plan = random_plan(random.Random(seed))
    for before, after in zip(plan.orders, plan.lowered().orders):
        kept = [action for action in after if action.op not in BODY_P2P_OPS]
        assert [action for action in kept if action.op not in RECV_OPS] == [
            action for action in before if action.op not in RECV_OPS
        ]
        # A receive of the block may have moved up: to where its value is sent.
        assert set(kept) == set(before)
        for action in before:
            if action.op in RECV_OPS:
                assert set(kept[: kept.index(action)]) - RECEIVES <= set(before[: before.index(action)])


@settings(max_examples=200, deadline=None)
@given(seeds)
def test_all_transfers_have_one_total_order_that_every_rank_follows(seed):
    assert has_total_order(random_plan(random.Random(seed)).lowered().orders)


@settings(max_examples=200, deadline=None)
@given(seeds)
def test_lowered_orders_run_where_a_send_blocks_until_its_receive_is_posted(seed):
    assert runs_with_blocking_transfers(random_plan(random.Random(seed)).lowered().orders)


@settings(max_examples=100, deadline=None)
@given(seeds)
def test_every_stage_boundary_between_ranks_gets_one_message_each_way_for_each_micro_batch(seed):
    plan = random_plan(random.Random(seed), with_block=False)
    rank_of = plan.shape.rank_of
    found = sorted(parts(a) for order in plan.lowered().orders for a in order if a.op in BODY_P2P_OPS)
    wanted = []
    for s in range(plan.shape.num_stages - 1):
        if rank_of(s) != rank_of(s + 1):
            for m in range(plan.shape.num_micro_batches):
                wanted += [(s, "SEND_F", m), (s + 1, "RECV_F", m), (s + 1, "SEND_B", m), (s, "RECV_B", m)]
    assert found == sorted(wanted)


def test_crossed_sends_have_no_total_order_and_do_not_run():
    # The two checks above can fail: both ranks send first here.
    orders = (actions("0F0 0SEND_F0 0RECV_B0"), actions("1SEND_B0 1RECV_F0"))
    assert not has_total_order(orders)
    assert not runs_with_blocking_transfers(orders)
