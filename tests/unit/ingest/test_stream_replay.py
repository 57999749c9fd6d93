"""Sessions of one sender that overlap: the next one goes on where the one before is still being answered."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from appliance.ingest.replay.frame_streams import FrameStreams
from appliance.ingest.replay.identity import digest_of
from appliance.ingest.replay.replay_memory import ReplayMemory
from appliance.ingest.replay.stream_replay import StreamReplay

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
        first.settled(0, 2)
    second = sender.connect()
    assert second.take(frames(b"a", b"b", b"c"), "second") is None, "it is held back until it is known what became of the first"
    sender.streams.turn(0)
    assert sender.aligned == ([("second", 0)] if is_settled_first else [])
    if not is_settled_first:
        first.settled(0, 2)
        sender.streams.turn(1)
    first.end(False)
    assert sender.aligned == [("second", 0)] and second.replayed_end == 2
    second.settled(0, 3)
    second.end(True)
    assert not sender.streams.has_broken(KEY) and not sender.streams.known


def test_what_was_held_back_of_a_sender_that_left_is_decided_and_goes_on_in_its_next_session() -> None:
    sender = Sender()
    first = sender.connect()
    first.take(frames(b"a"), "first")
    first.settled(0, 1)
    first.end(False)
    second = sender.connect()
    assert second.take(frames(b"a", b"b"), "second") is None
    second.leave()
    sender.streams.turn(0)
    third = sender.connect()
    assert sender.aligned == [("second", 0)] and third.take(frames(b"b"), "third") is None
    second.settled(0, 2)
    second.end(False)
    sender.streams.turn(1_000)
    sender.streams.turn(2_000)
    assert sender.aligned[1:] == [("third", 1)]
