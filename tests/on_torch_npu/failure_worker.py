"""Under torchrun, 2 ranks: one way to fail, named by the first argument; must not end well."""

import sys
import time

import torch
import torch.distributed as dist
from boundary_cases import CPU, Scale, rank, step, two_stages
from torch import nn

from hyper_pp.torch_npu import PipelineStage, ScheduleMPipeTranspose


class RaisesLater(Scale):
    """Divides by zero in step 3 at micro-batch 2."""

    calls = 0

    def forward(self, x):
        self.calls += 1
        if self.calls == 3 * 4 + 3:
            note_fault()
            raise ZeroDivisionError("division by zero")
        return super().forward(x)


def note_fault():
    print(f"fault at {time.time()}", flush=True)


def run(kind):
    x, target = torch.ones(8, 1), torch.zeros(8)
    if kind == "raise":
        module, schedule = two_stages(Scale(1), RaisesLater(1), 4, lambda y, _: y.mean())
        for number in range(10):
            before = module.factor.grad.clone() if number else None
            try:
                step(schedule, x, target)
            finally:
                if number == 3:
                    assert torch.equal(module.factor.grad, before)
                    print("gradients are as they were", flush=True)
    elif kind == "shape":
        _, schedule = two_stages(Scale(1), Scale(1), 4, lambda y, _: y.mean())
        step(schedule, x, target)
        note_fault()
        step(schedule, torch.ones(16, 1), torch.zeros(16))
    elif kind == "evaluation shape":
        _, schedule = two_stages(Scale(1), Scale(1), 2, lambda y, _: y.mean())
        step(schedule, torch.ones(2, 1), torch.zeros(2))
        note_fault()
        schedule.eval(*([torch.ones(8, 1)] if rank() == 0 else []))
    elif kind == "vector loss":
        _, schedule = two_stages(Scale(1), Scale(1), 4, lambda y, _: y)
        note_fault()
        step(schedule, x, target)
    elif kind == "short loader":
        _, schedule = two_stages(Scale(1), Scale(1), 4, lambda y, _: y.mean())
        for _ in range(3 if rank() == 1 else 5):
            step(schedule, x, target)
        note_fault()
    elif kind == "block":
        stage = PipelineStage(Scale(1), rank(), 2, CPU)
        block = RaisesLater(1) if rank() == 1 else Scale(1)
        block.calls = 14
        schedule = ScheduleMPipeTranspose([stage], 4, nn.MSELoss(), preprocess=block)
        schedule.step(x, target=target.unsqueeze(-1))


if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    run(sys.argv[1])
    print("ended well", flush=True)
