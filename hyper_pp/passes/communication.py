"""Insert the body's sends and receives so that all transfers have one total order that every rank follows.

The orders are run on given or nominal costs. The moment a result is ready for another rank, its transfer is appended
to the sender's and to the receiver's new order at once; a compute action is appended to its rank's order when it
starts. So the new orders are a single sequence of events, dealt out to the ranks. Run strictly in order with blocking
sends, the earliest event of that sequence that isn't done can always go on, hence no deadlock; and a receive stands as
early as its message can be there, hence a transport that works in the background is never kept waiting.

The preprocess block's transfers are in the orders already. They keep their places, but for receives that would come
later than their sends: those move up to where the value is sent, for the same reason.
"""

import heapq
from collections import defaultdict
from collections.abc import Iterator, Sequence

from hyper_pp.actions import (
    BACKWARD_OPS,
    BODY_P2P_OPS,
    COLLECTIVE_OPS,
    COMPUTE_OPS,
    RECV_OPS,
    SEND_OPS,
    Action,
    AnyOp,
    Op,
    Orders,
    partner,
)
from hyper_pp.costs import Costs, Prices
from hyper_pp.dependencies import Dependencies, Need
from hyper_pp.errors import ScheduleError
from hyper_pp.grid import excerpt
from hyper_pp.shape import PipelineShape
from hyper_pp.transpose import Transpose

# Only their relations matter: they decide which of two transfers of a rank comes first.
NOMINAL_COST = {Op.F: 2, Op.B: 4, Op.I: 2, Op.W: 2, Op.TF: 2, Op.TB: 4}
_TRANSFERS = SEND_OPS | RECV_OPS
_FINISH, _ARRIVE, _SEND, _START = range(4)  # at one moment, results are sent before anything new starts


def insert_communication(
    orders: Orders, shape: PipelineShape, transpose: Transpose | None = None, costs: Costs | None = None
) -> Orders:
    """Return the orders with ``SEND_F``, ``RECV_F``, ``SEND_B`` and ``RECV_B`` added.

    Args:
        orders: Compute-only orders; transfers of the preprocess block are in them already.
        shape: Of the plan.
        transpose: What the plan says of its preprocess block, if it has one.
        costs: Durations that decide which of two transfers comes first; by default nominal ones.

    Raises:
        ScheduleError: The compute orders wait for each other.
        ValueError: Costs per stage are for another number of stages.
    """
    return _Lowering(orders, shape, transpose, costs).run()


