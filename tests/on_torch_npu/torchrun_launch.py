"""Runs a script under torchrun and gathers what its ranks report: one launch, many cases.

A script calls :func:`run_cases`; each case is a function of the rank that raises where something is wrong.
"""

import json
import os
import signal
import subprocess
import sys
import time
import traceback
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RESULTS = "HYPER_PP_TEST_RESULTS"


@dataclass
class Launch:
    """How a launch ended.

    Args:
        returncode: Of torchrun; None if it was killed after the time-out.
        seconds: From its start to its end.
        output: What it and the ranks wrote.
        reports: By rank, the fault of each case by its name; an empty text where all is right.
    """

    returncode: int | None
    seconds: float
    output: str
    reports: list[dict[str, str]] = field(default_factory=list)

    def check(self, case: str) -> None:
        """Fail if a case failed or was not reached on some rank."""
        for rank, report in enumerate(self.reports):
            if case not in report:
                last = list(report)[-1] if report else "none"
                raise AssertionError(f"rank {rank} didn't reach {case} (last: {last})\n{self.output[-4000:]}")
            assert not report[case], f"rank {rank}: {report[case]}"


def launch(script: Path, num_ranks: int, folder: Path, *args: str, timeout: float = 200.0, **env: str) -> Launch:
    """Run a script under torchrun; never raises for what the script does."""
    folder.mkdir(parents=True, exist_ok=True)
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests"), str(ROOT / "tests" / "on_torch_npu")]),
        "OMP_NUM_THREADS": "1",
        "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
        RESULTS: str(folder),
        **env,
    }
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(num_ranks)]
    command += ["--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0", str(script), *args]
    log = folder / "output.txt"
    start = time.monotonic()
    with log.open("wb") as file:
        process = subprocess.Popen(
            command, stdout=file, stderr=subprocess.STDOUT, env=environment, start_new_session=True
        )
        returncode: int | None
        try:
            returncode = process.wait(timeout)
        except subprocess.TimeoutExpired:
            returncode = None
        finally:
            if process.poll() is None:
                # torchrun passes SIGTERM on to its ranks, which run in sessions of their own.
                process.send_signal(signal.SIGTERM)
                try:
                    process.wait(30)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
    seconds = time.monotonic() - start
    reports = []
    for rank in range(num_ranks):
        path = folder / f"{rank}.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        reports.append(dict(json.loads(line) for line in lines))
    return Launch(returncode, seconds, log.read_text(errors="replace"), reports)


def run_cases(cases, rank: int) -> None:
    """In a rank: run every case, a mapping of names to functions, and report; goes on after a failed one."""
    path = Path(os.environ[RESULTS]) / f"{rank}.jsonl"
    with path.open("a") as file:
        for name, case in cases.items():
            try:
                case()
                fault = ""
            except Exception:
                fault = traceback.format_exc()[-2500:]
            file.write(json.dumps([name, fault]) + "\n")
            file.flush()
