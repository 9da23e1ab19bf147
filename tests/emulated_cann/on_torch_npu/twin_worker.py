"""Under torchrun on emulated NPUs: schedules of the twin beside one process on the CPU."""

import parity_worker
from block_kinds import MAIN_KINDS

SHAPES = {2: ((1, 4), (2, 3)), 4: ((1, 1), (2, 8))}  # P: V, M
BLOCK_SHAPE = {2: (2, 3), 4: (1, 7)}  # of the schedule transpose, which has many options; all of them on 2 ranks


def grid(num_ranks):
    """Return the cases of the CPU's grid that run here on so many ranks."""
    cases = []
    for case in parity_worker.grid():
        name, v, m, t, kind = case
        if name == "transpose":
            wanted = (v, m) == BLOCK_SHAPE[num_ranks] and (num_ranks == 2 or kind in ("none", *MAIN_KINDS))
        else:
            wanted = (v, m) in SHAPES[num_ranks]
        if wanted and t < 2:
            cases.append(case)
    return cases


def main():
    import emulated_npu  # noqa: F401 - brings the device
    import torch
    import torch.distributed as dist
    from torchrun_launch import run_cases

    torch.set_num_threads(1)
    torch.npu.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("hccl", timeout=datetime.timedelta(seconds=90))
    parity_worker.DEVICE = torch.device("npu", torch.npu.current_device())
    cases = {
        parity_worker.name_of(case): lambda case=case: parity_worker.run_case(case)
        for case in grid(dist.get_world_size())
    }
    run_cases(cases, dist.get_rank())
    dist.destroy_process_group()


if __name__ == "__main__":
    import datetime
    import os

    main()
