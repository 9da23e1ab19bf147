"""Insert the body's sends and receives so that all transfers have one total order that every rank follows.

The orders are run on nominal costs. The moment a result is ready for another rank, its transfer is appended to the
sender's and to the receiver's new order at once; a compute action is appended to its rank's order when it starts. So
the new orders are a single sequence of events, dealt out to the ranks. Run strictly in order with blocking sends, the
earliest event of that sequence that isn't done can always go on, hence no deadlock; and a receive stands as early as
its message can be there, hence a transport that works in the background is never kept waiting.
"""

import heapq
from collections import defaultdict
from collections.abc import Iterator, Sequence

from hyper_pp.actions import (
    BACKWARD_OPS,
    BODY_P2P_OPS,
    COLLECTIVE_OPS,
    RECV_OPS,
    SEND_OPS,
    Action,
    AnyOp,
    Op,
    Orders,
    partner,
)
from hyper_pp.dependencies import Dependencies
from hyper_pp.errors import ScheduleError
from hyper_pp.grid import excerpt
from hyper_pp.shape import PipelineShape
from hyper_pp.transpose import Transpose

# Only their relations matter: they decide which of two transfers of a rank comes first.
NOMINAL_COST = {Op.F: 2, Op.B: 4, Op.I: 2, Op.W: 2, Op.TF: 2, Op.TB: 4}
_FINISH, _START = 0, 1  # at one moment, results are sent before anything new starts


def insert_communication(orders: Orders, shape: PipelineShape, transpose: Transpose | None = None) -> Orders:
    """Return the orders with ``SEND_F``, ``RECV_F``, ``SEND_B`` and ``RECV_B`` added.

    Args:
        orders: Compute-only orders; transfers of the preprocess block may be there and keep their places.
        shape: Of the plan.
        transpose: What the plan says of its preprocess block, if it has one.

    Raises:
        ScheduleError: The compute orders wait for each other.
    """
    return _Lowering(orders, shape, transpose).run()


class _Lowering:
    def __init__(self, orders: Orders, shape: PipelineShape, transpose: Transpose | None) -> None:
        self.orders = orders
        self.shape = shape
        self.dependencies = Dependencies(shape, transpose, orders)
        self.num_slots = shape.num_stages * shape.num_micro_batches
        # The new orders, in which a transfer is its op followed by the action whose result it carries. Transfers become
        # actions at the end, rank by rank: neighbours in memory, long orders are walked much faster.
        self.lowered: list[list[Action | Op]] = [[] for _ in orders]
        self.next_index = [0] * len(orders)
        # One flag per stage and micro-batch for each op: a set of actions outgrows the caches on long orders.
        self.done: defaultdict[AnyOp, bytearray] = defaultdict(lambda: bytearray(self.num_slots))
        self.waiting: dict[Action, list[int]] = {}  # ranks that wait for an action to be done
        self.arrived: dict[Action, list[int]] = {}  # ranks that stand at a collective or at their half of a transfer
        self.events: list[tuple[int, int, int, int]] = []  # time, finish or start, tie-break, rank
        self.num_events = 0

    def run(self) -> Orders:
        for rank in range(len(self.orders)):
            self._schedule(0, _START, rank)
        while self.events:
            time, phase, _, rank = heapq.heappop(self.events)
            if phase == _FINISH:
                self._finish(time, rank)
            else:
                self._start(time, rank)
        if any(index < len(order) for index, order in zip(self.next_index, self.orders)):
            self._report()
        return tuple(tuple(_with_transfers(events)) for events in self.lowered)

    def _slot(self, action: Action) -> int:
        return action.stage * self.shape.num_micro_batches + (action.micro_batch or 0)

    def _schedule(self, time: int, phase: int, rank: int) -> None:
        self.num_events += 1
        heapq.heappush(self.events, (time, phase, self.num_events, rank))

    def _start(self, time: int, rank: int) -> None:
        """Start the rank's next action, or leave word for what it waits for."""
        index = self.next_index[rank]
        if index == len(self.orders[rank]):
            return
        action = self.orders[rank][index]
        for need in self.dependencies.needs(action):
            brought_by_us = need.carrier is None or need.carrier.op in BODY_P2P_OPS
            awaited = need.producer if brought_by_us else need.local
            if not self.done[awaited.op][self._slot(awaited)]:
                self.waiting.setdefault(awaited, []).append(rank)
                return
        if action.op in COLLECTIVE_OPS or action.op in SEND_OPS or action.op in RECV_OPS:
            self._meet(time, rank, action)
            return
        self.lowered[rank].append(action)
        self._schedule(time + NOMINAL_COST.get(action.op, 0), _FINISH, rank)  # type: ignore[arg-type]

    def _finish(self, time: int, rank: int) -> None:
        action = self.orders[rank][self.next_index[rank]]
        stage, op, _ = action
        if op is Op.F and stage + 1 < self.shape.num_stages:
            self._transfer(rank, Op.SEND_F, Op.RECV_F, stage + 1, action)
        elif op in BACKWARD_OPS and stage > 0:
            self._transfer(rank, Op.SEND_B, Op.RECV_B, stage - 1, action)
        self._complete(time, rank, action)

    def _transfer(self, rank: int, send: Op, receive: Op, stage: int, action: Action) -> None:
        peer = self.shape.rank_of(stage)
        if peer != rank:
            self.lowered[rank] += (send, action)
            self.lowered[peer] += (receive, action)

    def _meet(self, time: int, rank: int, action: Action) -> None:
        """Complete a transfer of the block or a collective once everybody concerned stands at it."""
        key = partner(action) if action.op in RECV_OPS else action
        ranks = self.arrived.setdefault(key, [])
        ranks.append(rank)
        if len(ranks) < (len(self.orders) if action.op in COLLECTIVE_OPS else 2):
            return
        for member in ranks:
            met = self.orders[member][self.next_index[member]]
            self.lowered[member].append(met)
            self._complete(time, member, met)

    def _complete(self, time: int, rank: int, action: Action) -> None:
        self.done[action.op][self._slot(action)] = True
        self.next_index[rank] += 1
        self._schedule(time, _START, rank)
        for waiter in self.waiting.pop(action, ()):
            self._schedule(time, _START, waiter)

    def _report(self) -> None:
        stuck = [rank for rank, order in enumerate(self.orders) if self.next_index[rank] < len(order)]
        heads = [self.orders[rank][self.next_index[rank]] for rank in stuck]
        waits = ", ".join(f"rank {rank} at {head}" for rank, head in zip(stuck, heads))
        raise ScheduleError(f"the orders wait for each other: {waits}", excerpt(self.orders, self.next_index))


def _with_transfers(events: Sequence[Action | Op]) -> Iterator[Action]:
    items = iter(events)
    for item in items:
        if isinstance(item, Op):
            carried = next(items)
            assert isinstance(carried, Action)
            yield Action(carried.stage + _STAGES_ON.get(item, 0), item, carried.micro_batch)
        else:
            yield item


_STAGES_ON = {Op.RECV_F: 1, Op.RECV_B: -1}  # where a result arrives, seen from the stage that made it
