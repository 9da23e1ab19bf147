"""What must hold of the emulated NPU itself, for the comparisons on it to mean something."""

import gc

import torch
from torch import nn

NPU = "npu"  # the current one


def fresh_memory_is_full_of_nan():
    assert torch.empty(64 << 20, device=NPU).isnan().all()


def complex_gradients_are_those_of_the_cpu():
    torch.manual_seed(3)
    x, w = torch.randn(3, 4, dtype=torch.complex64), torch.randn(4, 4, dtype=torch.complex64)
    found = []
    for device in ("cpu", NPU):
        weight = w.clone().to(device).requires_grad_()
        y = x.to(device) @ weight  # its backward multiplies by conjugated views
        (y.abs().pow(2).sum() + (x.to(device) @ weight.mH).imag.pow(2).sum()).backward()
        found.append(weight.grad.cpu())
    torch.testing.assert_close(*found)


def a_seed_repeats_what_is_drawn_on_the_device():
    drawn = []
    for _ in range(2):
        torch.npu.manual_seed(5)
        x = torch.ones(100, device=NPU)
        drawn.append([nn.functional.dropout(x, 0.5).cpu(), torch.rand(3, device=NPU).cpu()])
    assert 20 < drawn[0][0].count_nonzero() < 80
    for first, second in zip(*drawn):
        assert torch.equal(first, second)


def no_tensor_outlives_a_step_in_a_reference_cycle():
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).to(NPU)
    optimizer = torch.optim.AdamW(layer.parameters())

    def step():
        layer(torch.ones(2, 3, 8, device=NPU)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    step()
    gc.collect()
    gc.disable()
    try:
        before = torch.npu.memory_allocated()
        for _ in range(3):
            step()
        assert torch.npu.memory_allocated() == before
    finally:
        gc.enable()


CASES = {
    case.__name__: case
    for case in (
        fresh_memory_is_full_of_nan,
        complex_gradients_are_those_of_the_cpu,
        a_seed_repeats_what_is_drawn_on_the_device,
        no_tensor_outlives_a_step_in_a_reference_cycle,
    )
}
