"""Which of a rank's keyword arguments go to which of its stages."""

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from hyper_pp.protocols import Value
from hyper_pp.torch_npu.data_parallel import unwrapped


def keywords_by_stage(
    modules: Mapping[int, Any], micro_batches: Sequence[Mapping[str, Value]], elsewhere: bool
) -> dict[tuple[int, int], Mapping[str, Value]]:
    """Return the keywords of each (stage, micro-batch) of this rank.

    Args:
        modules: Modules of this rank's stages, by stage.
        micro_batches: The keywords by micro-batch.
        elsewhere: They belong to the preprocess block, not to the stages.

    Raises:
        TypeError: No stage of this rank takes a keyword.
    """
    if elsewhere or not micro_batches or not micro_batches[0]:
        return {}
    names = list(micro_batches[0])
    taken_by = {index: _taken(module, names) for index, module in modules.items()}
    for name in names:
        if not any(name in taken for taken in taken_by.values()):
            held = ", ".join(str(index) for index in sorted(taken_by))
            raise TypeError(f"no stage of this rank takes the keyword {name} (its stages: {held})")
    return {
        (index, m): {name: value for name, value in keywords.items() if name in taken}
        for index, taken in taken_by.items()
        for m, keywords in enumerate(micro_batches)
    }


def _taken(module: Any, names: Sequence[str]) -> set[str]:
    try:
        parameters = inspect.signature(unwrapped(module).forward).parameters.values()
    except (AttributeError, TypeError, ValueError):
        return set(names)
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters):
        return set(names)
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return {parameter.name for parameter in parameters if parameter.kind in by_name} & set(names)
