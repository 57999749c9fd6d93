"""The input of one listener: its routes, its parser, and the builder of its records.

Owned by the router. Weak: answers of routes are cached by facility, severity, host and app; a full
cache is cleared at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, tzinfo
from typing import Any

from appliance.senders.listener import SYSLOG_TCP, SYSLOG_UDP, KeyKind, Listener, Protocol
from appliance.senders.router import ANSWERS_KEPT_MAX, Destinations, Router, direct
from services.ingest.protocols.syslog.syslog_lines import SyslogLines
from services.ingest.protocols.syslog.syslog_message import SyslogMessage, SyslogParser, read_structured_data
from services.ingest.records.event import KEYS, EventBuilder

KEPT_NAMES_BYTES_MAX = 512
"""Bytes of host and app; answers for longer names are not cached."""


class SyslogRecord:
    """A syslog message as routes and keys read it."""

    __slots__ = ("_message",)

    tag: str | None = None
    labels: Mapping[str, Any] | None = None

    def __init__(self, message: SyslogMessage) -> None:
        self._message = message

    @property
    def facility(self) -> int | None:
        return self._message.facility

    @property
    def severity(self) -> int | None:
        return self._message.severity

    @property
    def host(self) -> str | None:
        return None if self._message.host is None else self._message.host.decode("utf-8", "replace")

    @property
    def app(self) -> str | None:
        return None if self._message.app is None else self._message.app.decode("utf-8", "replace")

    @property
    def fields(self) -> Mapping[str, Any] | None:
        data = self._message.structured_data
        return read_structured_data(data.decode("utf-8", "replace")) if data else None


class IngestInput:
    """The input of one listener."""

    def __init__(self, listener: Listener, router: Router) -> None:
        self.listener = listener
        self.principal = "" if listener.protocol is Protocol.HTTP else listener.principal
        """whose rights the router checks; those of HTTP requests are checked before"""
        self.can_wait = not listener.is_datagram
        """True if its senders can be slowed down."""
        self.parser = SyslogParser(time_zone_of(listener.time_zone))
        key = listener.key.kind.value if listener.key.kind.value in KEYS else "none"
        self.events = EventBuilder(key, b"" if listener.name in (SYSLOG_TCP, SYSLOG_UDP) else listener.name.encode(), listener.raw)
        self.lines = SyslogLines(self.parser, self.events)
        self._routes = router.of(listener)
        self.constant = self._routes.constant
        self.topic = self._routes.fallback[0].topic
        """The topic of records that no route takes; `blocked_by` checks it."""
        self.plain_topic = self._plain_topic()
        """The topic of all its records if there is only one and `EventBuilder` makes the key;
        otherwise ""."""
        self.is_keyed_by_host = listener.key.kind is KeyKind.HOST
        self.is_keyed_by_app = listener.key.kind is KeyKind.APP
        self._answers: dict[tuple[Any, ...], Destinations] = {}
        self._direct: dict[str, Destinations] = {}

    def _plain_topic(self) -> str:
        if self.constant is None or len(self.constant) > 1:
            return ""
        topic, key, is_key_required = self.constant[0]
        is_plain = key.kind in (KeyKind.HOST, KeyKind.APP, KeyKind.NONE) and key == self.listener.key and not is_key_required
        return topic if is_plain else ""

    def direct(self, topic: str) -> Destinations:
        """Return the destinations of records whose sender names the topic."""
        destinations = self._direct.get(topic)
        if destinations is None:
            if len(self._direct) >= ANSWERS_KEPT_MAX:
                self._direct.clear()
            destinations = self._direct[topic] = direct(topic, self.listener)
        return destinations

    def route(self, record: Any) -> Destinations:
        """Return the destinations of a record."""
        return self._routes.route(record) if self.constant is None else self.constant

    def route_syslog(self, message: SyslogMessage) -> Destinations:
        """Return the destinations of a syslog message."""
        if self.constant is not None:
            return self.constant
        if not self._routes.looks_at_header_only:
            return self._routes.route(SyslogRecord(message))
        host, app = message.host, message.app
        key = (message.facility, message.severity, host, app)
        destinations = self._answers.get(key)
        if destinations is None:
            destinations = self._routes.route(SyslogRecord(message))
            if len(host or b"") + len(app or b"") <= KEPT_NAMES_BYTES_MAX:
                if len(self._answers) >= ANSWERS_KEPT_MAX:
                    self._answers.clear()
                self._answers[key] = destinations
        return destinations


def time_zone_of(name: str) -> tzinfo:
    """Return the zone for times without one. Raises ValueError for a zone that this machine does
    not know."""
    if name == "UTC":
        return UTC
    import zoneinfo  # imported on demand: 1 MB

    try:
        return zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError) as error:
        raise ValueError(f"ingest.syslog.time.zone is {name!r}, which this machine does not know; use a name below /usr/share/zoneinfo, or UTC") from error
