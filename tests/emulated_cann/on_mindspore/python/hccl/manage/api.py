"""MindSpore imports this module; started by msrun, it asks its own communicators instead."""

import os
from collections.abc import Callable


def __getattr__(name: str) -> Callable[..., int]:
    variable, otherwise = ("RANK_SIZE", "1") if "size" in name else ("RANK_ID", "0")
    return lambda *args, **kwargs: int(os.environ.get(variable, otherwise))
