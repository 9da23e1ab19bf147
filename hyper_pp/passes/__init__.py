"""Passes: orders in, new orders out; nothing is changed in place."""

from hyper_pp.passes.communication import insert_communication

__all__ = ["insert_communication"]
