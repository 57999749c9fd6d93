"""Streams of frames: find the broken stream that a new session continues.

Pure; one `FrameStreams` for each ingest. Digests of `DIGEST_BYTES` are concatenated. Weak: two
frames whose digests have the same 8 bytes are taken for one (2^-64 by chance). The memory of a
stream grows with what its sender has in flight, which the window of its connection bounds. A host
with more than `BROKEN_OF_HOST_MAX` broken streams loses the oldest; its repeats are stored twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import accumulate, islice
from typing import Final, NamedTuple, Protocol

from services.ingest.records.ack_group import identity_of
from services.ingest.replay.replay_memory import ReplayMemory

DIGEST_BYTES: Final = 8
POSITIONS_MAX: Final = 2048


class FramePosition(NamedTuple):
    """The session's first frame is the remembered one at index `first`. `is_whole`: everything
    remembered from there on has arrived."""

    first: int
    is_whole: bool


def positions_of(remembered: bytes, frames: bytes) -> list[FramePosition]:
    """Return every position that agrees with the frames so far, the last position first."""
    found: list[FramePosition] = []
    first = frames[:DIGEST_BYTES]
    position = len(remembered)
    while first and len(found) < POSITIONS_MAX:
        position = remembered.rfind(first, 0, position + DIGEST_BYTES - 1 if position < len(remembered) else position)
        if position < 0:
            break
        if position % DIGEST_BYTES == 0:
            rest = len(remembered) - position
            if rest <= len(frames):
                if remembered.endswith(frames[:rest]):
                    found.append(FramePosition(position // DIGEST_BYTES, True))
            elif remembered.startswith(frames, position):
                found.append(FramePosition(position // DIGEST_BYTES, False))
    return found


def begin_of_replay(
    remembered: bytes, frames: bytes, positions: Sequence[FramePosition], answered_end: int, is_late: bool, counts: Mapping[bytes, int]
) -> int | None:
    """Return the index at which the session begins; None if its frames are all new. `counts`: how
    often each digest was seen.

    `answered_end`: frames from this index on were not answered, so their sender must repeat them,
    and all after them. A position beyond it is therefore impossible, and so is a session that
    repeats nothing. `is_late`: no more frames are awaited, so positions whose rest has not arrived
    count, too.

    The choice is the position with the fewest repeats. An earlier position is chosen only if a
    frame that would count as new otherwise was sent exactly once before: storing it again would be
    a certain duplicate. A line that may be new is always stored.
    """
    end, received = len(remembered) // DIGEST_BYTES, len(frames) // DIGEST_BYTES
    candidates = [position.first for position in positions if position.is_whole or is_late]
    begin = next((index for index in ([end] if answered_end >= end else []) + candidates if index <= answered_end), end)
    seen_once = list(accumulate((counts.get(digest, 0) == 1 for digest in split(remembered)), initial=0))
    for index in candidates:
        if index < begin:
            first_uncertain, uncertain_end = index + end - begin, min(end, index + received)
            if first_uncertain < uncertain_end and seen_once[uncertain_end] > seen_once[first_uncertain]:
                begin = index
    return begin if begin < end else None


def split(digests: bytes) -> list[bytes]:
    return [digests[position : position + DIGEST_BYTES] for position in range(0, len(digests), DIGEST_BYTES)]


REMEMBERED_FRAMES: Final = 1024

StreamKey = tuple[str, bytes]
"""(listener, host)"""


class FrameHolder(Protocol):
    """A session whose frames go into a stream."""

    is_closed: bool
    """No more of its frames may be taken."""


class FrameStream:
    """The frames of one sender: `digests` (the first bytes of each) of serials `base` to `end`. The
    session that continues the stream changes it."""

    __slots__ = ("answered_end", "base", "broke_ms", "digests", "holder", "identity", "in_flight", "is_over", "journalled_end", "key")

    def __init__(self, key: StreamKey, identity: bytes, base: int = 0, digests: bytes = b"") -> None:
        self.key = key
        self.identity = identity
        self.base = base
        self.digests = bytearray(digests)
        self.answered_end: int | None = base
        """No frame from this serial on was answered: its sender will repeat them. None (a stream of
        a previous incarnation): as far as its frames are stored."""
        self.in_flight = 0
        """Frames taken whose ack groups have not completed."""
        self.journalled_end = base
        """Frames below it are in the journal."""
        self.broke_ms = 0
        self.holder: FrameHolder | None = None
        """The session that continues it; None after that has ended."""
        self.is_over = False
        """Forgotten as soon as none of its frames is in flight."""

    @property
    def end(self) -> int:
        return self.base + len(self.digests) // DIGEST_BYTES

    def append(self, digests: Sequence[bytes]) -> int:
        """Append frames; return the serial of the first."""
        serial = self.end
        self.digests += b"".join([digest[:DIGEST_BYTES] for digest in digests])
        if len(self.digests) > 2 * REMEMBERED_FRAMES * DIGEST_BYTES:
            self._trim()
        return serial

    def take_unjournalled(self) -> tuple[int, bytes]:
        """Return the first serial and the digests that the journal lacks, and mark them as written."""
        first_serial = max(self.base, self.journalled_end)
        self.journalled_end = self.end
        return first_serial, bytes(self.digests[(first_serial - self.base) * DIGEST_BYTES :])

    def _trim(self) -> None:
        """Drop frames far before the end that have completed: they cannot be repeated."""
        surplus = min(self.end - self.base - REMEMBERED_FRAMES, self.end - self.base - self.in_flight)
        if surplus > 0:
            del self.digests[: surplus * DIGEST_BYTES]
            self.base += surplus


BROKEN_OF_HOST_MAX: Final = 16
LOOKED_AT_MAX: Final = 100
"""Sessions with held frames that are checked in one turn."""


class Holding(Protocol):
    """A session that holds frames back."""

    def decide(self, now_ms: int) -> bool: ...


class FrameStreams:
    """All streams of an ingest: those of open sessions, and broken ones."""

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
        positions: list[tuple[FrameStream, list[FramePosition]]] = []
        for stream in self.broken.get(key, ()):
            found = positions_of(bytes(stream.digests), frames)
            if found:
                if stream.in_flight or self._memory.is_unresolved(stream.identity):
                    return None  # not known yet which of its frames are stored
                positions.append((stream, found))
        # A position whose rest has not arrived may still turn out wrong with the next frame.
        if not is_late and any(not position.is_whole for _, found in positions for position in found):
            return None
        counts = Counter(digest for stream in self.broken.get(key, ()) for digest in split(bytes(stream.digests))) if positions else Counter()
        best: tuple[int, FrameStream, int] | None = None
        for stream, found in positions:
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
