"""Run under msrun on two emulated NPUs: a plan whose sends cross, run past the verifier; with ``right``, as it was."""

import sys


def crossed_plan():
    """Return a 1f1b plan in which rank 1 sends a gradient while rank 0 still sends the next forward."""
    from hyper_pp import Action, Plan

    plan = Plan.build("1f1b", 2, 1, 3)
    first, last = plan.orders
    late = Action.parse("1RECV_F1")
    rest = [action for action in last if action != late]
    rest.insert(rest.index(Action.parse("1SEND_B0")) + 1, late)
    return plan.with_orders((first, tuple(rest)))


def main():
    import mindspore as ms
    from mindspore.communication import init
    from msrun_launch import report
    from small_models import batch, mean_square, residual_layers

    import hyper_pp.engine
    from hyper_pp import Plan
    from hyper_pp.mindspore import PipelineCell

    ms.set_device("Ascend")
    ms.set_context(mode=ms.PYNATIVE_MODE)
    init()
    plan = Plan.build("1f1b", 2, 1, 3)
    net = PipelineCell(residual_layers(2), mean_square, micro_size=3, schedule=plan)
    net(*batch(9)).asnumpy()  # shapes are agreed
    report("the right order", "ran")
    hyper_pp.engine.verify = lambda plan: None
    wrong = PipelineCell(
        residual_layers(2), mean_square, micro_size=3, schedule=plan if sys.argv[1:] == ["right"] else crossed_plan()
    )
    wrong(*batch(9)).asnumpy()
    report("the other order", "ran")


if __name__ == "__main__":
    main()
