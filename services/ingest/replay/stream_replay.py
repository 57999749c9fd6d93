"""Finds in the first frames of a new session the last ones of a session that broke: RELP and Lumberjack number anew on each connection.

Pure; one for each session. A **stream** is what one sender sends over any number of sessions; its frames have serials that go on. librelp (1.11, seen) opens
a session after a broken one with transaction 1 and sends every frame whose answer it has not read, all of them, in their order, before anything new;
Lumberjack clients send the unacknowledged window again. So of the last frames of each stream the digests are remembered, by listener and host, and the frames
of a new session are held back until it is certain where they begin in one of the broken streams:

* their order breaks off before the end of what is remembered: they are new, and so is the stream;
* they go on to its end: the session goes on with that stream. Frames below its old end are replays, the next one is new.

Where lines repeat themselves there may be several such places. The one with the fewest replays holds that the rules of the sender allow (it begins no later
than the first frame that was not answered); a place further back is taken only if a frame that would be new otherwise is one that its host sent exactly
once. So a line that may be new is stored. A session that goes quiet meanwhile gets `HOLD_MS`; then it is aligned if what came has such a frame, else new. A
clean end empties a stream (a close, or the end of a connection on which every answer was delivered), because then the sender has all answers. A session
whose first frames come while nothing of its host is broken is never held back.

A session that cannot be read to its end for now, and that its sender has left, gives up its stream to the next one that goes on with it (`leave`). Of one
host, sessions that were left while frames of them were held back are decided before those that were not, in the order in which they were left.

Weak: a new line that equals the very last answered line, and no other of the last thousand, is taken for its replay when the session broke between the two. A
session that the sender has left, and whose connection even the kernel still thinks is open, is not looked at (keep-alive finds it): its replays are stored
twice. So are those of a sender with another address, and of one that sends in another order (a restart of rsyslog with a queue on disk).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from services.ingest.replay.alignment import DIGEST_BYTES
from services.ingest.replay.frame_stream import FrameStream, StreamKey
from services.ingest.replay.frame_streams import FrameStreams

HOLD_MS: Final = 1000

Token = Any
OnAligned = Callable[[Token, int], None]
OnDropped = Callable[[Token], None]
"""The session ended before it was known where its frames belong."""


class StreamReplay:
    """One session's view of its stream."""

    def __init__(self, streams: FrameStreams, key: StreamKey, on_aligned: OnAligned, on_dropped: OnDropped) -> None:
        self._streams = streams
        self._key = key
        self._on_aligned = on_aligned
        self._on_dropped = on_dropped
        self._held: list[tuple[Token, Sequence[bytes]]] = []
        self._held_digests = bytearray()
        self._held_until_ms: int | None = None
        self._next_replayed = -1
        """the serial that is due while what was replayed has not reached the old end"""
        self._has_left = self._has_ended = False
        self.is_closed = False
        self.replayed_end = 0
        """Serials below it may be replays."""
        self.stream: FrameStream | None = None

    @property
    def is_holding(self) -> bool:
        """Whether frames are held back."""
        return self.stream is None and (bool(self._held) or self._streams.has_broken(self._key))

    @property
    def identity(self) -> bytes:
        """Of the stream; not before a frame has a serial."""
        assert self.stream is not None
        return self.stream.identity

    def take(self, digests: Sequence[bytes], token: Token) -> int | None:
        """The serial of the first of these frames, the others follow by one; None: they are held back, and `on_aligned(token, serial)` comes later."""
        if self.stream is not None:
            return self._serial_of(self.stream, digests)
        if not self.is_holding:
            stream = self._go_on_with(self._streams.make(self._key))
            serial = self._serial_of(stream, digests)
            if self._has_left:
                self._streams.on_end(stream, False)
            return serial
        self._held.append((token, digests))
        self._held_digests += b"".join([digest[:DIGEST_BYTES] for digest in digests])
        self._streams.holding[self] = None
        if self._has_left:
            self._streams.add_left(self._key, self)
        return None

    def _go_on_with(self, stream: FrameStream) -> FrameStream:
        """From here on its frames are ours. Whoever had them and is still read has been left by its sender, who brings the rest over this session."""
        if stream.holder is not None:
            stream.holder.is_closed = True
        stream.holder = self
        self.stream = stream
        return stream

    def _serial_of(self, stream: FrameStream, digests: Sequence[bytes]) -> int:
        count = len(digests)
        stream.in_flight += count
        if self._next_replayed < 0:
            return stream.append(digests)
        serial = self._next_replayed
        due = stream.digests[(serial - stream.base) * DIGEST_BYTES :]
        came = b"".join([digest[:DIGEST_BYTES] for digest in digests])
        if not came.startswith(bytes(due)) and not due.startswith(came):
            serial = stream.append(digests)  # its order broke off after all: in doubt it is new
            self._next_replayed = -1
            return serial
        replayed = min(count, len(due) // DIGEST_BYTES)
        self._next_replayed = serial + replayed
        if self._next_replayed == stream.end:
            self._next_replayed = -1
            stream.append(digests[replayed:])
        return serial

    def completed(self, first_serial: int, count: int) -> None:
        """A unit with these frames is settled; so they are answered, if there is still a session to answer."""
        stream = self.stream
        assert stream is not None
        stream.in_flight -= count
        if not self._has_ended:
            stream.answered_end = max(stream.answered_end or stream.base, first_serial + count)
        self._streams.maybe_end(stream)

    def hurry(self) -> None:
        """The sender waits, and sends nothing more: decide with what came."""
        self._held_until_ms = 0

    def leave(self) -> None:
        """The sender has ended its side, or we have, before it had every answer: it may not hear those to come, and its next session goes on with the
        stream. What still comes over this one is taken until then."""
        self.hurry()
        if self._has_left:
            return
        self._has_left = True
        if self._has_ended:
            return
        if self.stream is not None:
            self._streams.on_end(self.stream, False)
        elif self._held:
            self._streams.add_left(self._key, self)

    def end(self, is_clean: bool) -> None:
        """The session is over. What was held back was never taken: the sender brings it again."""
        if self._has_ended:
            return
        self._has_ended = True
        self._streams.stop_holding(self._key, self)
        held, self._held = self._held, []
        for token, _ in held:
            self._on_dropped(token)
        if self.stream is not None:
            if self.stream.holder is self:
                self.stream.holder = None
            if not self._has_left:
                self._streams.on_end(self.stream, is_clean)

    def decide(self, now_ms: int) -> bool:
        """Whether it is known now what the held frames are; then they are handed over."""
        if self._held_until_ms is None:
            self._held_until_ms = now_ms + HOLD_MS
        if not self._streams.is_next(self._key, self):
            return False
        found = self._streams.find(self._key, bytes(self._held_digests), now_ms >= self._held_until_ms)
        if found is None:
            return False
        stream, serial = found
        self._go_on_with(stream)
        self.replayed_end = stream.end
        self._next_replayed = serial if serial < stream.end else -1
        self._streams.stop_holding(self._key, self)
        held, self._held = self._held, []
        for token, digests in held:
            self._on_aligned(token, self._serial_of(stream, digests))
        self._held_digests.clear()
        if self._has_left:
            self._streams.on_end(stream, False)
        return True
