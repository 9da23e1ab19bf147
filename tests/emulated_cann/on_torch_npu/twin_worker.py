"""Under torchrun on emulated NPUs: schedules of the twin beside one process on the CPU."""

import parity_worker

SHAPES = ((1, 1), (1, 4), (2, 3), (2, 8))  # V, M


def grid():
    """Return the cases of the CPU's grid that run here: every schedule and kind of block."""
    return [case for case in parity_worker.grid() if (case[1], case[2]) in SHAPES and case[3] < 2]


def main():
    import emulated_npu  # noqa: F401 - brings the device
    import torch
    import torch.distributed as dist
    from torchrun_launch import run_cases

    torch.set_num_threads(1)
    torch.npu.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("hccl", timeout=datetime.timedelta(seconds=90))
    parity_worker.DEVICE = torch.device("npu", torch.npu.current_device())
    cases = {parity_worker.name_of(case): lambda case=case: parity_worker.run_case(case) for case in grid()}
    run_cases(cases, dist.get_rank())
    dist.destroy_process_group()


if __name__ == "__main__":
    import datetime
    import os

    main()
