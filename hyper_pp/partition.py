"""Which layers go to the preprocess block and to which stage."""

from collections.abc import Sequence

from hyper_pp.shape import check_count


def partition_layers(
    num_layers: int,
    num_stages: int,
    *,
    num_transpose_layers: int = 0,
    partition: Sequence[int] | None = None,
) -> list[range]:
    """Return the layers of each stage, after the first T went to the preprocess block.

    Args:
        num_layers: L, layers of the whole model.
        num_stages: S = P·V.
        num_transpose_layers: T, layers of the preprocess block.
        partition: Layers per stage, S positive ints that sum to L−T; None for an even split, where the first
            (L−T) mod S stages get one layer more.

    Returns:
        One range of layer indices per stage; the block holds layers 0 … T−1.

    Raises:
        TypeError: T or an entry of ``partition`` isn't an int.
        ValueError: There are too few layers, or the partition doesn't add up.
    """
    check_count("num_transpose_layers", num_transpose_layers, minimum=0)
    rest = num_layers - num_transpose_layers
    if num_layers < num_stages:
        raise ValueError(f"there are more stages than layers (stages: {num_stages}, layers: {num_layers})")
    if rest < num_stages:
        raise ValueError(
            f"num_transpose_layers must leave a layer for every stage: at most {num_layers - num_stages} "
            f"with {num_layers} layers and {num_stages} stages (got {num_transpose_layers})"
        )
    if partition is None:
        size, extra = divmod(rest, num_stages)
        sizes = [size + 1] * extra + [size] * (num_stages - extra)
    else:
        sizes = [check_count("every entry of partition", entry) for entry in partition]
        if len(sizes) != num_stages or sum(sizes) != rest:
            raise ValueError(
                f"partition must have one entry per stage and sum to the layers that are left "
                f"(stages: {num_stages}, layers: {rest}; got {len(sizes)} entries with sum {sum(sizes)}: {sizes})"
            )
    ranges = []
    first = num_transpose_layers
    for size in sizes:
        ranges.append(range(first, first + size))
        first += size
    return ranges
