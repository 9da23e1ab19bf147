"""The command line: ``hyper-pp`` and ``python -m hyper_pp``."""

import argparse
import json
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from typing import NoReturn

import hyper_pp
from hyper_pp.cli_inputs import BadPlanError, UsageError, add_build_options, add_inputs, costs_of, load, plans_of
from hyper_pp.costs import Costs
from hyper_pp.errors import ScheduleError
from hyper_pp.plan import Plan
from hyper_pp.plan_files import to_csv
from hyper_pp.render import render_html, render_numbers, render_perfetto, render_svg, render_text
from hyper_pp.render.numbers import describe_plan
from hyper_pp.render.text import WIDTH
from hyper_pp.schedules import SCHEDULES
from hyper_pp.simulate import Simulation, simulate
from hyper_pp.verify import verify


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(message.removeprefix("argument "))


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        argv: The words behind ``hyper-pp``; by default the process's.

    Returns:
        The exit status: 0, 1 for a plan that breaks a rule, 2 for bad input.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        status = _run(words)
        if sys.stdout is not None:
            sys.stdout.flush()
        return status
    except SystemExit as stop:  # argparse ends --help and --version this way
        return int(stop.code or 0)
    except UsageError as error:
        return _complain(str(error), 2)
    except BadPlanError as fault:
        status = _complain(f"{fault.name}: {fault.error.reason}", 1)
        print(fault.error.grid, file=sys.stderr)
        return status
    except KeyboardInterrupt:
        return 130  # what a shell reports for SIGINT
    except BrokenPipeError:
        # The reader has seen enough. Python would flush once more at its end, and must find somewhere to put it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141  # what a shell reports for a command that SIGPIPE ended
    except OSError as error:
        return _complain(f"can't write to stdout: {error.strerror or error}", 2)


def _run(words: list[str]) -> int:
    if not words:
        raise UsageError(f"a command is missing; commands: {', '.join(_COMMANDS)}")
    if words[0].startswith("-"):
        _top_parser().parse_args(words)
        raise UsageError(f"{words[0]}: the command comes first; commands: {', '.join(_COMMANDS)}")
    if words[0] not in _COMMANDS:
        raise UsageError(f"unknown command {words[0]!r}; commands: {', '.join(_COMMANDS)}")
    make_parser, run = _COMMANDS[words[0]]
    return run(make_parser().parse_intermixed_args(words[1:]))


def _complain(message: str, status: int) -> int:
    line = "".join(char if char.isprintable() else ascii(char)[1:-1] for char in message)
    print(f"hyper-pp: error: {line}", file=sys.stderr)
    return status


def _top_parser() -> argparse.ArgumentParser:
    commands = "\n".join(f"  {name:<10} {make().description}" for name, (make, _) in _COMMANDS.items())
    parser = _Parser(
        prog="hyper-pp",
        usage="hyper-pp COMMAND [options]",
        description="Pipeline-parallel schedules: build, prove, price and show them.",
        epilog=f"commands:\n{commands}\n\nhyper-pp COMMAND --help tells more",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"hyper-pp {hyper_pp.__version__}")
    return parser


def _parser(command: str, description: str) -> _Parser:
    return _Parser(prog=f"hyper-pp {command}", description=description, allow_abbrev=False)


def _schedules_parser() -> argparse.ArgumentParser:
    return _parser("schedules", "list the schedules, one line each")


def _build_parser() -> argparse.ArgumentParser:
    parser = _parser("build", "build and verify a plan, and write it")
    parser.add_argument("inputs", metavar="NAME", nargs=1, help=f"schedule: {', '.join(SCHEDULES)}")
    add_build_options(parser)
    parser.add_argument("-o", "--output", metavar="FILE", help="FILE.json or FILE.csv instead of JSON on stdout")
    return parser


def _verify_parser() -> argparse.ArgumentParser:
    parser = _parser("verify", "prove that a plan file holds, or show where it doesn't")
    parser.add_argument("file", metavar="FILE", help="plan file, .json or .csv")
    return parser


def _simulate_parser() -> argparse.ArgumentParser:
    parser = _parser("simulate", "price plans: step time, bubble, efficiency, lower bound, peak memory")
    add_inputs(parser)
    parser.add_argument("--format", choices=("text", "json"), default="text", help="default: text")
    return parser


