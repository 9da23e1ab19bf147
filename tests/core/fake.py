"""Pure-Python stand-ins for a framework: tensors as lists, stages with backwards by hand, ranks as threads."""

import queue
import threading
import time
from dataclasses import dataclass, field

from hyper_pp.protocols import TensorSpec
from hyper_pp.tree import flatten, unflatten

TIMEOUT = 10.0  # seconds until a transfer that nobody answers is taken for a deadlock


@dataclass
class FakeTensor:
    """A tensor of one or no dimension: samples of one number each, or a scalar."""

    data: list
    dtype: str = "float"
    scalar: bool = False


def floats(*values):
    return FakeTensor([float(value) for value in values])


def scalar(value):
    return FakeTensor([float(value)], scalar=True)


class FakeTensors:
    def is_tensor(self, value):
        return isinstance(value, FakeTensor)

    def is_floating(self, tensor):
        return tensor.dtype == "float"

    def spec(self, tensor):
        return TensorSpec(() if tensor.scalar else (len(tensor.data),), tensor.dtype)

    def narrow(self, tensor, dim, start, length):
        assert dim in (0, -1)
        return FakeTensor(tensor.data[start : start + length], tensor.dtype)

    def concat(self, tensors, dim):
        assert dim in (0, -1)
        return FakeTensor([value for tensor in tensors for value in tensor.data], tensors[0].dtype)

    def full(self, spec, value):
        return FakeTensor([value] * (spec.shape[0] if spec.shape else 1), spec.dtype, not spec.shape)

    def weighted_sum(self, scalars, weights):
        return scalar(sum(weight * item.data[0] for weight, item in zip(weights, scalars)))

    def add(self, left, right):
        return FakeTensor([a + b for a, b in zip(left.data, right.data)], left.dtype, left.scalar)

    def copy(self, tensor):
        return FakeTensor(list(tensor.data), tensor.dtype, tensor.scalar)

    def same(self, left, right):
        return all(a.data == b.data for a, b in zip(left, right, strict=True))

    def number(self, value):
        return float(value.data[0] if isinstance(value, FakeTensor) else value)


TENSORS = FakeTensors()


def leaves_of(value):
    return flatten(value, TENSORS.is_tensor)[0]


@dataclass
class FakeTape:
    inputs: list
    needs_grad: list
    requires_grad: tuple
    grads: list | None = None
    stage: object = None
    continues: object = None


class ScaleStage:
    """Multiplies every float input by its parameter; everything else passes. ``extra`` goes along with the output."""

    def __init__(self, factor, extra=(), frozen=False):
        self.parameter = scalar(factor)
        self.gradient = None
        self.extra = tuple(extra)
        self.frozen = frozen
        self.calls = []

    def forward(self, args, kwargs, *, needs_grad, record, seed=None, keep_buffers=False, continues=None):
        self.calls.append((dict(kwargs), record, seed, keep_buffers))
        factor = self.parameter.data[0] + sum(kwargs.values())
        leaves, skeleton = flatten(args, TENSORS.is_tensor)
        is_float = [leaf.dtype == "float" for leaf in leaves]
        scaled = [
            FakeTensor([factor * x for x in leaf.data], leaf.dtype, leaf.scalar) if use else leaf
            for leaf, use in zip(leaves, is_float)
        ]
        output = unflatten(skeleton, scaled) + self.extra
        if continues is not None:
            assert not any(needs_grad)
            needs_grad = continues.requires_grad
        requires_grad = [use and (need or not self.frozen) for use, need in zip(is_float, needs_grad)]
        requires_grad += [False] * len(leaves_of(self.extra))
        tape = FakeTape(leaves, list(needs_grad), tuple(requires_grad), None, self, continues) if record else None
        return (output if len(output) > 1 else output[0]), tape

    def backward(self, tape, output_grads):
        grads = self.backward_input(tape, output_grads)
        self.backward_weight(tape)
        return grads

    def backward_input(self, tape, output_grads):
        grads = self._input_grads(tape, output_grads)
        return grads if tape.continues is None else tape.continues.stage.backward_input(tape.continues, grads)

    def _input_grads(self, tape, output_grads):
        for use, grad in zip(tape.requires_grad, output_grads, strict=True):
            assert use == (grad is not None), "a gradient for each tensor that can use one, and for no other"
        tape.grads = list(output_grads[: len(tape.inputs)])
        factor = self.parameter.data[0]
        return [
            FakeTensor([factor * g for g in grad.data], scalar=grad.scalar) if need and grad is not None else None
            for need, grad in zip(tape.needs_grad, tape.grads)
        ]

    def backward_weight(self, tape):
        if tape.continues is not None:
            tape.continues.stage.backward_weight(tape.continues)
        if self.frozen:
            return
        total = sum(x * g for leaf, grad in zip(tape.inputs, tape.grads) if grad for x, g in zip(leaf.data, grad.data))
        self.gradient = scalar(total + (self.gradient.data[0] if self.gradient else 0.0))

    def trainable(self):
        return not self.frozen

    def parameters(self):
        return [] if self.frozen else [self.parameter]

    def buffers(self):
        return [self.parameter] if self.frozen else []

    def gradients(self):
        return [] if self.frozen else [self.gradient]

    def set_gradients(self, gradients):
        if not self.frozen:
            (self.gradient,) = gradients


