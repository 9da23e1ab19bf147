"""Data loading in which each rank reads only the micro-batches it owns."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from torch.utils.data import Sampler

from hyper_pp.batch_order import BatchOrder


class OwnedBatchSampler(Sampler):
    """Yields, for each step, the indices of the samples that this rank passes with ``sharded_inputs=True``.

    It goes to ``DataLoader(dataset, batch_sampler=...)``. The last stage's rank reads the targets of whole batches with
    a second one, which has the same arguments but ``micro_batches``. A rank that owns nothing gets empty lists: it
    needs no loader, and calls ``schedule.step()`` without inputs.

    Args:
        num_samples: Samples in the data set.
        batch_size: Samples of one step, of all ranks together; at least ``num_micro_batches``.
        num_micro_batches: M, the schedule's ``n_microbatches``.
        micro_batches: Those this rank reads: ``hyper_pp.owned_micro_batches(P, M, rank, schedule.plan)``; None reads
            whole batches.
        shuffle: Draw another order in each epoch; False keeps the data set's.
        seed: Of the shuffling; the same on every rank.
        drop_last: Leave out the samples that don't fill a batch; False makes a smaller last batch of them.
        sort_key: Sample → key by which the samples of each batch are sorted.

    Raises:
        TypeError: An argument is of the wrong kind.
        ValueError: The numbers don't fit each other.
    """

    def __init__(
        self,
        num_samples: int,
        batch_size: int,
        num_micro_batches: int,
        micro_batches: Sequence[int] | None = None,
        *,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = True,
        sort_key: Callable[[int], Any] | None = None,
    ) -> None:
        self.order = BatchOrder(
            num_samples,
            batch_size,
            num_micro_batches,
            micro_batches,
            shuffle=shuffle,
            seed=seed,
            drop_last=drop_last,
            sort_key=sort_key,
        )
        self._num_drawn = 0

    @property
    def epoch(self) -> int:
        """The epoch that is read."""
        return self.order.epoch

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that is read next; see :meth:`hyper_pp.BatchOrder.set_epoch`."""
        self.order.set_epoch(epoch)
        self._num_drawn = self.order.first_step

    def __iter__(self) -> Iterator[list[int]]:
        """Yield this rank's sample indices of each batch that is left in the epoch."""
        self._num_drawn = self.order.first_step
        for batch in self.order.batches():
            self._num_drawn += 1
            yield batch
        self.order.first_step = 0  # a second pass over the epoch that was resumed is a whole one

    def __len__(self) -> int:
        """Return the batches of a whole epoch."""
        return self.order.num_batches

    def state_dict(self, num_steps: int | None = None) -> dict[str, Any]:
        """Return where the data stands, the same on every rank.

        Args:
            num_steps: Steps of this epoch that were trained. By default the batches that were drawn, which is more
                where the loader's workers draw ahead.

        Returns:
            Plain values, for any kind of checkpoint.
        """
        return self.order.state_dict(self._num_drawn if num_steps is None else num_steps)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where :meth:`state_dict` was taken, also in the middle of an epoch and with other ranks or owners.

        Args:
            state: From a sampler of the same data set, batch size and seed, of any rank.

        Raises:
            ValueError: The state is of another order of samples, or isn't such a state.
        """
        self.order.load_state_dict(state)
        self._num_drawn = self.order.first_step
