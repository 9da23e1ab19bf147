"""What ranks agree on when each passes only what it owns."""

import pytest

from hyper_pp.shards import SizeAgreement


class Gathered:
    """Rank 0's transport, on which the other ranks have answered already."""

    rank = 0

    def __init__(self, *others):
        self.others = others
        self.num_calls = 0

    def all_gather_object(self, value):
        self.num_calls += 1
        return [value, *self.others]


def agree_on_sizes(transport, owned, count_samples, num_micro_batches):
    return SizeAgreement(transport, owned, num_micro_batches, every_step=False).of_step(count_samples)


def test_sizes_follow_from_what_all_ranks_hold():
    assert agree_on_sizes(Gathered(((1,), 2, "")), (0, 2), lambda: 5, 3) == [3, 2, 2]


def test_a_rank_that_owns_nothing_counts_nothing():
    def count():
        raise AssertionError("counted")

    assert agree_on_sizes(Gathered(((0, 1), 3, "")), (), count, 2) == [2, 1]


def test_another_number_than_a_ranks_micro_batches_have_names_the_rank():
    message = r"rank 1 owns micro-batches \[1\] with 2 of the batch's 6 samples \(got 3\): with sharded_inputs=True"
    with pytest.raises(ValueError, match=message):
        agree_on_sizes(Gathered(((1,), 3, ""), ((2,), 1, "")), (0,), lambda: 2, 3)


def test_a_rank_without_any_sample_is_named():
    message = r"rank 0 owns micro-batches \[0, 1\] with 4 of the batch's 6 samples \(got 0\)"
    with pytest.raises(ValueError, match=message):
        agree_on_sizes(Gathered(((2,), 6, "")), (0, 1), lambda: None, 3)


def test_a_fault_of_one_rank_is_raised_by_all():
    with pytest.raises(ValueError, match=r"rank 1: the inputs disagree on the batch size: 3 and 2"):
        agree_on_sizes(Gathered(((1,), 0, "the inputs disagree on the batch size: 3 and 2")), (0,), lambda: 3, 2)

    def count():
        raise ValueError("the inputs disagree on the batch size: 1 and 4")

    with pytest.raises(ValueError, match=r"rank 0: the inputs disagree on the batch size: 1 and 4"):
        agree_on_sizes(Gathered(((1,), 3, "")), (0,), count, 2)


def test_a_batch_smaller_than_the_micro_batches_is_refused():
    with pytest.raises(ValueError, match=r"a batch of 1 can't be split into 2 micro-batches"):
        agree_on_sizes(Gathered(((1,), 0, "")), (0,), lambda: 1, 2)


def test_static_sizes_are_asked_for_once_and_a_later_change_is_refused_here():
    transport = Gathered(((1,), 2, ""))
    agreement = SizeAgreement(transport, (0, 2), 3, every_step=False)
    for _ in range(3):
        assert agreement.of_step(lambda: 5) == [3, 2, 2]
    message = (
        r"rank 0 owns micro-batches \[0, 2\] with 5 of the batch's 7 samples \(got 4\): with sharded_inputs=True each "
        r"rank passes what it owns; pass dynamic_shapes=True if the batch size changes between steps"
    )
    with pytest.raises(ValueError, match=message):
        agreement.of_step(lambda: 4)
    assert agreement.of_step(lambda: 5) == [3, 2, 2]
    assert transport.num_calls == 1


def test_changing_sizes_are_asked_for_at_every_step():
    transport = Gathered(((1,), 2, ""))
    agreement = SizeAgreement(transport, (0, 2), 3, every_step=True)
    assert agreement.of_step(lambda: 5) == [3, 2, 2]
    transport.others = (((1,), 1, ""),)
    assert agreement.of_step(lambda: 3) == [2, 1, 1]
    assert transport.num_calls == 2


def test_what_was_refused_is_not_remembered():
    transport = Gathered(((1,), 3, ""))
    agreement = SizeAgreement(transport, (0, 2), 3, every_step=False)
    with pytest.raises(ValueError, match=r"rank 0 owns micro-batches"):
        agreement.of_step(lambda: 3)
    transport.others = (((1,), 2, ""),)
    assert agreement.of_step(lambda: 5) == [3, 2, 2]
