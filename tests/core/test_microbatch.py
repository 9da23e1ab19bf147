"""Splitting, weighing and merging, on pure-Python tensors."""

import pytest
from fake import TENSORS, FakeTensor, floats, scalar

from hyper_pp.microbatch import Splitter, merge, offsets, split_sizes, weights_of


@pytest.mark.parametrize(
    "batch, count, sizes", [(8, 3, [3, 3, 2]), (8, 8, [1] * 8), (7, 2, [4, 3]), (10, 4, [3, 3, 2, 2])]
)
def test_larger_micro_batches_come_first(batch, count, sizes):
    assert split_sizes(batch, count) == sizes


def test_a_batch_smaller_than_the_number_of_micro_batches_is_an_error_naming_both():
    with pytest.raises(ValueError, match="a batch of 3 can't be split into 4 micro-batches"):
        split_sizes(3, 4)


def test_nested_values_are_cut_and_plain_values_and_scalars_go_whole():
    value = ({"ids": floats(1, 2, 3), "scale": scalar(9)}, [floats(4, 5, 6), None, 7])
    first, second = Splitter(TENSORS).cut(value, 0, offsets([2, 1]))
    assert first == ({"ids": floats(1, 2), "scale": scalar(9)}, [floats(4, 5), None, 7])
    assert second == ({"ids": floats(3), "scale": scalar(9)}, [floats(6), None, 7])


def test_a_dimension_of_none_gives_every_micro_batch_the_whole():
    table, x = floats(1, 2, 3, 4, 5), floats(6, 7)
    splitter = Splitter(TENSORS, (0, None), {"mask": None})
    dims, named = splitter.dims_of((x, table), {"mask": table, "bias": x})
    assert (dims, named) == ([0, None], {"mask": None, "bias": 0})
    assert splitter.cut((x, table), tuple(dims), offsets([1, 1])) == [(floats(6), table), (floats(7), table)]
    assert splitter.batch_size((x, table), tuple(dims)) == 2
    assert splitter.batch_size(table, None) is None


def test_one_tensor_given_twice_with_two_dimensions_is_cut_each_in_its_way():
    x = floats(1, 2)
    assert Splitter(TENSORS).cut((x, x), (0, None), offsets([1, 1])) == [(floats(1), x), (floats(2), x)]


def test_inputs_that_disagree_on_the_batch_size_are_an_error():
    with pytest.raises(ValueError, match=r"the inputs disagree on the batch size: 2 and 3 \(shape \[3\]\)"):
        Splitter(TENSORS).batch_size((floats(1, 2), floats(1, 2, 3)), 0)


def test_a_batch_dimension_outside_the_shape_is_an_error():
    with pytest.raises(ValueError, match=r"batch dimension 1 is outside an input of shape \[2\]"):
        Splitter(TENSORS).batch_size(floats(1, 2), 1)


def test_as_many_batch_dimensions_as_inputs_are_needed():
    with pytest.raises(ValueError, match=r"one entry per input \(entries: 1, inputs: 2\)"):
        Splitter(TENSORS, (0,)).dims_of((floats(1), floats(1)), {})
    with pytest.raises(ValueError, match=r"kwargs_batch_dim names \['mask'\], but the keywords are \['x'\]"):
        Splitter(TENSORS, None, {"mask": 0}).dims_of((), {"x": floats(1)})
    with pytest.raises(TypeError, match="a batch dimension must be an int or None"):
        Splitter(TENSORS).cut(floats(1), "0", offsets([1]))


def test_by_default_micro_batches_weigh_by_their_size():
    assert weights_of([3, 3, 2], [None] * 3, None, TENSORS) == [0.375, 0.375, 0.25]


def test_a_weight_function_makes_a_token_mean_exact():
    targets = [floats(1, 0, 0), floats(1, 1, 1)]
    weights = weights_of([3, 3], targets, lambda target: sum(target.data), TENSORS)
    assert weights == [0.25, 0.75]
    losses = [scalar(4.0), scalar(0.0)]
    assert TENSORS.weighted_sum(losses, weights).data == [1.0]


def test_weights_that_are_all_zero_stay_zero():
    assert weights_of([1, 1], [None, None], lambda target: 0, TENSORS) == [0.0, 0.0]


@pytest.mark.parametrize("bad", [-1.0, float("nan"), float("inf")])
def test_a_weight_must_be_finite_and_not_negative(bad):
    with pytest.raises(ValueError, match=f"at least 0 \\(got {bad} for micro-batch 1\\)"):
        weights_of([1, 1], [1.0, bad], lambda target: target, TENSORS)


def test_outputs_are_joined_in_order_and_keep_their_nesting():
    outputs = [{"logits": floats(1, 2), "aux": None, "n": 7}, {"logits": floats(3), "aux": None, "n": 7}]
    assert merge(outputs, 0, TENSORS) == {"logits": floats(1, 2, 3), "aux": None, "n": 7}


def test_scalars_and_plain_values_that_differ_come_back_as_a_list():
    assert merge([(scalar(1), "a"), (scalar(2), "b")], 0, TENSORS) == ([scalar(1), scalar(2)], ["a", "b"])


def test_a_dimension_may_be_given_per_output():
    outputs = [(floats(1), FakeTensor([2], "int")), (floats(3), FakeTensor([4], "int"))]
    assert merge(outputs, (0, -1), TENSORS) == (floats(1, 3), FakeTensor([2, 4], "int"))


def test_outputs_nested_differently_are_an_error():
    with pytest.raises(ValueError, match="different lengths"):
        merge([(floats(1),), (floats(1), floats(2))], 0, TENSORS)
    with pytest.raises(ValueError, match="different keys"):
        merge([{"a": floats(1)}, {"b": floats(2)}], 0, TENSORS)
