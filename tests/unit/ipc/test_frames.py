from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator

import pytest

from appliance.base.invariants import InvariantViolation
from appliance.base.layout import BoxLayout
from appliance.ipc import frames as frames_module
from appliance.ipc.frames import HEADER, MAX_FRAME_BYTES, MAX_PAYLOAD_BYTES, Frame, FrameSocket, PeerGone, accept, connect_unix, listen_unix
from lab.scratch_layout import open_descriptors


@pytest.fixture
def raw_and_frames() -> Iterator[tuple[socket.socket, FrameSocket]]:
    """One end as bytes, the other as frames."""
    raw, other = socket.socketpair()
    frames = FrameSocket(other)
    yield raw, frames
    raw.close()
    frames.close()


@pytest.fixture
def pair() -> Iterator[tuple[FrameSocket, FrameSocket]]:
    one, other = socket.socketpair()
    ends = FrameSocket(one), FrameSocket(other)
    yield ends
    for end in ends:
        end.close()


def packed(kind: int, token: int, payload: bytes) -> bytes:
    return HEADER.pack(9 + len(payload), kind, token) + payload


def test_frames_come_whole_and_in_order(pair: tuple[FrameSocket, FrameSocket]) -> None:
    one, other = pair
    one.send(1, 2**63, b"first")
    one.send(2)
    assert other.receive() == [Frame(1, 2**63, b"first", ()), Frame(2, 0, b"", ())]
    assert other.receive() == []


def test_a_frame_that_comes_byte_by_byte_is_one_frame(raw_and_frames: tuple[socket.socket, FrameSocket]) -> None:
    raw, frames = raw_and_frames
    message = packed(3, 4, b"payload") + packed(5, 6, b"")
    received = []
    for byte in message:
        raw.send(bytes([byte]))
        received.append(frames.receive())
    assert [frame for some in received for frame in some] == [Frame(3, 4, b"payload", ()), Frame(5, 6, b"", ())]
    assert received[19] and received[-1]


def test_what_the_socket_does_not_take_is_queued_and_flushed_later(pair: tuple[FrameSocket, FrameSocket]) -> None:
    one, other = pair
    payload = os.urandom(3 << 20)
    one.send(1, 1, payload)
    one.send(2, 2, b"behind")
    assert one.wants_write
    frames: list[Frame] = []
    while one.wants_write:
        frames += other.receive()
        one.flush()
    frames += other.receive() + other.receive()
    assert [(frame.kind, frame.payload) for frame in frames] == [(1, payload), (2, b"behind")]


def test_a_descriptor_rides_on_its_frame_even_if_that_frame_comes_in_parts(pair: tuple[FrameSocket, FrameSocket]) -> None:
    one, other = pair
    reading, writing = os.pipe()
    one.send(1, 1, bytes(1 << 20), (writing,))
    os.close(writing)
    frames: list[Frame] = []
    while not frames:
        frames = other.receive()
        one.flush()
    (received,) = frames[0].descriptors
    os.write(received, b"through")
    assert os.read(reading, 9) == b"through"
    assert os.get_inheritable(received) is False
    os.close(received)
    os.close(reading)


def test_unclaimed_descriptors_are_closed_with_the_socket() -> None:
    before = open_descriptors()
    raw, other = socket.socketpair()
    frames = FrameSocket(other)
    passed = os.eventfd(0)
    socket.send_fds(raw, [packed(1, 1, b"half a frame")[:-3]], [passed])
    assert frames.receive() == []
    os.close(passed)
    frames.close()
    raw.close()
    assert open_descriptors() <= before


def test_the_last_frames_of_a_dead_peer_come_before_its_hang_up(pair: tuple[FrameSocket, FrameSocket]) -> None:
    one, other = pair
    one.send(1, 1, b"last words")
    one.close()
    assert [frame.payload for frame in other.receive()] == [b"last words"]
    with pytest.raises(PeerGone):
        other.receive()


def test_last_words_that_fill_a_whole_read_come_too(pair: tuple[FrameSocket, FrameSocket], monkeypatch: pytest.MonkeyPatch) -> None:
    """The next read of the same call reaches the end of the stream while a frame is there to be
    handed over.
    """
    one, other = pair
    monkeypatch.setattr(frames_module, "_RECEIVE_BYTES", HEADER.size)
    one.send(1, 7)
    one.close()
    assert [frame.token for frame in other.receive()] == [7]
    with pytest.raises(PeerGone):
        other.receive()


def test_half_a_frame_of_a_dead_peer_is_a_hang_up(raw_and_frames: tuple[socket.socket, FrameSocket]) -> None:
    raw, frames = raw_and_frames
    raw.send(packed(1, 1, b"never whole")[:-1])
    raw.close()
    assert frames.receive() == []
    with pytest.raises(PeerGone):
        frames.receive()


def test_sending_to_a_dead_peer_is_a_hang_up(pair: tuple[FrameSocket, FrameSocket]) -> None:
    one, other = pair
    other.close()
    with pytest.raises(PeerGone):
        one.send(1, 1, b"without a reader")


@pytest.mark.parametrize("length", [0, 8, MAX_FRAME_BYTES + 1, 2**32 - 1])
def test_a_length_that_is_not_one_of_ours_is_a_hang_up(length: int, raw_and_frames: tuple[socket.socket, FrameSocket]) -> None:
    raw, frames = raw_and_frames
    raw.send(struct.pack("<IBQ", length, 1, 1))
    with pytest.raises(PeerGone, match="not one of ours"):
        frames.receive()


def test_what_the_other_side_would_refuse_is_not_sent(pair: tuple[FrameSocket, FrameSocket]) -> None:
    one, other = pair
    with pytest.raises(InvariantViolation):
        one.send(1, 1, bytes(MAX_PAYLOAD_BYTES + 1))
    assert not one.wants_write and other.receive() == []


def test_a_connect_without_a_listener_returns_none(layout: BoxLayout) -> None:
    assert connect_unix(layout.controller_socket) is None
    listen_unix(layout.controller_socket).close()
    assert connect_unix(layout.controller_socket) is None


def test_a_listener_replaces_the_socket_of_its_previous_incarnation(layout: BoxLayout) -> None:
    listen_unix(layout.controller_socket).close()
    with open(f"{layout.controller_socket}.{os.getpid()}", "w"):
        pass  # left by a process that had this pid and died between bind and rename
    listening = listen_unix(layout.controller_socket)
    connected = connect_unix(layout.controller_socket)
    accepted = accept(listening)
    assert connected is not None and accepted is not None and accept(listening) is None
    assert os.stat(layout.controller_socket).st_mode & 0o777 == 0o600
    assert sorted(os.listdir(layout.runtime_directory)) == ["controller.sock", "net"]
    for end in (connected, accepted, listening):
        end.close()


def test_a_connect_to_a_full_backlog_returns_none(layout: BoxLayout) -> None:
    listening = listen_unix(layout.controller_socket)
    connected = []
    while (sock := connect_unix(layout.controller_socket)) is not None:
        connected.append(sock)
        assert len(connected) < 1_000
    for end in connected:
        end.close()
    listening.close()
