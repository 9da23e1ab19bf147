"""Moves tensors between the ranks of a pipeline, with the same calls over HCCL on Ascend and mccl on CPU."""

import contextlib
import hashlib
import os
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

import mindspore
from mindspore import Tensor, mint
from mindspore.communication import GlobalComm, create_group, get_group_size, get_rank, init
from mindspore.mint import distributed

from hyper_pp.failure import FailureChannel
from hyper_pp.mindspore import wire
from hyper_pp.mindspore.autograd import no_grad
from hyper_pp.mindspore.notices import Notices
from hyper_pp.mindspore.tensors import on_cpu
from hyper_pp.protocols import TensorSpec

SUMMED = frozenset(["Float16", "Float32", "BFloat16", "Int32", "Int64"])  # what both libraries can add up
FIRST_MESSAGE = 1024  # bytes of an object that travel with its length
_WORLD = "hccl_world_group"

_groups: set[str] = set()
_channels: dict[tuple[int, ...], FailureChannel] = {}


class _Sent:
    """A send under way; holds its tensors until it is done."""

    def __init__(self, handles: list[Any], tensors: list[Tensor]) -> None:
        self._handles = handles
        self._tensors = tensors

    def wait(self) -> list[Tensor]:
        for handle in self._handles:
            handle.wait()
        self._handles, self._tensors = [], []
        return []


class _Received:
    """A receive under way."""

    def __init__(self, transport: "MindSporeTransport", specs: Sequence[TensorSpec], peer: int) -> None:
        self._transport = transport
        self._specs = specs
        self._peer = peer
        self._buffers = [wire.buffer_for(spec) for spec in specs]
        self._handles: list[Any] | None = None
        self._number = transport.expect_notice(specs, peer)

    def post(self) -> None:
        source, group = self._transport.ranks[self._peer], self._transport.group
        self._handles = [
            distributed.irecv(buffer, source, group)
            for spec, buffer in zip(self._specs, self._buffers)
            if 0 not in spec.shape
        ]

    def wait(self) -> list[Tensor]:
        with no_grad():
            self._transport.await_notice(self._peer, self._number)
            if self._handles is None:
                self._transport.post_receives(until=self)
            for handle in self._handles or []:
                handle.wait()
            self._handles = []
            return [wire.from_wire(buffer, spec) for spec, buffer in zip(self._specs, self._buffers)]


