"""The frames that benchmarks replay are what Kafka's own schemas say."""

from __future__ import annotations

import struct

import pytest

from loadtest.generators.produce_frame import build_produce_frame


@pytest.mark.parametrize("frame_bytes", [180, 200, 300, 1000, 17_000])
def test_a_frame_has_exactly_the_size_that_was_asked_for(frame_bytes: int) -> None:
    frame = build_produce_frame("bench", 3, frame_bytes)
    assert len(frame) == frame_bytes
    assert struct.unpack_from(">i", frame)[0] == frame_bytes - 4
