"""Passes: orders in, new orders out; nothing is changed in place."""

from hyper_pp.passes.communication import insert_communication
from hyper_pp.passes.early_receives import receives_earlier

__all__ = ["insert_communication", "receives_earlier"]
