"""Word from rank to rank, on one machine, that a message is under way.

MindSpore's CPU backend waits for a message by spinning: four ranks on two cores then spend in bubbles what others need
for computing. So a rank that is about to wait for a message first sleeps until its sender says that it sent it. The
notice is a courtesy: where it is lost, the native wait follows after a while, and nothing else changes.
"""

import contextlib
import os
import select
import socket
import struct
import time
from collections.abc import Callable
from typing import Any

_NOTICE = struct.Struct("<IQ")  # sender, number of its message
PATIENCE = 2.0  # seconds without any notice after which the native wait begins


class Notices:
    """One rank's socket for notices.

    Args:
        rank: This rank.
        exchange: Collective over all ranks that returns every rank's value, by rank; used once.
    """

    def __init__(self, rank: int, exchange: Callable[[Any], list[Any]]) -> None:
        self._rank = rank
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self._socket.bind(f"\0hyper_pp-{os.getpid()}-{id(self)}")  # a name of Linux's own, no file
        addresses = exchange((socket.gethostname(), self._socket.getsockname()))
        host = addresses[rank][0]
        self._addresses = [address if name == host else None for name, address in addresses]
        self._sent = [0] * len(addresses)
        self._expected = [0] * len(addresses)
        self._under_way = [0] * len(addresses)  # by peer, the number of its latest message that we heard of

    def send(self, peer: int) -> None:
        """Tell a peer that the next message for it is under way."""
        self._sent[peer] += 1
        address = self._addresses[peer]
        if address is not None:
            with contextlib.suppress(OSError):
                self._socket.sendto(_NOTICE.pack(self._rank, self._sent[peer]), address)

    def expect(self, peer: int) -> int:
        """Count a message that a peer will send; return its number, for :meth:`wait`."""
        self._expected[peer] += 1
        return self._expected[peer]

    def wait(self, peer: int, number: int) -> None:
        """Sleep until a peer's message of that number is under way; no longer than ``PATIENCE``."""
        if self._addresses[peer] is None:
            return
        end = time.monotonic() + PATIENCE
        while self._under_way[peer] < number and (rest := end - time.monotonic()) > 0:
            if select.select([self._socket], [], [], rest)[0]:
                self._read()

    def _read(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while True:
                rank, number = _NOTICE.unpack(self._socket.recv(_NOTICE.size))
                self._under_way[rank] = max(self._under_way[rank], number)
