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

_NOTICE = struct.Struct("<8sIQ")  # the job's token, sender, number of its message
PATIENCE = 2.0  # seconds without any notice after which the native wait begins
# Bytes of notices that wait to be read; the system may grant less. A sender doesn't wait for a receiver that computes,
# so many may add up. (Datagrams between UNIX sockets won't do: Linux keeps ten.)
ROOM = 4 << 20


class Notices:
    """One rank's socket for notices.

    Args:
        rank: This rank.
        exchange: Collective over all ranks that returns every rank's value, by rank; used once.
    """

    def __init__(self, rank: int, exchange: Callable[[Any], list[Any]]) -> None:
        self._rank = rank
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, ROOM)
        self._socket.bind(("127.0.0.1", 0))
        found = exchange((socket.gethostname(), self._socket.getsockname(), os.urandom(8)))
        host, self._token = found[rank][0], found[0][2]
        self._addresses = [address if name == host else None for name, address, _ in found]
        self._sent = [0] * len(found)
        self._expected = [0] * len(found)
        self._under_way = [0] * len(found)  # by peer, the number of its latest message that we heard of
        self._silent = [False] * len(found)  # by peer, a wait for its notice ran out since we last heard of it

    def send(self, peer: int) -> None:
        """Tell a peer that the next message for it is under way."""
        self._sent[peer] += 1
        address = self._addresses[peer]
        if address is not None:
            with contextlib.suppress(OSError):
                self._socket.sendto(_NOTICE.pack(self._token, self._rank, self._sent[peer]), address)

    def expect(self, peer: int) -> int:
        """Count a message that a peer will send; return its number, for :meth:`wait`."""
        self._expected[peer] += 1
        return self._expected[peer]

    def wait(self, peer: int, number: int) -> None:
        """Sleep until a peer's message of that number is under way; no longer than ``PATIENCE``, and that only once
        for all the notices of a peer that got lost in a row.
        """
        if self._addresses[peer] is None or self._under_way[peer] >= number:
            return
        self._read()
        end = time.monotonic() + (0.0 if self._silent[peer] else PATIENCE)
        while self._under_way[peer] < number:
            rest = end - time.monotonic()
            if rest <= 0:
                self._silent[peer] = True
                return
            if select.select([self._socket], [], [], rest)[0]:
                self._read()

    def _read(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while True:
                data = self._socket.recv(_NOTICE.size + 1)
                if len(data) != _NOTICE.size or not data.startswith(self._token):
                    continue  # somebody else's
                _, rank, number = _NOTICE.unpack(data)
                self._under_way[rank] = max(self._under_way[rank], number)
                self._silent[rank] = False
