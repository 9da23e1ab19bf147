"""Cases of a transport, run on every worker of one launch: ``msrun … mindspore_transport_cases.py [device]``.

The pipeline's ranks are a permutation of the global ones, so that a mixed-up mapping shows.
"""

import os
import sys
import time
import traceback
from typing import NamedTuple

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor
from mindspore_kit import MindSporeKit
from msrun_launch import report

from hyper_pp.mindspore.tensors import DTYPES, MindSporeTensors
from hyper_pp.mindspore.transport import MindSporeTransport
from hyper_pp.protocols import TensorSpec
from tests.protocol_conformance import TRANSPORT_CASES

GLOBAL_RANKS = [2, 0, 1]
T = MindSporeTensors()
CASES = {}
# The emulated Ascend copies no complex numbers, an NPU does.
CARRIED = [dtype for dtype in DTYPES if "Ascend" not in sys.argv[1:] or not dtype.startswith("Complex")]


def case(function, name=None):
    CASES[name or function.__name__] = function
    return function


def sample(dtype, shape, start=0):
    size = int(np.prod(shape))
    values = np.arange(start, start + size).reshape(shape)
    if dtype == "Bool":
        return Tensor(values % 3 == 0)
    if dtype.startswith("Complex"):
        return Tensor((values + 1j * (values + 0.5)).astype(dtype.lower()))
    if "Float" in dtype:
        values = values + 0.5
    return Tensor(values, DTYPES[dtype])


def same(got, want):
    assert (got.shape, got.dtype) == (want.shape, want.dtype), (got.shape, got.dtype, want.shape, want.dtype)
    if str(got.dtype) == "BFloat16":
        got, want = got.astype(ms.float32), want.astype(ms.float32)
    np.testing.assert_array_equal(got.asnumpy(), want.asnumpy())


def ring(transport, tensors, wanted=None):
    """Send tensors to the next rank; check that the ones of the rank before arrive."""
    wanted = tensors if wanted is None else wanted
    after, before = (transport.rank + 1) % 3, (transport.rank - 1) % 3
    specs = [T.spec(tensor) for tensor in wanted]
    if transport.rank == 0:  # a total order that also works where a send waits for its receive
        transport.send(tensors, after).wait()
        received = transport.recv(specs, before).wait()
    else:
        received = transport.recv(specs, before).wait()
        transport.send(tensors, after).wait()
    for got, want in zip(received, wanted, strict=True):
        same(got, want)


for dtype in CARRIED:
    case(
        lambda t, dtype=dtype: ring(t, [sample(dtype, (2, 3)), sample(dtype, ()), sample(dtype, (5,), 7)]),
        f"send {dtype}",
    )


@case
def zero_size_tensors_do_not_travel(t):
    ring(t, [sample("Float32", (0, 3)), sample("Int64", (4,)), sample("Bool", (0,))])


@case
def transposed_and_sliced_sources(t):
    x = Tensor(np.arange(16.0, dtype=np.float32).reshape(4, 4))
    want = [Tensor(np.ascontiguousarray(x.asnumpy().T)), Tensor(np.ascontiguousarray(x.asnumpy()[:, 1:]))]
    ring(t, [x.T, x[:, 1:]], want)
    assert want[0].asnumpy()[0].tolist() == [0, 4, 8, 12]


@case
def slices_of_the_first_dimension(t):
    x = Tensor(np.arange(12, dtype=np.int32).reshape(6, 2))
    wanted = [Tensor([[0, 1], [2, 3]], ms.int32), Tensor([[4, 5], [6, 7]], ms.int32), Tensor([[10, 11]], ms.int32)]
    ring(t, [x[0:2], x[2:4], x.narrow(0, 5, 1)], wanted)


@case
def slices_that_travel_as_bytes(t):
    mask, freqs = sample("Bool", (4, 6)), sample(CARRIED[-1], (4, 3))
    copy = lambda x: Tensor(np.ascontiguousarray(x.asnumpy()))  # noqa: E731
    ring(t, [mask[:, ::2], freqs[1:]], [copy(mask[:, ::2]), copy(freqs[1:])])


