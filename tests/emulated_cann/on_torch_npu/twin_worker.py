"""Under torchrun on emulated NPUs: schedules of the twin beside one process on the CPU."""

import device_cases
import parity_worker
from block_kinds import MAIN_KINDS

SHAPES = {2: ((1, 4), (2, 3)), 4: ((1, 1), (2, 8))}  # P: V, M
BLOCK_SHAPE = {2: (2, 3), 4: (1, 7)}  # of the schedule transpose, which has many options; all of them on 2 ranks
WAITING = {  # P: what runs once more, waiting at each transfer
    2: (("1f1b", 1, 4, 0, "none"), ("mpipe", 2, 3, 1, "trained"), ("transpose", 2, 3, 1, "owner")),
    4: (("interleaved", 2, 8, 0, "none"), ("zbv", 2, 8, 0, "default"), ("from_plan", 2, 8, 1, "mpipe")),
}


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


def cases_on(num_ranks):
    """Return (case, whether transfers overlap) of all that runs on so many ranks, by name."""
    overlapping = {parity_worker.name_of(case): (case, True) for case in grid(num_ranks)}
    return overlapping | {f"{parity_worker.name_of(case)} waiting": (case, False) for case in WAITING[num_ranks]}


def run(case, overlap):
    parity_worker.OVERLAP = overlap
    parity_worker.run_case(case)


def main():
    import emulated_npu  # noqa: F401 - brings the device
    import torch
    import torch.distributed as dist
    from torchrun_launch import run_cases

    torch.set_num_threads(1)
    torch.npu.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("hccl", timeout=datetime.timedelta(seconds=90))
    parity_worker.DEVICE = torch.device("npu", torch.npu.current_device())
    if dist.get_world_size() == 2:
        run_cases(device_cases.CASES, dist.get_rank())
    cases = cases_on(dist.get_world_size())
    run_cases({name: lambda case=case: run(*case) for name, case in cases.items()}, dist.get_rank())
    dist.destroy_process_group()


if __name__ == "__main__":
    import datetime
    import os

    main()
