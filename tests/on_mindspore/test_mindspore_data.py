"""The sampler under MindSpore's datasets: who reads what, and how a run goes on."""

import json
import subprocess
import sys
from itertools import chain

import numpy as np
import pytest

pytest.importorskip("mindspore")

from mindspore import dataset
from msrun_launch import ROOT

from hyper_pp import owned_micro_batches
from hyper_pp.mindspore import OwnedSampler


class Recorded:
    """Ten times its index, and a list of what was read."""

    def __init__(self, length):
        self.length, self.read = length, []

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        self.read.append(int(index))
        return (np.array(10 * index, np.int32),)


def dataset_of(sampler, source):
    rows = dataset.GeneratorDataset(source, ["x"], sampler=sampler, python_multiprocessing=False)
    return rows.batch(sampler.samples_per_batch)


def epochs_of(sampler, num_epochs=1):
    """Return the batches of some epochs, from one iterator."""
    data = dataset_of(sampler, Recorded(20))
    iterator = data.create_dict_iterator(num_epochs=num_epochs, output_numpy=True)
    return [[batch["x"].tolist() for batch in iterator] for _ in range(num_epochs)]


def test_a_rank_reads_its_samples_and_no_others():
    source = Recorded(10)
    sampler = OwnedSampler(10, 5, 3, owned_micro_batches(2, 3, 0), shuffle=False)
    data = dataset_of(sampler, source)
    assert data.get_dataset_size() == 2
    source.read.clear()  # building the pipeline looks at the first sample
    assert [batch["x"].tolist() for batch in data.create_dict_iterator(num_epochs=1, output_numpy=True)] == [
        [0, 10, 40],
        [50, 60, 90],
    ]
    assert set(source.read) == {0, 1, 4, 5, 6, 9}


def test_a_rank_that_owns_nothing_needs_no_dataset():
    sampler = OwnedSampler(10, 5, 3, [])
    assert (sampler.samples_per_batch, list(sampler)) == (0, [])


def test_a_smaller_last_batch_comes_last():
    data = dataset_of(OwnedSampler(13, 5, 3, [0, 2], shuffle=False, drop_last=False), Recorded(13))
    batches = [batch["x"].tolist() for batch in data.create_dict_iterator(num_epochs=1, output_numpy=True)]
    assert batches == [[0, 10, 40], [50, 60, 90], [100, 120]]


def test_one_iterator_moves_on_from_epoch_to_epoch():
    sampler = OwnedSampler(20, 6, 2, [1], seed=5)
    by_hand = []
    for epoch in range(3):
        sampler.set_epoch(epoch)
        by_hand += epochs_of(sampler)
    assert by_hand[0] != by_hand[1] != by_hand[2]
    sampler.set_epoch(0)
    assert epochs_of(sampler, num_epochs=3) == by_hand


@pytest.mark.parametrize("num_steps", [0, 1, 3, 5])
def test_a_resumed_run_reads_what_was_left(num_steps):
    whole = list(chain(*epochs_of(OwnedSampler(20, 6, 2, [1], seed=5), num_epochs=3)))
    resumed = OwnedSampler(20, 6, 2, [1], seed=5)
    resumed.load_state_dict(OwnedSampler(20, 6, 2, [0], seed=5).state_dict(num_steps))
    assert resumed.epoch == num_steps // 3
    assert list(chain(*epochs_of(resumed, num_epochs=3 - resumed.epoch))) == whole[num_steps:]


def test_a_new_process_goes_on_where_the_first_ended():
    sampler = OwnedSampler(20, 6, 2, [1], seed=5)
    program = (
        f"import json, sys; sys.path.insert(0, {str(ROOT)!r}); from hyper_pp.mindspore import OwnedSampler\n"
        "sampler = OwnedSampler(20, 6, 2, [1], seed=5); sampler.load_state_dict(json.loads(sys.argv[1]))\n"
        "print(json.dumps(list(sampler)))"
    )
    command = [sys.executable, "-c", program, json.dumps(sampler.state_dict(1))]
    result = subprocess.run(command, capture_output=True, text=True, check=True, timeout=100)
    left = list(sampler)[sampler.samples_per_batch :]
    assert len(left) == 6
    assert json.loads(result.stdout.splitlines()[-1]) == left


def test_a_state_with_another_seed_is_refused():
    state = OwnedSampler(20, 6, 2, seed=5).state_dict(1)
    with pytest.raises(ValueError, match=r"the state was saved with seed=5, the sampler has 6: give it the same"):
        OwnedSampler(20, 6, 2, seed=6).load_state_dict(state)


def test_a_batch_smaller_than_the_micro_batches_is_refused():
    with pytest.raises(ValueError, match=r"a batch of 2 can't be split into 3 micro-batches"):
        OwnedSampler(20, 2, 3)
