"""All users of one process: their ledger, what they were asked to do, and which of them have something on the way.

One for each worker (and one where there are no workers), made anew when a test starts. Belongs to the hub's thread. Weak spot: a user that never comes back
from a call keeps its process from being quiet; the master then gives up waiting.
"""

from __future__ import annotations

import argparse
import itertools
import os
from enum import StrEnum
from typing import Any, Protocol

import gevent

from loadtest.users.ledger import ProcessLedger

CLOSE_SECONDS = 20.0


class Phase(StrEnum):
    """What users do: first all of it, then senders rest and consumers read to the end, then all leave."""

    LOAD = "load"
    DRAIN = "drain"
    CLOSE = "close"


class Member(Protocol):
    """A user, as its crew knows it."""

    is_sending: bool

    def close(self) -> None: ...


class Crew:
    def __init__(self) -> None:
        self.options = argparse.Namespace()
        self.begin(self.options)

    def begin(self, options: argparse.Namespace) -> None:
        """A new test."""
        self.options = options
        self.phase = Phase.LOAD
        self.ledger = ProcessLedger()
        self._members: list[Member] = []
        self._numbers = itertools.count()
        self._consumers = itertools.count()

    @property
    def may_send(self) -> bool:
        return self.phase is Phase.LOAD

    @property
    def may_consume(self) -> bool:
        return self.phase is not Phase.CLOSE

    def join(self, member: Member) -> str:
        """A name for it that no other user of the run has."""
        self._members.append(member)
        return f"{os.uname().nodename}-{os.getpid()}-{next(self._numbers)}"

    def next_consumer(self) -> int:
        return next(self._consumers)

    def enter(self, phase: Phase) -> None:
        """Returns when all are closed, if that is the phase."""
        self.phase = phase
        if phase is Phase.CLOSE:
            gevent.joinall([gevent.spawn(member.close) for member in self._members], timeout=CLOSE_SECONDS)
            self.ledger.is_closed = True

    def document(self) -> dict[str, Any]:
        """The ledger for the master."""
        self.ledger.is_quiet = not self.may_send and not any(member.is_sending for member in self._members)
        return self.ledger.document()


crew = Crew()
"""This process's."""
