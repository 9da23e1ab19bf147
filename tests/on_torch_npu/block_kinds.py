"""Preprocess blocks for the parity grid, and the options of ``ScheduleTranspose`` that are run with them."""

import torch
from torch import nn

from hyper_pp import Costs

WIDTH = 4
SEED = 11  # of rank 0's random numbers when the first step starts

# Options of the schedule; a kind that ends in "dropout" has them too, with a block that draws random numbers.
OPTIONS = {
    "owner": {},
    "recompute": {"recompute": True},
    "central": {"backward": "central"},
    "frozen": {},
    "frozen central": {"backward": "central"},
    "max_live": {"max_live": 1},
    "recompute max_live": {"recompute": True, "max_live": 2},
    "round_robin": {"owners": "round_robin"},
    "inline": {"owners": "inline"},
    "inline recompute": {"owners": "inline", "recompute": True},
    "inline central": {"owners": "inline", "backward": "central"},
    "list": {"owners": "list"},
    "list central": {"owners": "list", "backward": "central"},
    "sharded": {"owners": "list", "sharded_inputs": True},
    "costs": {"costs": Costs(F=2, B=3, TF=3, TB=5, comm=0.25)},
    "less_memory": {"less_memory": True},
}
DROPOUT = ("owner", "recompute", "central", "max_live", "inline recompute", "list")
KINDS = (*OPTIONS, *(f"{kind} dropout" for kind in DROPOUT))
# What runs for every shape; the rest for a few.
MAIN_KINDS = ("owner", "central", "frozen", "list", "recompute dropout", "max_live dropout")


def options_of(kind, num_ranks, num_micro_batches):
    """Return a kind's options; the list of owners starts at the last rank and leaves out rank 0 where it can."""
    options = dict(OPTIONS[kind.removesuffix(" dropout")])
    if options.get("owners") == "list":
        options["owners"] = [num_ranks - 1 - m % max(1, num_ranks - 1) for m in range(num_micro_batches)]
    return options


class Mixing(nn.Module):
    """A layer of a block: two inputs and outputs, buffers, a parameter that nothing uses and, if wanted, dropout."""

    def __init__(self, dropout):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.gain = nn.Parameter(torch.ones(WIDTH))
        self.unused = nn.Parameter(torch.ones(2))
        self.register_buffer("scale", torch.tensor([1.5]))
        self.register_buffer("seen", torch.zeros(1))
        self.dropout = dropout

    def forward(self, x, z):
        self.seen += 1
        x = torch.tanh(self.linear(x)) * self.scale
        if self.dropout:  # drawn on the CPU, so that every device has the same
            x = x * (torch.rand(x.shape) < 0.5).float().to(x.device)
        return x, z * self.gain


class Join(nn.Module):
    """The body's first layer: takes what a block of :class:`Mixing` returns."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x, z):
        return torch.tanh(self.linear(x + z))
