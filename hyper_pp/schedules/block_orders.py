"""From the times of a step's operations to orders that hold the transfers and collectives of the preprocess block."""

import heapq
from collections.abc import Sequence

from hyper_pp.actions import Action, Op, Orders
from hyper_pp.schedules.block_step import BlockStep, Times


def orders_of(step: BlockStep, times: Times) -> Orders:
    """Return compute-only orders in which all transfers of the block stand where their values are made.

    The starts and ends of all operations are one sequence of events. A transfer is appended to both its ranks' orders
    when the value is ready: so every rank meets transfers in the order of one sequence, and a receive stands behind
    what its rank had begun by then.

    Args:
        step: The operations.
        times: When they run.
    """
    orders: list[list[Action]] = [[] for _ in range(step.shape.num_ranks)]
    if step.has_collectives:
        for order in orders:
            order.append(Action(0, Op.BCAST_T))
    running: list[tuple[float, int, int]] = []
    for number, op in enumerate(step.by_time(times.starts, times.ends)):
        while running and running[0][0] <= times.starts[op]:
            _deliver(step, heapq.heappop(running)[2], orders)
        m, k = divmod(op, step.length)
        kind, stage = step.kinds[k]
        orders[step.ranks[op]].append(Action(stage, kind, m))
        heapq.heappush(running, (times.ends[op], number, op))
    while running:
        _deliver(step, heapq.heappop(running)[2], orders)
    if step.has_collectives and step.transpose.backward == "owner":
        for order in orders:
            order.append(Action(0, Op.REDUCE_T))
    return tuple(map(tuple, orders))


def _deliver(step: BlockStep, op: int, orders: Sequence[list[Action]]) -> None:
    """Append the transfers of what an operation has made."""
    m, k = divmod(op, step.length)
    owner = step.transpose.owners[m]
    if owner == 0:
        return
    by_owner = step.transpose.backward == "owner"

    def travels(source: int, send: Op, target: int, receive: Op) -> None:
        orders[source].append(Action(0, send, m))
        orders[target].append(Action(0, receive, m))

    if k == 0:
        travels(owner, Op.SEND_TF, 0, Op.RECV_TF)
        if step.trains and not by_owner:
            travels(owner, Op.SEND_TX, 0, Op.RECV_TX)
    elif k == step.last_backward and step.trains and by_owner:
        travels(0, Op.SEND_TB, owner, Op.RECV_TB)
