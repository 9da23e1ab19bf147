"""A side channel that ends all ranks of a job within a second of the first failure.

A rank that waits inside a native receive can't be reached through the transport, and launchers take many seconds to
notice a dead worker. So every rank keeps a plain TCP connection to rank 0, served by a daemon thread. Whatever goes
wrong first, rank 0 hears of it, tells everybody the same cause, and every process ends itself from that thread.

What counts as a failure: :meth:`FailureChannel.abort`, an uncaught exception, a connection that ends without a goodbye,
and a rank that says goodbye while another one waits for a transfer that will never come.
"""

import atexit
import contextlib
import json
import os
import secrets
import selectors
import socket
import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, NoReturn

from hyper_pp.errors import PipelineError

EXIT_CODE = 1
GRACE = 1.5  # seconds that the failing rank itself has to show its traceback
LINGER = 30.0  # seconds that a rank which has finished waits for the others
_REASON_LIMIT = 10_000  # characters


class FailureChannel:
    """One rank's end of the side channel.

    Args:
        rank: This rank.
        num_ranks: Ranks in the job, at least 2.
        exchange: Collective over all ranks that returns every rank's value, by rank; used once, for rank 0's address.
        host: Interface for rank 0 to listen on; by default the one that leads to the job's master.
    """

    def __init__(
        self, rank: int, num_ranks: int, exchange: Callable[[Any], list[Any]], host: str | None = None
    ) -> None:
        self.rank = rank
        self.num_ranks = num_ranks
        self._lock = threading.RLock()
        self._pid = os.getpid()
        self._cause: str | None = None
        self._failed_here = False
        self._goodbyes: dict[int, dict[int, list[int]]] = {}
        self._transfers: dict[int, list[int]] = {}  # peer → transfers to and from it
        self._all_done = threading.Event()
        self._links: dict[int, socket.socket] = {}  # rank 0: to every other; else {0: …}
        self._listener: socket.socket | None = None
        self._token = ""
        self._waker, self._woken = socket.socketpair()  # ends the thread that serves the links
        self._open(exchange, _local_address() if host is None else host)
        self._previous_hook = sys.excepthook
        sys.excepthook = self._on_uncaught
        atexit.register(self._at_exit)
        os.register_at_fork(after_in_child=self._forget)
        self._thread = threading.Thread(target=self._serve, name="hyper_pp failure channel", daemon=True)
        self._thread.start()

    def abort(self, reason: str) -> None:
        """Tell every other rank to end with ``reason``; returns, and this process ends soon after."""
        with self._lock:
            first = self._cause is None
            if first:
                self._failed_here = True
        if first:
            self._report(reason)
        # Cleaning up may wait for transfers that never end: nothing shall wait for it.
        atexit.register(_end_now)
        threading.Thread(target=_end_after, args=(GRACE,), daemon=True).start()

    def count(self, peer: int, to_it: int = 0, from_it: int = 0) -> None:
        """Note transfers that were started, so that a peer which ended too early is found out.

        Args:
            peer: The other rank.
            to_it: Number of transfers to it; a collective counts in both directions.
            from_it: Number of transfers from it.
        """
        with self._lock:
            entry = self._transfers.setdefault(peer, [0, 0])
            entry[0] += to_it
            entry[1] += from_it
            gone = peer in self._goodbyes
        if gone:
            self._check_goodbye(peer)

    # -- set-up ----------------------------------------------------------------------------------------------------

    def _open(self, exchange: Callable[[Any], list[Any]], host: str) -> None:
        if self.rank == 0:
            self._listener = socket.create_server((host, 0), backlog=self.num_ranks)
            self._token = secrets.token_hex(16)
            exchange([host, self._listener.getsockname()[1], self._token])
            self._accept()
        else:
            host, port, self._token = exchange(None)[0]
            link = socket.create_connection((host, port), timeout=60)
            _prepare(link)
            _send(link, {"kind": "hello", "rank": self.rank, "token": self._token})
            self._links[0] = link

    def _accept(self) -> None:
        assert self._listener is not None
        self._listener.settimeout(60)
        while len(self._links) < self.num_ranks - 1:
            link, _ = self._listener.accept()
            _prepare(link)
            link.settimeout(10)
            try:
                hello = json.loads(_read_line(link))
                known = secrets.compare_digest(hello["token"], self._token) and 0 < int(hello["rank"]) < self.num_ranks
            except (OSError, ValueError, KeyError, TypeError):
                known = False
            if known:
                link.settimeout(None)
                self._links[int(hello["rank"])] = link
            else:
                link.close()
        self._listener.close()
        self._listener = None

    def _forget(self) -> None:
        # A forked data worker must not keep the connections of its parent open, nor speak for it.
        for link in (*self._links.values(), self._waker, self._woken):
            link.close()
        self._links = {}

    # -- messages --------------------------------------------------------------------------------------------------

    def _serve(self) -> None:
        selector = selectors.DefaultSelector()
        pending = dict.fromkeys(self._links, b"")
        for peer, link in self._links.items():
            link.setblocking(True)
            selector.register(link, selectors.EVENT_READ, peer)
        selector.register(self._woken, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj is self._woken:
                    return
                peer = key.data
                try:
                    data = key.fileobj.recv(1 << 16)  # type: ignore[union-attr]
                except OSError:
                    data = b""
                if not data:
                    selector.unregister(key.fileobj)
                    self._lost(peer)
                    continue
                *lines, pending[peer] = (pending[peer] + data).split(b"\n")
                for line in lines:
                    self._handle(json.loads(line), peer)

    def _handle(self, message: dict[str, Any], peer: int) -> None:
        if message["kind"] == "abort":
            if self._failed_here and message["reason"] != self._cause:
                _write(f"hyper_pp: rank {self.rank} failed too, first cause: {message['reason']}")
            self._report(message["reason"])
        elif message["kind"] == "goodbye":
            self._goodbye(message)
        elif message["kind"] == "done":
            self._all_done.set()

    def _lost(self, peer: int) -> None:
        if peer not in self._goodbyes and not self._all_done.is_set():
            self._report(f"rank {peer} ended without a word")

    def _report(self, reason: str) -> None:
        """Pass a cause on: to rank 0, and from there to everybody."""
        reason = reason[:_REASON_LIMIT]
        with self._lock:
            if self._cause is not None or self._pid != os.getpid():
                return
            self._cause = reason
        for link in self._links.values():
            _send(link, {"kind": "abort", "reason": reason})
        if not self._failed_here:
            _write(f"hyper_pp: rank {self.rank} ends, first cause: {reason}")
            _end_now()

    # -- the end ---------------------------------------------------------------------------------------------------

    def _on_uncaught(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        self._previous_hook(kind, error, trace)
        if self._pid == os.getpid():
            told = isinstance(error, PipelineError)  # names the rank, and what failed
            self.abort(str(error) if told else f"rank {self.rank}: {kind.__name__}: {error}")

    def _at_exit(self) -> None:
        if self._pid != os.getpid() or self._cause is not None:
            return
        with self._lock:
            transfers = {str(peer): list(entry) for peer, entry in self._transfers.items()}
        goodbye = {"kind": "goodbye", "rank": self.rank, "transfers": transfers}
        if self.rank == 0:
            self._goodbye(goodbye)
        else:
            _send(self._links[0], goodbye)
        self._all_done.wait(None if self.rank == 0 else LINGER)  # without rank 0 nobody could hear of a failure
        # The thread shall not meet an interpreter and libraries that are being taken down.
        self._waker.send(b"e")
        self._thread.join(1.0)

    def _goodbye(self, message: dict[str, Any]) -> None:
        leaver = int(message["rank"])
        with self._lock:
            self._goodbyes[leaver] = {int(peer): entry for peer, entry in message["transfers"].items()}
            complete = len(self._goodbyes) == self.num_ranks
        if self.rank == 0:
            for peer, link in self._links.items():
                if peer != leaver:
                    _send(link, message)
            if complete:
                for link in self._links.values():
                    _send(link, {"kind": "done"})
                self._all_done.set()
        if leaver != self.rank:
            self._check_goodbye(leaver)

    def _check_goodbye(self, leaver: int) -> None:
        with self._lock:
            to_me, from_me = self._goodbyes[leaver].get(self.rank, [0, 0])
            sent, received = self._transfers.get(leaver, [0, 0])
        if received > to_me or sent > from_me:
            what = f"transfer {received} from" if received > to_me else f"transfer {sent} to"
            self._report(
                f"rank {leaver} ended its script, while rank {self.rank} waits for {what} it: "
                f"did rank {leaver} make fewer steps, with a shorter data set?"
            )


def _local_address() -> str:
    """Return this machine's address as the job's other machines see it; loopback for a job on one machine."""
    master = os.environ.get("MS_SCHED_HOST") or os.environ.get("MASTER_ADDR") or "127.0.0.1"
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((master, 9))  # sends nothing, only chooses a route
        return str(probe.getsockname()[0])
    return "127.0.0.1"


def _prepare(link: socket.socket) -> None:
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    link.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    # A machine that vanishes sends no end of connection; probe it from 5 s of silence on.
    for option, value in (("TCP_KEEPIDLE", 5), ("TCP_KEEPINTVL", 2), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, option):
            link.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
    link.settimeout(None)


def _send(link: socket.socket, message: dict[str, Any]) -> None:
    with contextlib.suppress(OSError):
        link.sendall(json.dumps(message).encode() + b"\n")


def _read_line(link: socket.socket) -> bytes:
    line = b""
    while not line.endswith(b"\n"):
        byte = link.recv(1)
        if not byte or len(line) > 200:
            raise ConnectionError("no greeting")
        line += byte
    return line


def _write(line: str) -> None:
    with contextlib.suppress(OSError):
        os.write(2, (line + "\n").encode())


def _end_now() -> NoReturn:
    # The main thread may hold a stream's lock for good, so flushing must not be waited for.
    flushing = threading.Thread(target=_flush, daemon=True)
    with contextlib.suppress(RuntimeError):  # the interpreter may be past starting threads
        flushing.start()
        flushing.join(0.3)
    os._exit(EXIT_CODE)


def _end_after(seconds: float) -> None:
    time.sleep(seconds)
    _end_now()


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
