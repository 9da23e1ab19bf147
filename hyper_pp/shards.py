"""What the ranks agree on where each passes only the micro-batches it owns."""

from collections.abc import Callable, Sequence

from hyper_pp.microbatch import split_sizes
from hyper_pp.protocols import Transport


class SizeAgreement:
    """The micro-batches' sizes, which no rank can tell from its own part of the batch.

    Args:
        transport: Connects the ranks.
        owned: Micro-batches that this rank is given, joined in index order.
        num_micro_batches: M.
        every_step: The batch size may change between steps. Otherwise the ranks ask each other once, and steps exchange
            nothing.
    """

    def __init__(
        self, transport: Transport, owned: Sequence[int], num_micro_batches: int, *, every_step: bool
    ) -> None:
        self._transport = transport
        self._owned = tuple(owned)
        self._num_micro_batches = num_micro_batches
        self._every_step = every_step
        self._sizes: list[int] | None = None

    def of_step(self, count_samples: Callable[[], int | None]) -> list[int]:
        """Return the samples of every micro-batch of a step, larger ones first; all ranks call it.

        Args:
            count_samples: Counts the samples in what this rank was given; not called where it owns nothing.

        Raises:
            ValueError: A rank was given another number of samples than its micro-batches have, or what can't be
                counted. Where the ranks ask each other it is raised on all of them, so that none waits for another.
        """
        if self._every_step or self._sizes is None:
            self._sizes = self._ask(count_samples)
        elif self._owned:
            fault = _fault(self._transport.rank, self._owned, count_samples() or 0, self._sizes)
            if fault is not None:
                raise ValueError(f"{fault}; pass dynamic_shapes=True if the batch size changes between steps")
        return self._sizes

    def _ask(self, count_samples: Callable[[], int | None]) -> list[int]:
        problem = ""
        mine = 0
        try:
            mine = (count_samples() or 0) if self._owned else 0
        except (TypeError, ValueError) as error:
            problem = str(error)
        given = self._transport.all_gather_object((self._owned, mine, problem))
        for rank, (_, _, other_problem) in enumerate(given):
            if other_problem:
                raise ValueError(f"rank {rank}: {other_problem}")
        sizes = split_sizes(sum(count for _, count, _ in given), self._num_micro_batches)
        for rank, (micro_batches, count, _) in enumerate(given):
            fault = _fault(rank, micro_batches, count, sizes)
            if fault is not None:
                raise ValueError(fault)
        return sizes


def _fault(rank: int, owned: Sequence[int], count: int, sizes: Sequence[int]) -> str | None:
    """Return how what a rank was given differs from what its micro-batches have; None if it doesn't."""
    expected = sum([sizes[m] for m in owned])
    if count == expected:
        return None
    return (
        f"rank {rank} owns micro-batches {list(owned)} with {expected} of the batch's {sum(sizes)} samples "
        f"(got {count}): with sharded_inputs=True each rank passes what it owns"
    )
