"""A rank × step excerpt of some orders, as text, for error messages."""

from collections.abc import Sequence

from hyper_pp.actions import Orders


def excerpt(orders: Orders, marks: Sequence[int | None], reach: int = 3) -> str:
    """Return the orders around the marked positions, one line per rank, marked actions in brackets.

    Args:
        orders: One order per rank.
        marks: For each rank, the position to show, or None to show the positions that others show.
        reach: How many actions to show on either side.

    Returns:
        Lines such as ``rank 0, step 4:  0F3  [0SEND_F3]  0B0``.
    """
    known = [mark for mark in marks if mark is not None]
    middle = known[0] if known else 0
    rows = []
    for order, mark in zip(orders, marks):
        position = middle if mark is None else mark
        first = max(0, min(position, len(order)) - reach)
        cells = [str(action) for action in order[first : position + reach + 1]]
        if mark is not None:
            cells = [f"[{cell}]" if first + i == mark else cell for i, cell in enumerate(cells)]
            if mark >= len(order):
                cells.append("[end]")
        rows.append((first, cells))
    width = max((len(cell) for _, cells in rows for cell in cells), default=0)
    label = max(len(f"rank {rank}, step {first}:") for rank, (first, _) in enumerate(rows))
    return "\n".join(
        f"{f'rank {rank}, step {first}:':<{label}} " + " ".join(f"{cell:>{width}}" for cell in cells).rstrip()
        for rank, (first, cells) in enumerate(rows)
    )
