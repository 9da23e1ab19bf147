"""What the ranks agree on before a step in which each passes only the micro-batches it owns."""

from collections.abc import Callable, Sequence

from hyper_pp.microbatch import split_sizes
from hyper_pp.protocols import Transport


def agree_on_sizes(
    transport: Transport, owned: Sequence[int], count_samples: Callable[[], int | None], num_micro_batches: int
) -> list[int]:
    """Tell all ranks how many samples each was given; return the sizes of the micro-batches these make up.

    Args:
        transport: Connects the ranks; all of them call this.
        owned: Micro-batches that this rank was given, joined in index order.
        count_samples: Counts the samples in what it was given.
        num_micro_batches: M.

    Returns:
        Samples of every micro-batch of the step, larger ones first.

    Raises:
        ValueError: A rank was given another number of samples than its micro-batches have, or what can't be counted.
            It is raised on every rank, so that none waits for another.
    """
    fault = ""
    mine = 0
    try:
        mine = (count_samples() or 0) if owned else 0
    except (TypeError, ValueError) as error:
        fault = str(error)
    given = transport.all_gather_object((tuple(owned), mine, fault))
    for rank, (_, _, other_fault) in enumerate(given):
        if other_fault:
            raise ValueError(f"rank {rank}: {other_fault}")
    sizes = split_sizes(sum(count for _, count, _ in given), num_micro_batches)
    for rank, (micro_batches, count, _) in enumerate(given):
        expected = sum(sizes[m] for m in micro_batches)
        if count != expected:
            raise ValueError(
                f"rank {rank} owns micro-batches {list(micro_batches)} with {expected} of the batch's {sum(sizes)} "
                f"samples (got {count}): with sharded_inputs=True each rank passes what it owns"
            )
    return sizes