@case
def a_message_of_64_megabytes(t):
    ring(t, [Tensor(np.arange(1 << 24, dtype=np.float32))])


@case
def a_message_sent_inside_somebodys_recorded_forward(t):
    from hyper_pp.mindspore import autograd

    x = Tensor([1.0, 2.0], ms.float32)
    autograd.record(lambda: ring(t, [autograd.leaf(x) * 2], [Tensor([2.0, 4.0], ms.float32)]), (), {})


@case
def an_unknown_dtype_is_refused_with_a_list(t):
    class Odd:
        dtype, shape = "Int4", (2,)

    try:
        t.send([Odd()], (t.rank + 1) % 3)
    except TypeError as error:
        assert str(error).startswith("a tensor of type Int4 can't be sent to another rank; use one of Bool, Int8"), (
            error
        )
    else:
        raise AssertionError("no TypeError")


@case
def fifty_outstanding_sends_arrive_in_order(t):
    if t.rank == 0:
        pending = [t.send([Tensor([float(k)], ms.float32)], 1 + k % 2) for k in range(50)]
        for one in pending:
            one.wait()
    else:
        pending = [t.recv([TensorSpec((1,), "Float32")], 0) for _ in range(25)]
        got = [one.wait()[0].asnumpy().tolist() for one in pending]
        assert got == [[float(k)] for k in range(t.rank - 1, 50, 2)], got


@case
def receives_may_be_waited_for_in_any_order(t):
    if t.rank == 0:
        for k in range(6):
            t.send([Tensor([k], ms.int32)], 1).wait()
    elif t.rank == 1:
        pending = [t.recv([TensorSpec((1,), "Int32")], 0) for _ in range(6)]
        assert {k: pending[k].wait()[0].asnumpy().tolist() for k in (3, 5, 0, 1, 4, 2)} == {k: [k] for k in range(6)}


@case
def a_receive_put_off_does_not_hold_up_a_collective(t):
    before, after = (t.rank - 1) % 3, (t.rank + 1) % 3
    if t.rank == 0:
        sent, received = t.send([Tensor([t.rank], ms.int32)], after), t.recv([TensorSpec((1,), "Int32")], before)
    else:
        received, sent = t.recv([TensorSpec((1,), "Int32")], before), t.send([Tensor([t.rank], ms.int32)], after)
    assert t.all_gather_object(t.rank) == [0, 1, 2]
    assert received.wait()[0].asnumpy().tolist() == [before]
    sent.wait()


@case
def objects_small_and_large(t):
    for value in ({"a": (1, None)}, "x" * 5000, [TensorSpec((1, 2), "Float32", True)], b"\0" * 1008, b"\0" * 1009):
        if t.rank == 0:
            t.send_object(value, 1)
            t.send_object(value, 2)
        else:
            assert t.recv_object(0) == value


@case
def objects_keep_their_place_between_tensors(t):
    if t.rank == 1:
        pending = t.send([Tensor([1.0], ms.float32)], 2)
        t.send_object("between", 2)
        t.send([Tensor([2.0], ms.float32)], 2).wait()
        pending.wait()
    elif t.rank == 2:
        first = t.recv([TensorSpec((1,), "Float32")], 1)
        assert t.recv_object(1) == "between"
        second = t.recv([TensorSpec((1,), "Float32")], 1)
        assert [second.wait()[0].asnumpy().tolist(), first.wait()[0].asnumpy().tolist()] == [[2.0], [1.0]]


@case
def gathered_objects_of_different_length(t):
    value = ("x" * (t.rank * 3000), t.rank)
    assert t.all_gather_object(value) == [("x" * (rank * 3000), rank) for rank in range(3)]


