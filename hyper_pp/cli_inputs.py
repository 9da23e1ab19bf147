"""The inputs of commands: options that build plans, names and files that become plans."""

import argparse
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from hyper_pp.costs import Costs
from hyper_pp.errors import ScheduleError
from hyper_pp.plan import Plan
from hyper_pp.schedules import SCHEDULES
from hyper_pp.verify import verify

# More than any real pipeline holds, and few enough to be built in minutes.
MOST_FORWARDS = 1_000_000

_OPTIONS = ("frozen", "explicit_backward", "backward", "recompute", "num_layers", "max_live", "less_memory", "owners")


class UsageError(Exception):
    """Bad input: exit 2, and its text as the one line on stderr."""


class BadPlanError(Exception):
    """A plan breaks a rule: exit 1.

    Args:
        name: The input it came from.
        error: The rule and the place.
    """

    def __init__(self, name: str, error: ScheduleError) -> None:
        super().__init__(name, error)
        self.name = name
        self.error = error


def _count(minimum: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        # int() would take 1_000 and the digits of other scripts as well.
        if not (text.isascii() and text.isdigit() and len(text) <= 9 and int(text) >= minimum):
            raise argparse.ArgumentTypeError(f"must be an int of at least {minimum}, in digits (got {text[:40]!r})")
        return int(text)

    return parse


def add_inputs(parser: argparse.ArgumentParser) -> None:
    """Add what ``simulate`` and ``show`` take."""
    parser.add_argument("inputs", metavar="FILE or NAME", nargs="+", help="plan file, or schedule to build")
    add_build_options(parser)


def add_build_options(parser: argparse.ArgumentParser) -> None:
    """Add what is needed to build a schedule by name."""
    add = parser.add_argument
    add("--ranks", type=_count(1), metavar="P", help="ranks of the pipeline")
    add("--chunks", type=_count(1), metavar="V", help="model chunks per rank (default: 1, or what the schedule needs)")
    add("--micro-batches", type=_count(1), metavar="M", help="micro-batches of a step")
    add("--compute-only", action="store_true", help="leave out the body's sends and receives")
    add(
        "--cost",
        action="append",
        metavar="F=1,B=2,...",
        help="durations of F, B, I, W, TF, TB, comm, collective (F to W also per stage: F=1:1:2:1); "
        "transpose is built for them",
    )
    group = parser.add_argument_group("schedule options")
    group.add_argument("--frozen", action="store_true", help="the preprocess block has nothing to train")
    group.add_argument("--explicit-backward", action="store_true", help="recompute every micro-batch of the block")
    group.add_argument("--backward", choices=("owner", "central"), help="who runs the block's backward")
    group.add_argument("--recompute", action="store_true", help="owners keep the block's inputs, not its graph")
    group.add_argument("--num-layers", type=_count(0), metavar="T", help="layers of the block; 0: only data is spread")
    group.add_argument("--max-live", type=_count(1), metavar="N", help="most micro-batches of the block on one rank")
    group.add_argument("--less-memory", action="store_true", help="warm up with fewer forwards")
    group.add_argument("--owners", choices=("round_robin", "inline"), help="who runs the block (default: the faster)")


def plans_of(args: argparse.Namespace) -> Iterator[tuple[str, Plan]]:
    """Yield every input's name and its plan, built or read; proved either way."""
    # Files first: a misspelt schedule is no file either, and that is what its user should read.
    files = {text: _load_input(text, args) for text in args.inputs if text not in SCHEDULES}
    _check_options(args, [text for text in args.inputs if text in SCHEDULES])
    for text in args.inputs:
        try:
            plan = files[text] if text in files else _build(text, args)
            verify(plan)
        except ScheduleError as error:
            raise BadPlanError(text, error) from error
        yield text, plan


def _check_options(args: argparse.Namespace, names: Sequence[str]) -> None:
    """Refuse options that no input can use, before anything is built."""
    flags = [(option, f"--{option.replace('_', '-')}") for option in ("ranks", "chunks", "micro_batches", *_OPTIONS)]
    given = [(option, flag, getattr(args, option)) for option, flag in flags if _is_given(args, option)]
    if not names:
        if given:
            _, flag, value = given[0]
            raise UsageError(f"{_shown(flag, value)}: plan files hold this already; it is for schedules by name")
        return
    for flag, value in (("--ranks", args.ranks), ("--micro-batches", args.micro_batches)):
        if value is None:
            raise UsageError(f"{flag} is missing: schedule {names[0]} needs an int of at least 1")
    for name in names:
        needed = SCHEDULES[name].num_chunks
        if args.chunks is not None and needed not in (None, args.chunks):
            raise UsageError(f"--chunks {args.chunks}: {name} takes {needed} only")
        if args.ranks * (args.chunks or needed or 1) * args.micro_batches > MOST_FORWARDS:
            raise UsageError(
                f"--micro-batches {args.micro_batches}: ranks x chunks x micro-batches must be at most {MOST_FORWARDS}"
            )
    for option, flag, value in given:
        if option in _OPTIONS and not any(option in SCHEDULES[name].options for name in names):
            taken = [taken for taken in SCHEDULES[names[0]].options if taken in _OPTIONS]
            takes = ", ".join(f"--{taken.replace('_', '-')}" for taken in taken) or "no options"
            raise UsageError(f"{_shown(flag, value)}: {names[0]} doesn't take it (it takes: {takes})")


def _is_given(args: argparse.Namespace, option: str) -> bool:
    value = getattr(args, option)
    return value is not None and value is not False  # 0 is a value


def _shown(flag: str, value: object) -> str:
    return flag if value is True else f"{flag} {value}"


def _build(name: str, args: argparse.Namespace) -> Plan:
    taken = SCHEDULES[name].options
    options: dict[str, Any] = {
        option: getattr(args, option) for option in _OPTIONS if option in taken and _is_given(args, option)
    }
    costs = {"costs": costs_of(args)} if "costs" in taken else {}
    try:
        return Plan.build(
            name, args.ranks, args.chunks, args.micro_batches, compute_only=args.compute_only, **options, **costs
        )
    except ScheduleError:
        raise
    except ValueError as error:
        if str(error).startswith("cost "):
            raise UsageError(f"--cost {','.join(args.cost)}: {error}") from error
        flags = [_shown(f"--{option.replace('_', '-')}", options[option]) for option in options if option in str(error)]
        raise UsageError(": ".join([*flags, str(error)])) from error


def _load_input(path: str, args: argparse.Namespace) -> Plan:
    plan = load(path, f"no such file, and no schedule (schedules: {', '.join(SCHEDULES)})")
    if args.compute_only and not plan.compute_only:
        raise UsageError(f"--compute-only: {path} is a plan file and holds its sends and receives already")
    return plan


def load(path: str, absent: str = "no such file") -> Plan:
    """Read a plan file, whose faults are bad input."""
    try:
        return Plan.load(path)
    except FileNotFoundError as error:
        raise UsageError(f"{path}: {absent}") from error
    except OSError as error:
        raise UsageError(f"{path}: can't be read: {error.strerror or error}") from error
    except ValueError as error:
        raise UsageError(str(error)) from error


def costs_of(args: argparse.Namespace) -> Costs:
    """Return what --cost says."""
    if args.cost is None:
        return Costs()
    text = ",".join(args.cost)
    try:
        return Costs.parse(text)
    except ValueError as error:
        raise UsageError(f"--cost {text}: {error}") from error
