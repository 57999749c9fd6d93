"""The topics that an ingest writes to: a batcher or, until it exists, a backlog each.

Owned by one ingest agent. If a record needs a missing topic, the controller is asked to create it,
and again every second until the image has it. Until then records wait in a backlog, because the
number of partitions is unknown. A topic that was deleted and created anew starts with a new
batcher.

Weak: a name that the controller refuses is requested again and again; the table's names are checked
at start. A backlog holds records, not batches, so a topic that cannot be created gets
`BACKLOG_BYTES_MAX` at most.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

import orjson

from appliance.base.model import TopicId
from appliance.cluster.metadata_image import MetadataImage, TopicImage
from appliance.ipc.request_frames import AUTO_CREATE
from appliance.ipc.request_link import ControllerLink
from appliance.runtime.agent import ServiceContext
from services.ingest.producer.batch_sender import BatchSender
from services.ingest.records.ack_group import AckGroup
from services.ingest.records.batcher import Acceptance, Batcher
from services.ingest.records.event import ProducerRecord

BACKLOG_BYTES_MAX: Final = 4 << 20
RECORD_COST_BYTES: Final = 200


class BackloggedRecord(NamedTuple):
    """One record, as it was passed to `append`."""

    event: ProducerRecord
    group: AckGroup
    identity: bytes | None
    ordinal: int
    is_copy: bool
    number: int
    """The record's number in its group; -1 if it is not needed."""


class TopicBacklog:
    """Takes what a batcher takes, for one topic that does not exist yet."""

    blocked_partition = 0
    """A sender that is stopped by a full backlog waits for partition 0."""

    def __init__(self) -> None:
        self._records: list[BackloggedRecord] = []
        self._size_bytes = 0

    @property
    def is_blocked(self) -> bool:
        """True if it is full."""
        return self._size_bytes >= BACKLOG_BYTES_MAX

    def __len__(self) -> int:
        return len(self._records)

    def append(
        self, event: ProducerRecord, now_ms: int, group: AckGroup, can_wait: bool = True, identity: bytes | None = None, ordinal: int = 0, is_copy: bool = False
    ) -> Acceptance:
        """Same as `Batcher.append`."""
        return self.delay(BackloggedRecord(event, group, identity, ordinal, is_copy, -1), can_wait)

    def delay(self, record: BackloggedRecord, can_wait: bool) -> Acceptance:
        """Keep a record; its group waits for it."""
        event, group = record[:2]
        if self.is_blocked and not can_wait:
            return Acceptance.OVERFLOW
        self._records.append(record)
        self._size_bytes += len(event.value) + len(event.headers) + RECORD_COST_BYTES
        group.pending += 1
        return Acceptance.TAKEN_BUT_BLOCKED if self.is_blocked else Acceptance.TAKEN

    def take(self) -> list[BackloggedRecord]:
        """Take all records, in order. Each is released from its group when it is in a batch
        (`AckGroup.pending`)."""
        record, self._records = self._records, []
        self._size_bytes = 0
        return record


Collector = Batcher | TopicBacklog


REQUEST_AGAIN_NS = 1_000_000_000
CREATE_TIMEOUT_MS = 5_000
_THERE = (0, 36)
"""No error, and TOPIC_ALREADY_EXISTS."""


class IngestTopic:
    """One topic. `collector` changes: read it at each use."""

    __slots__ = ("collector", "name", "request_at_ns", "topic_id")

    def __init__(self, name: str) -> None:
        self.name = name
        self.collector: Collector = TopicBacklog()
        self.topic_id: TopicId | None = None
        """None while the topic does not exist."""
        self.request_at_ns = 0

    @property
    def is_blocked(self) -> bool:
        """True if none of its partitions takes records."""
        return self.collector.is_blocked


