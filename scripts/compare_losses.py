"""Compares the losses of pipeline runs with those of one process, step by step."""
from __future__ import annotations

import argparse
import json
import math
import sys


def main() -> int:
    """Prints the table and the verdict.

    Returns:
        0 if every loss is close enough and the loss fell far enough, else 1.
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("reference", help="losses of one process, from --losses-out")
    parser.add_argument("runs", nargs="+", help="losses of pipeline runs")
    parser.add_argument("--max-difference", type=float, default=1e-4, help="largest relative difference allowed")
    parser.add_argument("--min-fall", type=float, default=1.0, help="least fall from first to last loss, in nats")
    args = parser.parse_args()
    reports = []
    for path in [args.reference, *args.runs]:
        with open(path, encoding="utf-8") as file:
            reports.append(json.load(file))
    reference = reports[0]["losses"]
    for path, report in zip(args.runs, reports[1:]):
        if len(report["losses"]) != len(reference):
            print(f"{path} must hold as many steps as the reference ({len(report['losses'])} and {len(reference)})")
            return 1

    columns = [report["label"] for report in reports]
    print("step  " + "  ".join(columns) + "  relative difference")
    largest, where = 0.0, 0
    for step, losses in enumerate(zip(*(report["losses"] for report in reports)), start=1):
        # A NaN counts as infinitely far away, even from another NaN.
        difference = max(abs(loss - losses[0]) / abs(losses[0]) for loss in losses[1:])
        if not all(map(math.isfinite, losses)):
            difference = math.inf
        if difference > largest:
            largest, where = difference, step
        cells = "  ".join(f"{loss:{len(column)}.6f}" for loss, column in zip(losses, columns))
        print(f"{step:4d}  {cells}  {difference:.1e}")
    fall = min(report["losses"][0] - report["losses"][-1] for report in reports)
    good = largest <= args.max_difference and fall >= args.min_fall
    print("time  " + "  ".join(f"{report['seconds']:{len(report['label']) - 2}.1f} s" for report in reports))
    print(
        f"{'OK' if good else 'FAILED'}: the loss fell by {fall:.2f} nats (at least {args.min_fall:g} wanted); "
        f"largest relative difference from one process {largest:.1e}{f' at step {where}' if where else ''} "
        f"(at most {args.max_difference:.0e} allowed)"
    )
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
