"""Receives that stand earlier: how far ahead, in which order, and what they don't pass."""

import pytest

from hyper_pp import Plan
from hyper_pp.actions import Action, Op, Order
from hyper_pp.passes import receives_earlier

MOVED = (Op.RECV_F, Op.RECV_B)


def parsed(text: str) -> Order:
    return tuple(Action.parse(word) for word in text.split())


def test_a_rank_that_begins_with_a_receive_posts_at_the_front():
    order = parsed("1RECV_F0 1F0 1SEND_F0 1RECV_F1 1F1 1SEND_F1 1RECV_B0 1B0 1SEND_B0")
    assert receives_earlier(order, 2) == parsed("1RECV_F0 1RECV_F1 1RECV_B0 1F0 1SEND_F0 1F1 1SEND_F1 1B0 1SEND_B0")


def test_a_rank_that_begins_with_work_posts_one_after_each_other_action_from_its_first_send_on():
    order = parsed("0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B0 0B0 0RECV_B1 0B1")
    assert receives_earlier(order, 64) == parsed("0F0 0SEND_F0 0RECV_B0 0F1 0RECV_B1 0SEND_F1 0B0 0B1")
    assert receives_earlier(order, 1) == parsed("0F0 0SEND_F0 0RECV_B0 0F1 0SEND_F1 0RECV_B1 0B0 0B1")


@pytest.mark.parametrize("count", (1, 2, 4, 64))
@pytest.mark.parametrize("schedule", ("gpipe", "1f1b", "interleaved", "mpipe", "transpose", "zbv"))
def test_receives_keep_their_order_and_stay_within_count(schedule: str, count: int):
    chunks = {"1f1b": 1, "gpipe": 1}.get(schedule, 2)
    for order in Plan.build(schedule, 4, chunks, 6).orders:
        moved = receives_earlier(order, count)
        assert [action for action in moved if action.op in MOVED] == [action for action in order if action.op in MOVED]
        assert [action for action in moved if action.op not in MOVED] == [a for a in order if a.op not in MOVED]
        for before, after in zip(receives_before_each_other(order), receives_before_each_other(moved), strict=True):
            assert before <= after <= before + count


def receives_before_each_other(order: Order) -> list[int]:
    """Return, for each action that stays, how many receives stand before it."""
    counts, seen = [], 0
    for action in order:
        if action.op in MOVED:
            seen += 1
        else:
            counts.append(seen)
    return counts


def test_no_receive_passes_a_collective_or_a_receive_of_the_block():
    order = parsed("0BCAST_T 0TF0 0RECV_TF1 0F0 0SEND_F0 0RECV_B0 0B0")
    moved = receives_earlier(order, 64)
    assert moved.index(Action.parse("0RECV_B0")) > moved.index(Action.parse("0RECV_TF1"))


def test_none_ahead_changes_nothing():
    order = Plan.build("interleaved", 2, 2, 4).orders[0]
    assert receives_earlier(order, 0) is order
