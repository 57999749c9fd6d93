"""Sessions of one sender that overlap: the next one goes on where the one before is still being answered."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from services.ingest.records.ack_group import digest_of
from services.ingest.replay import frame_streams
from services.ingest.replay.frame_streams import FrameStreams
from services.ingest.replay.replay_memory import ReplayMemory
from services.ingest.replay.stream_replay import StreamReplay

KEY = ("relp", b"192.0.2.1")


class Sender:
    """`aligned`: (token, serial of its first frame) of what was held back."""

    def __init__(self) -> None:
        self.streams = FrameStreams(ReplayMemory(1000, 600_000), 600_000, b"life")
        self.aligned: list[tuple[str, int]] = []

    def connect(self) -> StreamReplay:
        return StreamReplay(self.streams, KEY, lambda token, serial: self.aligned.append((token, serial)), lambda _token: None)


def frames(*lines: bytes) -> Sequence[bytes]:
    return [digest_of(line) for line in lines]


@pytest.mark.parametrize("is_settled_first", [True, False])
def test_a_sender_that_left_and_comes_again_before_it_was_answered_goes_on_with_its_stream(is_settled_first: bool) -> None:
    sender = Sender()
    first = sender.connect()
    assert first.take(frames(b"a", b"b"), "first") == 0
    first.leave()
    if is_settled_first:
        first.completed(0, 2)
    second = sender.connect()
    assert second.take(frames(b"a", b"b", b"c"), "second") is None, "it is held back until it is known what became of the first"
    sender.streams.turn(0)
    assert sender.aligned == ([("second", 0)] if is_settled_first else [])
    if not is_settled_first:
        first.completed(0, 2)
        sender.streams.turn(1)
    first.end(False)
    assert sender.aligned == [("second", 0)] and second.replayed_end == 2
    second.completed(0, 3)
    second.end(True)
    assert not sender.streams.has_broken(KEY) and not sender.streams.known


def test_what_was_held_back_of_a_sender_that_left_is_decided_and_goes_on_in_its_next_session() -> None:
    sender = Sender()
    first = sender.connect()
    first.take(frames(b"a"), "first")
    first.completed(0, 1)
    first.end(False)
    second = sender.connect()
    assert second.take(frames(b"a", b"b"), "second") is None
    second.leave()
    sender.streams.turn(0)
    third = sender.connect()
    assert sender.aligned == [("second", 0)] and third.take(frames(b"b"), "third") is None
    second.completed(0, 2)
    second.end(False)
    sender.streams.turn(1_000)
    sender.streams.turn(2_000)
    assert sender.aligned[1:] == [("third", 1)]


def test_frames_of_an_ended_session_are_resolved_before_repeated_ones_in_any_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frame_streams, "LOOKED_AT_MAX", 1)
    sender = Sender()
    first = sender.connect()
    first.take(frames(b"a", b"b"), "first")
    first.end(False)
    sessions = {"second": sender.connect(), "third": sender.connect(), "fourth": sender.connect()}
    for name, session in sessions.items():
        assert session.take(frames(b"a", b"b"), name) is None
        if name != "fourth":
            session.leave()
    sender.streams.turn(0)  # the second; it is behind the others now
    first.completed(0, 2)
    for now_ms in range(12):
        known = len(sender.aligned)
        sender.streams.turn(now_ms)
        for name, serial in sender.aligned[known:]:
            sessions[name].completed(serial, 2)
    assert sender.aligned == [("second", 0), ("third", 0), ("fourth", 0)]
    assert [session.replayed_end for session in sessions.values()] == [2, 2, 2]


def test_a_dropped_session_with_unread_data_continues_until_another_session_has_its_stream() -> None:
    sender = Sender()
    first = sender.connect()
    assert first.take(frames(b"a", b"b"), "first") == 0
    first.leave()  # more of it waits in the kernel
    second = sender.connect()
    assert second.take(frames(b"a", b"b", b"c"), "second") is None
    assert first.take(frames(b"c"), "first") == 2
    first.completed(0, 2)
    sender.streams.turn(0)
    assert sender.aligned == [], "what it took last is under way"
    first.completed(2, 1)
    assert not first.is_closed
    sender.streams.turn(0)
    assert sender.aligned == [("second", 0)] and second.replayed_end == 3
    assert first.is_closed, "its sender brings the rest over the second"
    first.end(False)
    second.completed(0, 3)
    second.end(True)
    assert not sender.streams.has_broken(KEY) and not sender.streams.known


def test_a_session_that_was_dropped_before_its_first_frame_is_identified_by_that_frame() -> None:
    sender = Sender()
    first = sender.connect()
    first.leave()
    assert first.take(frames(b"a"), "first") == 0
    first.completed(0, 1)
    second = sender.connect()
    assert second.take(frames(b"a"), "second") is None
    sender.streams.turn(0)
    assert sender.aligned == [("second", 0)] and second.replayed_end == 1
