"""The two file forms of a plan: JSON, which holds all of it, and PyTorch's CSV, which holds the orders."""

import csv
import io
import json
import os
from collections.abc import Sequence
from typing import Any, Union

from hyper_pp.actions import BODY_P2P_OPS, PREPROCESS_OPS, Action, Op, Orders
from hyper_pp.errors import PlanFormatError
from hyper_pp.plan import Plan
from hyper_pp.shape import PLACEMENTS, MappedShape, PipelineShape
from hyper_pp.transpose import Transpose

FORMAT = "hyper_pp.plan/1"
_KEYS = ("format", "schedule", "num_ranks", "num_chunks", "num_micro_batches", "placement", "compute_only", "orders")


def save(plan: Plan, path: Union[str, "os.PathLike[str]"]) -> None:
    """Write a plan to a file: CSV if the name ends in ``.csv``, else JSON."""
    text = to_csv(plan) if os.fspath(path).lower().endswith(".csv") else to_json(plan)
    with open(path, "w", encoding="utf-8", newline="") as file:
        file.write(text)


def load(
    path: Union[str, "os.PathLike[str]"], *, is_csv: bool | None = None, any_placement: bool = False
) -> Plan:
    """Read a plan from a file.

    Args:
        path: The file.
        is_csv: CSV or JSON; None: CSV if the name ends in ``.csv``.
        any_placement: See :func:`from_csv`.
    """
    if is_csv is None:
        is_csv = os.fspath(path).lower().endswith(".csv")
    with open(path, encoding="utf-8", newline="") as file:
        try:
            text = file.read()
            return from_csv(text, any_placement=any_placement) if is_csv else from_json(text)
        except UnicodeDecodeError as error:
            raise PlanFormatError(f"{os.fspath(path)}: a plan file is UTF-8 text ({error})") from error
        except PlanFormatError as error:
            raise PlanFormatError(f"{os.fspath(path)}: {error}") from error


def to_json(plan: Plan) -> str:
    """Return a plan's JSON form, one line per rank.

    Raises:
        ValueError: The stages form neither a loop nor a V; the CSV form and the plan itself hold any placement.
    """
    shape = plan.shape
    if isinstance(shape, MappedShape):
        raise ValueError(f"the JSON form has placements {' and '.join(PLACEMENTS)} (the plan: {shape})")
    head: dict[str, Any] = {
        "format": FORMAT,
        "schedule": plan.schedule,
        "num_ranks": shape.num_ranks,
        "num_chunks": shape.num_chunks,
        "num_micro_batches": shape.num_micro_batches,
        "placement": shape.placement,
        "compute_only": plan.compute_only,
    }
    if plan.transpose is not None:
        head["transpose"] = plan.transpose.to_json()
    rows = ",\n".join(json.dumps([str(action) for action in order], separators=(",", ":")) for order in plan.orders)
    return f'{json.dumps(head)[:-1]}, "orders": [\n{rows}\n]}}\n'


def from_json(text: str) -> Plan:
    """Read a plan's JSON form.

    Raises:
        PlanFormatError: The text isn't JSON, a key is missing, unknown or there twice, or a value is wrong.
    """
    try:
        data = json.loads(text, object_pairs_hook=_each_key_once)
    except PlanFormatError:
        raise
    except (ValueError, RecursionError) as error:
        raise PlanFormatError(f"not a complete JSON file ({error})") from error
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        found = data.get("format") if isinstance(data, dict) else type(data).__name__
        raise PlanFormatError(f'a plan is a JSON object with "format": "{FORMAT}" (got {found!r})')
    missing = [key for key in _KEYS if key not in data]
    unknown = [key for key in data if key not in _KEYS and key != "transpose"]
    if missing or unknown:
        raise PlanFormatError(f"wrong keys (missing: {missing}, unknown: {unknown})")
    if not isinstance(data["schedule"], str) or not isinstance(data["compute_only"], bool):
        raise PlanFormatError(
            "schedule must be a text and compute_only true or false "
            f"(got {data['schedule']!r}, {data['compute_only']!r})"
        )
    rows = data["orders"]
    if not isinstance(rows, list) or not all(isinstance(row, list) for row in rows):
        raise PlanFormatError("orders must be a list of lists of actions, one per rank")
    transpose = Transpose.from_json(data["transpose"]) if "transpose" in data else None
    try:
        shape = PipelineShape(data["num_ranks"], data["num_chunks"], data["num_micro_batches"], data["placement"])
        return Plan(data["schedule"], shape, _parse(rows), data["compute_only"], transpose)
    except PlanFormatError:
        raise
    except (TypeError, ValueError) as error:
        raise PlanFormatError(str(error)) from error


def _each_key_once(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in found if keys.count(key) > 1)
        raise PlanFormatError(f'every key is there once (got "{twice}" {keys.count(twice)} times)')
    return found


def to_csv(plan: Plan) -> str:
    """Return PyTorch's CSV form: one row per rank, one cell per action."""
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerows(plan.orders)
    return buffer.getvalue()


