"""Frames out of a stream."""

from __future__ import annotations

import struct
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.base.errors import ProtocolViolation
from appliance.protocol.framing import FrameSplitter, frame, read_frame_size


@given(bodies=st.lists(st.binary(min_size=10, max_size=40), max_size=6), cuts=st.lists(st.integers(0, 250), max_size=8))
def test_frames_come_out_whole_however_the_stream_is_cut(bodies: list[bytes], cuts: list[int]) -> None:
    stream = b"".join(frame(body) for body in bodies)
    splitter = FrameSplitter(100)
    places = [0, *sorted(cuts), len(stream)]
    found = [body for start, end in pairwise(places) for body in splitter.feed(stream[start:end])]
    assert found == bodies
    assert splitter.pending_bytes == 0


def test_a_frame_of_two_gigabytes_is_refused_when_its_size_is_read() -> None:
    with pytest.raises(ProtocolViolation) as refused:
        FrameSplitter(1 << 25).feed(struct.pack(">i", 2**31 - 1))
    assert refused.value.reason == "frame-too-large"


def test_sizes_below_a_header_are_refused() -> None:
    for size in (-(2**31), -1, 0, 9):
        with pytest.raises(ProtocolViolation) as refused:
            read_frame_size(struct.pack(">i", size), 0, 100)
        assert refused.value.reason == "frame-too-small"
    assert read_frame_size(struct.pack(">i", 10), 0, 100) == 10
    assert read_frame_size(b"xx" + struct.pack(">i", 100), 2, 100) == 100


def test_http_on_the_kafka_port_is_refused() -> None:
    with pytest.raises(ProtocolViolation):
        FrameSplitter(1 << 25).feed(b"GET / HTTP/1.1\r\n\r\n")
