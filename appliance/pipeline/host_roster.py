"""Which hosts there are, and which have gone silent: decided from the minutes in which each sent something. Pure; owns nothing.

A host is `new` in its first minute, `silent` once `silent_minutes` full minutes have passed without a record of it, and `back` in the minute in which it sends
again. Time is that of the records: when nobody sends anything, no minute ends, and nobody falls silent (watch a topic that always has records, too, where
that matters). Minutes are whole numbers since 1970 UTC.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

NEW, SILENT, BACK = "new", "silent", "back"


class Host(NamedTuple):
    first_minute: int
    last_minute: int
    is_silent: bool = False


class HostEvent(NamedTuple):
    minute: int
    host: str
    event: str
    last_minute: int
    """in which the host had sent something before"""


class Roster(NamedTuple):
    """Every host that ever sent something, and the newest minute that is over."""

    hosts: Mapping[str, Host]
    closed_minute: int = -1

    def to_state(self) -> dict[str, Any]:
        return {"closed_minute": self.closed_minute, "hosts": {name: list(host) for name, host in self.hosts.items()}}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Roster:
        """Of an empty state, the empty roster."""
        hosts = {name: Host(int(first), int(last), bool(silent)) for name, (first, last, silent) in state.get("hosts", {}).items()}
        return cls(hosts, int(state.get("closed_minute", -1)))


def plan_roster(roster: Roster, minutes_of: Mapping[str, Sequence[int]], silent_minutes: int) -> tuple[Roster, list[HostEvent]]:
    """The roster after the minutes in `minutes_of` (host → minutes, any order) are over, and what happened in them, in order."""
    closed_minute = max([roster.closed_minute, *(minute for minutes in minutes_of.values() for minute in minutes)])
    hosts: dict[str, Host] = {}
    events: list[HostEvent] = []
    for name in sorted({*roster.hosts, *minutes_of}):
        host, happened = _follow(name, roster.hosts.get(name), sorted(set(minutes_of.get(name, ()))), closed_minute, silent_minutes)
        hosts[name] = host
        events += happened
    return Roster(hosts, closed_minute), sorted(events)


def _follow(name: str, host: Host | None, minutes: Sequence[int], closed_minute: int, silent_minutes: int) -> tuple[Host, list[HostEvent]]:
    events: list[HostEvent] = []
    for minute in minutes:
        if host is None:
            events.append(HostEvent(minute, name, NEW, minute))
            host = Host(minute, minute)
            continue
        host, gone = _maybe_silent(name, host, minute - 1, silent_minutes)
        events += gone
        if host.is_silent and minute > host.last_minute:
            events.append(HostEvent(minute, name, BACK, host.last_minute))
            host = host._replace(is_silent=False)
        host = Host(min(host.first_minute, minute), max(host.last_minute, minute), host.is_silent)
    assert host is not None, "a host is in the roster or has minutes"
    host, gone = _maybe_silent(name, host, closed_minute, silent_minutes)
    return host, events + gone


def _maybe_silent(name: str, host: Host, closed_minute: int, silent_minutes: int) -> tuple[Host, list[HostEvent]]:
    silent_from = host.last_minute + silent_minutes
    if host.is_silent or closed_minute < silent_from:
        return host, []
    return host._replace(is_silent=True), [HostEvent(silent_from, name, SILENT, host.last_minute)]