def _show_parser() -> argparse.ArgumentParser:
    parser = _parser("show", "draw plans as timetables: text, picture, page or trace")
    add_inputs(parser)
    parser.add_argument(
        "--format",
        choices=("text", "svg", "html", "perfetto"),
        help="default: what OUT ends in (.svg, .html; .json: perfetto), else text",
    )
    parser.add_argument("-o", "--output", metavar="OUT", help="file to write instead of stdout")
    return parser


def _schedules(args: argparse.Namespace) -> int:
    width = max(map(len, SCHEDULES))
    _print("".join(f"{name:<{width}}  {schedule.summary}\n" for name, schedule in SCHEDULES.items()))
    return 0


def _build_plan(args: argparse.Namespace) -> int:
    (name,) = args.inputs
    if name not in SCHEDULES:
        raise UsageError(f"unknown schedule {name!r}; schedules: {', '.join(SCHEDULES)}")
    output = args.output
    if output is not None and not output.lower().endswith((".json", ".csv")):
        raise UsageError(f"-o {output}: the name must end in .json or .csv")
    costs = costs_of(args)
    ((_, plan),) = plans_of(args)
    _priced(plan, costs, args)  # tells whether the costs fit
    if output is None:
        _print(plan.to_json())
    else:
        _write(output, to_csv(plan) if output.lower().endswith(".csv") else plan.to_json())
        _print(f"{output}: {describe_plan(plan)}   {plan.num_actions} actions\n")
    return 0


def _verify_file(args: argparse.Namespace) -> int:
    plan = load(args.file)
    try:
        found = verify(plan)
    except ScheduleError as error:
        _print(f"{args.file}: {error}\n")
        return 1
    peaks = " ".join(map(str, found.peak_activations))
    _print(f"{args.file}: holds   {describe_plan(plan)}   {found.num_actions} actions   peak activations {peaks}\n")
    return 0


def _simulate_plans(args: argparse.Namespace) -> int:
    simulations = _simulations(args)
    if args.format == "json":
        results = [json.dumps(simulation.to_json()) for simulation in simulations]
        _print(results[0] + "\n" if len(results) == 1 else "[\n" + ",\n".join(results) + "\n]\n")
    else:
        _print("\n".join(map(render_numbers, simulations)))
    return 0


def _show_plans(args: argparse.Namespace) -> int:
    simulations = _simulations(args)
    form = args.format or _FORMATS.get(os.path.splitext(args.output or "")[1].lower(), "text")
    if form == "text":
        is_terminal = args.output is None and sys.stdout is not None and sys.stdout.isatty()
        width = shutil.get_terminal_size((WIDTH, 24)).columns if is_terminal else WIDTH
        text = "\n".join(render_text(simulation, width) for simulation in simulations)
    else:
        text = _PICTURES[form](*simulations)
    if args.output is None:
        _print(text)
    else:
        _write(args.output, text)
    return 0


def _simulations(args: argparse.Namespace) -> list[Simulation]:
    costs = costs_of(args)
    return [_priced(plan, costs, args) for _, plan in plans_of(args)]


def _priced(plan: Plan, costs: Costs, args: argparse.Namespace) -> Simulation:
    try:
        return simulate(plan, costs)
    except ValueError as error:
        raise UsageError(f"--cost {','.join(args.cost or ())}: {error}") from error


def _print(text: str) -> None:
    """Write to stdout, with escapes for what its encoding lacks."""
    if sys.stdout is not None:
        encoding = sys.stdout.encoding or "utf-8"
        sys.stdout.write(text.encode(encoding, "backslashreplace").decode(encoding))


def _write(path: str, text: str) -> None:
    try:
        with open(path, "w", encoding="utf-8", newline="") as file:
            file.write(text)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise UsageError(f"-o {path}: can't be written: {reason}") from error


_FORMATS = {".svg": "svg", ".html": "html", ".htm": "html", ".json": "perfetto"}
_PICTURES: dict[str, Callable[..., str]] = {"svg": render_svg, "html": render_html, "perfetto": render_perfetto}
_COMMANDS: dict[str, tuple[Callable[[], argparse.ArgumentParser], Callable[[argparse.Namespace], int]]] = {
    "schedules": (_schedules_parser, _schedules),
    "build": (_build_parser, _build_plan),
    "verify": (_verify_parser, _verify_file),
    "simulate": (_simulate_parser, _simulate_plans),
    "show": (_show_parser, _show_plans),
}
