"""What every implementation of the protocols must do; run against each framework and the fake of the core tests.

A kit tells how to make tensors of a framework: ``tensors`` (its Tensors), ``floats(*values)``, ``integers(*values)``,
``scalar(value)``, ``values(tensor)`` (a list), and ``scale_stage(factor, frozen=False)``: a stage with one parameter,
which multiplies every float input by it, passes every other input on, and returns one output for one input, else a
tuple. Stage and tensor cases take the kit; transport cases take a transport and the kit, on every rank at once.
"""

import pytest

# -- tensors -----------------------------------------------------------------------------------------------------------


def tensors_are_told_from_plain_values(kit):
    assert kit.tensors.is_tensor(kit.floats(1))
    assert not any(kit.tensors.is_tensor(value) for value in (None, 1, 1.0, True, "x", [1.0]))


def only_floats_are_floating(kit):
    assert kit.tensors.is_floating(kit.floats(1))
    assert not kit.tensors.is_floating(kit.integers(1))


def a_spec_has_shape_and_dtype_and_no_grad(kit):
    spec = kit.tensors.spec(kit.floats(1, 2, 3))
    assert (spec.shape, spec.requires_grad) == ((3,), False)
    assert spec.dtype != kit.tensors.spec(kit.integers(1)).dtype
    assert kit.tensors.spec(kit.scalar(1)).shape == ()


def narrow_takes_a_part(kit):
    assert kit.values(kit.tensors.narrow(kit.floats(0, 1, 2, 3, 4), 0, 1, 3)) == [1, 2, 3]


def narrow_and_concat_undo_each_other(kit):
    x = kit.floats(0, 1, 2, 3, 4)
    parts = [kit.tensors.narrow(x, 0, start, length) for start, length in ((0, 2), (2, 2), (4, 1))]
    assert kit.values(kit.tensors.concat(parts, 0)) == [0, 1, 2, 3, 4]


def full_makes_what_the_spec_says(kit):
    for x in (kit.floats(1, 2), kit.scalar(1)):
        for value in (0.0, 2.5):
            made = kit.tensors.full(kit.tensors.spec(x), value)
            assert kit.tensors.spec(made) == kit.tensors.spec(x)
            assert set(kit.values(made)) == {value}


def weighted_sum_is_a_scalar(kit):
    total = kit.tensors.weighted_sum([kit.scalar(2), kit.scalar(4)], [0.5, 0.25])
    assert kit.tensors.spec(total).shape == ()
    assert kit.tensors.number(total) == 2.0


def weighted_sum_of_nothing_is_zero(kit):
    assert kit.tensors.number(kit.tensors.weighted_sum([], [])) == 0.0


def add_makes_a_new_tensor(kit):
    left, right = kit.floats(1, 2), kit.floats(10, 20)
    assert kit.values(kit.tensors.add(left, right)) == [11, 22]
    assert (kit.values(left), kit.values(right)) == ([1, 2], [10, 20])


def a_copy_keeps_its_values(kit):
    x = kit.floats(1, 2)
    copied = kit.tensors.copy(x)
    assert kit.tensors.spec(copied) == kit.tensors.spec(x)
    assert kit.values(copied) == [1, 2]
    assert copied is not x


def same_compares_every_value(kit):
    left = [kit.floats(1, 2), kit.scalar(3)]
    assert kit.tensors.same(left, [kit.floats(1, 2), kit.scalar(3)])
    assert not kit.tensors.same(left, [kit.floats(1, 2.5), kit.scalar(3)])
    assert not kit.tensors.same(left, [kit.floats(1, 2), kit.scalar(4)])
    assert not kit.tensors.same([kit.floats(float("nan"))], [kit.floats(float("nan"))])
    assert kit.tensors.same([], [])


def number_takes_tensors_and_numbers(kit):
    assert [kit.tensors.number(value) for value in (kit.scalar(2.5), 3, 1.5)] == [2.5, 3.0, 1.5]


TENSORS_CASES = [
    tensors_are_told_from_plain_values,
    only_floats_are_floating,
    a_spec_has_shape_and_dtype_and_no_grad,
    narrow_takes_a_part,
    narrow_and_concat_undo_each_other,
    full_makes_what_the_spec_says,
    weighted_sum_is_a_scalar,
    weighted_sum_of_nothing_is_zero,
    add_makes_a_new_tensor,
    a_copy_keeps_its_values,
    same_compares_every_value,
    number_takes_tensors_and_numbers,
]

