"""The memory of identities: the only place that knows whether a record was stored before.

Pure; owned by one ingest. A record has an address: an identity and an ordinal. For a chunk or a
request the identity is its digest and the ordinal the record's number in it. For a stream of frames
(`stream_replay`) the identity is the stream's and the ordinal the frame's serial. An address does
not depend on partitions: a repeat is found wherever the first copy was stored.

Identities of completed ack groups are kept for `keep_ms`, at most `entries_max`; the oldest go
first. Identities in flight are bounded by the windows of senders.

Weak: a repeat after that time is stored twice. So is one of a record whose route has changed, once
in each topic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import IntEnum
from typing import Final

from appliance.base.invariants import check

NUMBERS_MAX: Final = 1 << 20
"""Numbers from the lowest to the highest of one set: 128 KiB."""
KEPT_BY_STREAMS: Final = 8192
"""What a stream's set keeps below its highest number."""


class Ordinals:
    """The stored ordinals of an identity: mostly runs, growing upwards.

    One integer with a bit for each number from `base` on: a thousand records cost 125 bytes. Weak:
    a number far below the base costs the bits between; `NUMBERS_MAX` bounds that by forgetting the
    lowest.
    """

    __slots__ = ("base", "bits")

    def __init__(self, base: int = 0, bits: int = 0) -> None:
        self.base = base
        self.bits = bits

    def __contains__(self, number: int) -> bool:
        return number >= self.base and bool(self.bits >> (number - self.base) & 1)

    def __len__(self) -> int:
        return self.bits.bit_count()

    @property
    def end(self) -> int:
        """One above the highest."""
        return self.base + self.bits.bit_length()

    def add(self, first: int, count: int) -> None:
        if count > NUMBERS_MAX:  # a damaged journal may contain any count
            first, count = first + count - NUMBERS_MAX, NUMBERS_MAX
        self.forget_below(first + count - NUMBERS_MAX)
        if not self.bits:
            self.base = first
        elif first < self.base:
            if self.end - first > NUMBERS_MAX:
                return
            self.bits <<= self.base - first
            self.base = first
        self.bits |= ((1 << count) - 1) << (first - self.base)
        if self.bits.bit_length() > NUMBERS_MAX:
            self.forget_below(self.end - NUMBERS_MAX)

    def forget_below(self, number: int) -> None:
        if number > self.base:
            self.bits >>= number - self.base
            self.base = number

    def runs(self) -> list[tuple[int, int]]:
        """Return (first, count) of each run, ascending."""
        found = []
        number, bits = self.base, self.bits
        while bits:
            gap = (bits & -bits).bit_length() - 1
            bits >>= gap
            count = (~bits & (bits + 1)).bit_length() - 1
            found.append((number + gap, count))
            bits >>= count
            number += gap + count
        return found


Part = tuple[bytes, int, int]
"""(identity, ordinal of the first record, number of records): the records of an identity in a
batch."""
OnKnown = Callable[[], None]


class Known(IntEnum):
    """What is known about an identity."""

    NEW = 0
    IN_FLIGHT = 1
    """Taken; its ack group has not completed."""
    UNRESOLVED = 2
    """A previous incarnation took it; a leader is being asked what it has."""
    STORED = 3
    """All records are stored."""
    PARTLY = 4
    """Some records may be stored: check each with `has`."""


class _Entry:
    """An identity that is in flight, unresolved, or stored in part."""

    __slots__ = ("is_in_flight", "stored", "unresolved", "waiting")

    def __init__(self) -> None:
        self.is_in_flight = False
        self.unresolved = 0
        """Batches of the previous incarnation with records of it whose result is unknown."""
        self.stored: dict[str, Ordinals] = {}
        """By topic."""
        self.waiting: list[OnKnown] = []


