"""Errors that hyper_pp raises on its own account; wrong arguments are plain ValueError and TypeError."""


class HyperPPError(Exception):
    """Base of the errors below."""


class PlanFormatError(HyperPPError, ValueError):
    """A plan file or action text can't be read."""


class ScheduleError(HyperPPError, ValueError):
    """A plan breaks a rule: an action is missing, doubled, misplaced or out of order, or the orders deadlock.

    Args:
        reason: The rule and the action that breaks it, in one line.
        grid: Rank × step excerpt around the fault, one line per rank; empty if the fault has no place.
    """

    def __init__(self, reason: str, grid: str = "") -> None:
        super().__init__(f"{reason}\n{grid}" if grid else reason)
        self.reason = reason
        self.grid = grid


class ShapeError(HyperPPError, ValueError):
    """What enters or leaves a stage has another shape or element type than before, though shapes are static."""


class PipelineError(HyperPPError, RuntimeError):
    """An action failed while a plan ran; the text names rank, action, position and step, the cause is chained."""
