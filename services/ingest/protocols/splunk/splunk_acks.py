"""Indexer acknowledgement of Splunk's collector: a request on a channel gets a number at once, and
`/ack` returns whether its records are stored.

Pure; one `AckLedger` for each ingest. The numbers of a channel begin at a value that no other
incarnation or process uses, so a number of a dead ingest is unknown to the next one and never
returns true; the client sends again.

While an ingest runs, every request is new, even with the bytes of another one: its identity is its
bytes and an *occurrence*, the lowest that no open request with the same bytes has. So after a crash
the first repeated request gets occurrence 0, the second 1, and so on. An occurrence is released
when its request was refused, when `/ack` returned true, or when it is too old to be polled; its
identity is forgotten then. Of equal stored requests the highest occurrence is released first: it
does not matter which one was polled, and the remaining ones are those that a next incarnation would
meet first.

Only a channel that polled `/ack` in this incarnation has identities: a client that never polls does
not repeat requests, and its equal events are separate events. Channels are limited (the least
recently used one is removed), and so are incomplete and unpolled requests of a channel. A number
that returned true stays true for a while.

Weak: the numbers belong to the process that gave them. With several ingests, a client that polls
over another connection may reach another process: it gets false, repeats the request, and that
process stores the records again. What a client repeats while its ingest runs is stored twice.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterable
from heapq import heappop, heappush
from typing import Final, NamedTuple

from services.ingest.records.ack_group import identity_of

CHANNELS_MAX: Final = 1_024
IN_FLIGHT_MAX: Final = 10_000
UNTOLD_MAX: Final = 100_000
UNPOLLED_MAX: Final = 2_000
"""The limit for a channel that has never polled: many senders name a channel and never poll."""
TOLD_MAX: Final = 10_000
_FIRST_ID_BITS = 52
"""Below the largest integer that a double represents exactly; clients in JavaScript need that."""


class _Equals:
    """The open requests of a channel that have the same bytes."""

    __slots__ = ("free", "next", "open_count", "stored")

    def __init__(self) -> None:
        self.next = 0
        self.free: list[int] = []
        """Occurrences below `next` that no open request has, lowest first."""
        self.stored: list[int] = []
        """Negated occurrences of stored requests that are remembered, highest first."""
        self.open_count = 0
        """Occurrences in use."""

    def take(self) -> int:
        self.open_count += 1
        if self.free:
            return heappop(self.free)
        self.next += 1
        return self.next - 1

    def release(self, occurrence: int) -> None:
        self.open_count -= 1
        heappush(self.free, occurrence)


class Taken(NamedTuple):
    """A request that was just accepted. `content` identifies its channel and bytes."""

    ack_id: int
    identity: bytes
    content: bytes | None
    occurrence: int


class Channel:
    """One channel of one sender."""

    def __init__(self, first_ack_id: int) -> None:
        self._next_ack_id = first_ack_id
        self._in_flight: set[int] = set()
        self._untold: OrderedDict[int, bytes | None] = OrderedDict()
        """By content; None: the channel has no identities."""
        self._told: OrderedDict[int, None] = OrderedDict()
        self._equals: dict[bytes, _Equals] = {}
        self._to_forget: list[bytes] = []
        self.has_polled = False

    @property
    def is_idle(self) -> bool:
        return not self._in_flight

    @property
    def is_full(self) -> bool:
        return len(self._in_flight) >= IN_FLIGHT_MAX

    def open(self, content: bytes) -> Taken:
        """Return number and identity of a request that was just accepted."""
        equals = self._equals.get(content)
        if equals is None:
            equals = self._equals[content] = _Equals()
        occurrence = equals.take()
        return Taken(self._open(), occurrence_of(content, occurrence), content, occurrence)

    def open_keyed(self, identity: bytes) -> Taken:
        """Return the same for a request with an explicit key: the same key is the same request,
        whether polled or not.
        """
        return Taken(self._open(), identity, None, 0)

    def _open(self) -> int:
        ack_id = self._next_ack_id
        self._next_ack_id += 1
        self._in_flight.add(ack_id)
        return ack_id

    def on_completed(self, taken: Taken, is_stored: bool, is_remembered: bool) -> None:
        """Complete a request; a refused one returns false for good. `is_remembered`: by its
        identity.
        """
        self._in_flight.remove(taken.ack_id)
        content = taken.content
        if content is not None:
            if is_stored and is_remembered:
                heappush(self._equals[content].stored, -taken.occurrence)
            else:
                self._release(content, taken.occurrence)
                content = None
        if is_stored:
            self._untold[taken.ack_id] = content
            if len(self._untold) > (UNTOLD_MAX if self.has_polled else UNPOLLED_MAX):
                self._forget(self._untold.popitem(last=False)[1])

    def ask(self, ack_ids: Iterable[int]) -> dict[int, bool]:
        """Return the answer for each number."""
        self.has_polled = True
        said: dict[int, bool] = {}
        for ack_id in ack_ids:
            if ack_id in self._untold:
                self._forget(self._untold.pop(ack_id))
                self._told[ack_id] = None
                if len(self._told) > TOLD_MAX:
                    self._told.popitem(last=False)
                said[ack_id] = True
            else:
                said[ack_id] = said.get(ack_id, False) or ack_id in self._told
        return said

    def take_forgotten(self) -> list[bytes]:
        """Return identities that must not be recognised any more; the caller forgets them before it
        accepts the next request.
        """
        gone, self._to_forget = self._to_forget, []
        return gone

    def end(self) -> list[bytes]:
        """Return all identities, when the channel itself is removed."""
        for content in self._untold.values():
            self._forget(content)
        return self.take_forgotten()

    def _forget(self, content: bytes | None) -> None:
        if content is not None:
            occurrence = -heappop(self._equals[content].stored)
            self._to_forget.append(occurrence_of(content, occurrence))
            self._release(content, occurrence)

    def _release(self, content: bytes, occurrence: int) -> None:
        equals = self._equals[content]
        equals.release(occurrence)
        if not equals.open_count:
            del self._equals[content]


def occurrence_of(content: bytes, occurrence: int) -> bytes:
    """Return the identity of one of several requests with the same bytes."""
    return identity_of(content, b"%d" % occurrence) if occurrence else content


class AckLedger:
    """The channels of one ingest."""

    def __init__(self, channels_max: int = CHANNELS_MAX) -> None:
        self._channels_max = channels_max
        self._channels: OrderedDict[bytes, Channel] = OrderedDict()
        self._to_forget: list[bytes] = []

    def __len__(self) -> int:
        return len(self._channels)

    def find(self, name: bytes) -> Channel | None:
        """Return the channel if it was used in this process."""
        return self._channels.get(name)

    def channel(self, name: bytes, seed: bytes) -> Channel | None:
        """Return the channel, or make it; `seed` is unique to this incarnation and process. None:
        the limit is reached and all channels have waiting requests.
        """
        channel = self._channels.get(name)
        if channel is None:
            if len(self._channels) >= self._channels_max and not self._make_room():
                return None
            digest = hashlib.blake2b(b"%b\n%b" % (name, seed), digest_size=8).digest()
            channel = self._channels[name] = Channel(int.from_bytes(digest, "big") >> (64 - _FIRST_ID_BITS))
        self._channels.move_to_end(name)
        return channel

    def take_forgotten(self) -> list[bytes]:
        """Return the identities of removed channels, to be forgotten."""
        gone, self._to_forget = self._to_forget, []
        return gone

    def _make_room(self) -> bool:
        for name, channel in self._channels.items():
            if channel.is_idle:
                self._to_forget += channel.end()
                del self._channels[name]
                return True
        return False
