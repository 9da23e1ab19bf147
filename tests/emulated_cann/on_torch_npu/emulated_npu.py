"""Arithmetic for torch_npu's tensors on the emulated CANN: import this instead of torch_npu.

Every aten operator that torch_npu would hand to an Ascend kernel runs torch's CPU kernel on the same bytes: the memory
of the emulated device is host memory, so tensors are aliased, not copied. Allocation, views, storages, streams, events,
the caching allocator and ProcessGroupHCCL stay torch_npu's own code.

An operator first drains its current stream, so that it sees what copies, waits for events and HCCL's operations on that
stream wrote before, then runs on the host. It doesn't wait for other streams, as on hardware: a missing wait shows.
"""

import ctypes
import os
import struct
import warnings

os.environ.setdefault("ACLNN_CACHE_LIMIT", "0")
warnings.filterwarnings("ignore", message=".*Warning only once for all operators.*")

import torch  # noqa: E402 - after the settings above
import torch_npu  # noqa: E402, F401 - likewise
from torch._C import DispatchKey  # noqa: E402 - likewise

NPU = "npu"
# torch_npu's own implementation of these works here: metadata, allocation, plain copies out.
KEPT = {
    *("empty.memory_format", "empty_strided", "new_empty_strided", "empty_like", "empty_with_format"),
    *("unsafe_empty_with_format", "empty_with_swapped_memory", "resize_", "resize_as_", "set_", "set_.source_Storage"),
    *("set_.source_Storage_storage_offset", "set_.source_Tensor", "is_set_to", "record_stream", "_pin_memory"),
    *("is_pinned", "_local_scalar_dense", "get_storage_size", "copy_memory_", "_copy_from_and_resize", "contiguous"),
}
CPU_KERNELS = (
    *("CPU", "CompositeExplicitAutograd", "CompositeImplicitAutograd", "CompositeExplicitAutogradNonFunctional"),
)


def drain(device: int) -> None:
    """Wait for everything on the device's current stream."""
    torch.npu.current_stream(device).synchronize()


def alias(tensor: torch.Tensor) -> torch.Tensor:
    """Return a CPU tensor over the bytes of an NPU tensor."""
    storage = tensor.untyped_storage()
    if storage.nbytes() == 0 or tensor.numel() == 0:
        return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype)
    buffer = (ctypes.c_uint8 * storage.nbytes()).from_address(storage.data_ptr())
    memory = torch.frombuffer(buffer, dtype=torch.uint8).untyped_storage()
    result = torch.empty(0, dtype=tensor.dtype)
    result.set_(memory, tensor.storage_offset(), tensor.size(), tensor.stride())
    # Matrix products take conjugated and negated views as they are: the flag isn't in the bytes.
    if tensor.is_conj():
        result = result.conj()
    return torch._neg_view(result) if tensor.is_neg() else result


def cpu_generator(device: int, generator: torch.Generator | None = None) -> torch.Generator:
    """Return a CPU generator that follows the state of an NPU generator, so that seeds and saved states behave."""
    if generator is None:
        torch.npu.init()
        generator = torch.npu.default_generators[device]
    state = generator.get_state()
    seed, offset = struct.unpack("<Qq", bytes(state[:16].tolist()))
    state[8:16] = torch.tensor(list(struct.pack("<q", offset + 4)), dtype=torch.uint8)
    generator.set_state(state)
    return torch.Generator().manual_seed((seed + 1_000_003 * offset) % 2**63)


def device_of(values: list) -> int:
    """Return the index of the NPU that an operator's arguments are on."""
    for value in values:
        if isinstance(value, (list, tuple)):
            values = [*values, *value]
    for value in values:
        device = value.device if isinstance(value, torch.Tensor) else value
        if isinstance(device, torch.device) and device.type == NPU and device.index is not None:
            return device.index
    return torch.npu.current_device()


