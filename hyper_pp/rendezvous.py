"""Run orders without computing anything, to see whether every rank gets to its end."""

from collections import deque
from collections.abc import Callable

from hyper_pp.actions import COLLECTIVE_OPS, RECV_OPS, SEND_OPS, Action, Orders, partner
from hyper_pp.dependencies import Dependencies

Positions = list[int]
_P2P_OPS = SEND_OPS | RECV_OPS
_TRANSFER_OPS = _P2P_OPS | COLLECTIVE_OPS


def run_rendezvous(orders: Orders, rank_of: Callable[[Action], int | None]) -> Positions | None:
    """Run orders one action at a time per rank, transfers completing only when every partner stands at them.

    This is HCCL with one communicator and one stream per rank, the strictest case.

    Args:
        orders: Lowered orders.
        rank_of: The rank an action belongs to.

    Returns:
        None if every rank gets to its end, else each rank's position where nothing can go on.
    """
    position = [0] * len(orders)
    ready = deque(range(len(orders)))
    while ready:
        rank = ready.popleft()
        order = orders[rank]
        while position[rank] < len(order):
            action = order[position[rank]]
            if action.op in _P2P_OPS:
                other = partner(action)
                peer = rank_of(other)
                assert peer is not None
                if peer == rank or _head(orders, position, peer) != other:
                    break
                position[peer] += 1
                ready.append(peer)
            elif action.op in COLLECTIVE_OPS:
                if any(_head(orders, position, member) != action for member in range(len(orders))):
                    break
                for member in range(len(orders)):
                    if member != rank:
                        position[member] += 1
                        ready.append(member)
            position[rank] += 1
    return None if all(at == len(order) for at, order in zip(position, orders)) else position


def _head(orders: Orders, position: Positions, rank: int) -> Action | None:
    return orders[rank][position[rank]] if position[rank] < len(orders[rank]) else None


def run_two_queues(orders: Orders, dependencies: Dependencies) -> Positions | None:
    """Run orders with a compute queue and a communication queue per rank, each in order.

    A transfer starts once what it carries is computed and its partners' queues have come to it; a compute action starts
    once what it needs is there.

    Returns:
        None if both queues of every rank get to their ends, else each rank's earliest position that can't go on.
    """
    steps = range(len(orders))
    compute = [[i for i, action in enumerate(order) if action.op not in _TRANSFER_OPS] for order in orders]
    transfers = [[i for i, action in enumerate(order) if action.op in _TRANSFER_OPS] for order in orders]
    done: list[set[Action]] = [set() for _ in orders]
    compute_at, transfer_at = [0 for _ in steps], [0 for _ in steps]

    def is_ready(rank: int, action: Action) -> bool:
        return all(need.local in done[rank] for need in dependencies.needs(action))

    def head(rank: int) -> Action | None:
        at = transfer_at[rank]
        return orders[rank][transfers[rank][at]] if at < len(transfers[rank]) else None

    def group_at(rank: int) -> list[int] | None:
        """Return the ranks that complete the rank's next transfer together, if all stand at it and are ready."""
        action = head(rank)
        if action is None:
            return None
        if action.op in COLLECTIVE_OPS:
            members, wanted = list(steps), dict.fromkeys(steps, action)
        else:
            peer = dependencies.rank_of(partner(action))
            assert peer is not None
            members, wanted = [rank, peer], {rank: action, peer: partner(action)}
        met = all(head(member) == wanted[member] and is_ready(member, wanted[member]) for member in members)
        return members if met else None

    moved = True
    while moved:
        moved = False
        for rank in steps:
            while compute_at[rank] < len(compute[rank]):
                action = orders[rank][compute[rank][compute_at[rank]]]
                if not is_ready(rank, action):
                    break
                done[rank].add(action)
                compute_at[rank] += 1
                moved = True
            while (members := group_at(rank)) is not None:
                for member in members:
                    action = orders[member][transfers[member][transfer_at[member]]]
                    done[member].add(action)
                    transfer_at[member] += 1
                moved = True
    stops = []
    for rank, order in enumerate(orders):
        stops.append(
            min(
                compute[rank][compute_at[rank]] if compute_at[rank] < len(compute[rank]) else len(order),
                transfers[rank][transfer_at[rank]] if transfer_at[rank] < len(transfers[rank]) else len(order),
            )
        )
    return None if all(at == len(order) for at, order in zip(stops, orders)) else stops
