"""Pipeline-parallel training for MindSpore and torch_npu: schedules as data, proved before they run.

The names here need neither MindSpore nor torch; the executors are ``hyper_pp.mindspore`` and ``hyper_pp.torch_npu``.
"""

from hyper_pp.actions import Action, CustomOp, Op, Order, Orders, declare_op
from hyper_pp.batch_order import BatchOrder
from hyper_pp.costs import Costs
from hyper_pp.errors import HyperPPError, PipelineError, PlanFormatError, ScheduleError
from hyper_pp.owners import balanced_owners, owned_micro_batches
from hyper_pp.plan import Plan
from hyper_pp.shape import PipelineShape
from hyper_pp.simulate import Simulation, simulate
from hyper_pp.transpose import Transpose
from hyper_pp.verify import verify

__version__ = "0.1.0"

__all__ = [
    "Action",
    "BatchOrder",
    "Costs",
    "CustomOp",
    "HyperPPError",
    "Op",
    "Order",
    "Orders",
    "PipelineError",
    "PipelineShape",
    "Plan",
    "PlanFormatError",
    "ScheduleError",
    "Simulation",
    "Transpose",
    "balanced_owners",
    "declare_op",
    "owned_micro_batches",
    "simulate",
    "verify",
]