class DotLoss:
    """mean(output · target) of the first float output."""

    def forward(self, args, kwargs, *, needs_grad, record, seed=None, keep_buffers=False, continues=None):
        output, target = args
        first = leaves_of(output)[0]
        products = [y * t for y, t in zip(first.data, target.data, strict=True)]
        loss = scalar(sum(products) / len(products))
        assert not any(needs_grad)
        tape = FakeTape([first, target], [], (True,), continues=continues) if record else None
        return loss, tape

    def backward(self, tape, output_grads):
        return self._backward(tape, output_grads, tape.continues.stage.backward)

    def backward_input(self, tape, output_grads):
        return self._backward(tape, output_grads, tape.continues.stage.backward_input)

    def _backward(self, tape, output_grads, half):
        _, target = tape.inputs
        below, sens = tape.continues, output_grads[0].data[0] / len(target.data)
        grads = [FakeTensor([sens * t for t in target.data])]
        # Of the other tensors of the output, which the loss doesn't look at, the gradients are 0.
        for use, leaf in zip(below.requires_grad[1:], below.inputs[1:]):
            grads.append(FakeTensor([0.0] * len(leaf.data), scalar=leaf.scalar) if use else None)
        return half(below, grads + [None] * (len(below.requires_grad) - len(grads)))

    def backward_weight(self, tape):
        tape.continues.stage.backward_weight(tape.continues)

    def trainable(self):
        return False

    def parameters(self):
        return []

    def buffers(self):
        return []

    def gradients(self):
        return []

    def set_gradients(self, gradients):
        assert not gradients


class Done:
    def __init__(self, tensors=()):
        self.tensors = list(tensors)

    def wait(self):
        return self.tensors


class Ended(Exception):
    """Another rank failed first."""


class Network:
    """Channels between threads. With ``blocking`` a send returns only when its receive has taken it."""

    def __init__(self, num_ranks, blocking=True):
        self.num_ranks = num_ranks
        self.blocking = blocking
        self.channels = {(a, b): queue.Queue() for a in range(num_ranks) for b in range(num_ranks)}
        self.taken = {key: queue.Queue() for key in self.channels}
        self.barrier = threading.Barrier(num_ranks)
        self.slots = [None] * num_ranks
        self.first_cause = None
        self.log = [[] for _ in range(num_ranks)]


@dataclass
class FakeTransport:
    network: Network
    rank: int
    late: dict = field(default_factory=dict)
    lookahead: int = 0

    @property
    def num_ranks(self):
        return self.network.num_ranks

    def _wait(self, channel):
        """Wait for a message, but not longer than until some rank failed."""
        end = time.monotonic() + TIMEOUT
        while time.monotonic() < end:
            try:
                return channel.get(timeout=0.05)
            except queue.Empty:
                if self.network.first_cause is not None:
                    raise Ended(self.network.first_cause) from None
        raise TimeoutError("nobody answered: the orders deadlock")

    def _put(self, item, peer):
        self.network.channels[self.rank, peer].put(item)
        if self.network.blocking:
            self._wait(self.network.taken[self.rank, peer])

    def _get(self, peer):
        item = self._wait(self.network.channels[peer, self.rank])
        if self.network.blocking:
            self.network.taken[peer, self.rank].put(None)
        return item

    def send(self, tensors, peer):
        self.network.log[self.rank].append(("send", peer, len(tensors)))
        if tensors:
            copies = [FakeTensor(list(t.data), t.dtype, t.scalar) for t in tensors]
            self._put(copies, peer)
        return Done()

    def recv(self, specs, peer):
        if not specs:
            return Done()
        if self.network.blocking:
            return Done(self._checked(specs, peer))
        return Late(self, specs, peer)

    def _checked(self, specs, peer):
        tensors = self._get(peer)
        found = [TENSORS.spec(tensor) for tensor in tensors]
        assert found == [spec._replace(requires_grad=False) for spec in specs], (found, specs)
        return tensors

    def send_object(self, value, peer):
        self._put(value, peer)

    def recv_object(self, peer):
        self.settle(peer)
        return self._get(peer)

    def settle(self, peer):
        """Take what earlier receives from this peer wait for: messages match in order."""
        for late in self.late.pop(peer, []):
            late.take()

    def broadcast(self, tensors, source):
        self.network.log[self.rank].append(("broadcast", source, len(tensors)))
        values = self.all_gather_object([list(tensor.data) for tensor in tensors])[source]
        for tensor, value in zip(tensors, values):
            tensor.data = list(value)

    def reduce(self, tensors, target):
        self.network.log[self.rank].append(("reduce", target, len(tensors)))
        gathered = self.all_gather_object([list(tensor.data) for tensor in tensors])
        return [
            FakeTensor([sum(column) for column in zip(*values)], tensor.dtype, tensor.scalar)
            for tensor, values in zip(tensors, zip(*gathered))
        ]

    def all_gather_object(self, value):
        network = self.network
        network.slots[self.rank] = value
        network.barrier.wait(TIMEOUT)
        values = list(network.slots)
        network.barrier.wait(TIMEOUT)
        return values

    def abort(self, reason):
        if self.network.first_cause is None:
            self.network.first_cause = reason
        self.network.barrier.abort()


class Late:
    """A receive that is posted now and taken when it is waited for, after the ones posted before it."""

    def __init__(self, transport, specs, peer):
        self.transport, self.specs, self.peer = transport, specs, peer
        self.tensors = None
        transport.late.setdefault(peer, []).append(self)

    def take(self):
        self.tensors = self.transport._checked(self.specs, self.peer)

    def wait(self):
        if self.tensors is None:
            mine = self.transport.late[self.peer]
            while self.tensors is None:
                mine.pop(0).take()
        return self.tensors


def on_ranks(num_ranks, function):
    """Run ``function(rank)`` on one thread per rank; return the results, or raise the error that came first."""
    results, errors = [None] * num_ranks, []

    def main(rank):
        try:
            results[rank] = function(rank)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=main, args=(rank,), daemon=True) for rank in range(num_ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(6 * TIMEOUT)
    if errors:
        raise errors[0]
    return results