# -- stages ------------------------------------------------------------------------------------------------------------


def a_backward_gives_input_and_parameter_gradients(kit):
    stage = kit.scale_stage(3)
    output, tape = stage.forward((kit.floats(1, 2),), {}, needs_grad=[True], record=True)
    assert kit.values(output) == [3, 6]
    assert tape.requires_grad == (True,)
    (grad,) = stage.backward(tape, [kit.floats(10, 100)])
    assert kit.values(grad) == [30, 300]
    assert [kit.values(grad) for grad in stage.gradients()] == [[210]]


def backwards_come_in_any_order_and_accumulate(kit):
    stage = kit.scale_stage(2)
    tapes = [stage.forward((kit.floats(k),), {}, needs_grad=[True], record=True)[1] for k in (1, 2, 3)]
    grads = {k: kit.values(stage.backward(tapes[k], [kit.floats(10**k)])[0]) for k in (1, 2, 0)}
    assert grads == {0: [2], 1: [20], 2: [200]}
    assert kit.values(stage.gradients()[0]) == [1 + 20 + 300]


def a_split_backward_leaves_the_parameters_to_its_second_half(kit):
    stage = kit.scale_stage(2)
    tapes = [stage.forward((kit.floats(k),), {}, needs_grad=[True], record=True)[1] for k in (1, 2)]
    assert [kit.values(stage.backward_input(tape, [kit.floats(10)])[0]) for tape in tapes] == [[20], [20]]
    assert stage.gradients() == [None]
    stage.backward_weight(tapes[1])
    assert kit.values(stage.gradients()[0]) == [20]
    stage.backward_weight(tapes[0])
    assert kit.values(stage.gradients()[0]) == [30]


def no_gradient_is_returned_where_none_was_asked_for(kit):
    stage = kit.scale_stage(2)
    _, tape = stage.forward((kit.floats(1), kit.floats(2)), {}, needs_grad=[False, True], record=True)
    first, second = stage.backward(tape, [kit.floats(1), kit.floats(1)])
    assert first is None
    assert kit.values(second) == [2]


def integers_and_plain_values_pass_and_need_no_gradient(kit):
    stage = kit.scale_stage(2)
    args = (kit.floats(1), (kit.integers(5), None, 7))
    (x, (ids, nothing, number)), tape = stage.forward(args, {}, needs_grad=[True, False], record=True)
    assert (kit.values(x), kit.values(ids), nothing, number) == ([2], [5], None, 7)
    assert tape.requires_grad == (True, False)
    grads = stage.backward(tape, [kit.floats(1), None])
    assert (kit.values(grads[0]), grads[1]) == ([2], None)


def an_unrecorded_forward_leaves_nothing(kit):
    stage = kit.scale_stage(2)
    output, tape = stage.forward((kit.floats(1),), {}, needs_grad=[True], record=False)
    assert tape is None
    assert kit.values(output) == [2]
    assert stage.gradients() == [None]


def a_frozen_stage_passes_gradients_on(kit):
    stage = kit.scale_stage(2, frozen=True)
    assert (stage.trainable(), stage.parameters(), stage.gradients()) == (False, [], [])
    assert len(stage.buffers()) == 1
    _, tape = stage.forward((kit.floats(1),), {}, needs_grad=[True], record=True)
    assert tape.requires_grad == (True,)
    assert kit.values(stage.backward(tape, [kit.floats(3)])[0]) == [6]


def a_frozen_stage_without_wanted_gradients_has_none(kit):
    stage = kit.scale_stage(2, frozen=True)
    _, tape = stage.forward((kit.floats(1),), {}, needs_grad=[False], record=True)
    assert tape.requires_grad == (False,)


def a_forward_that_continues_another_shares_its_backward(kit):
    for halves in (False, True):
        below, above = kit.scale_stage(3), kit.scale_stage(5)
        args = kit.floats(1, 2), kit.integers(7)
        output, tape = below.forward(args, {}, needs_grad=[True, False], record=True)
        (x, ids), joined = above.forward(output, {}, needs_grad=[False, False], record=True, continues=tape)
        assert (kit.values(x), kit.values(ids)) == ([15, 30], [7])
        if halves:
            grads = above.backward_input(joined, [kit.floats(10, 100), None])
            assert (below.gradients(), above.gradients()) == ([None], [None])
            above.backward_weight(joined)
        else:
            grads = above.backward(joined, [kit.floats(10, 100), None])
        assert kit.values(grads[0]) == [150, 1500]
        assert grads[1] is None
        assert [kit.values(stage.gradients()[0]) for stage in (below, above)] == [[1050], [630]]