class _Lowering:
    def __init__(self, orders: Orders, shape: PipelineShape, transpose: Transpose | None, costs: Costs | None) -> None:
        self.orders = orders
        self.shape = shape
        self.dependencies = Dependencies(shape, transpose, orders)
        self.prices = None if costs is None else Prices(costs, self.dependencies)
        self.latency = 0.0 if costs is None else costs.comm
        self.num_slots = shape.num_stages * shape.num_micro_batches
        # The new orders, in which a transfer is its op followed by the action whose result it carries. Transfers become
        # actions at the end, rank by rank: neighbours in memory, long orders are walked much faster.
        self.lowered: list[list[Action | Op]] = [[] for _ in orders]
        self.next_index = [0] * len(orders)
        # One flag per stage and micro-batch for each op: a set of actions outgrows the caches on long orders.
        self.done: defaultdict[AnyOp, bytearray] = defaultdict(lambda: bytearray(self.num_slots))
        self.waiting: dict[Action, list[int]] = {}  # ranks that wait for an action to be done
        # The same of results that have reached the rank that needs them; without latency that is all one.
        self.there = self.done if self.latency == 0 else defaultdict(lambda: bytearray(self.num_slots))
        self.expecting = self.waiting if self.latency == 0 else {}
        self.travelling: dict[int, Action] = {}
        self.gathered: dict[Action, list[int]] = {}  # ranks that stand at a collective
        # Each rank's transfers of the block that are still to come, last first, and the ranks that wait for its next.
        self.of_block = [[action for action in reversed(order) if action.op in _TRANSFERS] for order in orders]
        self.blocked: list[list[int]] = [[] for _ in orders]
        self.events: list[tuple[float, int, int, int]] = []  # time, what happens, tie-break, rank
        self.num_events = 0

    def run(self) -> Orders:
        for rank in range(len(self.orders)):
            self._schedule(0, _START, rank)
        while self.events:
            time, what, number, rank = heapq.heappop(self.events)
            if what == _FINISH:
                self._finish(time, rank)
            elif what == _ARRIVE:
                self._arrive(time, self.travelling.pop(number))
            else:
                self._start(time, rank)
        if any(index < len(order) for index, order in zip(self.next_index, self.orders)):
            self._report()
        return tuple(tuple(_with_transfers(events)) for events in self.lowered)

    def _slot(self, action: Action) -> int:
        return action.stage * self.shape.num_micro_batches + (action.micro_batch or 0)

    def _schedule(self, time: float, what: int, rank: int) -> None:
        self.num_events += 1
        heapq.heappush(self.events, (time, what, self.num_events, rank))

    def _start(self, time: float, rank: int) -> None:
        """Start the rank's next action, or leave word for what it waits for."""
        index = self.next_index[rank]
        if index == len(self.orders[rank]):
            return
        action = self.orders[rank][index]
        op = action.op
        for need in self.dependencies.needs(action):
            if self._waits(rank, need):
                return
        if op in RECV_OPS:
            # Its send has put it into the new order, or will.
            send = partner(action)
            if self.done[send.op][self._slot(send)]:
                self.next_index[rank] += 1
                self._schedule(time, _START, rank)
            else:
                self.waiting.setdefault(send, []).append(rank)
        elif op in SEND_OPS:
            self._send(time, rank, action)
        elif op in COLLECTIVE_OPS:
            self._gather(time, rank, action)
        else:
            self.lowered[rank].append(action)
            self._schedule(time + self._duration(action), _FINISH, rank)

    def _waits(self, rank: int, need: Need) -> bool:
        """Tell whether the rank has to wait for a need, and leave word if so."""
        awaited = need.producer if need.carrier is None or need.carrier.op in BODY_P2P_OPS else need.carrier
        flags, waiting = (self.done, self.waiting) if need.carrier is None else (self.there, self.expecting)
        if flags[awaited.op][self._slot(awaited)]:
            return False
        waiting.setdefault(awaited, []).append(rank)
        return True

    def _duration(self, action: Action) -> float:
        if self.prices is None or action.op not in COMPUTE_OPS:
            return NOMINAL_COST.get(action.op, 0)  # type: ignore[arg-type]
        return self.prices.duration(action)

    def _finish(self, time: float, rank: int) -> None:
        action = self.orders[rank][self.next_index[rank]]
        stage, op, _ = action
        travels = False
        if op is Op.F and stage + 1 < self.shape.num_stages:
            travels = self._transfer(rank, Op.SEND_F, Op.RECV_F, stage + 1, action)
        elif op in BACKWARD_OPS and stage > 0:
            travels = self._transfer(rank, Op.SEND_B, Op.RECV_B, stage - 1, action)
        self._complete(time, rank, action, travels)

    def _transfer(self, rank: int, send: Op, receive: Op, stage: int, action: Action) -> bool:
        peer = self.shape.rank_of(stage)
        if peer == rank:
            return False
        self.lowered[rank] += (send, action)
        self.lowered[peer] += (receive, action)
        return True

    def _send(self, time: float, rank: int, action: Action) -> None:
        """Transfer a value of the block, if it is what the receiving rank has next among such transfers."""
        receive = partner(action)
        peer = self.dependencies.rank_of(receive)
        assert peer is not None
        if self.of_block[peer][-1:] != [receive]:
            self.blocked[peer].append(rank)
            return
        self.lowered[rank].append(action)
        self.lowered[peer].append(receive)
        self._done(time, receive, travels=True)
        self._complete(time, rank, action)
        for member in (rank, peer):
            self.of_block[member].pop()
            for waiter in self.blocked[member]:
                self._schedule(time, _SEND, waiter)
            self.blocked[member] = []

    def _gather(self, time: float, rank: int, action: Action) -> None:
        """Complete a collective once all ranks stand at it."""
        ranks = self.gathered.setdefault(action, [])
        ranks.append(rank)
        if len(ranks) == len(self.orders):
            for member in ranks:
                self.lowered[member].append(action)
                self._complete(time, member, action)

    def _complete(self, time: float, rank: int, action: Action, travels: bool = False) -> None:
        order = self.orders[rank]
        index = self.next_index[rank] = self.next_index[rank] + 1
        sends = index < len(order) and order[index].op in SEND_OPS
        self._schedule(time, _SEND if sends else _START, rank)
        self._done(time, action, travels)

    def _done(self, time: float, action: Action, travels: bool) -> None:
        """Note that an action is done, and that its result is on its way to another rank, if it is."""
        self.done[action.op][self._slot(action)] = True
        for waiter in self.waiting.pop(action, ()):
            self._schedule(time, _START, waiter)
        if travels and self.latency > 0:
            self._schedule(time + self.latency, _ARRIVE, 0)
            self.travelling[self.num_events] = action

    def _arrive(self, time: float, action: Action) -> None:
        self.there[action.op][self._slot(action)] = True
        for waiter in self.expecting.pop(action, ()):
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