class ReplayMemory:
    """Call `lookup` before taking records, and `has` for each record if the answer is PARTLY."""

    def __init__(self, entries_max: int, keep_ms: int) -> None:
        self._entries_max: Final = entries_max
        self._keep_ms: Final = keep_ms
        self._entries: dict[bytes, _Entry] = {}
        self._runs: dict[bytes, tuple[str, int, int]] = {}
        """Identities of which one stored run (topic, first, count) is known: nearly all that a
        previous incarnation leaves, kept without an `_Entry` because entries are large."""
        self._completed_ms: dict[bytes, int] = {}
        """When each identity completed, oldest first. One that is neither in `_entries` nor in
        `_runs` was stored whole."""
        self._kept: set[bytes] = set()
        self._now_known: list[OnKnown] = []

    def __len__(self) -> int:
        return len(self._completed_ms) + sum(identity not in self._completed_ms for identity in self._entries)

    # -- queries

    def lookup(self, identity: bytes) -> Known:
        entry = self._entries.get(identity)
        if entry is None:
            if identity in self._runs:
                return Known.PARTLY
            return Known.STORED if identity in self._completed_ms else Known.NEW
        if entry.is_in_flight:
            return Known.IN_FLIGHT
        if entry.unresolved:
            return Known.UNRESOLVED
        return Known.PARTLY if entry.stored else Known.NEW

    def has(self, identity: bytes, topic: str, ordinal: int) -> bool:
        """True if this record is stored in that topic."""
        entry = self._entries.get(identity)
        if entry is None:
            run = self._runs.get(identity)
            if run is not None:
                return run[0] == topic and run[1] <= ordinal < run[1] + run[2]
            return identity in self._completed_ms
        stored = entry.stored.get(topic)
        return stored is not None and ordinal in stored

    def is_unresolved(self, identity: bytes) -> bool:
        entry = self._entries.get(identity)
        return entry is not None and entry.unresolved > 0

    def stored_of(self, identity: bytes) -> dict[str, Ordinals]:
        """Return what is stored, by topic, of an identity that is not known to be stored whole.
        Read-only."""
        entry = self._entries.get(identity)
        return entry.stored if entry is not None else {}

    def when_known(self, identity: bytes, callback: OnKnown) -> None:
        """Call back from `notify` once the identity is neither in flight nor unresolved; then look
        it up again."""
        entry = self._entries.get(identity)
        if entry is None or not (entry.is_in_flight or entry.unresolved):
            self._now_known.append(callback)
        else:
            entry.waiting.append(callback)

    # -- changes

    def begin(self, identity: bytes) -> None:
        """Its records are being taken."""
        entry = self._entry_of(identity)
        check(not entry.is_in_flight and not entry.unresolved, "an identity is taken by one group at a time, and when its past is known")
        entry.is_in_flight = True
        self._completed_ms.pop(identity, None)

    def completed(self, identity: bytes, is_stored: bool, now_ms: int) -> None:
        """The ack group that began it has completed. If it was refused, what its batches reported
        as stored is remembered."""
        entry = self._entries.get(identity)
        if entry is None or not entry.is_in_flight:
            return  # forgotten meanwhile
        entry.is_in_flight = False
        if is_stored or not entry.stored:
            del self._entries[identity]
        if is_stored or entry.stored:
            self._remember(identity, now_ms)
        self._release(entry)

    def completed_in_part(self, identity: bytes, now_ms: int) -> None:
        """The same if some of its records can never be stored: the others are checked one by one,
        also if their batch is stored later."""
        entry = self._entries.get(identity)
        if entry is None or not entry.is_in_flight:
            return
        entry.is_in_flight = False
        self._remember(identity, now_ms)
        self._release(entry)

    def add_stored(self, topic: str, parts: Iterable[Part]) -> None:
        """A batch with these records is stored."""
        for identity, first, count in parts:
            entry = self._entries.get(identity)
            if entry is None:
                if identity in self._runs or identity in self._kept:
                    entry = self._entry_of(identity)
                else:
                    if identity not in self._completed_ms:  # else it is known whole
                        self._runs[identity] = topic, first, count
                    continue
            entry.stored.setdefault(topic, Ordinals()).add(first, count)

    def add_unresolved(self, parts: Iterable[Part]) -> None:
        """A batch of the previous incarnation whose result is unknown until `resolve`."""
        for identity in {identity for identity, _, _ in parts}:
            self._entry_of(identity).unresolved += 1

    def resolve(self, topic: str, parts: Iterable[Part], is_stored: bool, now_ms: int) -> None:
        """Set the result of a batch that was passed to `add_unresolved`."""
        parts = list(parts)
        for identity in {identity for identity, _, _ in parts}:
            entry = self._entries.get(identity)
            if entry is not None and entry.unresolved:
                entry.unresolved -= 1
        if is_stored:
            self.add_stored(topic, parts)
        for identity in {identity for identity, _, _ in parts}:
            entry = self._entries.get(identity)
            if entry is None or entry.unresolved:
                continue
            if not entry.stored and not entry.is_in_flight:
                del self._entries[identity]
            elif not entry.is_in_flight:
                self._remember(identity, now_ms)
            self._release(entry)

    def keep(self, identity: bytes) -> None:
        """Keep a stream's identity until `forget`, regardless of its age."""
        self._kept.add(identity)

    def forget(self, identity: bytes) -> None:
        """The sender will not repeat it."""
        self._kept.discard(identity)
        self._completed_ms.pop(identity, None)
        self._runs.pop(identity, None)
        entry = self._entries.get(identity)
        if entry is not None and not entry.is_in_flight and not entry.unresolved:
            del self._entries[identity]

    def trim_stream(self, identity: bytes) -> None:
        """Forget what is far before the end of a stream, which may continue for years."""
        for stored in self.stored_of(identity).values():
            stored.forget_below(stored.end - KEPT_BY_STREAMS)

    # -- once a turn

    @property
    def has_callbacks(self) -> bool:
        return bool(self._now_known)

    def notify(self) -> int:
        """Call back the waiting owners of identities that are known now; return their number."""
        callbacks, self._now_known = self._now_known, []
        for callback in callbacks:
            callback()
        return len(callbacks)

    def expire(self, now_ms: int) -> None:
        """Forget what is too old or too much."""
        limit_ms = now_ms - self._keep_ms
        excess = len(self._completed_ms) - self._entries_max
        expired: list[bytes] = []
        for identity, completed_ms in self._completed_ms.items():
            if completed_ms > limit_ms and len(expired) >= excess:
                break
            expired.append(identity)
        for identity in expired:
            self.forget(identity)

    def remember_found(self, now_ms: int) -> None:
        """Treat what the journal reported as completed from now on: it is all that previous
        incarnations left."""
        self._completed_ms.update(dict.fromkeys(self._runs, now_ms))
        for identity, entry in self._entries.items():
            if not entry.is_in_flight and not entry.unresolved and identity not in self._kept:
                self._completed_ms[identity] = now_ms
        self.expire(now_ms)

    def limit_found(self) -> None:
        """Bound the memory while the journal of a previous incarnation is read."""
        while len(self._runs) > self._entries_max:
            del self._runs[next(iter(self._runs))]

    def _entry_of(self, identity: bytes) -> _Entry:
        entry = self._entries.get(identity)
        if entry is None:
            entry = self._entries[identity] = _Entry()
            run = self._runs.pop(identity, None)
            if run is not None:
                entry.stored[run[0]] = Ordinals()
                entry.stored[run[0]].add(run[1], run[2])
        return entry

    def _remember(self, identity: bytes, now_ms: int) -> None:
        if identity in self._kept:
            return
        self._completed_ms.pop(identity, None)
        self._completed_ms[identity] = now_ms
        if len(self._completed_ms) > self._entries_max:
            self.forget(next(iter(self._completed_ms)))

    def _release(self, entry: _Entry) -> None:
        if not entry.is_in_flight and not entry.unresolved:
            self._now_known += entry.waiting
            entry.waiting.clear()
