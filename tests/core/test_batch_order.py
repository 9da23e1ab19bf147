"""Which samples a step trains on, and which of them a rank reads."""

import json

import pytest

from hyper_pp import BatchOrder, owned_micro_batches

EPOCH_0, EPOCH_1 = [[2, 1, 4], [5, 3, 0]], [[5, 1, 3], [0, 2, 4]]


def parts(micro_batches, **options):
    return list(BatchOrder(10, 5, 3, micro_batches, **{"shuffle": False, **options}).batches())


def test_a_rank_reads_its_micro_batches_in_index_order():
    # Batches of 5 in micro-batches of 2, 2 and 1.
    assert parts(None) == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]
    assert parts([0, 2]) == [[0, 1, 4], [5, 6, 9]]
    assert parts([1]) == [[2, 3], [7, 8]]
    assert parts([]) == [[], []]


def test_how_many_samples_a_rank_reads_is_known_beforehand():
    assert [BatchOrder(10, 5, 3, own).samples_per_batch for own in (None, [0, 2], [1], [])] == [5, 3, 2, 0]


@pytest.mark.parametrize("owners", ["round_robin", "mpipe", [2, 0, 0, 1, 2]])
def test_the_ranks_together_read_each_sample_once(owners):
    whole = list(BatchOrder(50, 11, 5, seed=3).batches())
    by_rank = [
        list(BatchOrder(50, 11, 5, owned_micro_batches(3, 5, rank, owners), seed=3).batches()) for rank in range(3)
    ]
    assert len(whole) == 4
    for step, batch in enumerate(whole):
        assert len(set(batch)) == 11
        assert sorted(sample for rank in by_rank for sample in rank[step]) == sorted(batch)


def test_an_order_depends_on_seed_and_epoch_only():
    order = BatchOrder(6, 3, 1, seed=1)
    # Literal: a run must be resumable by another process and another Python.
    assert list(order.batches()) == EPOCH_0
    order.set_epoch(1)
    assert list(order.batches()) == EPOCH_1
    assert list(BatchOrder(6, 3, 1, seed=2).batches()) != EPOCH_0
    order.set_epoch(0)
    assert list(order.batches()) == EPOCH_0


def test_the_last_batch_is_left_out_or_smaller():
    assert parts([0, 2], drop_last=False) == [[0, 1, 4], [5, 6, 9]]
    assert BatchOrder(13, 5, 3).num_batches == 2
    order = BatchOrder(13, 5, 3, [0, 2], shuffle=False, drop_last=False)
    assert order.num_batches == 3
    assert list(order.batches())[-1] == [10, 12]


def test_batches_are_sorted_by_a_key_and_ties_keep_their_order():
    images = [0, 3, 1, 0, 2, 1, 1, 0, 2, 3]
    assert parts(None, sort_key=lambda i: -images[i]) == [[1, 4, 2, 0, 3], [9, 8, 5, 6, 7]]
    assert parts([1], sort_key=lambda i: -images[i]) == [[2, 0], [5, 6]]


def test_the_costs_of_micro_batches_are_means_over_the_epoch():
    images = [0, 3, 1, 0, 2, 1, 1, 0, 2, 3]
    order = BatchOrder(10, 5, 3, [1], shuffle=False, sort_key=lambda i: -images[i])
    # Micro-batches [1, 4], [2, 0], [3] and [9, 8], [5, 6], [7].
    assert order.micro_batch_costs(lambda i: 16 * images[i]) == [16 * 5.0, 16 * 1.5, 0.0]


# ------------------------------------------------------------------------------------------------------------ resume


@pytest.mark.parametrize("num_steps", range(8))
def test_a_resumed_run_reads_what_was_left(num_steps):
    def rest(order, epochs):
        read = []
        for epoch in epochs:
            order.set_epoch(epoch)
            read += [(epoch, batch) for batch in order.batches()]
        return read

    whole = rest(BatchOrder(20, 6, 2, [1], seed=5), range(4))
    state = json.loads(json.dumps(BatchOrder(20, 6, 2, [0], seed=5).state_dict(num_steps)))
    resumed = BatchOrder(20, 6, 2, [1], seed=5)
    resumed.load_state_dict(state)
    assert (resumed.epoch, resumed.first_step) == divmod(num_steps, 3)
    assert rest(resumed, range(resumed.epoch, 4)) == whole[num_steps:]


