"""The fake framework of these tests keeps the protocols that MindSpore and torch keep."""

import sys
from pathlib import Path

import pytest
from fake import TENSORS, FakeTensor, FakeTransport, Network, ScaleStage, floats, on_ranks, scalar

sys.path[:0] = [str(Path(__file__).parents[1])]

import protocol_conformance as conformance  # noqa: E402 - found on the path above


class FakeKit:
    tensors = TENSORS

    def floats(self, *values):
        return floats(*values)

    def integers(self, *values):
        return FakeTensor(list(values), "int")

    def scalar(self, value):
        return scalar(value)

    def values(self, tensor):
        return list(tensor.data)

    def scale_stage(self, factor, frozen=False):
        return ScaleStage(factor, frozen=frozen)


@pytest.mark.parametrize("case", conformance.TENSORS_CASES + conformance.STAGE_CASES, ids=lambda case: case.__name__)
def test_tensors_and_stages(case):
    case(FakeKit())


@pytest.mark.parametrize("case", conformance.TRANSPORT_CASES, ids=lambda case: case.__name__)
def test_transport(case):
    network = Network(3, blocking=False)
    on_ranks(3, lambda rank: case(FakeTransport(network, rank), FakeKit()))
