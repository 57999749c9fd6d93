"""From messages to batches: counts what was received, parses, builds records, collects them; for both transports of one ingest.

Owned by one ingest agent; the hot loop of the process. `received` is counted before anything else is done with a message, so
that the books balance wherever the process is killed. Streams give `TURN_BYTES` a turn at most, so that batches close at their age.
Weak: lines of one burst are parsed one after the other in pure Python, 4-8 µs each; that is what bounds the process.
"""

from __future__ import annotations

from datetime import UTC, tzinfo

from appliance.base.clock import Clock
from appliance.base.settings import Box
from appliance.ingest.accounting import COUNTED_COUNTER, INPUT_BYTES_COUNTER, RECEIVED_COUNTER, LossReason
from appliance.ingest.batcher import Batcher, Outcome
from appliance.ingest.event import EventBuilder, EventSource
from appliance.ingest.syslog_message import SyslogParser
from appliance.shm.counters import Counters

TURN_BYTES = 1 << 18
UDP, TCP = "udp", "tcp"
_TOO_LARGE = Outcome.TOO_LARGE


class SyslogIntake:
    """`batcher` is replaced by the agent when the topic is known."""

    def __init__(self, box: Box, clock: Clock, counters: Counters) -> None:
        self._clock = clock
        self._parser = SyslogParser(_time_zone(box.text("ingest.syslog.time.zone")))
        self._events = EventBuilder(box.text("ingest.syslog.key"))
        self.batcher = Batcher(1)
        self.turn_bytes_left = TURN_BYTES
        self._received = {transport: counters.counter(RECEIVED_COUNTER.format(transport=transport)) for transport in (UDP, TCP)}
        self._input_bytes = {transport: counters.counter(INPUT_BYTES_COUNTER.format(transport=transport)) for transport in (UDP, TCP)}
        self._overflow = counters.counter(COUNTED_COUNTER.format(reason=LossReason.OVERFLOW))
        self._too_large = counters.counter(COUNTED_COUNTER.format(reason=LossReason.TOO_LARGE))
        self._unparsed = counters.counter("ingest.unparsed")

    def take_stream(self, messages: list[bytes], size_bytes: int, source: EventSource) -> int:
        """Messages of one connection, `size_bytes` on the wire. Returns the partition that takes no more, -1 if the sender need not slow down."""
        self._received[TCP].add(len(messages))
        self._input_bytes[TCP].add(size_bytes)
        self.turn_bytes_left -= size_bytes
        arrival_ms = self._clock.wall_ms()
        now_ms = self._clock.monotonic_ms()
        parse, build, append = self._parser.parse, self._events.build, self.batcher.append
        slowed_by = -1
        unparsed = 0
        for raw in messages:
            message = parse(raw, arrival_ms)
            if message.parse_error is not None:
                unparsed += 1
            outcome = append(build(message, source, arrival_ms), now_ms)
            if outcome:
                if outcome is _TOO_LARGE:
                    self._too_large.add()
                else:
                    slowed_by = self.batcher.slowed_by
        if unparsed:
            self._unparsed.add(unparsed)
        return slowed_by

    def take_datagrams(self, datagrams: list[tuple[bytes, EventSource]], size_bytes: int) -> None:
        """One burst of datagrams, a message each. What finds its partition blocked is counted as overflow: nobody can be slowed down."""
        self._received[UDP].add(len(datagrams))
        self._input_bytes[UDP].add(size_bytes)
        arrival_ms = self._clock.wall_ms()
        now_ms = self._clock.monotonic_ms()
        parse, build, append = self._parser.parse, self._events.build, self.batcher.append
        unparsed = 0
        for raw, source in datagrams:
            message = parse(raw, arrival_ms)
            if message.parse_error is not None:
                unparsed += 1
            outcome = append(build(message, source, arrival_ms), now_ms, False)
            if outcome:
                (self._too_large if outcome is _TOO_LARGE else self._overflow).add()
        if unparsed:
            self._unparsed.add(unparsed)


def _time_zone(name: str) -> tzinfo:
    """The zone of times that name none. Raises ValueError for a zone that this machine does not know."""
    if name == "UTC":
        return UTC
    import zoneinfo  # 1 MB that only who needs another zone should pay for

    try:
        return zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError) as error:
        raise ValueError(f"ingest.syslog.time.zone is {name!r}, which this machine does not know; use a name below /usr/share/zoneinfo, or UTC") from error


def address_text(address: str, port: int) -> tuple[bytes, bytes]:
    """(`ADDRESS:PORT`, `ADDRESS`) of a peer; IPv4 inside IPv6 is written as IPv4, IPv6 with brackets where a port follows."""
    host = address.removeprefix("::ffff:")
    return (f"[{host}]:{port}" if ":" in host else f"{host}:{port}").encode(), host.encode()