def test_a_run_may_be_resumed_with_other_owners_and_micro_batches():
    state = BatchOrder(20, 6, 2, [0], seed=5).state_dict(2)
    resumed = BatchOrder(20, 6, 3, None, seed=5)
    resumed.load_state_dict(state)
    assert list(resumed.batches()) == list(BatchOrder(20, 6, 2, seed=5).batches())[2:]


def test_another_epoch_than_the_resumed_one_starts_at_its_start():
    order = BatchOrder(8, 2, 1)
    order.load_state_dict(order.state_dict(3))
    order.set_epoch(0)
    assert order.first_step == 3
    order.set_epoch(2)
    assert order.first_step == 0


@pytest.mark.parametrize(
    "change, message",
    [
        ({"seed": 4}, r"the state was saved with seed=4, the sampler has 0: give it the same, or start the data anew"),
        ({"batch_size": 3}, r"the state was saved with batch_size=3, the sampler has 2"),
        ({"num_samples": 9}, r"the state was saved with num_samples=9, the sampler has 8"),
        ({"step": 4}, r"step must be below the epoch's 4 batches \(got 4\)"),
        ({"step": -1}, r"step must be at least 0 \(got -1\)"),
        ({"epoch": -1}, r"epoch must be at least 0 \(got -1\)"),
    ],
)
def test_a_state_of_another_order_is_refused_and_changes_nothing(change, message):
    order = BatchOrder(8, 2, 1)
    with pytest.raises(ValueError, match=message):
        order.load_state_dict({**order.state_dict(1), **change})
    assert (order.epoch, order.first_step) == (0, 0)


def test_what_is_no_state_is_refused():
    with pytest.raises(ValueError, match=r"the state lacks step, seed: it isn't one of this sampler's"):
        state = BatchOrder(8, 2, 1).state_dict(1)
        BatchOrder(8, 2, 1).load_state_dict({key: state[key] for key in state if key not in ("step", "seed")})


@pytest.mark.parametrize(
    "arguments, options, error, message",
    [
        ((0, 2, 1), {}, ValueError, r"num_samples must be at least 1 \(got 0\)"),
        ((8, 2, 3), {}, ValueError, r"a batch of 2 can't be split into 3 micro-batches"),
        ((8, 9, 3), {}, ValueError, r"num_samples must be at least batch_size, .* \(got 8 and 9\): use a smaller"),
        ((8, 3, 3), {"drop_last": False}, ValueError, r"batch of 2 samples can't be split into 3 .*drop_last=True"),
        ((8, 4, 2, [2]), {}, ValueError, r"micro_batches must be below num_micro_batches \(got 2 of 2\)"),
        ((8, 4, 2, [1, 0]), {}, ValueError, r"micro_batches must ascend, each once \(got \[1, 0\]\)"),
        ((8, 4, 2, [1, 1]), {}, ValueError, r"micro_batches must ascend, each once \(got \[1, 1\]\)"),
        ((8, 4, 2, ["0"]), {}, TypeError, r"micro_batches: every one must be an int \(got '0'\)"),
        ((8, 4, 2), {"shuffle": 1}, TypeError, r"shuffle must be true or false \(got 1\)"),
        ((8, 4, 2), {"seed": -1}, ValueError, r"seed must be at least 0 \(got -1\)"),
        ((8, 4, 2), {"sort_key": 3}, TypeError, r"sort_key must be a function of a sample's index \(got 3\)"),
    ],
)
def test_numbers_that_do_not_fit_are_refused(arguments, options, error, message):
    with pytest.raises(error, match=message):
        BatchOrder(*arguments, **options)


def test_an_epoch_is_a_number_of_at_least_0():
    with pytest.raises(ValueError, match=r"epoch must be at least 0 \(got -1\)"):
        BatchOrder(8, 4, 2).set_epoch(-1)
