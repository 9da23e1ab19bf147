"""MPipe Transpose as published: the preprocess block's first forwards run on all ranks at once."""

from hyper_pp.actions import Action, Op, Order, Orders
from hyper_pp.schedules.interleaved import interleaved_orders
from hyper_pp.shape import PipelineShape
from hyper_pp.transpose import Backward, Transpose


def mpipe_orders(
    shape: PipelineShape,
    *,
    num_layers: int | None = None,
    frozen: bool | None = None,
    backward: Backward = "central",
    explicit_backward: bool = False,
    less_memory: bool = False,
) -> tuple[Orders, Transpose]:
    """Return interleaved 1F1B orders with the preprocess block transposed for the first min(P, M) micro-batches.

    P=2, V=1, M=3, trainable, explicit backward (body communication left out)::

        rank 0   BCAST_T TF0 RECV_TF1 RECV_TX1 0F0 0F1 TF2 0F2 0B0 TB0 0B1 TB1 0B2 TB2
        rank 1   BCAST_T TF1 SEND_TF1 SEND_TX1 1F0 1B0 1F1 1B1 1F2 1B2

    Rank m owns micro-batch m < min(P, M); rank 0 owns the others and runs the block for them right before stage 0. The
    backward is central: rank 0 recomputes the block from the micro-batch's input.

    Args:
        shape: Any P, V and M.
        num_layers: T, the layers the block holds; 0 spreads only the data and is always frozen.
        frozen: The block has nothing to train: no parameters, inputs or gradients travel, and rank 0 runs its own
            micro-batches inside the stage 0 forward.
        backward: ``"central"``, the only way this schedule knows.
        explicit_backward: Rank 0's own micro-batches get a recompute backward too; otherwise they stay connected to
            stage 0 through autograd.
        less_memory: As for interleaved 1F1B.

    Raises:
        ValueError: ``backward`` is another, or ``frozen=False`` with ``num_layers=0``.
    """
    if backward != "central":
        raise ValueError(f"mpipe runs the preprocess backward centrally: backward must be central (got {backward!r})")
    if frozen is None:
        frozen = num_layers == 0
    body, _ = interleaved_orders(shape, less_memory=less_memory)
    num_transposed = min(shape.num_ranks, shape.num_micro_batches)
    transpose = Transpose(
        mpipe_owners(shape), num_layers=num_layers, frozen=frozen, explicit_backward=explicit_backward and not frozen
    )
    orders = [_head(rank, num_transposed, frozen) + order for rank, order in enumerate(body)]
    if not frozen:
        orders[0] = _with_block(orders[0], num_transposed, explicit_backward)
    return tuple(orders), transpose


def mpipe_owners(shape: PipelineShape) -> tuple[int, ...]:
    """Return the owner of each micro-batch: rank m of m < min(P, M), rank 0 of the others."""
    num_transposed = min(shape.num_ranks, shape.num_micro_batches)
    return tuple(m if m < num_transposed else 0 for m in range(shape.num_micro_batches))


def _head(rank: int, num_transposed: int, frozen: bool) -> Order:
    """Return what ``rank`` runs before the body."""
    head = [] if frozen else [Action(0, Op.BCAST_T)]
    if rank < num_transposed:
        head.append(Action(0, Op.TF, rank))
    travels = [Op.SEND_TF] if frozen else [Op.SEND_TF, Op.SEND_TX]
    if 0 < rank < num_transposed:
        head += [Action(0, op, rank) for op in travels]
    if rank == 0:
        arrives = [Op.RECV_TF] if frozen else [Op.RECV_TF, Op.RECV_TX]
        head += [Action(0, op, m) for op in arrives for m in range(1, num_transposed)]
    return tuple(head)


def _with_block(order: Order, num_transposed: int, explicit_backward: bool) -> Order:
    """Return rank 0's order with the block's own actions around those of stage 0."""
    result = []
    for action in order:
        stage, op, m = action
        own = m is not None and m >= num_transposed
        if stage == 0 and op is Op.F and own:
            result.append(Action(0, Op.TF, m))
        result.append(action)
        if stage == 0 and op is Op.B and (explicit_backward or not own):
            result.append(Action(0, Op.TB, m))
    return tuple(result)
