"""Which samples of a data set each step trains on, and which of them one rank reads."""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from hyper_pp.microbatch import offsets, split_sizes
from hyper_pp.shape import check_count

_SETTINGS = ("num_samples", "batch_size", "shuffle", "seed", "drop_last")


class BatchOrder:
    """The order of a data set's samples, the same on every rank, of which each rank takes its own part.

    The samplers of both frameworks are thin covers of it. What a step trains on depends on the data set, the batch
    size, the seed and the epoch only: not on ranks, owners or the number of micro-batches, so a run may be resumed with
    others.

    Args:
        num_samples: Samples in the data set.
        batch_size: Samples of one step, of all ranks together; at least ``num_micro_batches``.
        num_micro_batches: M.
        micro_batches: Those this rank reads, see :func:`hyper_pp.owned_micro_batches`; None reads whole batches, as the
            last stage's rank does for its targets.
        shuffle: Draw another order in each epoch; False keeps the data set's.
        seed: Of the shuffling.
        drop_last: Leave out the samples that don't fill a batch; False makes a smaller last batch of them.
        sort_key: Sample → key by which the samples of each batch are sorted. With its image count, negated, micro-batch
            0 is always the one with the most images; that is what fixed owners can be balanced for. It must give the
            same on every rank.

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
        self.num_samples = check_count("num_samples", num_samples)
        self.batch_size = check_count("batch_size", batch_size)
        self.num_micro_batches = check_count("num_micro_batches", num_micro_batches)
        self.seed = check_count("seed", seed, minimum=0)
        self.shuffle = _flag("shuffle", shuffle)
        self.drop_last = _flag("drop_last", drop_last)
        if sort_key is not None and not callable(sort_key):
            raise TypeError(f"sort_key must be a function of a sample's index (got {sort_key!r})")
        self._sort_key = sort_key
        self.micro_batches = _checked(micro_batches, num_micro_batches)
        sizes = split_sizes(batch_size, num_micro_batches)
        self.samples_per_batch = sum(sizes[m] for m in self.micro_batches)
        """How many samples of a full batch this rank reads."""
        full, rest = divmod(num_samples, batch_size)
        if drop_last and not full:
            raise ValueError(
                f"num_samples must be at least batch_size, or there is no full batch (got {num_samples} and "
                f"{batch_size}): use a smaller batch, or drop_last=False"
            )
        if not drop_last and 0 < rest < num_micro_batches:
            raise ValueError(
                f"the last batch of {rest} samples can't be split into {num_micro_batches} micro-batches "
                f"(num_samples {num_samples}, batch_size {batch_size}): use drop_last=True"
            )
        self.num_batches = full if drop_last or not rest else full + 1
        """Batches of one epoch."""
        self.epoch = 0
        self.first_step = 0
        """The step of this epoch that the next iteration starts with; above 0 after a resume."""

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that is read next, from its start, or from where it was resumed if it is the resumed one.

        Args:
            epoch: At least 0; the same number gives the same order.
        """
        if check_count("epoch", epoch, minimum=0) != self.epoch:
            self.epoch, self.first_step = epoch, 0

    def batches(self) -> Iterator[list[int]]:
        """Yield this rank's samples of each batch that is left in this epoch, micro-batch after micro-batch."""
        order = self._order()
        for step in range(self.first_step, self.num_batches):
            yield self._part(self._batch(order, step))

    def micro_batch_costs(self, cost: Callable[[int], float]) -> list[float]:
        """Return what each micro-batch costs on average over this epoch, for :func:`hyper_pp.balanced_owners`.

        Args:
            cost: Sample → its cost, for example its number of image patches.

        Returns:
            One mean per micro-batch, of all ranks' micro-batches.
        """
        order = self._order()
        sums = [0.0] * self.num_micro_batches
        for step in range(self.num_batches):
            batch = self._batch(order, step)
            for m, (start, size) in enumerate(offsets(split_sizes(len(batch), self.num_micro_batches))):
                sums[m] += sum(cost(sample) for sample in batch[start : start + size])
        return [total / self.num_batches for total in sums]

    def state_dict(self, num_steps: int) -> dict[str, Any]:
        """Return where the data stands, the same on every rank.

        Args:
            num_steps: Steps trained since the start of epoch :attr:`epoch`; more than an epoch has go on into the next.

        Returns:
            Plain values, for any kind of checkpoint.
        """
        epochs, step = divmod(check_count("num_steps", num_steps, minimum=0), self.num_batches)
        return {"epoch": self.epoch + epochs, "step": step, **{name: getattr(self, name) for name in _SETTINGS}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where :meth:`state_dict` was taken; the next iteration reads what that run had still to read.

        Args:
            state: From a sampler of the same data set, batch size and seed, of any rank.

        Raises:
            ValueError: The state is of another order of samples, or isn't such a state.
        """
        missing = [name for name in ("epoch", "step", *_SETTINGS) if name not in state]
        if missing:
            raise ValueError(f"the state lacks {', '.join(missing)}: it isn't one of this sampler's")
        for name in _SETTINGS:
            if state[name] != getattr(self, name):
                raise ValueError(
                    f"the state was saved with {name}={state[name]!r}, the sampler has {getattr(self, name)!r}: "
                    "give it the same, or start the data anew"
                )
        epoch = check_count("epoch", state["epoch"], minimum=0)
        if check_count("step", state["step"], minimum=0) >= self.num_batches:
            raise ValueError(f"step must be below the epoch's {self.num_batches} batches (got {state['step']})")
        self.epoch, self.first_step = epoch, state["step"]

    def _order(self) -> list[int]:
        order = list(range(self.num_samples))
        if self.shuffle:
            # A text as seed gives the same in every process and Python version, and no two epochs share a stream.
            random.Random(f"{self.seed} {self.epoch}").shuffle(order)
        return order

    def _batch(self, order: list[int], step: int) -> list[int]:
        batch = order[step * self.batch_size : (step + 1) * self.batch_size]
        return batch if self._sort_key is None else sorted(batch, key=self._sort_key)

    def _part(self, batch: list[int]) -> list[int]:
        places = offsets(split_sizes(len(batch), self.num_micro_batches))
        return [sample for m in self.micro_batches for sample in batch[places[m][0] : sum(places[m])]]


def _flag(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be true or false (got {value!r})")
    return value


def _checked(micro_batches: Sequence[int] | None, num_micro_batches: int) -> tuple[int, ...]:
    if micro_batches is None:
        return tuple(range(num_micro_batches))
    given = tuple(micro_batches)
    for m in given:
        if check_count("micro_batches: every one", m, minimum=0) >= num_micro_batches:
            raise ValueError(f"micro_batches must be below num_micro_batches (got {m} of {num_micro_batches})")
    if list(given) != sorted(set(given)):
        raise ValueError(f"micro_batches must ascend, each once (got {list(given)})")
    return given
