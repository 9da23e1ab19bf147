"""Data loading in which each rank reads only the micro-batches it owns."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from mindspore import dataset

from hyper_pp.batch_order import BatchOrder


class OwnedSampler(dataset.Sampler):
    """
    Chooses the samples that this rank passes with ``sharded_inputs=True``, step after step.

    It goes to any dataset that takes a ``sampler``, followed by ``.batch(sampler.samples_per_batch)``. The last stage's
    rank reads the targets of whole batches with a second one, which has the same arguments but `micro_batches`. A rank
    that owns nothing has ``samples_per_batch`` 0: it needs no dataset, and passes ``None`` as input.

    An iterator over several epochs moves on by itself, also under ``Model.train``. MindSpore draws an epoch at once and
    from a copy of the sampler, so call :meth:`set_epoch` and :meth:`load_state_dict` before making the iterator.

    Args:
        num_samples (int): Samples in the data set.
        batch_size (int): Samples of one step, of all ranks together; at least `num_micro_batches`.
        num_micro_batches (int): :math:`M`, the ``micro_size`` of the ``PipelineCell``.
        micro_batches (Sequence[int]): Those this rank reads:
            ``hyper_pp.owned_micro_batches(P, M, rank, net.plan)``. Default: ``None``, whole batches.
        shuffle (bool): Draw another order in each epoch; with ``False`` keep the data set's. Default: ``True``.
        seed (int): Of the shuffling; the same on every rank. Default: ``0``.
        drop_last (bool): Leave out the samples that don't fill a batch; with ``False`` make a smaller last batch of
            them. Default: ``True``.
        sort_key (Callable): Sample → key by which the samples of each batch are sorted. Default: ``None``.

    Raises:
        TypeError: An argument is of the wrong kind.
        ValueError: The numbers don't fit each other.

    Supported Platforms:
        ``Ascend`` ``CPU``

    Examples:
        >>> from mindspore import dataset
        >>> from hyper_pp import owned_micro_batches
        >>> from hyper_pp.mindspore import OwnedSampler
        >>> mine = owned_micro_batches(num_ranks, 8, rank, net.plan)
        >>> sampler = OwnedSampler(len(images), 64, 8, mine, seed=1)
        >>> data = dataset.GeneratorDataset(images, ["image"], sampler=sampler).batch(sampler.samples_per_batch)
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
        # How many indices an epoch has is told by the iteration: a resumed epoch has fewer.
        super().__init__(num_samples=None)
        self._has_begun = False

    @property
    def samples_per_batch(self) -> int:
        """How many samples of a full batch this rank reads."""
        return self.order.samples_per_batch

    @property
    def epoch(self) -> int:
        """The epoch that the next iterator starts with."""
        return self.order.epoch

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that the next iterator starts with; see :meth:`hyper_pp.BatchOrder.set_epoch`."""
        self.order.set_epoch(epoch)
        self._has_begun = False

    def __iter__(self) -> Iterator[int]:
        """Yield this rank's sample indices that are left in the epoch; the next call is for the next epoch."""
        if self._has_begun:
            self.order.set_epoch(self.order.epoch + 1)
        self._has_begun = True
        for batch in self.order.batches():
            yield from batch

    def state_dict(self, num_steps: int) -> dict[str, Any]:
        """Return where the data stands, the same on every rank.

        Args:
            num_steps (int): Steps trained since the start of epoch :attr:`epoch`, those before a resume included; more
                than an epoch has go on into the next.

        Returns:
            dict of plain values, for any kind of checkpoint.
        """
        return self.order.state_dict(num_steps)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where :meth:`state_dict` was taken, also in the middle of an epoch and with other ranks or owners.

        Args:
            state (dict): From a sampler of the same data set, batch size and seed, of any rank.

        Raises:
            ValueError: The state is of another order of samples, or isn't such a state.
        """
        self.order.load_state_dict(state)
        self._has_begun = False
