"""Transfers between the ranks of one pipeline over a torch process group: hccl on NPUs, gloo on the CPU."""

import pickle
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist

from hyper_pp.failure import FailureChannel
from hyper_pp.protocols import TensorSpec
from hyper_pp.torch_npu.tensors import DTYPES

Tensor = torch.Tensor
MIN_AHEAD, MAX_AHEAD, AHEAD_BYTES = 4, 64, 8 * 2**20  # receives posted ahead of their place
BUCKET_BYTES = 32 * 2**20  # few large messages, without doubling the memory of a large block

# What both hccl and gloo carry as it is. Anything else travels as its bytes.
_NATIVE = frozenset(
    {torch.float16, torch.bfloat16, torch.float32, torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64}
)
_channels: dict[tuple[int, ...], FailureChannel] = {}  # one for each pipeline of this process


class Sent:
    """A send under way; holds its tensors, which must not be freed before it is done."""

    __slots__ = ("_tensors", "_works")

    def __init__(self, works: list[Any], tensors: list[Tensor]) -> None:
        self._works = works
        self._tensors = tensors

    def wait(self) -> list[Tensor]:
        """Order what follows behind the send."""
        for work in self._works:
            work.wait()
        self._works, self._tensors = [], []
        return []


class Received:
    """A receive under way."""

    __slots__ = ("_tensors", "_works")

    def __init__(self, works: list[Any], tensors: list[Tensor]) -> None:
        self._works = works
        self._tensors = tensors

    def wait(self) -> list[Tensor]:
        """Order what follows behind the receive; return what arrived."""
        for work in self._works:
            work.wait()
        self._works = []
        return self._tensors


