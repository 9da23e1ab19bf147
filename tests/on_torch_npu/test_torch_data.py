"""The batch sampler under a DataLoader: who reads what, and how a run goes on."""

import json
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

from torch.utils.data import DataLoader  # noqa: E402 - after the skip

from hyper_pp import owned_micro_batches  # noqa: E402 - likewise
from hyper_pp.torch_npu import OwnedBatchSampler  # noqa: E402 - likewise


class Recorded(torch.utils.data.Dataset):
    """Ten times its index, and a list of what was read."""

    def __init__(self, length):
        self.length, self.read = length, []

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        self.read.append(index)
        return torch.tensor([10 * index])


def batches_of(sampler, **options):
    return [batch.flatten().tolist() for batch in DataLoader(Recorded(20), batch_sampler=sampler, **options)]


def test_a_rank_reads_its_samples_and_no_others():
    data = Recorded(10)
    sampler = OwnedBatchSampler(10, 5, 3, owned_micro_batches(2, 3, 0), shuffle=False)
    loader = DataLoader(data, batch_sampler=sampler)
    assert [batch.flatten().tolist() for batch in loader] == [[0, 10, 40], [50, 60, 90]]
    assert data.read == [0, 1, 4, 5, 6, 9]
    assert len(loader) == 2


def test_a_rank_that_owns_nothing_gets_empty_lists():
    assert list(OwnedBatchSampler(10, 5, 3, [])) == [[], []]


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_loader_workers_read_the_same():
    expected = batches_of(OwnedBatchSampler(20, 6, 2, [1], seed=5))
    assert batches_of(OwnedBatchSampler(20, 6, 2, [1], seed=5), num_workers=2) == expected


def test_epochs_differ_and_come_again():
    sampler = OwnedBatchSampler(20, 6, 2, [1], seed=5)
    orders = []
    for epoch in (0, 1, 0):
        sampler.set_epoch(epoch)
        orders.append(batches_of(sampler))
    assert orders[0] == orders[2] != orders[1]


@pytest.mark.parametrize("num_drawn", [1, 2])
def test_the_state_counts_the_batches_that_were_drawn(num_drawn):
    sampler = OwnedBatchSampler(20, 6, 2, [1], seed=5)
    sampler.set_epoch(3)
    whole = batches_of(sampler)
    drawing = iter(sampler)
    for _ in range(num_drawn):
        next(drawing)
    resumed = OwnedBatchSampler(20, 6, 2, [1], seed=5)
    resumed.load_state_dict(sampler.state_dict())
    resumed.set_epoch(3)
    assert resumed.state_dict() == sampler.state_dict()
    assert batches_of(resumed) == whole[num_drawn:]
    assert batches_of(resumed) == whole, "a second pass over the epoch is a whole one"
    assert resumed.state_dict() == {**sampler.state_dict(), "epoch": 4, "step": 0}


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_where_workers_draw_ahead_the_state_takes_the_steps_trained():
    sampler = OwnedBatchSampler(20, 4, 2, [1], seed=5)
    whole = list(sampler)
    loading = iter(DataLoader(Recorded(20), batch_sampler=sampler, num_workers=1, prefetch_factor=2))
    next(loading)
    assert sampler.state_dict()["step"] > 1
    resumed = OwnedBatchSampler(20, 4, 2, [1], seed=5)
    resumed.load_state_dict(sampler.state_dict(1))
    assert list(resumed) == whole[1:]


def test_a_new_process_goes_on_where_the_first_ended():
    sampler = OwnedBatchSampler(20, 6, 2, [1], seed=5)
    whole = list(sampler)
    program = (
        "import json, sys; from hyper_pp.torch_npu import OwnedBatchSampler\n"
        "sampler = OwnedBatchSampler(20, 6, 2, [1], seed=5); sampler.load_state_dict(json.loads(sys.argv[1]))\n"
        "print(json.dumps(list(sampler)))"
    )
    command = [sys.executable, "-c", program, json.dumps(sampler.state_dict(1))]
    result = subprocess.run(command, capture_output=True, text=True, check=True, timeout=100)
    assert json.loads(result.stdout) == whole[1:]


def test_a_state_with_another_seed_is_refused():
    state = OwnedBatchSampler(20, 6, 2, seed=5).state_dict()
    with pytest.raises(ValueError, match=r"the state was saved with seed=5, the sampler has 6: give it the same"):
        OwnedBatchSampler(20, 6, 2, seed=6).load_state_dict(state)


def test_a_batch_smaller_than_the_micro_batches_is_refused():
    with pytest.raises(ValueError, match=r"a batch of 2 can't be split into 3 micro-batches"):
        OwnedBatchSampler(20, 2, 3)
