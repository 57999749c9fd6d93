"""Senders that get a confirmation of what is stored: what each was given, what was confirmed to it, and what its protocol promises.

A sender is a thread that takes numbers out of its `Feed` (a record each, `WORD NUMBER`), sends them by a client of its protocol, and notes those that the
box confirmed as stored. It never gives up while its client can go on, so when it has `finish`ed everything was confirmed, unless the client forgets.
Weak: for a program that does not report confirmations (rsyslog) all that it was given counts as confirmed, since it sends until it is.
"""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable, Iterable
from enum import Enum
from pathlib import Path
from typing import NamedTuple

from lab.certificates import Authority, Certificate
from lab.running_box import Address


class Promise(Enum):
    """Nothing that was confirmed to a sender is ever lost. Of everything it sent:"""

    ONCE = "once"
    """nothing is twice: the protocol, or the sender, has an identity"""
    AT_LEAST_ONCE = "at least once"
    """what was not answered is sent again, and nothing distinguishes it from a new record"""


class Feed:
    """Numbers from 0 on, no faster than `per_second`, until it is over."""

    def __init__(self, per_second: int) -> None:
        self._per_second = per_second
        self._began = time.monotonic()
        self._over = threading.Event()
        self.given = 0

    def begin(self) -> None:
        """Nothing was due before."""
        self._began = time.monotonic()

    def end(self) -> None:
        self._over.set()

    @property
    def is_over(self) -> bool:
        return self._over.is_set()

    def due(self, most: int) -> list[int]:
        """Those that are due now, perhaps none."""
        if self.is_over:
            return []
        first = self.given
        self.given = max(first, min(first + most, int((time.monotonic() - self._began) * self._per_second)))
        return list(range(first, self.given))

    def take(self, most: int) -> list[int]:
        """At least one, as soon as it is due; none when it is over."""
        while not (numbers := self.due(most)) and not self.is_over:
            self._over.wait(1 / self._per_second)
        return numbers


class Place(NamedTuple):
    """Where a sender sends, and what is its own."""

    address: Address
    topic: str
    word: str
    """Its records are `WORD NUMBER`."""
    directory: Path
    authority: Authority
    certificate: Certificate


class ToldSender(threading.Thread):
    """`start` it, and `finish` it."""

    forgets = False
    """Its client drops what was not acknowledged, so not everything needs to be confirmed."""

    def __init__(self, place: Place, feed: Feed) -> None:
        super().__init__(daemon=True, name=place.word)
        self.place = place
        self.feed = feed
        self.told: set[int] = set()
        self.failure = ""

    def text(self, number: int) -> str:
        return f"{self.place.word} {number}"

    def tell(self, numbers: Iterable[int]) -> None:
        """The box said that these are stored."""
        self.told.update(numbers)

    def tell_text(self, text: str) -> None:
        self.told.add(int(text.split()[1]))

    def run(self) -> None:
        self.feed.begin()
        try:
            self.send_all()
        except Exception:
            self.failure = traceback.format_exc()

    def send_all(self) -> None:
        """Send until the feed is over and nothing is left that might be confirmed."""
        raise NotImplementedError

    def begin_close(self) -> None:
        """What still runs is to end. After `finish`, or instead of it."""

    def close(self) -> None:
        """… and has ended."""

    def finish(self, seconds: float) -> None:
        """No more numbers; wait until all is confirmed."""
        self.feed.end()
        self.join(seconds)
        assert not self.is_alive(), f"{self.name}: confirmed {len(self.told)} of {self.feed.given} within {seconds:g} s"
        assert not self.failure, f"{self.name}: {self.failure}"
        if not self.forgets:
            assert len(self.told) == self.feed.given, f"{self.name}: confirmed {len(self.told)} of {self.feed.given}"


class Kind(NamedTuple):
    """A sender that exists."""

    name: str
    """Of its listener and its topic, too."""
    protocol: str
    transport: str
    promise: Promise
    identity: str
    """By which its replays are known; or why they are not."""
    make: Callable[[Place, Feed], ToldSender]
    missing: Callable[[], str | None] = lambda: None
    """Why it cannot be had here."""