class TorchTransport:
    """Sends and receives for one rank of a pipeline.

    Args:
        group: The pipeline's process group; None for the default group, or for a pipeline of one rank without any.
        device: Where received tensors are made.
    """

    def __init__(self, group: dist.ProcessGroup | None, device: torch.device) -> None:
        if group is None and dist.is_initialized():
            group = dist.group.WORLD
        self.group = group
        self._largest = 1  # bytes of the largest message so far
        self.device = torch.device(device)
        self.rank = 0 if group is None else dist.get_rank(group)
        self.num_ranks = 1 if group is None else dist.get_world_size(group)
        # In a subgroup the pipeline's rank 1 may be the job's rank 2.
        self.global_ranks = (0,) if group is None else tuple(dist.get_process_group_ranks(group))
        self._channel: FailureChannel | None = None

    def connect(self, peers: Iterable[int]) -> None:
        """Open what opens at first use, in one order on all ranks; all ranks call it once, with all pairs in mind.

        On an NPU the first message of a pair blocks both until the communicator of the pair is there.

        Args:
            peers: Ranks that this rank exchanges messages with.
        """
        if self.num_ranks == 1:
            return
        if self.global_ranks not in _channels:
            # Rank 0's address is needed by the others to join, so it must go out before rank 0 waits for them.
            _channels[self.global_ranks] = FailureChannel(self.rank, self.num_ranks, self.all_gather_object)
        self._channel = _channels[self.global_ranks]
        wanted = self.all_gather_object(sorted(peers))
        pairs = {(min(a, b), max(a, b)) for a, others in enumerate(wanted) for b in others}
        token = torch.zeros(1, dtype=torch.float32, device=self.device)
        for low, high in sorted(pairs):
            for source, target in ((low, high), (high, low)):
                if self.rank == source:
                    self.group.send([token], target, 0).wait()
                elif self.rank == target:
                    self.group.recv([token], source, 0).wait()

    def start_step(self, peers: Iterable[int]) -> None:
        """Note that a step with these peers begins, so that a peer that made fewer steps is found out."""
        self._count_steps(peers, 1)

    def take_back_step(self, peers: Iterable[int]) -> None:
        """Note that nothing came of the step that was begun last."""
        self._count_steps(peers, -1)

    def _count_steps(self, peers: Iterable[int], number: int) -> None:
        if self._channel is not None:
            for peer in peers:
                self._channel.count(peer, number, number)

    @property
    def lookahead(self) -> int:
        """Receives that may be posted ahead of their place, as many as have room in little memory.

        On gloo a receive that waits holds up nothing, and a message whose receive is posted needs no announcement. On
        hccl it would hold up the stream.
        """
        if self.device.type != "cpu":
            return 0
        return max(MIN_AHEAD, min(MAX_AHEAD, AHEAD_BYTES // self._largest))

    # -- messages --------------------------------------------------------------------------------------------------

    def send(self, tensors: Sequence[Tensor], peer: int) -> Sent:
        """Start sending tensors of any dtype, layout and size."""
        wires = []
        for tensor in tensors:
            wire = tensor if tensor.is_contiguous() else tensor.contiguous()
            if wire.dtype not in _NATIVE:
                wire = _bytes_of(wire.resolve_conj())
            if wire.numel():  # an empty tensor is known from its shape alone
                wires.append(wire)
        send = self.group.send
        return Sent([send([wire], peer, 0) for wire in wires], wires)

    def recv(self, specs: Sequence[TensorSpec], peer: int) -> Received:
        """Start receiving tensors of these shapes and dtypes."""
        tensors, works = [], []
        for shape, name, _ in specs:
            tensor = torch.empty(shape, dtype=DTYPES[name], device=self.device)
            tensors.append(tensor)
            wire = tensor if tensor.dtype in _NATIVE else _bytes_of(tensor)
            if wire.numel():
                works.append(self.group.recv([wire], peer, 0))
        self._largest = max(self._largest, sum([tensor.nbytes for tensor in tensors]))
        return Received(works, tensors)

    def send_object(self, value: Any, peer: int) -> None:
        """Send a small picklable value, in order with the tensors."""
        data = torch.frombuffer(bytearray(pickle.dumps(value)), dtype=torch.uint8)
        for tensor in (torch.tensor([data.numel()]), data):
            self.group.send([tensor.to(self.device)], peer, 0).wait()

    def recv_object(self, peer: int) -> Any:
        """Receive what :meth:`send_object` sent."""
        size = torch.empty(1, dtype=torch.int64, device=self.device)
        self.group.recv([size], peer, 0).wait()
        data = torch.empty(int(size), dtype=torch.uint8, device=self.device)
        self.group.recv([data], peer, 0).wait()
        return pickle.loads(data.cpu().numpy().tobytes())

    # -- collectives -----------------------------------------------------------------------------------------------

    def broadcast(self, tensors: Sequence[Tensor], source: int) -> None:
        """Overwrite the tensors on every other rank with those of ``source``."""
        if self.num_ranks == 1:
            return
        sends = self.rank == source
        with torch.no_grad():
            for bucket in _buckets(tensors):
                # A tensor that fills a bucket travels from and to where it is.
                in_place = len(bucket) == 1 and bucket[0].is_contiguous()
                if in_place:
                    wire = bucket[0].detach().reshape(-1)
                elif sends:
                    wire = _joined(bucket)
                else:
                    wire = bucket[0].new_empty(sum([tensor.numel() for tensor in bucket]))
                dist.broadcast(_native(wire), self.global_ranks[source], group=self.group)
                if not (in_place or sends):
                    for tensor, part in zip(bucket, wire.split([tensor.numel() for tensor in bucket])):
                        tensor.copy_(part.view(tensor.shape))

    def reduce(self, tensors: Sequence[Tensor], target: int) -> list[Tensor]:
        """Return the sums over ranks on ``target``, undefined values elsewhere; the sums share memory in groups."""
        if self.num_ranks == 1:
            return [tensor.detach() for tensor in tensors]
        results: dict[int, Tensor] = {}
        for bucket in _buckets(tensors):
            wire = _joined(bucket)
            dist.reduce(wire, self.global_ranks[target], group=self.group)
            if self.rank == target:
                for tensor, part in zip(bucket, wire.split([tensor.numel() for tensor in bucket])):
                    results[id(tensor)] = part.view(tensor.shape)
        return [results.get(id(tensor), tensor) for tensor in tensors]

    def all_gather_object(self, value: Any) -> list[Any]:
        """Return every rank's small picklable value, by rank."""
        if self.num_ranks == 1:
            return [value]
        values: list[Any] = [None] * self.num_ranks
        dist.all_gather_object(values, value, group=self.group)
        return values

    def abort(self, reason: str) -> None:
        """Tell every other rank to end at once with ``reason`` as the first cause; returns."""
        if self._channel is not None:
            self._channel.abort(reason)


def _bytes_of(tensor: Tensor) -> Tensor:
    """Return a contiguous tensor's memory as a flat tensor of bytes."""
    return tensor.reshape(-1).view(torch.uint8)


def _native(wire: Tensor) -> Tensor:
    """Return a flat tensor as what the backends carry."""
    return wire if wire.dtype in _NATIVE else _bytes_of(wire)


def _joined(bucket: Sequence[Tensor]) -> Tensor:
    """Return copies of tensors of one dtype one after another."""
    return torch.cat([tensor.detach().reshape(-1) for tensor in bucket])


def _buckets(tensors: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """Yield groups of tensors of one dtype and limited size, the same on every rank; empty tensors are left out."""
    by_dtype: dict[torch.dtype, list[Tensor]] = {}
    for tensor in tensors:
        if tensor.numel():
            by_dtype.setdefault(tensor.dtype, []).append(tensor)
    for same in by_dtype.values():
        bucket: list[Tensor] = []
        size = 0
        for tensor in same:
            if bucket and size + tensor.nbytes > BUCKET_BYTES:
                yield bucket
                bucket, size = [], 0
            bucket.append(tensor)
            size += tensor.nbytes
        yield bucket