@case
def broadcast_writes_into_tensors_and_parameters(t):
    shapes = [(2, 3), (), (0, 2), (4,)]
    for source in (0, 2):
        tensors = [sample(dtype, shape, 10 * t.rank) for dtype in CARRIED for shape in shapes]
        parameter = Parameter(sample("Float32", (3, 2), t.rank), name="p")
        t.broadcast([*tensors, parameter], source)
        for got, want in zip(tensors, [sample(dtype, shape, 10 * source) for dtype in CARRIED for shape in shapes]):
            same(got, want)
        assert parameter.requires_grad
        np.testing.assert_array_equal(parameter.asnumpy(), sample("Float32", (3, 2), source).asnumpy())


@case
def broadcast_in_several_buckets(t):
    from hyper_pp.mindspore import wire

    before, wire.BUCKET_BYTES = wire.BUCKET_BYTES, 40
    try:
        tensors = [sample("Float32", (k,), k + t.rank) for k in range(1, 9)]
        t.broadcast(tensors, 1)
        for k, tensor in enumerate(tensors, 1):
            same(tensor, sample("Float32", (k,), k + 1))
    finally:
        wire.BUCKET_BYTES = before


def check_reduce(t, dtype, target):
    tensors = [sample(dtype, shape, t.rank) for shape in [(2, 2), (), (0,), (3,)]]
    sums = t.reduce(tensors, target)
    for shape, tensor in zip([(2, 2), (), (0,), (3,)], tensors):
        same(tensor, sample(dtype, shape, t.rank))  # the caller's are left alone
    if t.rank == target:
        parts = [
            [sample(dtype, shape, rank).astype(ms.float64).asnumpy() for rank in range(3)]
            for shape in [(2, 2), (), (0,), (3,)]
        ]
        for total, part in zip(sums, parts, strict=True):
            assert str(total.dtype) == dtype and total.shape == part[0].shape
            np.testing.assert_array_equal(total.astype(ms.float64).asnumpy(), sum(part))


for dtype in ("Float16", "BFloat16", "Float32", "Float64", "Int32", "Int64"):
    case(lambda t, dtype=dtype: check_reduce(t, dtype, 1), f"reduce {dtype}")


class Position(NamedTuple):
    x: int


@case
def a_pair_of_two_of_the_ranks(t):
    if t.rank == 2:  # global rank 1
        return
    pair = MindSporeTransport([2, 0])
    assert (pair.rank, pair.num_ranks) == (t.rank, 2)
    assert pair.all_gather_object(Position(pair.rank)) == [Position(0), Position(1)]
    if pair.rank == 0:
        pair.send([Tensor([5.0], ms.float32)], 1).wait()
    else:
        assert pair.recv([TensorSpec((1,), "Float32")], 0).wait()[0].asnumpy().tolist() == [5.0]


@case
def a_group_without_this_process_is_refused(t):
    others = [rank for rank in range(3) if rank != t.ranks[t.rank]]
    try:
        MindSporeTransport(others)
    except ValueError as error:
        assert str(error).startswith(f"group must hold this process's global rank {t.ranks[t.rank]}"), error
    else:
        raise AssertionError("no ValueError")


for conforming in TRANSPORT_CASES:
    case(lambda t, check=conforming: check(t, MindSporeKit()), f"conformance {conforming.__name__}")


def main(device):
    os.environ.setdefault("MS_CPU_COMM_OP_TIMEOUT", "20")
    if device == "Ascend":
        ms.set_device("Ascend")
        ms.set_context(mode=ms.PYNATIVE_MODE)
    else:
        ms.set_context(mode=ms.PYNATIVE_MODE, device_target=device)
    transport = MindSporeTransport(GLOBAL_RANKS)
    for name, function in CASES.items():
        start = time.perf_counter()
        try:
            function(transport)
            outcome = "ok"
        except Exception:
            outcome = traceback.format_exc()
        report(name, outcome)
        print(f"{name}: {outcome} {1000 * (time.perf_counter() - start):.0f} ms", flush=True)
        if outcome != "ok":  # what follows would find messages that belong here
            transport.abort(f"rank {transport.rank}: case {name!r} failed")
            sys.exit(1)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "CPU")
