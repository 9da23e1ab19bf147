"""Under torchrun on two emulated NPUs: a plan as it is built, then one whose sends cross, past the verifier."""

import datetime
import os


def main():
    import emulated_npu  # noqa: F401 - brings the device
    import torch
    import torch.distributed as dist
    from crossed_cases import crossed_plan
    from torch import nn
    from torchrun_launch import run_cases

    from hyper_pp import Plan, engine
    from hyper_pp.torch_npu import PipelineStage, ScheduleFromPlan, schedule_base

    torch.npu.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("hccl", timeout=datetime.timedelta(seconds=60))
    rank, device = dist.get_rank(), torch.device("npu", torch.npu.current_device())

    def step(plan):
        stage = PipelineStage(nn.Linear(4, 4).to(device), rank, 2, device)
        schedule = ScheduleFromPlan([stage], plan, nn.functional.mse_loss)
        x = torch.ones(6, 4, device=device)
        if rank == 0:
            schedule.step(x)
        else:
            schedule.step(target=x)
        torch.npu.synchronize()

    run_cases({"the right order": lambda: step(Plan.build("1f1b", 2, 1, 3))}, rank)
    engine.verify = schedule_base.verify = lambda plan: None
    run_cases({"the crossed order": lambda: step(crossed_plan())}, rank)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