def gradients_can_be_put_back(kit):
    stage = kit.scale_stage(1)

    def step():
        _, tape = stage.forward((kit.floats(1),), {}, needs_grad=[False], record=True)
        stage.backward(tape, [kit.floats(1)])

    step()
    before = stage.gradients()
    step()
    assert kit.values(stage.gradients()[0]) == [2]
    stage.set_gradients(before)
    assert kit.values(stage.gradients()[0]) == [1]
    step()
    assert (kit.values(before[0]), kit.values(stage.gradients()[0])) == ([1], [2])
    stage.set_gradients([None])
    assert stage.gradients() == [None]


STAGE_CASES = [
    a_backward_gives_input_and_parameter_gradients,
    backwards_come_in_any_order_and_accumulate,
    a_split_backward_leaves_the_parameters_to_its_second_half,
    no_gradient_is_returned_where_none_was_asked_for,
    integers_and_plain_values_pass_and_need_no_gradient,
    an_unrecorded_forward_leaves_nothing,
    a_frozen_stage_passes_gradients_on,
    a_frozen_stage_without_wanted_gradients_has_none,
    a_forward_that_continues_another_shares_its_backward,
    gradients_can_be_put_back,
]

# -- transports --------------------------------------------------------------------------------------------------------


def messages_of_one_pair_arrive_in_order(transport, kit):
    if transport.rank == 0:
        for k in range(5):
            transport.send([kit.floats(k), kit.scalar(-k)], 1).wait()
    elif transport.rank == 1:
        specs = [kit.tensors.spec(kit.floats(0)), kit.tensors.spec(kit.scalar(0))]
        received = [transport.recv(specs, 0).wait() for _ in range(5)]
        assert [[kit.values(tensor) for tensor in pair] for pair in received] == [[[k], [-k]] for k in range(5)]


def a_message_without_tensors_is_none(transport, kit):
    if transport.rank == 0:
        assert transport.send([], 1).wait() == []
    elif transport.rank == 1:
        assert transport.recv([], 0).wait() == []


def objects_travel_in_order_with_tensors(transport, kit):
    if transport.rank == 0:
        transport.send_object(("first", None, 1.5), 1)
        transport.send([kit.floats(4)], 1).wait()
        transport.send_object({"last": [True]}, 1)
    elif transport.rank == 1:
        assert transport.recv_object(0) == ("first", None, 1.5)
        assert kit.values(transport.recv([kit.tensors.spec(kit.floats(0))], 0).wait()[0]) == [4]
        assert transport.recv_object(0) == {"last": [True]}


def objects_are_gathered_by_rank(transport, kit):
    assert transport.all_gather_object(f"rank {transport.rank}") == [f"rank {r}" for r in range(transport.num_ranks)]


def a_broadcast_overwrites_in_place(transport, kit):
    tensors = [kit.floats(transport.rank, 1), kit.scalar(transport.rank)]
    transport.broadcast(tensors, transport.num_ranks - 1)
    last = transport.num_ranks - 1
    assert [kit.values(tensor) for tensor in tensors] == [[last, 1], [last]]


def a_reduce_sums_on_its_target(transport, kit):
    sums = transport.reduce([kit.floats(1, transport.rank), kit.scalar(2)], 0)
    if transport.rank == 0:
        n = transport.num_ranks
        assert [kit.values(tensor) for tensor in sums] == [[n, n * (n - 1) / 2], [2 * n]]


def a_sent_tensor_may_be_forgotten_at_once(transport, kit):
    if transport.rank == 1:
        pending = [transport.send([kit.floats(*range(k, k + 100))], 0) for k in range(10)]
        for one in pending:
            one.wait()
    elif transport.rank == 0:
        spec = kit.tensors.spec(kit.floats(*range(100)))
        for k in range(10):
            assert kit.values(transport.recv([spec], 1).wait()[0]) == list(range(k, k + 100))


TRANSPORT_CASES = [
    messages_of_one_pair_arrive_in_order,
    a_message_without_tensors_is_none,
    objects_travel_in_order_with_tensors,
    objects_are_gathered_by_rank,
    a_broadcast_overwrites_in_place,
    a_reduce_sums_on_its_target,
    a_sent_tensor_may_be_forgotten_at_once,
]


def named(cases):
    """Return the cases as pytest parameters, named by what they say."""
    return [pytest.param(case, id=case.__name__) for case in cases]
