"""The verifier: what it lets through, and what it says of plans that are broken."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from independent import random_plan, runs_with_blocking_transfers

from hyper_pp import Action, PipelineShape, Plan, ScheduleError, Transpose, declare_op, verify
from hyper_pp.dependencies import Dependencies
from hyper_pp.rendezvous import run_rendezvous, run_two_queues

seeds = st.integers(0, 10**9)

# gpipe, two ranks, two micro-batches; every broken plan below is this one with a change.
RANK_0 = "0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B0 0B0 0RECV_B1 0B1"
RANK_1 = "1RECV_F0 1F0 1RECV_F1 1F1 1B0 1SEND_B0 1B1 1SEND_B1"

ONLY_BLOCKING = "deadlock only under blocking rendezvous; with separate compute and communication queues it would run"
BOTH = "deadlock under blocking rendezvous, and with separate compute and communication queues too"


def actions(text):
    return tuple(Action.parse(word) for word in text.split())


def by_hand(*rows, m=2, **fields):
    shape = PipelineShape(len(rows), 1, m)
    return Plan("by hand", shape, tuple(map(actions, rows)), **fields)


def fault_of(*rows, **fields):
    with pytest.raises(ScheduleError) as caught:
        verify(by_hand(*rows, **fields))
    return caught.value


def test_the_plan_that_the_others_are_made_of_holds():
    assert verify(by_hand(RANK_0, RANK_1)).num_actions == 16


def test_a_verified_plan_tells_its_peaks():
    verification = verify(Plan.build("1f1b", 3, 1, 5))
    assert (verification.num_actions, verification.peak_activations) == (70, (3, 2, 1))


@settings(max_examples=150, deadline=None)
@given(seeds, st.booleans())
def test_random_plans_hold_before_and_after_lowering(seed, lowered):
    plan = random_plan(random.Random(seed))
    assert verify(plan.lowered() if lowered else plan).num_actions == plan.lowered().num_actions


# ---- presence ----


@pytest.mark.parametrize(
    "missing, home",
    [("0F1", 0), ("0SEND_F1", 0), ("0RECV_B0", 0), ("0B1", 0), ("1RECV_F0", 1), ("1F1", 1), ("1B0", 1)],
)
def test_a_missing_action_is_named(missing, home):
    rows = [" ".join(word for word in row.split() if word != missing) for row in (RANK_0, RANK_1)]
    assert fault_of(*rows).reason.startswith(f"{missing} is missing in rank {home}'s order")


def test_a_send_without_its_receive_is_named_with_where_the_send_is():
    fault = fault_of(RANK_0, RANK_1.replace("1RECV_F1 ", ""))
    assert fault.reason == "1RECV_F1 is missing in rank 1's order: 0SEND_F1 on rank 0 has no partner"


def test_a_receive_without_its_send_is_named_with_where_the_receive_is():
    fault = fault_of(RANK_0, RANK_1.replace("1SEND_B0 ", ""))
    assert fault.reason == "1SEND_B0 is missing in rank 1's order: 0RECV_B0 on rank 0 has no partner"


def test_a_missing_weight_half_is_named_with_its_other_half():
    fault = fault_of("0F0 0I0 0F1 0I1 0W1")
    assert fault.reason == "0W0 is missing in rank 0's order, which has its other half 0I0"


def test_an_action_that_is_there_twice_is_named_with_both_steps():
    fault = fault_of(RANK_0.replace("0B0", "0B0 0B0"), RANK_1)
    assert fault.reason == "0B0 is twice in rank 0's order (steps 5 and 6)"
    assert fault.grid.splitlines() == [
        "rank 0, step 3: 0SEND_F1 0RECV_B0      0B0    [0B0] 0RECV_B1      0B1",
        "rank 1, step 3:      1F1      1B0 1SEND_B0      1B1 1SEND_B1",
    ]


def test_an_action_on_the_wrong_rank_is_named_with_the_right_one():
    fault = fault_of(RANK_0.replace("0F1 ", ""), RANK_1.replace("1F1", "0F1 1F1"))
    assert fault.reason == "0F1 is on rank 1, but belongs on rank 0"


def test_a_full_and_a_split_backward_of_the_same_micro_batch_are_one_too_many():
    assert fault_of("0F0 0B0 0I0 0W0 0F1 0B1").reason == "0B0 is in rank 0's order, but nothing needs it"


def test_a_transfer_between_stages_of_one_rank_is_refused():
    plan = Plan("by hand", PipelineShape(1, 2, 1), (actions("0F0 0SEND_F0 1RECV_F0 1F0 1B0 0B0"),))
    with pytest.raises(ScheduleError, match="0SEND_F0 is in rank 0's order, but nothing needs it"):
        verify(plan)


def test_a_plan_for_a_huge_shape_with_few_actions_is_refused_at_once():
    plan = Plan("by hand", PipelineShape(1, 10**9, 10**9), (actions("0F0 0B0"),))
    with pytest.raises(ScheduleError, match=r"1F0 is missing in rank 0's order .* the plan holds 2 actions"):
        verify(plan)


BLOCK_0 = "0BCAST_T 0TF0 0RECV_TF1 0RECV_TX1 0F0 0F1 0B0 0TB0 0B1 0TB1"
BLOCK_1 = "0BCAST_T 0TF1 0SEND_TF1 0SEND_TX1 1F0 1F1 1B0 1B1"


@pytest.mark.parametrize(
    "rank, missing, message",
    [
        (1, "0BCAST_T", "0BCAST_T is missing in rank 1's order"),
        (0, "0TF0", "0TF0 is missing in rank 0's order"),
        (1, "0TF1", "0TF1 is missing in rank 1's order"),
        (0, "0RECV_TX1", "0RECV_TX1 is missing in rank 0's order: 0SEND_TX1 on rank 1 has no partner"),
        (0, "0TB1", "0TB1 is missing in rank 0's order"),
    ],
)
def test_a_missing_action_of_the_block_is_named(rank, missing, message):
    rows = [BLOCK_0, BLOCK_1]
    rows[rank] = rows[rank].replace(missing + " ", "").removesuffix(" " + missing)
    assert fault_of(*rows, compute_only=True, transpose=Transpose((0, 1))).reason == message


def test_the_plan_with_a_block_that_the_others_are_made_of_holds():
    assert verify(by_hand(BLOCK_0, BLOCK_1, compute_only=True, transpose=Transpose((0, 1)))).num_actions == 26


def test_a_broadcast_that_nothing_needs_is_on_all_ranks_or_none():
    row = "0TF0 0F0 0B0 0TB0"
    for rows in ((row, "1F0 1B0"), ("0BCAST_T " + row, "0BCAST_T 1F0 1B0")):
        assert verify(by_hand(*rows, m=1, compute_only=True, transpose=Transpose((0,)))).peak_activations == (1, 1)
    fault = fault_of("0BCAST_T " + row, "1F0 1B0", m=1, compute_only=True, transpose=Transpose((0,)))
    assert fault.reason == "0BCAST_T is missing in rank 1's order"


def test_a_frozen_block_has_no_backward():
    rows = "0TF0 0RECV_TF1 0F0 0F1 0B0 0TB0 0B1", "0TF1 0SEND_TF1 1F0 1F1 1B0 1B1"
    fault = fault_of(*rows, compute_only=True, transpose=Transpose((0, 1), frozen=True))
    assert fault.reason == "0TB0 is in rank 0's order, but nothing needs it"


def test_a_frozen_block_needs_no_forward_for_rank_0s_own_micro_batches():
    transpose = Transpose((0, 0), frozen=True)
    assert verify(by_hand("0TF0 0F0 0F1 0B0 0B1", compute_only=True, transpose=transpose)).num_actions == 5
    fault = fault_of("0F0 0F1 0B0 0B1", compute_only=True, transpose=transpose)
    assert fault.reason == "0TF0 is missing in rank 0's order"


# ---- order ----


@pytest.mark.parametrize(
    "row, message",
    [
        ("0B0 0F0 0F1 0B1", f"0B0 comes before 0F0, which it needs: {BOTH}"),
        ("0F0 0W0 0I0 0F1 0B1", f"0W0 comes before 0I0, which it needs: {BOTH}"),
    ],
)
def test_a_compute_action_before_what_it_needs_is_refused(row, message):
    assert fault_of(row).reason == message


def test_a_compute_only_plan_is_told_the_same():
    assert fault_of("0B0 0F0 0F1 0B1", compute_only=True).reason == "0B0 comes before 0F0, which it needs"


def test_a_send_before_its_result_fails_only_where_a_rank_does_one_thing_at_a_time():
    fault = fault_of(RANK_0.replace("0F0 0SEND_F0", "0SEND_F0 0F0"), RANK_1)
    assert fault.reason == f"0SEND_F0 comes before 0F0, which it needs: {ONLY_BLOCKING}"


def test_a_receive_behind_its_use_fails_only_where_a_rank_does_one_thing_at_a_time():
    fault = fault_of(RANK_0, RANK_1.replace("1RECV_F1 1F1", "1F1 1RECV_F1"))
    assert fault.reason == f"1F1 comes before 1RECV_F1, which it needs: {ONLY_BLOCKING}"
    assert fault.grid.splitlines() == [
        "rank 0, step 0:      0F0 0SEND_F0      0F1 0SEND_F1 0RECV_B0      0B0",
        "rank 1, step 0: 1RECV_F0      1F0    [1F1] 1RECV_F1      1B0 1SEND_B0",
    ]


def test_the_sum_of_the_blocks_gradients_comes_behind_its_last_backward():
    transpose = Transpose((1,), backward="owner")
    rows = (
        "0BCAST_T 0RECV_TF0 0F0 0B0 0SEND_TB0 0REDUCE_T",
        "0BCAST_T 0TF0 0SEND_TF0 1F0 1B0 0RECV_TB0 0REDUCE_T 0TB0",
    )
    fault = fault_of(*rows, m=1, compute_only=True, transpose=transpose)
    assert fault.reason == "0REDUCE_T comes before 0TB0, whose gradients it sums"


def test_the_block_runs_behind_the_broadcast_of_its_parameters():
    rows = BLOCK_0.replace("0BCAST_T 0TF0", "0TF0 0BCAST_T"), BLOCK_1
    fault = fault_of(*rows, compute_only=True, transpose=Transpose((0, 1)))
    assert fault.reason == "0TF0 comes before 0BCAST_T, which it needs"


@pytest.mark.parametrize(
    "row, message",
    [
        ("0UNSHARD 0F0 0RESHARD 0B0", "0B0 runs while stage 0 is sharded: 0UNSHARD first"),
        ("0F0 0UNSHARD 0B0", "0F0 runs while stage 0 is sharded: 0UNSHARD first"),
        ("0F0 0REDUCE_GRAD 0B0", "0B0 comes after 0REDUCE_GRAD, which sums its gradients"),
    ],
)
def test_a_sharded_stage_computes_only_while_unsharded_and_reduces_last(row, message):
    assert fault_of(row, m=1).reason == message


def test_a_stage_may_be_sharded_and_unsharded_again():
    row = "0UNSHARD 0F0 0RESHARD 0UNSHARD 0B0 0RESHARD 0REDUCE_GRAD"
    assert verify(by_hand(row, m=1)).num_actions == 7


def test_an_added_op_is_let_through_where_it_keeps_its_order():
    declare_op("CLIP", after=(Action.parse("0B0").op,), before=(Action.parse("0SEND_B0").op,))
    good = RANK_1.replace("1B0", "1B0 1CLIP0")
    assert verify(by_hand(RANK_0, good)).num_actions == 17
    early = RANK_1.replace("1B0", "1CLIP0 1B0")
    assert fault_of(RANK_0, early).reason == "1CLIP0 comes before 1B0, but was declared to come after B"
    late = RANK_1.replace("1SEND_B0", "1SEND_B0 1CLIP0")
    assert fault_of(RANK_0, late).reason == "1CLIP0 comes after 1SEND_B0, but was declared to come before SEND_B"


def test_an_added_op_without_a_micro_batch_comes_behind_all_of_its_stage():
    declare_op("STEP", after=(Action.parse("0B0").op,))
    assert verify(by_hand(RANK_0 + " 0STEP", RANK_1)).num_actions == 17
    fault = fault_of(RANK_0.replace("0B1", "0STEP 0B1"), RANK_1)
    assert fault.reason == "0STEP comes before 0B1, but was declared to come after B"


# ---- deadlock ----


def test_crossed_sends_fail_in_both_models():
    # Rank 0 sends forward while rank 1 sends backward.
    crossed = "1RECV_F0 1F0 1B0 1SEND_B0 1RECV_F1 1F1 1B1 1SEND_B1"
    fault = fault_of(RANK_0, crossed)
    assert fault.reason == f"{BOTH}: rank 0 waits at 0SEND_F1, rank 1 waits at 1SEND_B0"
    assert "[0SEND_F1]" in fault.grid and "[1SEND_B0]" in fault.grid
    assert not runs_with_blocking_transfers((actions(RANK_0), actions(crossed)))


def test_transfers_of_the_block_in_another_order_than_the_partners_fail():
    rows = BLOCK_0.replace("0RECV_TF1 0RECV_TX1", "0RECV_TX1 0RECV_TF1"), BLOCK_1
    with pytest.raises(ScheduleError, match="the orders wait for each other: rank 0 at 0RECV_TX1, rank 1 at 0SEND_TF1"):
        verify(by_hand(*rows, compute_only=True, transpose=Transpose((0, 1))))


def test_compute_orders_that_wait_for_each_other_fail():
    fault = fault_of("0F0 0B0 0F1 0B1", "1F0 1F1 1B0 1B1", compute_only=True)
    assert fault.reason == "the orders wait for each other: rank 0 at 0B0, rank 1 at 1F1"


@settings(max_examples=200, deadline=None)
@given(seeds)
def test_shuffled_transfers_are_judged_as_by_a_second_rendezvous(seed):
    rng = random.Random(seed)
    plan = random_plan(rng, max_micro_batches=4).lowered()
    orders = [list(order) for order in plan.orders]
    for _ in range(rng.randint(0, 3)):
        order = rng.choice(orders)
        step = rng.randrange(len(order))
        order.insert(rng.randrange(len(order)), order.pop(step))
    orders = tuple(map(tuple, orders))
    dependencies = Dependencies(plan.shape, plan.transpose, orders)
    assert (run_rendezvous(orders, dependencies.rank_of) is None) == runs_with_blocking_transfers(orders)


@settings(max_examples=200, deadline=None)
@given(seeds)
def test_a_plan_that_holds_runs_with_two_queues_too(seed):
    plan = random_plan(random.Random(seed)).lowered()
    assert run_two_queues(plan.orders, Dependencies(plan.shape, plan.transpose, plan.orders)) is None


def test_two_queues_stop_at_the_first_action_that_can_not_go_on():
    plan = by_hand(RANK_0, "1RECV_F0 1F0 1B0 1SEND_B0 1RECV_F1 1F1 1B1 1SEND_B1")
    assert run_two_queues(plan.orders, Dependencies(plan.shape, None, plan.orders)) == [3, 3]


# ---- memory ----


def test_a_limit_on_live_stage_inputs_is_one_number_or_one_per_rank():
    plan = Plan.build("gpipe", 2, 1, 4)
    assert verify(plan, max_activations=4).peak_activations == (4, 4)
    with pytest.raises(ScheduleError, match="rank 1 holds 4 stage inputs at a time, the limit is 3") as caught:
        verify(plan, max_activations=[4, 3])
    assert "[1F3]" in caught.value.grid
    with pytest.raises(ValueError, match=r"one number per rank \(ranks: 2, got 3\)"):
        verify(plan, max_activations=[4, 4, 4])