def from_csv(text: str, *, any_placement: bool = False) -> Plan:
    """Read PyTorch's CSV form; the shape and what there is of a preprocess block are told from the rows.

    Empty cells are bubbles and are skipped. The schedule is named ``custom``.

    Args:
        text: The rows.
        any_placement: Take stages that form neither a loop nor a V as they are placed. A file is refused for them
            otherwise, as rows in the wrong order look the same.

    Raises:
        PlanFormatError: The rows hold no actions, an action can't be read, or no placement fits.
    """
    try:
        rows = [[cell for cell in row if cell.strip()] for row in csv.reader(io.StringIO(text))]
    except csv.Error as error:
        raise PlanFormatError(f"not a CSV file ({error})") from error
    while rows and not rows[-1]:
        rows.pop()
    orders = _parse(rows)
    actions = [action for order in orders for action in order]
    forwards = [action for action in actions if action.op is Op.F]
    if not forwards:
        raise PlanFormatError("a CSV plan has one row of actions per rank (found no forward in it)")
    num_stages = max(action.stage for action in actions) + 1
    num_micro_batches = max(action.micro_batch or 0 for action in actions) + 1
    if max(num_stages, num_micro_batches) > len(actions):
        raise PlanFormatError(
            f"every stage and micro-batch has an action (stages: {num_stages}, micro-batches: {num_micro_batches}, "
            f"actions: {len(actions)})"
        )
    shape = _shape_that_fits(orders, num_stages, num_micro_batches)
    if shape is None and any_placement:
        shape = _shape_as_placed(orders, num_stages, num_micro_batches)
    elif shape is None:
        fault = f"the stages are placed neither in a loop nor in a V over {len(orders)} ranks"
        if num_stages % len(orders):
            fault = f"every rank holds as many stages (ranks: {len(orders)}, stages: {num_stages})"
        raise PlanFormatError(fault)
    compute_only = not any(action.op in BODY_P2P_OPS for action in actions)
    try:
        return Plan("custom", shape, orders, compute_only, _transpose_of(orders, num_micro_batches))
    except (TypeError, ValueError) as error:
        raise PlanFormatError(str(error)) from error


def _parse(rows: Sequence[Sequence[str]]) -> Orders:
    return tuple(tuple(Action.parse(cell) for cell in row) for row in rows)


def _shape_that_fits(orders: Orders, num_stages: int, num_micro_batches: int) -> PipelineShape | None:
    """Return the loop or the V that has every forward where the orders have it, if there is one."""
    num_chunks, rest = divmod(num_stages, len(orders))
    if rest:
        return None
    for placement in PLACEMENTS:
        if placement == "v" and num_chunks != 2:
            continue
        shape = PipelineShape(len(orders), num_chunks, num_micro_batches, placement)
        if all(
            shape.rank_of(action.stage) == rank
            for rank, order in enumerate(orders)
            for action in order
            if action.op is Op.F
        ):
            return shape
    return None


def _shape_as_placed(orders: Orders, num_stages: int, num_micro_batches: int) -> PipelineShape:
    """Return the shape with every stage on the rank that runs its forwards."""
    homes: dict[int, int] = {}
    for rank, order in enumerate(orders):
        for action in order:
            if action.op is Op.F and homes.setdefault(action.stage, rank) != rank:
                raise PlanFormatError(
                    f"a stage lives on one rank (stage {action.stage} has forwards on ranks {homes[action.stage]} "
                    f"and {rank})"
                )
    absent = sorted(set(range(num_stages)) - set(homes))
    if absent:
        raise PlanFormatError(f"every stage has a forward (stages: {num_stages}, without one: {absent})")
    try:
        return PipelineShape.of_stages([homes[stage] for stage in range(num_stages)], num_micro_batches)
    except ValueError as error:
        raise PlanFormatError(str(error)) from error


def _transpose_of(orders: Orders, num_micro_batches: int) -> Transpose | None:
    """Tell from the actions of a preprocess block what its plan must have said; layers and limits aren't in them."""
    if not any(action.op in PREPROCESS_OPS for order in orders for action in order):
        return None
    owners = [0] * num_micro_batches
    backward_ranks: dict[int | None, int] = {}
    ops = set()
    for rank, order in enumerate(orders):
        for _, op, m in order:
            ops.add(op)
            if op is Op.TF and m is not None:
                owners[m] = rank
            elif op is Op.TB:
                backward_ranks[m] = rank
    inline = [m for m in range(min(len(orders), num_micro_batches), num_micro_batches) if owners[m] == 0]
    by_owner = bool(ops & {Op.SEND_TB, Op.RECV_TB, Op.REDUCE_T}) or any(backward_ranks.values())
    return Transpose(
        tuple(owners),
        frozen=not ops & {Op.TB, Op.BCAST_T},
        backward="owner" if by_owner else "central",
        explicit_backward=not by_owner and bool(inline) and all(m in backward_ranks for m in inline),
    )
