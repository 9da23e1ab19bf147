"""Under torchrun, 2 ranks: the cases of the modules ``*_cases``."""

import as_torch_cases
import boundary_cases
import own_order_cases
import sharded_cases
import step_cases
import torch
import torch.distributed as dist
import transpose_cases
from torchrun_launch import run_cases

MODULES = (as_torch_cases, boundary_cases, own_order_cases, step_cases, sharded_cases, transpose_cases)
CASES = {case.__name__: case for module in MODULES for case in module.CASES}


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    run_cases(CASES, dist.get_rank())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
