"""What tensors and objects look like on their way between ranks."""

import pickle
from collections.abc import Iterator, Sequence
from typing import Any

import mindspore
import numpy
from mindspore import Tensor, mint

from hyper_pp.mindspore.tensors import DTYPES, dtype_of
from hyper_pp.protocols import TensorSpec

# What both libraries carry as it is; anything else travels as bytes.
NATIVE = frozenset(["Float16", "Float32", "Float64", "BFloat16", "Int8", "UInt8", "Int32", "Int64"])
ITEM_SIZES = {"Bool": 1, "Int16": 2, "UInt16": 2, "UInt32": 4, "UInt64": 8, "Complex64": 8, "Complex128": 16}  # bytes
BUCKET_BYTES = 64 << 20


def _travels_as_bytes(dtype: str) -> bool:
    if dtype not in DTYPES:
        raise TypeError(f"a tensor of type {dtype} can't be sent to another rank; use one of {', '.join(DTYPES)}")
    return dtype not in NATIVE


def to_wire(tensor: Tensor) -> Tensor:
    """Return what is sent for a tensor that holds at least one element."""
    needs_bytes = _travels_as_bytes(str(tensor.dtype))
    if not tensor.is_contiguous():
        tensor = tensor.contiguous()
    return as_bytes(tensor) if needs_bytes else tensor


def as_bytes(tensor: Tensor) -> Tensor:
    """Return the bytes of a contiguous tensor, flat; they share its memory, except for a 0-d tensor's."""
    flat = tensor.reshape(-1)
    if tensor.ndim == 0:  # bytes of a view of a 0-d tensor crash the process (MindSpore 2.10)
        flat = flat.copy()
    return flat.view(mindspore.uint8)


def buffer_for(spec: TensorSpec) -> Tensor:
    """Return what to receive a tensor into."""
    dtype = dtype_of(spec.dtype)
    if 0 in spec.shape:
        return mint.zeros(spec.shape, dtype=dtype)
    if not _travels_as_bytes(spec.dtype):
        return mint.empty(spec.shape, dtype=dtype)
    size = int(numpy.prod(spec.shape, dtype=numpy.int64))
    return mint.empty((size * ITEM_SIZES[spec.dtype],), dtype=mindspore.uint8)


def from_wire(buffer: Tensor, spec: TensorSpec) -> Tensor:
    """Return the tensor that was received."""
    if spec.dtype in NATIVE or 0 in spec.shape:
        return buffer
    return buffer.view(dtype_of(spec.dtype)).reshape(spec.shape)


def buckets(tensors: Sequence[Tensor]) -> list[list[Tensor]]:
    """Return the tensors, but empty ones, in lists of one dtype and at most ``BUCKET_BYTES``."""
    by_dtype: dict[str, list[Tensor]] = {}
    for tensor in tensors:
        if 0 not in tensor.shape:
            by_dtype.setdefault(str(tensor.dtype), []).append(tensor)
    buckets: list[list[Tensor]] = []
    for same in by_dtype.values():
        room = 0
        for tensor in same:
            if tensor.nbytes > room:
                buckets.append([])
                room = BUCKET_BYTES
            buckets[-1].append(tensor)
            room -= tensor.nbytes
    return buckets


def joined(tensors: Sequence[Tensor]) -> Tensor:
    """Return a new flat tensor with everything in it."""
    if len(tensors) == 1:
        return tensors[0].reshape(-1).copy()
    return mint.cat([tensor.reshape(-1) for tensor in tensors])


def parted(data: Tensor, like: Sequence[Tensor]) -> Iterator[Tensor]:
    """Take a flat tensor apart into new tensors of the shapes of ``like``."""
    start = 0
    for tensor in like:
        size = int(numpy.prod(tensor.shape, dtype=numpy.int64))
        # A copy, since copy_() from a view of the first elements raises on CPU (MindSpore 2.10).
        yield mint.narrow(data, 0, start, size).reshape(tensor.shape).copy()
        start += size


def packed(value: Any) -> bytes:
    """Return a pickled value behind its length."""
    data = pickle.dumps(value)
    return len(data).to_bytes(8, "little") + data


def packed_length(data: bytes) -> int:
    """Return how long the packed value that starts with ``data`` is."""
    return 8 + int.from_bytes(data[:8], "little")


def unpacked(data: bytes) -> Any:
    """Return the value; what follows it is ignored."""
    return pickle.loads(data[8 : packed_length(data)])


def bytes_tensor(data: bytes) -> Tensor:
    """Return bytes as a tensor."""
    return Tensor(numpy.frombuffer(data, numpy.uint8))
