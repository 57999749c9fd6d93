"""All streams of an ingest: those of open sessions, and broken ones, among which a new session may
find its own.

Pure; one for each ingest. Weak: a host with more than `BROKEN_OF_HOST_MAX` broken streams loses the
oldest; its repeats are stored twice.
"""

from __future__ import annotations

from collections import Counter
from itertools import islice
from typing import Final, Protocol

from services.ingest.replay.alignment import FramePosition, begin_of_replay, places_of, split
from services.ingest.replay.frame_stream import FrameStream, StreamKey
from services.ingest.replay.identity import identity_of
from services.ingest.replay.replay_memory import ReplayMemory

BROKEN_OF_HOST_MAX: Final = 16
LOOKED_AT_MAX: Final = 100
"""Sessions with held frames that are checked in one turn."""


class Holding(Protocol):
    """A session that holds frames back."""

    def decide(self, now_ms: int) -> bool: ...


class FrameStreams:
    """`make` a stream, or `find` the one that a session continues."""

    def __init__(self, memory: ReplayMemory, keep_ms: int, salt: bytes) -> None:
        self._memory = memory
        self._keep_ms = keep_ms
        self._salt = salt
        self._made = 0
        self.known: dict[bytes, FrameStream] = {}
        """All streams, by identity."""
        self.broken: dict[StreamKey, list[FrameStream]] = {}
        self.holding: dict[Holding, None] = {}
        """Sessions with held frames."""
        self._left: dict[StreamKey, dict[Holding, None]] = {}
        """Those that their senders have left, in that order."""
        self.ended: list[bytes] = []
        """Identities of ended streams, for the journal; its owner empties the list."""

    def make(self, key: StreamKey) -> FrameStream:
        """Make a stream; `salt` distinguishes its identity from those of other incarnations."""
        self._made += 1
        stream = FrameStream(key, identity_of(self._salt, self._made.to_bytes(8, "little"), key[0].encode(), key[1]))
        self._add(stream)
        return stream

    def _add(self, stream: FrameStream) -> None:
        self.known[stream.identity] = stream
        self._memory.keep(stream.identity)

    def has_broken(self, key: StreamKey) -> bool:
        return key in self.broken

    def on_end(self, stream: FrameStream, is_clean: bool) -> None:
        if is_clean or not stream.digests:
            self._forget(stream)
        else:
            self.add_broken(stream)

    def add_broken(self, stream: FrameStream, broke_ms: int = -1) -> None:
        """Add the stream of a session that ended before its sender had every answer, or of a dead
        incarnation. `broke_ms` -1: set in the next turn."""
        self._add(stream)
        stream.broke_ms = broke_ms
        streams = self.broken.setdefault(stream.key, [])
        streams.append(stream)
        if len(streams) > BROKEN_OF_HOST_MAX:
            self._forget(streams.pop(0))

    def add_left(self, key: StreamKey, session: Holding) -> None:
        """The sender has left a session with held frames."""
        self._left.setdefault(key, {})[session] = None

    def is_next(self, key: StreamKey, session: Holding) -> bool:
        """True if the session may be aligned now.

        Sessions that a sender left come before its current one. Otherwise the older session would
        find its stream taken, and its frames would count as new.
        """
        left = self._left.get(key)
        return not left or next(iter(left)) is session

    def stop_holding(self, key: StreamKey, session: Holding) -> None:
        """The session is aligned or over."""
        self.holding.pop(session, None)
        left = self._left.get(key)
        if left is not None:
            left.pop(session, None)
            if not left:
                del self._left[key]

    def turn(self, now_ms: int) -> int:
        """Align what can be aligned now; if there are many sessions, some each turn."""
        aligned = 0
        for session in list(islice(self.holding, LOOKED_AT_MAX)):
            if session.decide(now_ms):
                aligned += 1
            elif self.holding.pop(session, self) is not self:
                self.holding[session] = None  # behind the others
        return aligned

    def expire(self, now_ms: int) -> None:
        """Forget streams that broke too long ago."""
        for key, streams in list(self.broken.items()):
            for stream in list(streams):
                if stream.broke_ms < 0:
                    stream.broke_ms = now_ms
                elif now_ms - stream.broke_ms >= self._keep_ms and not stream.in_flight:
                    streams.remove(stream)
                    self._forget(stream)
            if not streams:
                del self.broken[key]

    def _forget(self, stream: FrameStream) -> None:
        stream.is_over = True
        self.maybe_end(stream)

    def maybe_end(self, stream: FrameStream) -> None:
        """Drop an ended stream once none of its frames is in flight."""
        if not stream.is_over or stream.in_flight:
            return
        self.known.pop(stream.identity, None)
        self._memory.forget(stream.identity)
        self.ended.append(stream.identity)

    def find(self, key: StreamKey, frames: bytes, is_late: bool) -> tuple[FrameStream, int] | None:
        """Return the stream that a session with these first frames continues, and the serial of its
        first frame; None while that is undecided."""
        places: list[tuple[FrameStream, list[FramePosition]]] = []
        for stream in self.broken.get(key, ()):
            found = places_of(bytes(stream.digests), frames)
            if found:
                if stream.in_flight or self._memory.is_unresolved(stream.identity):
                    return None  # not known yet which of its frames are stored
                places.append((stream, found))
        if not is_late and any(not place.is_whole for _, found in places for place in found):
            return None
        counts = Counter(digest for stream in self.broken.get(key, ()) for digest in split(bytes(stream.digests))) if places else Counter()
        best: tuple[int, FrameStream, int] | None = None
        for stream, found in places:
            begin = begin_of_replay(bytes(stream.digests), frames, found, self._answered_end(stream) - stream.base, is_late, counts)
            if begin is not None:
                replayed = stream.end - stream.base - begin
                if best is None or replayed >= best[0]:
                    best = (replayed, stream, stream.base + begin)
        if best is None:
            return self.make(key), 0
        _, stream, serial = best
        self._adopt(stream)
        return stream, serial

    def _answered_end(self, stream: FrameStream) -> int:
        if stream.answered_end is None:
            return max([stream.base, *(stored.end for stored in self._memory.stored_of(stream.identity).values())])
        return stream.answered_end

    def _adopt(self, stream: FrameStream) -> None:
        stream.answered_end = self._answered_end(stream)
        streams = self.broken[stream.key]
        streams.remove(stream)
        if not streams:
            del self.broken[stream.key]
