"""Runs a script under msrun and gathers what its workers report: one launch, many test cases.

A worker of the script calls :func:`report` for each case. msrun's workers live in sessions of their own and outlive a
killed msrun, so they are found by a mark in their environment and ended here.
"""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MARK = "HYPER_PP_TEST_LAUNCH"
RESULTS = "HYPER_PP_TEST_RESULTS"


@dataclass
class Launch:
    """How a launch ended.

    Args:
        returncode: Of msrun.
        seconds: From start to end of msrun.
        logs: What each worker wrote.
        reports: By worker, what it reported, by case.
    """

    returncode: int
    seconds: float
    logs: list[str]
    reports: list[dict[str, object]] = field(default_factory=list)

    def __str__(self) -> str:
        tails = [f"--- worker {rank}\n{log[-3000:]}" for rank, log in enumerate(self.logs)]
        return "\n".join([f"msrun returned {self.returncode} after {self.seconds:.0f} s", *tails])


def report(case: str, value: object) -> None:
    """In a worker: note the outcome of a case."""
    rank = os.environ["RANK_ID"]
    with open(Path(os.environ[RESULTS]) / f"{rank}.jsonl", "a") as file:
        file.write(json.dumps([case, value]) + "\n")


def settle() -> None:
    """In a worker, before MindSpore is imported: take one core, so that waiting threads don't take the others' time."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[int(os.environ["RANK_ID"]) % len(cores)]})


def launch(script: Path, num_workers: int, folder: Path, *args: str, timeout: float = 180.0, **env: str) -> Launch:
    """Run a script under msrun; never raises for what the script does.

    Args:
        script: A Python file.
        num_workers: Processes.
        folder: An empty folder for logs and results.
        *args: Arguments of the script.
        timeout: Seconds until everything is killed.
        **env: Additional environment variables.
    """
    mark = uuid.uuid4().hex
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        "OMP_NUM_THREADS": "1",
        "GLOG_v": "3",
        MARK: mark,
        RESULTS: str(folder),
        **env,
    }
    msrun = Path(sys.executable).with_name("msrun")
    command = [
        str(msrun),
        f"--worker_num={num_workers}",
        f"--local_worker_num={num_workers}",
        f"--master_port={_free_port()}",
        f"--log_dir={folder / 'log'}",
        "--join=True",
        str(script),
        *args,
    ]
    environment["PATH"] = f"{msrun.parent}{os.pathsep}{environment['PATH']}"
    start = time.monotonic()
    with open(folder / "msrun.log", "wb") as output:
        process = subprocess.Popen(
            command, cwd=folder, env=environment, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            process.wait(timeout)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        finally:
            seconds = time.monotonic() - start
            _kill_marked(mark)
    logs = [_read(folder / "log" / f"worker_{rank}.log") for rank in range(num_workers)]
    reports = [
        dict(json.loads(line) for line in _read(folder / f"{rank}.jsonl").splitlines()) for rank in range(num_workers)
    ]
    return Launch(process.returncode, seconds, logs, reports)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _kill_marked(mark: str) -> None:
    wanted = f"{MARK}={mark}".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if int(folder.name) != os.getpid() and wanted in (folder / "environ").read_bytes():
                os.kill(int(folder.name), signal.SIGKILL)


def _read(path: Path) -> str:
    return path.read_text(errors="replace") if path.exists() else ""