class MindSporeTransport:
    """Implements :class:`hyper_pp.protocols.Transport`. With one rank it never transfers and initialises nothing.

    Args:
        group: Global ranks of the pipeline in its order, or the name of a MindSpore group; by default all ranks of the
            job. Communication is initialised if it isn't yet.

    Raises:
        ValueError: This process isn't in the group, or a rank is there twice.
    """

    def __init__(self, group: Sequence[int] | str | None = None) -> None:
        world_size, own_rank = _initialise()
        if isinstance(group, str):
            self.ranks = tuple(distributed.get_process_group_ranks(group))
        else:
            self.ranks = tuple(range(world_size)) if group is None else tuple(group)
        if own_rank not in self.ranks or len(set(self.ranks)) < len(self.ranks):
            raise ValueError(
                f"group must hold this process's global rank {own_rank}, and each rank once (got {list(self.ranks)})"
            )
        self.rank = self.ranks.index(own_rank)
        self.num_ranks = len(self.ranks)
        self.lookahead = 0
        self.group = ""
        self._unposted: deque[_Received] = deque()
        self._channel: FailureChannel | None = None
        self._notices: Notices | None = None
        if self.num_ranks > 1:
            self.group = group if isinstance(group, str) else _group_of(self.ranks, world_size)
            if self.ranks not in _channels:
                _channels[self.ranks] = FailureChannel(self.rank, self.num_ranks, self.all_gather_object)
            self._channel = _channels[self.ranks]
            if on_cpu():
                self._notices = Notices(self.rank, self.all_gather_object)

    def send(self, tensors: Sequence[Tensor], peer: int) -> _Sent:
        """Start sending tensors of any layout and size.

        Raises:
            TypeError: An element type can't be carried; nothing was sent.
        """
        with no_grad():
            data = [wire.to_wire(tensor) for tensor in tensors if 0 not in tensor.shape]
            self._count(peer, to_it=len(data))
            sent = _Sent([distributed.isend(part, self.ranks[peer], self.group) for part in data], data)
        if data and self._notices is not None:
            self._notices.send(peer)
        return sent

    def recv(self, specs: Sequence[TensorSpec], peer: int) -> _Received:
        """Start receiving tensors of these shapes and dtypes."""
        received = _Received(self, specs, peer)
        self._count(peer, from_it=sum(0 not in spec.shape for spec in specs))
        self._unposted.append(received)
        # On CPU a posted receive holds up every operator after it until its message is there, while a send never waits
        # for its receive: so it is posted when somebody needs it. On Ascend it is its sender that waits.
        if not on_cpu():
            self.post_receives()
        return received

    def post_receives(self, until: _Received | None = None) -> None:
        """Post the receives that were put off, in their order, up to ``until``."""
        while self._unposted:
            received = self._unposted.popleft()
            received.post()
            if received is until:
                break

    def send_object(self, value: Any, peer: int) -> None:
        """Send a small picklable value, in order with the tensors."""
        data = wire.packed(value)
        self.send([wire.bytes_tensor(data[:FIRST_MESSAGE].ljust(FIRST_MESSAGE, b"\0"))], peer).wait()
        if len(data) > FIRST_MESSAGE:
            self.send([wire.bytes_tensor(data[FIRST_MESSAGE:])], peer).wait()

    def recv_object(self, peer: int) -> Any:
        """Receive what :meth:`send_object` sent."""
        data = self._recv_bytes(FIRST_MESSAGE, peer)
        length = wire.packed_length(data)
        if length > FIRST_MESSAGE:
            data += self._recv_bytes(length - FIRST_MESSAGE, peer)
        return wire.unpacked(data)

    def broadcast(self, tensors: Sequence[Tensor], source: int) -> None:
        """Overwrite the tensors on every other rank with those of ``source``."""
        with self._collective(len(tensors)) as needed:
            if not needed:
                return
            for part in wire.buckets(tensors):
                if self.rank == source:
                    data = wire.as_bytes(wire.joined(part))
                else:  # a tensor of its own: what arrives in a view is lost
                    data = mint.empty((sum(tensor.nbytes for tensor in part),), dtype=mindspore.uint8)
                distributed.broadcast(data, self.ranks[source], self.group)
                if self.rank != source:
                    for tensor, value in zip(part, wire.parted(data.view(part[0].dtype), part)):
                        tensor.copy_(value.copy())  # not a view: CPU refuses one that starts where its base starts

    def reduce(self, tensors: Sequence[Tensor], target: int) -> list[Tensor]:
        """Sum over ranks; the sums are returned on ``target``, elsewhere the values are undefined."""
        with self._collective(len(tensors)) as needed:
            if not needed:
                return list(tensors)
            sums = {id(tensor): tensor for tensor in tensors}
            for part in wire.buckets(tensors):
                total = self._sum(wire.joined(part), target)
                for tensor, value in zip(part, wire.parted(total, part)):
                    sums[id(tensor)] = value
            return [sums[id(tensor)] for tensor in tensors]

    def all_gather_object(self, value: Any) -> list[Any]:
        """Return every rank's small picklable value, by rank."""
        with self._collective(1) as needed:
            if not needed:
                return [value]
            data = wire.packed(value)
            lengths = [int(length.item()) for length in self._gather(Tensor([len(data)], mindspore.int64))]
            gathered = self._gather(wire.bytes_tensor(data.ljust(max(lengths), b"\0")))
            return [wire.unpacked(part.asnumpy().tobytes()) for part in gathered]

    def abort(self, reason: str) -> None:
        """Tell every other rank to end at once with ``reason`` as the first cause; this process ends soon after."""
        if self._channel is not None:
            self._channel.abort(reason)

    def expect_notice(self, specs: Sequence[TensorSpec], peer: int) -> int | None:
        """Return the number of the notice that will announce a message; None where none will."""
        if self._notices is None or all(0 in spec.shape for spec in specs):
            return None
        return self._notices.expect(peer)

    def await_notice(self, peer: int, number: int | None) -> None:
        """Sleep until the message of that number is under way."""
        if self._notices is not None and number is not None:
            self._notices.wait(peer, number)

    # -- inside ----------------------------------------------------------------------------------------------------

    def _count(self, peer: int, to_it: int = 0, from_it: int = 0) -> None:
        if self._channel is not None:
            self._channel.count(peer, to_it, from_it)

    @contextlib.contextmanager
    def _collective(self, num_tensors: int) -> Iterator[bool]:
        needed = self.num_ranks > 1 and num_tensors > 0
        if needed:
            for peer in range(self.num_ranks):
                if peer != self.rank:
                    self._count(peer, 1, 1)
        with no_grad():
            if needed:
                self.post_receives()
            yield needed

    def _recv_bytes(self, size: int, peer: int) -> bytes:
        (data,) = self.recv([TensorSpec((size,), "UInt8")], peer).wait()
        return bytes(data.asnumpy().tobytes())

    def _gather(self, tensor: Tensor) -> list[Tensor]:
        gathered = [mint.empty(tensor.shape, dtype=tensor.dtype) for _ in self.ranks]
        distributed.all_gather(gathered, tensor, self.group)
        in_group_order = sorted(range(self.num_ranks), key=self.ranks.__getitem__)  # MindSpore sorts a group's ranks
        return [gathered[in_group_order.index(rank)] for rank in range(self.num_ranks)]

    def _sum(self, data: Tensor, target: int) -> Tensor:
        if str(data.dtype) in SUMMED:
            if on_cpu():  # has no reduce
                distributed.all_reduce(data, group=self.group)
            else:
                distributed.reduce(data, self.ranks[target], group=self.group)
            return data
        parts = [part.view(data.dtype) for part in self._gather(wire.as_bytes(data))]
        total = parts[0]
        for part in parts[1:]:
            total = total + part
        return total


def _initialise() -> tuple[int, int]:
    """Initialise communication where the job has several processes; return their number and this process's rank."""
    started = int(os.environ.get("MS_WORKER_NUM") or os.environ.get("RANK_SIZE") or 1)
    if not GlobalComm.INITED:
        if started == 1:
            return 1, 0
        # A receive may wait for as long as the slowest stage computes; that a rank has died is noticed elsewhere.
        os.environ.setdefault("MS_CPU_COMM_OP_TIMEOUT", "1800")
        init()
    return get_group_size(), get_rank()


def _group_of(ranks: tuple[int, ...], world_size: int) -> str:
    if on_cpu():
        # mint.distributed looks for this group whatever group it is given, and only Ascend has it from the start.
        _create_group(_WORLD, list(range(world_size)))
    if ranks == tuple(range(world_size)):
        return _WORLD
    name = "hyper_pp_" + hashlib.sha1("_".join(map(str, ranks)).encode()).hexdigest()[:20]
    _create_group(name, sorted(ranks))
    return name


def _create_group(name: str, ranks: list[int]) -> None:
    if name not in _groups:
        create_group(name, ranks)
        _groups.add(name)
