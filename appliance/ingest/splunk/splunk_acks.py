"""Acknowledgements of Splunk's collector: a request on a channel gets a number at once, and `/ack` says whether its records are stored.

Pure; one book for each ingest. Numbers of a channel begin at a place that no other life and no other process uses, so that a number of a dead ingest is
unknown to the next one, never true. The client then sends again, and the request is known by its channel and bytes (the unit's identity) as long as
it has not been told that it is stored; told so, the identity is forgotten, and the same bytes are a new event.
Bounded: channels (the one unused longest goes), unsettled and untold requests of a channel. A number that was told true stays true for a while.
Weak: a channel's numbers live in the process that gave them. With several ingest processes a client that asks over another connection may ask another
one: it is told false, sends again, and that process stores the records a second time.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterable
from typing import Final

CHANNELS_MAX: Final = 1_024
UNSETTLED_MAX: Final = 10_000
UNTOLD_MAX: Final = 100_000
TOLD_MAX: Final = 10_000
_FIRST_ID_BITS = 52
"""Below what a double holds exactly: clients in JavaScript read it so."""


class Channel:
    """One channel of one sender."""

    def __init__(self, first_ack_id: int) -> None:
        self._next_ack_id = first_ack_id
        self._unsettled: dict[int, bytes] = {}
        self._untold: OrderedDict[int, bytes] = OrderedDict()
        self._told: OrderedDict[int, None] = OrderedDict()

    @property
    def is_idle(self) -> bool:
        return not self._unsettled

    @property
    def is_full(self) -> bool:
        return len(self._unsettled) >= UNSETTLED_MAX

    def open(self, identity: bytes) -> int:
        """The number of a request that was just taken."""
        ack_id = self._next_ack_id
        self._next_ack_id += 1
        self._unsettled[ack_id] = identity
        return ack_id

    def on_settled(self, ack_id: int, is_stored: bool) -> None:
        """A request that was refused stays false for good."""
        identity = self._unsettled.pop(ack_id)
        if is_stored:
            self._untold[ack_id] = identity
            if len(self._untold) > UNTOLD_MAX:
                self._untold.popitem(last=False)

    def ask(self, ack_ids: Iterable[int]) -> tuple[dict[int, bool], list[bytes]]:
        """What to say of each number, and the identities that are told to be stored for the first time now."""
        said: dict[int, bool] = {}
        told: list[bytes] = []
        for ack_id in ack_ids:
            identity = self._untold.pop(ack_id, None)
            if identity is not None:
                told.append(identity)
                self._told[ack_id] = None
                if len(self._told) > TOLD_MAX:
                    self._told.popitem(last=False)
            said[ack_id] = identity is not None or ack_id in self._told
        return said, told


class AckBook:
    """The channels of one ingest."""

    def __init__(self, channels_max: int = CHANNELS_MAX) -> None:
        self._channels_max = channels_max
        self._channels: OrderedDict[bytes, Channel] = OrderedDict()

    def __len__(self) -> int:
        return len(self._channels)

    def find(self, name: bytes) -> Channel | None:
        """The channel, if it was used here."""
        return self._channels.get(name)

    def channel(self, name: bytes, seed: bytes) -> Channel | None:
        """The channel, made if need be; `seed` is what no other life or process has. None: there are too many, and all are waited for."""
        channel = self._channels.get(name)
        if channel is None:
            if len(self._channels) >= self._channels_max and not self._make_room():
                return None
            digest = hashlib.blake2b(b"%b\n%b" % (name, seed), digest_size=8).digest()
            channel = self._channels[name] = Channel(int.from_bytes(digest, "big") >> (64 - _FIRST_ID_BITS))
        self._channels.move_to_end(name)
        return channel

    def _make_room(self) -> bool:
        for name, channel in self._channels.items():
            if channel.is_idle:
                del self._channels[name]
                return True
        return False
