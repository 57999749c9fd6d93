"""What became of the identities that senders gave: the one place that knows whether a record was stored before.

Pure; owned by one ingest, told by its intake, its outlet and what its previous life left (`replays`). A record has an address, an identity and an
ordinal: of a chunk or a request the identity is its digest and the ordinal the record's number in it; of a stream of frames (`stream_replay`) the identity is
the stream's and the ordinal the frame's serial. An address does not depend on partitions: a replay is found wherever the first copy went.

Identities whose units settled are kept for `keep_ms`, at most `entries_max`; the oldest go first. Those under way are bounded by the windows of senders.
Weak: a replay that comes later than that is stored twice; so is one of a record whose route has changed meanwhile, once in each topic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import IntEnum
from typing import Final

from appliance.base.invariants import check
from services.ingest.replay.ordinals import KEPT_BY_STREAMS, Ordinals

Part = tuple[bytes, int, int]
"""(identity, ordinal of the first record, number of records): what of an identity is in a batch."""
OnKnown = Callable[[], None]


class Known(IntEnum):
    """What is known of an identity."""

    NEW = 0
    UNDER_WAY = 1
    """It was taken, and is not settled yet."""
    UNSURE = 2
    """The previous life of this process took it; a leader is being asked what it has of it."""
    STORED = 3
    """All of it."""
    PARTLY = 4
    """Some records of it may be stored: ask `has` for each."""


class _Entry:
    """An identity that is under way, unsure, or stored in part."""

    __slots__ = ("is_under_way", "stored", "unsure", "waiting")

    def __init__(self) -> None:
        self.is_under_way = False
        self.unsure = 0
        """batches of the previous life that hold records of it and are not known to be stored or lost"""
        self.stored: dict[str, Ordinals] = {}
        """by topic"""
        self.waiting: list[OnKnown] = []


class ReplayMemory:
    """`look` before taking, `has` for each record where it says so."""

    def __init__(self, entries_max: int, keep_ms: int) -> None:
        self._entries_max: Final = entries_max
        self._keep_ms: Final = keep_ms
        self._entries: dict[bytes, _Entry] = {}
        self._runs: dict[bytes, tuple[str, int, int]] = {}
        """Of which nothing is known but one run that is stored (topic, first, count): nearly all that a previous life leaves, and entries are large."""
        self._completed_ms: dict[bytes, int] = {}
        """Identities that settled, oldest first; one that is neither in `_entries` nor in `_runs` was stored whole."""
        self._kept: set[bytes] = set()
        self._now_known: list[OnKnown] = []

    def __len__(self) -> int:
        return len(self._completed_ms) + sum(identity not in self._completed_ms for identity in self._entries)

    # -- asking

    def look(self, identity: bytes) -> Known:
        entry = self._entries.get(identity)
        if entry is None:
            if identity in self._runs:
                return Known.PARTLY
            return Known.STORED if identity in self._completed_ms else Known.NEW
        if entry.is_under_way:
            return Known.UNDER_WAY
        if entry.unsure:
            return Known.UNSURE
        return Known.PARTLY if entry.stored else Known.NEW

    def has(self, identity: bytes, topic: str, ordinal: int) -> bool:
        """Whether this record is stored in that topic."""
        entry = self._entries.get(identity)
        if entry is None:
            run = self._runs.get(identity)
            if run is not None:
                return run[0] == topic and run[1] <= ordinal < run[1] + run[2]
            return identity in self._completed_ms
        stored = entry.stored.get(topic)
        return stored is not None and ordinal in stored

    def is_unsure(self, identity: bytes) -> bool:
        entry = self._entries.get(identity)
        return entry is not None and entry.unsure > 0

    def stored_of(self, identity: bytes) -> dict[str, Ordinals]:
        """What is stored of an identity that is not known to be stored whole, by topic. Not to be changed."""
        entry = self._entries.get(identity)
        return entry.stored if entry is not None else {}

    def when_known(self, identity: bytes, callback: OnKnown) -> None:
        """Call once the identity is neither under way nor unsure, from `tell`: then look again."""
        entry = self._entries.get(identity)
        if entry is None or not (entry.is_under_way or entry.unsure):
            self._now_known.append(callback)
        else:
            entry.waiting.append(callback)

    # -- telling

    def begin(self, identity: bytes) -> None:
        """Its records are being taken."""
        entry = self._entry_of(identity)
        check(not entry.is_under_way and not entry.unsure, "an identity is taken by one unit at a time, and when its past is known")
        entry.is_under_way = True
        self._completed_ms.pop(identity, None)

    def completed(self, identity: bytes, is_stored: bool, now_ms: int) -> None:
        """The unit that began it is settled. What of it is not stored whole is remembered as far as its batches said so."""
        entry = self._entries.get(identity)
        if entry is None or not entry.is_under_way:
            return  # it was forgotten meanwhile
        entry.is_under_way = False
        if is_stored or not entry.stored:
            del self._entries[identity]
        if is_stored or entry.stored:
            self._remember(identity, now_ms)
        self._release(entry)

    def completed_in_part(self, identity: bytes, now_ms: int) -> None:
        """The same, where some of it can never be stored: of the rest each record is asked for, also where its batch is stored later."""
        entry = self._entries.get(identity)
        if entry is None or not entry.is_under_way:
            return
        entry.is_under_way = False
        self._remember(identity, now_ms)
        self._release(entry)

    def add_stored(self, topic: str, parts: Iterable[Part]) -> None:
        """A batch is stored."""
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

    def add_unsure(self, parts: Iterable[Part]) -> None:
        """A batch of the previous life, of which nothing is known yet; `resolve` ends that."""
        for identity in {identity for identity, _, _ in parts}:
            self._entry_of(identity).unsure += 1

    def resolve(self, topic: str, parts: Iterable[Part], is_stored: bool, now_ms: int) -> None:
        """What became of a batch given to `add_unsure`."""
        parts = list(parts)
        for identity in {identity for identity, _, _ in parts}:
            entry = self._entries.get(identity)
            if entry is not None and entry.unsure:
                entry.unsure -= 1
        if is_stored:
            self.add_stored(topic, parts)
        for identity in {identity for identity, _, _ in parts}:
            entry = self._entries.get(identity)
            if entry is None or entry.unsure:
                continue
            if not entry.stored and not entry.is_under_way:
                del self._entries[identity]
            elif not entry.is_under_way:
                self._remember(identity, now_ms)
            self._release(entry)

    def keep(self, identity: bytes) -> None:
        """Until `forget`, however old it is: a stream."""
        self._kept.add(identity)

    def forget(self, identity: bytes) -> None:
        """Its sender will not send it again."""
        self._kept.discard(identity)
        self._completed_ms.pop(identity, None)
        self._runs.pop(identity, None)
        entry = self._entries.get(identity)
        if entry is not None and not entry.is_under_way and not entry.unsure:
            del self._entries[identity]

    def trim_stream(self, identity: bytes) -> None:
        """A stream goes on for years; what is far behind its end is not asked for."""
        for stored in self.stored_of(identity).values():
            stored.forget_below(stored.end - KEPT_BY_STREAMS)

    # -- once a turn

    @property
    def has_news(self) -> bool:
        return bool(self._now_known)

    def tell(self) -> int:
        """Call back those whose identity is known now."""
        callbacks, self._now_known = self._now_known, []
        for callback in callbacks:
            callback()
        return len(callbacks)

    def expire(self, now_ms: int) -> None:
        """Let go of what is too old, or too much."""
        limit_ms = now_ms - self._keep_ms
        excess = len(self._completed_ms) - self._entries_max
        gone: list[bytes] = []
        for identity, settled_ms in self._completed_ms.items():
            if settled_ms > limit_ms and len(gone) >= excess:
                break
            gone.append(identity)
        for identity in gone:
            self.forget(identity)

    def remember_found(self, now_ms: int) -> None:
        """What `add_stored` told of identities that nobody began counts from now on as settled: it is all that previous lives left."""
        self._completed_ms.update(dict.fromkeys(self._runs, now_ms))
        for identity, entry in self._entries.items():
            if not entry.is_under_way and not entry.unsure and identity not in self._kept:
                self._completed_ms[identity] = now_ms
        self.expire(now_ms)

    def bound_found(self) -> None:
        """While a previous life is being read: no more than is kept."""
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
        if not entry.is_under_way and not entry.unsure:
            self._now_known += entry.waiting
            entry.waiting.clear()
