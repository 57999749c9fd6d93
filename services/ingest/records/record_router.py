"""The router: takes each record of each protocol from its session to the batch of its partition.
Implements `Intake`.

Owned by one ingest agent; the hot loop of the process. `received` is counted before anything else
is done with a record, so that the ledger holds wherever the process is killed. Records with
identities go through `identified_records` first. Plain syslog takes the short path with nothing per
line that is not needed. Records that arrived together stay together (`syslog_lines`,
`record_columns`, `Batcher.append_all`); records that routes or the replay memory must see go one by
one.

Weak: pure Python, 2-8 µs a record with its parser; that bounds the throughput of the process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import repeat
from typing import Final, NamedTuple, cast

from appliance.base.clock import Clock
from appliance.records.builder import encode_headers
from appliance.senders.accounting import LossReason
from appliance.senders.listener import Listener
from appliance.senders.router import Destinations, key_of
from appliance.senders.sender_tables import TableReading
from services.ingest.protocols.syslog.syslog_message import SyslogMessage
from services.ingest.records.ack_group import AckGroup, AckOutcome, ReplayedStream
from services.ingest.records.acknowledger import Acknowledger
from services.ingest.records.batcher import Acceptance, Batcher
from services.ingest.records.event import FUTURE_MS_MAX, PAST_MS_MAX, EventSource, ProducerRecord, timestamp_of
from services.ingest.records.held_records import HeldRecords
from services.ingest.records.identified_records import Addresses, AddressRun, IdentifiedRecords, ReplayLookup
from services.ingest.records.ingest_input import IngestInput, SyslogRecord
from services.ingest.records.ingest_ledger import IngestLedger
from services.ingest.records.ingest_record import ColumnarRecords, IngestRecord, columns_of
from services.ingest.records.ingest_topics import BackloggedRecord, Collector, IngestTopics, TopicBacklog
from services.ingest.records.intake import Oddity, RefusedReason
from services.ingest.records.live_tap import LiveTap
from services.ingest.records.sender_rights import SenderRights

OVERHEAD_BYTES = 1024
"""Overhead of a batch and of the headers of a dead letter."""
CUT_BYTES = 1 << 20
"""The limit while the topic does not exist."""


class DeadLetters:
    """Rejects records that can never be stored in their topic: counts them, and stores a dead
    letter if the table names a topic. A dead letter is the record's value, cut to the limit of its
    topic, with headers for the reason and the topic. It has the record's address, so a repeat of
    the record, which is refused again, is no second dead letter.

    `topic` is "" without a dead letter topic. `on_blocked(topic, partition)`: that partition is
    blocked. Weak: a dead letter counts as a copy. One whose own topic is too small or cannot be
    created is counted and lost.
    """

    def __init__(
        self, topic: str, topics: IngestTopics, identified: IdentifiedRecords, ledger: IngestLedger, clock: Clock, on_blocked: Callable[[str, int], None]
    ) -> None:
        self._topic = topic
        self._topics = topics
        self._identified = identified
        self._ledger = ledger
        self._clock = clock
        self._on_blocked = on_blocked

    def reject(self, group: AckGroup, number: int, reason: LossReason, topic: str, event: ProducerRecord, address: tuple[bytes | None, int]) -> None:
        """Count a record of the group that `topic` can never hold, and add it to the negative part
        of the answer. `address`: identity and ordinal in the replay memory."""
        self._ledger.on_counted(group, reason, 1)
        if group.on_completed is not None:
            group.rejected.append((number, str(reason)))
        identity, ordinal = address
        if self._topic and (identity is None or not self._identified.is_stored(group, identity, ordinal, self._topic, True)):
            self._store(group, reason, topic, event, identity, ordinal)

    def _store(self, group: AckGroup, reason: LossReason, topic: str, event: ProducerRecord, identity: bytes | None, ordinal: int) -> None:
        collector = self._topics.of(self._topic).collector
        limit, can_wait = CUT_BYTES, False
        if isinstance(collector, Batcher):
            limit, can_wait = collector.max_batch_bytes, not group.listener.is_datagram
        limit -= OVERHEAD_BYTES + len(event.key or b"")
        headers = [("source", group.source.address), ("transport", group.source.transport), ("listener", group.listener.name.encode())]
        headers += [("dead_letter_reason", str(reason).encode()), ("dead_letter_topic", topic.encode())]
        if len(event.value) > limit:
            headers.append(("truncated", b"true"))
        letter = ProducerRecord(event.timestamp_ms, event.key, event.value[: max(0, limit)], encode_headers(headers))
        if collector.append(letter, self._clock.monotonic_ms(), group, can_wait, identity, ordinal, True) is Acceptance.TAKEN_BUT_BLOCKED and can_wait:
            self._on_blocked(self._topic, collector.blocked_partition)


_TOO_LARGE = Acceptance.TOO_LARGE
_NO_ADDRESS: Final[tuple[None, int]] = (None, 0)


class _PlainRun(NamedTuple):
    """Records for one topic, by columns. `other_headers`: those of records, by index, that differ
    from `headers`."""

    timestamps_ms: Sequence[int]
    values: Sequence[bytes]
    keys: Sequence[bytes | None]
    headers: bytes
    other_headers: Mapping[int, bytes]


class RecordRouter:
    """One for each ingest."""

    def __init__(
        self,
        tables: TableReading,
        topics: IngestTopics,
        acknowledger: Acknowledger,
        replays: ReplayLookup,
        held: HeldRecords,
        clock: Clock,
    ) -> None:
        router, ledger = tables.router(), acknowledger.ledger
        self._inputs = {listener.name: IngestInput(listener, router) for listener in tables.listeners}
        self._router = router
        self._topics = topics
        self._ledger = ledger
        self._acknowledger = acknowledger
        self._clock = clock
        self._identified = IdentifiedRecords(replays, ledger, acknowledger, self._store, held, clock)
        self._dead_letters = DeadLetters(router.dead_letter, topics, self._identified, ledger, clock, self._on_blocked)
        acknowledger.on_completed = self._identified.on_completed
        topics.on_too_large = self._on_late_too_large
        topics.on_batched = self._on_batched
        self.rights: SenderRights | None = None
        """None: no principal needs rights."""
        self.tap: LiveTap | None = None
        """Set while a command watches what passes."""
        self.blocked_partition: tuple[str, int] | None = None
        """The blocked partition that a record reached since the reader last reset it."""

    # -- Intake

    def take(self, group: AckGroup, records: Sequence[IngestRecord]) -> None:
        if group.identities is not None and len(records):
            self._identified.take(group, records)
            return
        self._receive(group, len(records))
        self._store(group, records, range(group.record_count - len(records), group.record_count), None)

    def take_syslog(self, group: AckGroup, messages: Sequence[bytes]) -> None:
        source = self._inputs[group.listener.name]
        if group.identities is not None and len(messages):
            self._identified.take(group, messages)
        elif source.plain_topic and not group.topic:
            self._take_plain(source, group, messages)
        else:
            self._receive(group, len(messages))
            self._store(group, messages, range(group.record_count - len(messages), group.record_count), None)

    def close_group(self, group: AckGroup) -> None:
        self._acknowledger.close(group)

    def abandon(self, group: AckGroup) -> None:
        group.outcome = AckOutcome.REFUSED
        self._ledger.on_refused(group.listener, group.source.host, RefusedReason.INCOMPLETE, 1)
        self._acknowledger.close(group)

    def records_of(self, listener: Listener, source: EventSource) -> tuple[int, int]:
        return self._ledger.records_of(listener, source.host)

    def open_stream(self, listener: Listener, source: EventSource) -> ReplayedStream:
        return self._identified.open_stream(listener, source)

    def forget(self, identity: bytes) -> None:
        self._identified.forget(identity)

    def blocked_by(self, listener: Listener, topic: str = "") -> bool:
        wanted = topic if topic and self.has_topic(topic) else self._inputs[listener.name].topic
        return self._topics.of(wanted).is_blocked

    def refuse(self, listener: Listener, source: EventSource, reason: RefusedReason, count: int = 1) -> None:
        self._ledger.on_refused(listener, source.host, reason, count)

    def note(self, listener: Listener, source: EventSource, oddity: Oddity, count: int = 1) -> None:
        self._ledger.on_odd(listener, source.host, oddity, count)

    def has_topic(self, topic: str) -> bool:
        return topic in self._router.topics or (self._topics.is_there(topic) and not topic.startswith("__"))

    def topics_of(self, listener: Listener, record: IngestRecord | None = None) -> Iterable[str]:
        routes = self._router.of(listener)
        return routes.topics if record is None else [to.topic for to in routes.route(record)]

    def may_write(self, principal: str, source: EventSource, topic: str) -> bool:
        return self.rights is None or self.rights.may_write(principal, source.host, topic)

    def now_ms(self) -> int:
        return self._clock.wall_ms()

    def monotonic_ms(self) -> int:
        return self._clock.monotonic_ms()

    # -- the way in

    def _receive(self, group: AckGroup, count: int) -> None:
        group.record_count += count
        self._ledger.on_received(group, count, self._clock.wall_ms())

    def _take_plain(self, source: IngestInput, group: AckGroup, messages: Sequence[bytes]) -> None:
        """Take messages of one topic, with a key that the builder makes and without identities:
        most syslog lines."""
        self._receive(group, len(messages))
        if source.principal and not self.may_write(source.principal, group.source, source.plain_topic):
            self._refuse_unauthorized(group, range(group.record_count - len(messages), group.record_count))
            return
        self._store_lines(source, group, messages, None, None)

    def _refuse_unauthorized(self, group: AckGroup, numbers: Sequence[int]) -> None:
        """Count records of a principal that may not write to their topic; a dead letter would be a way around that."""
        self._ledger.on_counted(group, LossReason.UNAUTHORIZED, len(numbers))
        if group.on_completed is not None:
            group.rejected += [(number, str(LossReason.UNAUTHORIZED)) for number in numbers]

    def _store_lines(
        self, source: IngestInput, group: AckGroup, messages: Sequence[bytes], numbers: Sequence[int] | None, addresses: AddressRun | None
    ) -> None:
        """Store syslog messages that neither routes nor the replay memory must see."""
        arrival_ms = self._clock.wall_ms()
        lines = source.lines.read(messages, group.source, arrival_ms)
        if lines.unparsed:
            self._ledger.on_odd(group.listener, group.source.host, Oddity.UNPARSED, lines.unparsed)
        whole = source.events.headers(group.source, arrival_ms, False)
        run = _PlainRun(lines.timestamps_ms, lines.values, lines.keys, whole, lines.headers)
        self._append_plain(source, group, run, numbers, addresses)

    def _store_records(
        self, source: IngestInput, group: AckGroup, records: Sequence[IngestRecord], numbers: Sequence[int], addresses: Addresses | None
    ) -> None:
        """Store records of other protocols that neither routes nor the replay memory must see."""
        arrival_ms = self._clock.wall_ms()
        values, times_ms, names = columns_of(records, source.is_keyed_by_host, source.is_keyed_by_app)
        earliest_ms, latest_ms = max(0, arrival_ms - PAST_MS_MAX), arrival_ms + FUTURE_MS_MAX
        timestamps_ms = [arrival_ms if time_ms is None or not earliest_ms <= time_ms <= latest_ms else time_ms for time_ms in times_ms]
        without_name = group.source.host if source.is_keyed_by_host else None
        written = {name: name.encode("utf-8", "replace") if name else without_name for name in set(names)}
        keys = [written[name] for name in names]
        whole = source.events.headers(group.source, arrival_ms, False)
        headers: dict[int, bytes] = {}
        if not isinstance(records, ColumnarRecords):
            headers = {index: source.events.headers(group.source, arrival_ms, True) for index, record in enumerate(records) if record.is_cut}
        self._append_plain(source, group, _PlainRun(timestamps_ms, values, keys, whole, headers), numbers, addresses)

    def _append_plain(
        self,
        source: IngestInput,
        group: AckGroup,
        run: _PlainRun,
        numbers: Sequence[int] | None,
        addresses: Addresses | None,
    ) -> None:
        """Append records to batches of the listener's one topic, together if possible."""
        timestamps_ms, values, keys, headers, other_headers = run
        if self.tap is not None:
            self.tap.records(group, source.plain_topic, values)
        collector = self._topics.of(source.plain_topic).collector
        now_ms = self._clock.monotonic_ms()
        if isinstance(collector, Batcher) and not other_headers and not isinstance(addresses, list):
            identity, ordinal = (None, 0) if addresses is None else addresses[:2]
            for index, outcome in collector.append_all(timestamps_ms, values, keys, headers, now_ms, group, source.can_wait, identity, ordinal):
                event = ProducerRecord(timestamps_ms[index], keys[index], values[index], headers)
                number = -1 if numbers is None else numbers[index]
                self._on_odd_outcome(outcome, collector, group, number, source.plain_topic, event, (identity, ordinal + index))
            return
        address_of = repeat(_NO_ADDRESS) if addresses is None else addresses.pairs if isinstance(addresses, AddressRun) else addresses
        for index, (identity, ordinal) in zip(range(len(values)), address_of, strict=False):
            event = ProducerRecord(timestamps_ms[index], keys[index], values[index], other_headers.get(index, headers))
            outcome = collector.append(event, now_ms, group, source.can_wait, identity, ordinal)
            if outcome:
                number = -1 if numbers is None else numbers[index]
                self._on_odd_outcome(outcome, collector, group, number, source.plain_topic, event, (identity, ordinal))

    def _on_odd_outcome(
        self, outcome: Acceptance, collector: Collector, group: AckGroup, number: int, topic: str, event: ProducerRecord, address: tuple[bytes | None, int]
    ) -> None:
        if outcome is Acceptance.TAKEN_BUT_BLOCKED:
            self.blocked_partition = (topic, collector.blocked_partition)
        elif outcome is _TOO_LARGE:
            self._dead_letters.reject(group, number, LossReason.TOO_LARGE, topic, event, address)
        else:
            self._ledger.on_counted(group, LossReason.OVERFLOW, 1)

    def _store(self, group: AckGroup, records: Sequence[IngestRecord | bytes], numbers: Sequence[int], addresses: Addresses | None) -> None:
        """Route and batch received records of a group; `numbers` are their numbers in it,
        `addresses` those in the replay memory."""
        if not records:
            return
        source = self._inputs[group.listener.name]
        if source.principal and source.plain_topic and not self.may_write(source.principal, group.source, source.plain_topic):
            self._refuse_unauthorized(group, numbers)
            return
        if source.plain_topic and not group.topic and self._may_go_plainly(source, group, addresses):
            if isinstance(records, ColumnarRecords) or not isinstance(records[0], bytes):
                self._store_records(source, group, cast("Sequence[IngestRecord]", records), numbers, addresses)
                return
            if not isinstance(addresses, list):
                self._store_lines(source, group, cast("Sequence[bytes]", records), numbers, addresses)
                return
        arrival_ms, now_ms = self._clock.wall_ms(), self._clock.monotonic_ms()
        given = source.direct(group.topic) if group.topic else None
        address_of = iter(addresses.pairs if isinstance(addresses, AddressRun) else addresses) if addresses is not None else None
        unparsed = 0
        for number, record in zip(numbers, records, strict=True):
            identity, ordinal = next(address_of) if address_of is not None else (None, 0)
            if isinstance(record, bytes):
                message = source.parser.parse(record, arrival_ms)
                unparsed += message.parse_error is not None
                self._put_syslog(source, group, number, message, given, arrival_ms, now_ms, identity, ordinal)
                continue
            destinations = given or source.route(record)
            timestamp_ms = arrival_ms if record.time_ms is None else timestamp_of(record.time_ms, arrival_ms)
            event = ProducerRecord(timestamp_ms, None, record.value, source.events.headers(group.source, arrival_ms, record.is_cut))
            self._put(source, group, number, event, record, destinations, now_ms, identity, ordinal)
        if unparsed:
            self._ledger.on_odd(group.listener, group.source.host, Oddity.UNPARSED, unparsed)

    def _may_go_plainly(self, source: IngestInput, group: AckGroup, addresses: Addresses | None) -> bool:
        """True if the topic exists and no record may be stored in it already."""
        if not isinstance(self._topics.of(source.plain_topic).collector, Batcher):
            return False
        if addresses is None:
            return True
        return not self._identified.may_be_stored(group, addresses.first_ordinal if isinstance(addresses, AddressRun) else addresses[0][1])

    def _put_syslog(
        self,
        source: IngestInput,
        group: AckGroup,
        number: int,
        message: SyslogMessage,
        given: Destinations | None,
        arrival_ms: int,
        now_ms: int,
        identity: bytes | None,
        ordinal: int,
    ) -> None:
        event = source.events.build(message, group.source, arrival_ms)
        destinations = given or source.route_syslog(message)
        if source.plain_topic and given is None:
            if identity is None or not self._identified.is_stored(group, identity, ordinal, source.plain_topic, False):
                self._append(source, group, number, event, source.plain_topic, now_ms, identity, ordinal, False)
        else:
            self._put(source, group, number, event, SyslogRecord(message), destinations, now_ms, identity, ordinal)

    def _put(
        self,
        source: IngestInput,
        group: AckGroup,
        number: int,
        event: ProducerRecord,
        record: IngestRecord | SyslogRecord,
        destinations: Destinations,
        now_ms: int,
        identity: bytes | None,
        ordinal: int,
    ) -> None:
        """Append the record to each of its topics, with the key that it has there."""
        is_copy = False
        for destination in destinations:
            if source.principal and not self.may_write(source.principal, group.source, destination.topic):
                if not is_copy:
                    self._refuse_unauthorized(group, (number,))
                is_copy = True
                continue
            key = key_of(destination.key, record, group.source.host)
            if key is None and destination.is_key_required:
                if not is_copy:
                    self._dead_letters.reject(group, number, LossReason.NO_KEY, destination.topic, event, (identity, ordinal))
            elif identity is None or not self._identified.is_stored(group, identity, ordinal, destination.topic, is_copy):
                self._append(source, group, number, event._replace(key=key), destination.topic, now_ms, identity, ordinal, is_copy)
            is_copy = True

    def _append(
        self,
        source: IngestInput,
        group: AckGroup,
        number: int,
        event: ProducerRecord,
        topic: str,
        now_ms: int,
        identity: bytes | None,
        ordinal: int,
        is_copy: bool,
    ) -> None:
        if self.tap is not None:
            self.tap.records(group, topic, (event.value,))
        collector = self._topics.of(topic).collector
        if isinstance(collector, TopicBacklog):
            outcome = collector.delay(BackloggedRecord(event, group, identity, ordinal, is_copy, number), source.can_wait)
        else:
            outcome = collector.append(event, now_ms, group, source.can_wait, identity, ordinal, is_copy)
        if outcome is Acceptance.TAKEN_BUT_BLOCKED:
            self.blocked_partition = (topic, collector.blocked_partition)
        elif outcome is _TOO_LARGE and not is_copy:
            self._dead_letters.reject(group, number, LossReason.TOO_LARGE, topic, event, (identity, ordinal))
        elif outcome is Acceptance.OVERFLOW and not is_copy:
            self._ledger.on_counted(group, LossReason.OVERFLOW, 1)

    def _on_late_too_large(self, backlogged: BackloggedRecord) -> None:
        """The topic of a backlogged record exists now and refuses it."""
        if not backlogged.is_copy:
            address = backlogged.identity, backlogged.ordinal
            self._dead_letters.reject(backlogged.group, backlogged.number, LossReason.TOO_LARGE, "", backlogged.event, address)

    def _on_blocked(self, topic: str, partition: int) -> None:
        """A dead letter reached a blocked partition."""
        self.blocked_partition = (topic, partition)

    def _on_batched(self, backlogged: BackloggedRecord) -> None:
        self._acknowledger.release(backlogged.group)
