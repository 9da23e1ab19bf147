"""Actions and their text form."""

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hyper_pp import Action, Op, PlanFormatError, declare_op
from hyper_pp.actions import (
    COLLECTIVE_OPS,
    COMPUTE_OPS,
    PREPROCESS_OPS,
    RECV_OPS,
    SEND_OPS,
    WITHOUT_MICRO_BATCH,
    partner,
)


@pytest.mark.parametrize(
    "text, action",
    [
        ("3F0", Action(3, Op.F, 0)),
        ("12B345", Action(12, Op.B, 345)),
        ("0I1", Action(0, Op.I, 1)),
        ("0W1", Action(0, Op.W, 1)),
        ("4RECV_B1", Action(4, Op.RECV_B, 1)),
        ("0SEND_TX7", Action(0, Op.SEND_TX, 7)),
        ("0BCAST_T", Action(0, Op.BCAST_T)),
        ("2REDUCE_GRAD", Action(2, Op.REDUCE_GRAD)),
        (" 2UNSHARD ", Action(2, Op.UNSHARD)),
    ],
)
def test_an_action_is_read_from_and_written_as_stage_op_micro_batch(text, action):
    assert Action.parse(text) == action
    assert str(action) == text.strip()


@given(st.integers(0, 999), st.sampled_from(list(Op)), st.integers(0, 999))
def test_every_action_survives_its_text_form(stage, op, m):
    action = Action(stage, op, None if op in WITHOUT_MICRO_BATCH else m)
    assert Action.parse(str(action)) == action


@pytest.mark.parametrize(
    "text", ["", "F0", "3", "3f0", "3F-1", "-3F0", "3F0 4F0", "3_F0", "3SEND_0", "٣F0", "3F" + 5000 * "1"]
)
def test_a_text_that_is_no_action_is_an_error(text):
    with pytest.raises(PlanFormatError, match=r"an action is <stage><OP><micro_batch>, for example 3F0 \(got"):
        Action.parse(text)


def test_an_action_must_be_a_text():
    with pytest.raises(PlanFormatError, match=r"\(got 3\)"):
        Action.parse(3)


def test_an_unknown_op_is_an_error_that_lists_the_known():
    with pytest.raises(
        PlanFormatError, match=r"unknown op FF in action '3FF0' \(known: F, B, I, W, SEND_F, .*declare_op"
    ):
        Action.parse("3FF0")


@pytest.mark.parametrize(
    "text, rule", [("3F", "F needs a"), ("0BCAST_T1", "BCAST_T takes no"), ("1SEND_F", "SEND_F needs a")]
)
def test_a_micro_batch_too_many_or_missing_is_an_error(text, rule):
    with pytest.raises(PlanFormatError, match=rf"{rule} micro-batch \(got '{text}'\)"):
        Action.parse(text)


@pytest.mark.parametrize(
    "send, receive",
    [
        ("3SEND_F1", "4RECV_F1"),
        ("4SEND_B1", "3RECV_B1"),
        ("0SEND_TF2", "0RECV_TF2"),
        ("0SEND_TX2", "0RECV_TX2"),
        ("0SEND_TB2", "0RECV_TB2"),
    ],
)
def test_a_send_and_its_receive_are_partners(send, receive):
    assert str(partner(Action.parse(send))) == receive
    assert str(partner(Action.parse(receive))) == send


def test_every_op_is_of_one_kind():
    kinds = [COMPUTE_OPS, SEND_OPS, RECV_OPS, COLLECTIVE_OPS, frozenset({Op.UNSHARD, Op.RESHARD, Op.REDUCE_GRAD})]
    assert sorted(op for kind in kinds for op in kind) == sorted(Op)
    assert {op.value for op in PREPROCESS_OPS} == {
        *("BCAST_T", "TF", "SEND_TF", "RECV_TF", "SEND_TX", "RECV_TX"),
        *("TB", "SEND_TB", "RECV_TB", "REDUCE_T"),
    }


def test_actions_are_equal_hashable_and_survive_pickling():
    action = Action(3, Op.F, 0)
    copy = pickle.loads(pickle.dumps(action))
    assert copy == action and hash(copy) == hash(action) and copy.op is Op.F
    assert {action: 1}[Action.parse("3F0")] == 1
    assert repr(action) == "Action(3F0)"


def test_a_declared_op_is_read_like_a_built_in_one():
    op = declare_op("LOG_NORM", after=(Op.B,), before=(Op.SEND_B,))
    assert Action.parse("3LOG_NORM4") == Action(3, op, 4)
    assert Action.parse("3LOG_NORM") == Action(3, op)
    assert str(Action(3, op, 4)) == "3LOG_NORM4"
    assert declare_op("LOG_NORM", after=(Op.B,), before=(Op.SEND_B,)) == op


@pytest.mark.parametrize(
    "name, message",
    [
        ("log", r"capital letters, parts joined by _ \(got 'log'\)"),
        ("", r"\(got ''\)"),
        ("SEND_F", "op SEND_F is built in"),
        ("TWICE", r"op TWICE is declared already as CustomOp\(value='TWICE'"),
    ],
)
def test_an_op_that_can_not_be_declared_is_an_error(name, message):
    declare_op("TWICE")
    with pytest.raises(ValueError, match=message):
        declare_op(name, after=(Op.F,))