class Call:
    """One call of an operator: what of the NPU its CPU arguments stand for."""

    def __init__(self, device: int) -> None:
        self.device = device
        self.pairs: list[tuple[torch.Tensor, torch.Tensor]] = []  # CPU alias, NPU tensor

    def to_cpu(self, value):
        """Return an argument as the CPU kernel takes it."""
        if isinstance(value, torch.Tensor) and value.device.type == NPU:
            self.pairs.append((alias(value), value))
            return self.pairs[-1][0]
        if isinstance(value, torch.device) and value.type == NPU:
            return torch.device("cpu")
        if isinstance(value, torch.Generator) and value.device.type == NPU:
            return cpu_generator(self.device, value)
        if isinstance(value, (list, tuple)):
            return type(value)(self.to_cpu(item) for item in value)
        return value

    def to_npu(self, value):
        """Return a result as the caller expects it: an argument itself, a view of one, or a new tensor."""
        if isinstance(value, (list, tuple)):
            return type(value)(self.to_npu(item) for item in value)
        if not isinstance(value, torch.Tensor):
            return value
        for cpu, npu in self.pairs:
            if cpu is value:
                return npu
        if value.numel():
            for cpu, npu in self.pairs:
                if cpu.numel() and cpu.untyped_storage().data_ptr() == value.untyped_storage().data_ptr():
                    return torch.as_strided(npu, value.size(), value.stride(), value.storage_offset())
        value = value.resolve_conj().resolve_neg()
        result = torch.empty_strided(
            value.size(), value.stride(), dtype=value.dtype, device=torch.device(NPU, self.device)
        )
        if value.numel():
            alias(result).copy_(value)
        return result

    def take_over_sizes(self) -> None:
        """Resize NPU tensors whose alias a kernel with out= resized."""
        for cpu, npu in self.pairs:
            if cpu.size() != npu.size():
                npu.resize_(cpu.size())
                alias(npu).copy_(cpu)


def kernel_of(operator):
    """Return what runs in place of torch_npu's kernel of an operator."""
    takes_generator = any("Generator" in str(argument.type) for argument in operator._schema.arguments)
    draws = torch.Tag.nondeterministic_seeded in operator.tags and not takes_generator

    def kernel(*args, **kwargs):
        call = Call(device_of([*args, *kwargs.values()]))
        drain(call.device)
        cpu_args = [call.to_cpu(value) for value in args]
        cpu_kwargs = {name: call.to_cpu(value) for name, value in kwargs.items()}
        if takes_generator and cpu_kwargs.get("generator") is None:
            cpu_kwargs["generator"] = cpu_generator(call.device)
        if draws:  # random numbers, but no generator to pass: dropout, rand_like
            with torch.random.fork_rng(devices=[]):
                torch.set_rng_state(cpu_generator(call.device).get_state())
                result = operator(*cpu_args, **cpu_kwargs)
        else:
            result = operator(*cpu_args, **cpu_kwargs)
        call.take_over_sizes()
        return call.to_npu(result)

    return kernel


def at_key(operator, key):
    """Return what runs an operator's implementation for another dispatch key."""

    def run(*args, **kwargs):
        return operator._op_dk(key, *args, **kwargs)

    return run


def copy_(target, source, non_blocking=False):
    """Copy between devices, or on one."""
    for tensor in (target, source):
        if tensor.device.type == NPU:
            drain(tensor.device.index)
    to, of = (alias(tensor) if tensor.device.type == NPU else tensor for tensor in (target, source))
    to.copy_(of)
    return target


def install() -> torch.library.Library:
    """Replace torch_npu's kernels; they stay replaced while the library lives."""
    library = torch.library.Library("aten", "IMPL")
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    for full in torch._C._dispatch_get_all_op_names():
        name = full.removeprefix("aten::")
        keys = [key for key in ("PrivateUse1", "AutogradPrivateUse1") if has(full, key)]
        if name == full or not keys or name in KEPT or name == "copy_":
            continue
        base, _, overload = name.partition(".")
        packet = getattr(torch.ops.aten, base, None)
        operator = getattr(packet, overload or "default", None)
        if operator is None or not any(has(full, key) for key in CPU_KERNELS):
            continue
        if any(result.alias_info is not None and not result.alias_info.is_write for result in operator._schema.returns):
            continue  # a view
        if has(full, "CompositeImplicitAutograd"):
            # torch_npu puts a fused kernel in place of a composition: go back to the composition.
            for key in keys:
                library.impl(
                    name, at_key(operator, DispatchKey.CompositeImplicitAutograd), key, allow_override=True
                )
            continue
        if "PrivateUse1" in keys:
            library.impl(name, kernel_of(operator), "PrivateUse1", allow_override=True)
        if "AutogradPrivateUse1" in keys and has(full, "Autograd"):
            library.impl(name, at_key(operator, DispatchKey.Autograd), "AutogradPrivateUse1", allow_override=True)
    library.impl("copy_", copy_, "PrivateUse1", allow_override=True)
    to_copy = at_key(torch.ops.aten._to_copy.default, DispatchKey.CompositeExplicitAutograd)
    library.impl("_to_copy", to_copy, "PrivateUse1", allow_override=True)
    return library


_library = install()
