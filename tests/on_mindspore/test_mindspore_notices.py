"""Notices between ranks: a burst is kept, and lost ones cost one wait together."""

import time

import pytest

pytest.importorskip("mindspore")

from hyper_pp.mindspore import notices


def pair():
    """Return two ranks' notices, made as by a collective exchange."""
    values = []

    def exchange(value):
        values.append(value)
        return values if len(values) == 2 else [value, value]

    first = notices.Notices(0, exchange)
    second = notices.Notices(1, exchange)
    first._addresses, first._token = second._addresses, second._token
    return first, second


@pytest.fixture
def waits(monkeypatch):
    """Replace the clock by one that every look moves on; return how often a wait slept."""
    slept = []
    select = notices.select.select
    monkeypatch.setattr(notices.select, "select", lambda r, w, x, rest: slept.append(rest) or select(r, w, x, 0))
    now = iter(range(10**6))
    monkeypatch.setattr(notices.time, "monotonic", lambda: 0.5 * next(now))
    return slept


def test_a_burst_that_nobody_reads_is_kept(waits):
    first, second = pair()
    for _ in range(200):
        first.send(1)
    for _ in range(200):
        second.wait(0, second.expect(0))
    assert waits == []


def test_notices_lost_in_a_row_cost_one_wait(waits):
    first, second = pair()
    for _ in range(20):
        first._sent[1] += 1  # sent, and lost
    numbers = [second.expect(0) for _ in range(21)]
    second.wait(0, numbers[0])
    once = len(waits)
    assert 1 <= once <= notices.PATIENCE / 0.5
    for number in numbers[1:20]:
        second.wait(0, number)
    assert len(waits) == once
    first.send(1)  # heard of again
    second.wait(0, numbers[20])
    second.wait(0, second.expect(0))
    assert len(waits) > once, "and patient again"


def test_what_strangers_send_is_not_heard(waits):
    first, second = pair()
    for data in (b"", b"x" * notices._NOTICE.size, notices._NOTICE.pack(second._token, 0, 1) + b"x"):
        first._socket.sendto(data, second._addresses[1])
    time.sleep(0.05)
    second._read()
    assert second._under_way == [0, 0]
