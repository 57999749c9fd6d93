"""Recognise in a new session the repeated frames of a broken one (RELP, Lumberjack).

Pure; one for each session. A **stream** is what one sender sends over any number of sessions; the
serials of its frames continue. librelp (1.11, seen) opens a session after a broken one with
transaction 1 and repeats every frame whose answer it has not read, in order, before anything new.
Lumberjack clients repeat the unacknowledged window. So the digests of the last frames of each
stream are remembered, by listener and host. The frames of a new session are held until it is
certain where they begin in one of the broken streams:

* their order differs before the end of what is remembered: they are new, and so is the stream;
* they continue to its end: the session continues that stream. Frames below its old end are repeats,
  the next is new.

Repetitive lines may allow several positions; `begin_of_replay` chooses, so that a line that may be
new is stored. A session that goes quiet meanwhile gets `HOLD_MS`. A clean end (a close, or the end
of a connection whose every answer was delivered) empties a stream, because the sender has all
answers. A session whose first frames arrive while no stream of its host is broken is never held.

A session that cannot be read to its end for now, and that its sender has left, passes its stream to
the next session that continues it (`leave`). Among the sessions of one host, those that were left
while frames were held are decided first, in the order in which they were left.

Weak: a new line that equals the very last answered line, and no other of the last thousand, is
taken for its repeat if the session broke between the two. If a sender has left a connection that
even the kernel thinks open, its repeats are stored twice (keep-alive finds it later). So are those
of a sender with another address, and of one that sends in another order (a restart of rsyslog with
a queue on disk).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from services.ingest.replay.frame_streams import DIGEST_BYTES, FrameStream, FrameStreams, StreamKey

HOLD_MS: Final = 1000

Token = Any
OnAligned = Callable[[Token, int], None]
OnDropped = Callable[[Token], None]
"""The session ended before the position of its frames was known."""


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
        """The next expected serial while repeats have not reached the old end; -1 afterwards."""
        self._has_left = self._has_ended = False
        self.is_closed = False
        self.replayed_end = 0
        """Serials below it may be repeats."""
        self.stream: FrameStream | None = None

    @property
    def is_holding(self) -> bool:
        """True if frames are held back."""
        return self.stream is None and (bool(self._held) or self._streams.has_broken(self._key))

    @property
    def identity(self) -> bytes:
        """The identity of the stream; only after a frame has a serial."""
        assert self.stream is not None
        return self.stream.identity

    def take(self, digests: Sequence[bytes], token: Token) -> int | None:
        """Return the serial of the first of these frames; the others follow by one. None: they are
        held, and `on_aligned(token, serial)` is called later."""
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
        """Continue the stream. If another session still has it, its sender has left it and repeats
        the rest here."""
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
        received = b"".join([digest[:DIGEST_BYTES] for digest in digests])
        if not received.startswith(bytes(due)) and not due.startswith(received):
            serial = stream.append(digests)  # its order differs after all: a line that may be new is stored
            self._next_replayed = -1
            return serial
        replayed = min(count, len(due) // DIGEST_BYTES)
        self._next_replayed = serial + replayed
        if self._next_replayed == stream.end:
            self._next_replayed = -1  # the repeats have reached the old end: the rest is new
            stream.append(digests[replayed:])
        return serial

    def completed(self, first_serial: int, count: int) -> None:
        """The ack group of these frames completed: they are answered if the session still exists."""
        stream = self.stream
        assert stream is not None
        stream.in_flight -= count
        if not self._has_ended:  # after the end no answer reaches the sender, so it will repeat these frames
            stream.answered_end = max(stream.answered_end or stream.base, first_serial + count)
        self._streams.maybe_end(stream)

    def hurry(self) -> None:
        """The sender sends nothing before it is answered: decide with the frames that are here."""
        self._held_until_ms = 0

    def leave(self) -> None:
        """One side has ended before the sender had every answer. The sender may not read later
        answers, so its next session continues the stream. This one still takes what it has until
        then."""
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
        """The session is over. Held frames were never taken: the sender repeats them."""
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
        """Align the held frames if that is possible now, and hand them over; return True if it was."""
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