class IngestTopics:
    """All topics of one ingest. `on_too_large`: a backlogged record that no batch may hold;
    `on_batched`: every record that left a backlog."""

    def __init__(self, context: ServiceContext, default: str, sender: BatchSender, controller: ControllerLink, on_stale: Callable[[], None]) -> None:
        """`default` is always needed: no sender is read before it exists."""
        self._box = context.box
        self._default = default
        self._sender = sender
        self._controller = controller
        self._clock = context.clock
        self._log = context.log
        self._on_stale = on_stale
        self._image = MetadataImage.empty()
        self._topics: dict[str, IngestTopic] = {}
        self._missing: dict[str, IngestTopic] = {}
        self.on_too_large: Callable[[BackloggedRecord], None] = lambda _backlogged: None
        self.on_batched: Callable[[BackloggedRecord], None] = lambda _backlogged: None

    def of(self, name: str) -> IngestTopic:
        topic = self._topics.get(name)
        if topic is None:
            topic = self._topics[name] = IngestTopic(name)
            self._on_image(topic, self._image.topics.get(name))
            self._sender.refresh()
        return topic

    def is_there(self, name: str) -> bool:
        """True if the image has the topic."""
        return name in self._image.topics

    def set_image(self, image: MetadataImage) -> None:
        """Update all topics."""
        self._image = image
        for topic in self._topics.values():
            self._on_image(topic, image.topics.get(topic.name))

    def _on_image(self, topic: IngestTopic, image: TopicImage | None) -> None:
        """The topic was created, changed, deleted, or created anew."""
        partitions = image.partitions if image is not None else ()
        self._sender.leaders.set_topic(topic.name, image)
        if image is None or not partitions:
            topic.topic_id = None
            self._missing[topic.name] = topic
            self._end(topic)
            return
        self._missing.pop(topic.name, None)
        collector = topic.collector
        if not isinstance(collector, Batcher) or topic.topic_id not in (None, image.topic_id):
            collector = self._begin(topic, len(partitions))
        elif len(partitions) > collector.partition_count:
            collector.resize(len(partitions))
        topic.topic_id = image.topic_id
        collector.limit(image.max_message_bytes)

    def _end(self, topic: IngestTopic) -> None:
        """The topic was deleted: send open batches; new records wait until it is created again."""
        if isinstance(topic.collector, Batcher):
            topic.collector.close_all()
            self._sender.put(topic.name, topic.collector.take_ready())
            topic.collector = TopicBacklog()

    def _begin(self, topic: IngestTopic, partition_count: int) -> Batcher:
        """Start a new batcher; batches of the old one are sent, backlogged records are appended."""
        box, old = self._box, topic.collector
        fresh = Batcher(partition_count, box.integer("ingest.batch.bytes"), box.integer("ingest.batch.ms"), box.integer("message.max.bytes"))
        topic.collector = fresh
        if isinstance(old, Batcher):
            old.close_all()
            self._sender.put(topic.name, old.take_ready())
            return fresh
        now_ms = self._clock.monotonic_ms()
        for record in old.take():
            outcome = fresh.append(record.event, now_ms, record.group, True, record.identity, record.ordinal, record.is_copy)
            if outcome is Acceptance.TOO_LARGE:
                self.on_too_large(record)
            self.on_batched(record)
        return fresh

    def on_blocked_changed(self, name: str) -> None:
        """The set of blocked or redirected partitions of the topic changed."""
        topic = self._topics.get(name)
        if topic is None or not isinstance(topic.collector, Batcher):
            return
        blocked = self._sender.leaders.blocked.get(name, frozenset())
        topic.collector.set_blocked(blocked)
        topic.collector.set_dead(self._sender.leaders.dead.get(name, frozenset()))

    def is_partition_blocked(self, key: tuple[str, int]) -> bool:
        """True if a partition that stopped a sender is still blocked."""
        topic = self._topics[key[0]]
        if isinstance(topic.collector, TopicBacklog):
            return topic.collector.is_blocked
        return key[1] in self._sender.leaders.blocked.get(key[0], frozenset())

    # -- in turns

    def close_batches(self, now_ns: int) -> int:
        """Send batches that are full, due, or awaited by a sender; return their number."""
        now_ms = now_ns // 1_000_000
        closed = 0
        for topic in self._topics.values():
            batcher = topic.collector
            if not isinstance(batcher, Batcher):
                continue
            batcher.close_due(now_ms)
            if batcher.has_awaited:
                batcher.close_awaited(lambda partition, name=topic.name: self._sender.can_send_now(name, partition))  # type: ignore[misc]
            if ready := batcher.take_ready():
                closed += len(ready)
                self._sender.put(topic.name, ready)
        return closed

    def close_all(self) -> None:
        """Stop: send all open batches."""
        for topic in self._topics.values():
            if isinstance(topic.collector, Batcher):
                topic.collector.close_all()
                self._sender.put(topic.name, topic.collector.take_ready())

    def take_backlogs(self) -> list[AckGroup]:
        """Stop: return the group of each record whose topic was never created, except for copies."""
        backlogs = [topic.collector for topic in self._topics.values() if isinstance(topic.collector, TopicBacklog)]
        return [record.group for backlog in backlogs for record in backlog.take() if not record.is_copy]

    def wait_ms(self, now_ns: int, limit_ms: int) -> int:
        """Return the time until a batch is due, at most `limit_ms`."""
        for topic in self._topics.values():
            if isinstance(topic.collector, Batcher):
                wait_ms = topic.collector.wait_ms(now_ns // 1_000_000)
                if wait_ms is not None and wait_ms < limit_ms:
                    limit_ms = wait_ms
        return limit_ms

    def request_missing(self, now_ns: int) -> None:
        """Ask the controller to create missing topics."""
        if self._image.generation == 0:
            return
        due = [topic for topic in self._missing.values() if now_ns >= topic.request_at_ns and self._is_needed(topic)]
        if due:
            for topic in due:
                topic.request_at_ns = now_ns + REQUEST_AGAIN_NS
            partitions = self._box.integer("ingest.syslog.partitions")
            payload = orjson.dumps({"topics": {topic.name: partitions for topic in due}})
            self._controller.request(AUTO_CREATE, payload, CREATE_TIMEOUT_MS, lambda answer: self._on_answer([topic.name for topic in due], answer))

    def _is_needed(self, topic: IngestTopic) -> bool:
        """True if a record needs the topic. A deleted topic that no sender writes to is not created
        again."""
        has_backlog = isinstance(topic.collector, TopicBacklog) and len(topic.collector) > 0
        return topic.name == self._default or has_backlog or self._sender.has_batches_of(topic.name)

    def _on_answer(self, names: list[str], answer: bytes | None) -> None:
        self._on_stale()
        errors = orjson.loads(answer)["errors"] if answer else {}
        for name in names:
            if errors.get(name, 0) not in _THERE:
                message = f"the controller did not create topic {name}: Kafka error {errors[name]}; retrying"
                self._log.warning(message, topic=name, peer="controller")
