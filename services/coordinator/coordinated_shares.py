"""Share groups in the coordinator process: their rules (`share`) on the partitions of two state topics that this box leads, and the logs.

As in Kafka, the coordinator of a group (`__consumer_offsets`) assigns partitions, the leader of a
partition holds what is in flight, and a share coordinator (`__share_group_state`) keeps it; each of
them may be on another box, and this process is all three for what its box leads. Records are read
through the log-readers: LOOKUP finds the batch, OPEN returns the size of a sealed segment, READ
brings whole batches. Owned by the coordinator process. Weak spot: a deleted topic's share
partitions stay in the log if the coordinator did not see the deletion.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from appliance.base.errors import ErrorCode
from appliance.base.model import NO_LEADER, Offset, Position, TopicId
from appliance.base.settings import Box
from appliance.cluster.group_configs import ISOLATION_LEVEL, OFFSET_RESET, READ_COMMITTED, group_number, group_text
from appliance.cluster.metadata_cache import LocalReplica, MetadataCache
from appliance.cluster.state_log import SHARE_TOPIC
from appliance.ipc.log_reader_messages import (
    ABORTED,
    FIRST_WHATEVER,
    IS_ACTIVE,
    LOOKUP,
    OPEN,
    READ,
    WHOLE_BATCHES,
    Answer,
    Extent,
    ReadAnswer,
    Span,
    read_aborted,
)
from appliance.ipc.log_reader_proxy import LogReaderProxy
from appliance.protocol import group_apis, offset_apis
from appliance.protocol import share_apis as apis
from appliance.records.batch import CONTROL_FLAG, LOG_OVERHEAD, RECORDS_AT, TRANSACTIONAL_FLAG, read_batch_header
from appliance.runtime.timers import Timers
from appliance.security.acl import AclOperation, AclResource
from appliance.security.authorizer import Rights
from appliance.shm.counters import Counters
from appliance.shm.partition_table import ROLE_LEADER, Row, TornRow
from services.coordinator.groups.group_coordinator import GroupCoordinator
from services.coordinator.groups.member import ClientIdentity
from services.coordinator.groups.ports import KnownTopic
from services.coordinator.share.share_group_records import ShareGroupPlaces
from services.coordinator.share.share_groups import ShareGroups, ShareSettings
from services.coordinator.share.share_leaders import LogBounds, ShareEvent, ShareLeaders
from services.coordinator.share.share_offsets import OnEnds, ShareOffsets
from services.coordinator.share.share_partition import ShareLimits
from services.coordinator.share.share_persister import OTHERS_CHANNEL, SharePersister, StateRequester
from services.coordinator.share.share_sessions import NO_PRODUCER, OnRead, ReadBatch, ShareAsker, SharedRead, ShareRange, ShareSessions
from services.coordinator.share.share_states import Place, ShareStates
from services.coordinator.state.state_topic import StateTopic

TIMERS_A_TURN: Final = 64
HELD_SIZE_MAX: Final = 50_000
HELD_MS: Final = 2_000
OFFSETS_MAX: Final = 4_000
"""No window is longer (`group.share.partition.max.record.locks`)."""
GROUP_TIMEOUT_MS: Final = 3_000
"""Of a question about the ends of partitions."""


class StateTopics(NamedTuple):
    """`__consumer_offsets` and `__share_group_state`."""

    groups: StateTopic
    states: StateTopic


class CoordinatedShares:
    """All of one box. Rules have the names of `forwarded_apis`."""

    def __init__(
        self,
        box: Box,
        topics: StateTopics,
        view: MetadataCache,
        readers: dict[str, LogReaderProxy],
        peers: StateRequester,
        now_ms: Callable[[], int],
        is_other_group: Callable[[str], bool],
        counters: Counters,
    ) -> None:
        """`is_other_group`: whether a name is that of a consumer group."""
        self._topic = topics.states
        self._view = view
        self._readers = readers
        self._peers = peers
        self._now_ms = now_ms
        self._is_other_group = is_other_group
        self._offset_reset = box.text("group.share.auto.offset.reset")
        self._timers = timers = Timers()
        settings = ShareSettings(**{field: box.integer(field.replace("_", ".")) for field in ShareSettings._fields})
        self._settings = settings
        self._limits = ShareLimits(
            box.integer("group.share.delivery.count.limit"),
            box.integer("group.share.record.lock.duration.ms"),
            box.integer("group.share.partition.max.record.locks"),
        )
        self.may_be_replaced: Callable[[str], bool] = lambda _topic: False
        """Whether the lease has ended, and another box may lead partitions of a topic that this one leads by its rows."""
        self._known_topics: dict[str, TopicId] = {}
        self._held: list[tuple[int, int, str, Callable[[], None], Callable[[ErrorCode], None]]] = []
        """Requests that came while their group is loaded: deadline, size, group, what to do then, what to do at the deadline."""
        self._held_size = 0
        counts = {event: counters.counter(f'coordinator.share_records{{event="{event.value}"}}') for event in ShareEvent}
        self.states = ShareStates(topics.states, now_ms)
        self.places = ShareGroupPlaces(topics.groups, self.name_of)
        self._persister = persister = SharePersister(self.states, self, peers, timers, now_ms)
        self.leaders = ShareLeaders(persister, self, timers, now_ms, lambda event, count: counts[event].add(count))
        self.sessions = ShareSessions(settings, self.leaders, self, now_ms)
        self.groups = ShareGroups(settings, self.places, persister, self, timers, self.sessions.on_member_gone)
        self.offsets = ShareOffsets(self.groups, self.places, persister, self, self)
        self.offsets.on_begun_anew = self.leaders.forget_group
        topics.states.serve(self.states)

    # ---- `SharedTopics`, `SharedLogs`, `SharedEnds` and `StatePartitions`

    @property
    def generation(self) -> int:
        return self._view.image.generation

    def find(self, topic: str) -> KnownTopic | None:
        image = self._view.image.topics.get(topic)
        return KnownTopic(image.topic_id, len(image.partitions)) if image is not None else None

    def name_of(self, topic_id: TopicId) -> str | None:
        image = self._view.image.topics_by_id.get(topic_id)
        return image.name if image is not None else None

    def refusal(self, group_id: str) -> tuple[ErrorCode, str | None]:
        if self._is_other_group(group_id):
            return ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a share group."
        return self.places.refusal(group_id), None

    @property
    def broker_id(self) -> int:
        return self._view.broker_id

    def state_leaders(self) -> tuple[int, ...]:
        topic = self._view.image.topics.get(SHARE_TOPIC)
        return tuple([partition.leader for partition in topic.partitions]) if topic is not None else ()

    def ends(self, places: Collection[Place], on_ends: OnEnds) -> None:
        """Look at the rows of this box, and ask other leaders."""
        found: dict[Place, int] = {}
        elsewhere: dict[int, dict[str, list[int]]] = {}
        ids: dict[str, TopicId] = {}
        for topic_id, number in places:
            image = self._view.image.topics_by_id.get(topic_id)
            bounds = self.bounds(topic_id, number)
            if bounds.error_code is ErrorCode.NONE:
                found[topic_id, number] = bounds.high_watermark
            elif image is not None and number < len(image.partitions) and image.partitions[number].leader not in (self.broker_id, NO_LEADER):
                ids[image.name] = topic_id
                elsewhere.setdefault(image.partitions[number].leader, {}).setdefault(image.name, []).append(number)
        waiting = len(elsewhere)

        def on_answer(response: offset_apis.ListOffsetsResponse | None) -> None:
            nonlocal waiting
            for topic in response.topics if response is not None else ():
                found.update({(ids[topic.topic], each.partition): each.offset for each in topic.partitions if not each.error_code and topic.topic in ids})
            waiting -= 1
            if not waiting:
                on_ends(found)

        if not elsewhere:
            on_ends(found)
        for leader, topics in elsewhere.items():
            rows = tuple(
                offset_apis.ListOffsetsTopic(name, tuple(offset_apis.ListOffsetsPartition(number) for number in numbers)) for name, numbers in topics.items()
            )
            body = offset_apis.ListOffsetsRequest(topics=rows)
            question = offset_apis.LIST_OFFSETS_REQUEST, offset_apis.LIST_OFFSETS_RESPONSE, body
            self._peers.ask(leader, *question, on_answer, GROUP_TIMEOUT_MS, channel=OTHERS_CHANNEL)

    def first_offset(self, group_id: str, bounds: LogBounds) -> int:
        reset = group_text(self._view.image.group_configs, group_id, OFFSET_RESET, self._offset_reset)
        return bounds.log_start_offset if reset == "earliest" else bounds.high_watermark

    def timing(self, group_id: str) -> tuple[int, int]:
        configs, settings = self._view.image.group_configs, self._settings
        return (
            group_number(configs, group_id, "share.session.timeout.ms", settings.group_share_session_timeout_ms),
            group_number(configs, group_id, "share.heartbeat.interval.ms", settings.group_share_heartbeat_interval_ms),
        )

    def limits(self, group_id: str) -> ShareLimits:
        """Return the group's limits of a share partition."""
        configs, limits = self._view.image.group_configs, self._limits
        if group_id not in configs:
            return limits
        return ShareLimits(
            group_number(configs, group_id, "share.delivery.count.limit", limits.delivery_count_limit),
            group_number(configs, group_id, "share.record.lock.duration.ms", limits.lock_ms),
            group_number(configs, group_id, "share.partition.max.record.locks", limits.record_locks_max),
        )

    def is_committed(self, group_id: str) -> bool:
        return group_text(self._view.image.group_configs, group_id, ISOLATION_LEVEL, "") == READ_COMMITTED

    def bounds(self, topic_id: TopicId, partition: int) -> LogBounds:
        found = self._led(topic_id, partition)
        if found is None:
            image = self._view.image.topics_by_id.get(topic_id)
            return LogBounds(ErrorCode.UNKNOWN_TOPIC_ID if image is None else self._view.why_absent(image.name, partition))
        row = found[1]
        return LogBounds(ErrorCode.NONE, row.log_start_offset, row.high_watermark, row.leader_epoch, row.last_stable_offset)

    def is_named(self, topic_id: TopicId, partition: int) -> bool:
        image = self._view.image.topics_by_id.get(topic_id)
        return image is not None and partition < len(image.partitions) and image.partitions[partition].leader == self.broker_id

    def _led(self, topic_id: TopicId, partition: int) -> tuple[LocalReplica, Row] | None:
        image = self._view.image.topics_by_id.get(topic_id)
        placement = self._view.placement(image.name, partition) if image is not None else None
        if placement is None:
            return None
        try:
            row = placement.read_row()
        except TornRow:
            return None
        return (placement, row) if row.role == ROLE_LEADER and row.row_generation == placement.row_generation else None

    def is_certain(self, topic_id: TopicId) -> bool:
        name = self.name_of(topic_id)
        return name is None or not self.may_be_replaced(name)

    def read(self, wanted: ShareRange, on_read: OnRead) -> bool:
        found = self._led(wanted.topic_id, wanted.partition)
        reader = self._readers.get(found[0].disk) if found is not None else None
        return found is not None and reader is not None and _ShareRead(reader, found[0], found[1], wanted, on_read).start()

    # ---- requests of members and administrators, to the coordinator of a group

    def share_group_heartbeat(
        self, request: apis.ShareGroupHeartbeatRequest, version: int, client: ClientIdentity, now_ms: int, reply: Callable[[Any], None]
    ) -> None:
        again = partial(self.groups.heartbeat, request, client, now_ms, reply)
        self._hold(
            request.group_id, len(request.subscribed_topic_names or ()), again, self._refused(apis.SHARE_GROUP_HEARTBEAT_RESPONSE, version, request, reply)
        )

    def share_group_describe(self, request: Any, version: int, client: ClientIdentity, now_ms: int, reply: Callable[[Any], None]) -> None:
        reply(self.groups.describe(request))

    def describe_share_group_offsets(self, request: Any, version: int, client: ClientIdentity, now_ms: int, reply: Callable[[Any], None]) -> None:
        self.offsets.describe_offsets(request, reply)

    def alter_share_group_offsets(self, request: Any, version: int, client: ClientIdentity, now_ms: int, reply: Callable[[Any], None]) -> None:
        refused = self._refused(apis.ALTER_SHARE_GROUP_OFFSETS_RESPONSE, version, request, reply)
        again = partial(self.offsets.alter_offsets, request, reply)
        self._hold(request.group_id, sum(len(topic.partitions) for topic in request.topics), again, refused)

    def delete_share_group_offsets(self, request: Any, version: int, client: ClientIdentity, now_ms: int, reply: Callable[[Any], None]) -> None:
        self.offsets.delete_offsets(request, reply)

    def _refused(self, response: Any, version: int, request: Any, reply: Callable[[Any], None]) -> Callable[[ErrorCode], None]:
        return lambda code: reply(response.error_response(version, request, code, None))

    def _hold(self, group_id: str, size: int, then: Callable[[], None], refuse: Callable[[ErrorCode], None]) -> None:
        """Call `then` now, or when the group is loaded. `size`: elements of the request, which stays in memory meanwhile."""
        if self.places.refusal(group_id) is not ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            then()
        elif self._held_size + size > HELD_SIZE_MAX:
            refuse(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        else:
            self._held.append((self._now_ms() + HELD_MS, size + 1, group_id, then, refuse))
            self._held_size += size + 1

    # ---- requests of members, to the leader of a partition

    def share_fetch(
        self, request: Any, version: int, client: ClientIdentity, now_ms: int, reply: Callable[[Any], None], asker: ShareAsker | None = None
    ) -> None:
        """Records that the client may not read, or whose acceptor has died, are not acquired for it."""
        self.sessions.fetch(request, version, self._now_ms(), reply, asker)

    def asker(self, rights: Rights | None, is_connected: Callable[[], bool]) -> ShareAsker:
        """`rights`: None without an authorizer."""

        def may_read(topic_id: TopicId) -> bool:
            name = self.name_of(topic_id)
            return rights is None or name is None or rights.allows(AclOperation.READ, AclResource.TOPIC, name)

        return ShareAsker(may_read, is_connected)

    def share_acknowledge(self, request: Any, version: int, client: ClientIdentity, now_ms: int, reply: Callable[[Any], None]) -> None:
        self.sessions.acknowledge(request, version, self._now_ms(), reply)

    # ---- requests of boxes, to a share coordinator

    def initialize_share_group_state(self, request: Any, version: int, client: ClientIdentity, now_ms: int, reply: Callable[[Any], None]) -> None:
        self.states.initialize(request, reply)

    def read_share_group_state(self, request: Any, version: int, client: ClientIdentity, now_ms: int, reply: Callable[[Any], None]) -> None:
        self.states.read(request, reply)

    def write_share_group_state(self, request: Any, version: int, client: ClientIdentity, now_ms: int, reply: Callable[[Any], None]) -> None:
        self.states.write(request, reply)

    def delete_share_group_state(self, request: Any, version: int, client: ClientIdentity, now_ms: int, reply: Callable[[Any], None]) -> None:
        self.states.delete(request, reply)

    def read_share_group_state_summary(self, request: Any, version: int, client: ClientIdentity, now_ms: int, reply: Callable[[Any], None]) -> None:
        self.states.summarize(request, reply)

    def listed(self, request: group_apis.ListGroupsRequest, response: group_apis.ListGroupsResponse) -> group_apis.ListGroupsResponse:
        """Return the response with the share groups."""
        states, types = {each.lower() for each in request.states_filter}, {each.lower() for each in request.types_filter}
        return response._replace(groups=(*response.groups, *self.groups.listed(states, types)))

    def delete_groups(
        self, request: Any, others: GroupCoordinator, version: int, client: ClientIdentity, reply: Callable[[group_apis.DeleteGroupsResponse], None]
    ) -> None:
        """Delete the share groups of a request, then the others."""
        shared = {name: None for name in request.group_ids if self.groups.has(name)}  # as a set that keeps their order
        results: list[group_apis.DeletedGroup] = []

        def on_deleted(name: str, code: ErrorCode) -> None:
            results.append(group_apis.DeletedGroup(name, code))
            if len(results) == len(shared):
                left = request._replace(group_ids=tuple(name for name in request.group_ids if name not in shared))
                others.delete_groups(left, version, client, self._now_ms(), lambda found: reply(found._replace(groups=(*found.groups, *results))))

        for name in shared:
            self.offsets.delete_group(name, partial(on_deleted, name))

    # ---- turns

    def refresh(self) -> None:
        """Image or tables have changed."""
        image = self._view.image
        if image.generation:
            former, self._known_topics = self._known_topics, {name: topic.topic_id for name, topic in image.topics.items()}
            if gone := set(former.values()) - set(self._known_topics.values()):
                self.offsets.on_topics_deleted(gone)
        count = self._topic.count_partitions()
        if count != self.states.partition_count:
            self._topic.end_all()
            self.states.partition_count = count
        self._topic.refresh()
        self.leaders.refresh()

    def tick(self, now_ms: int) -> int:
        done = self._timers.fire_due(now_ms, TIMERS_A_TURN)
        done += self.leaders.work() + self.sessions.work(now_ms)
        held, self._held = self._held, []
        for each in held:
            deadline_ms, size, group_id, then, refuse = each
            self._held_size -= size
            if self.places.refusal(group_id) is not ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
                then()
            elif now_ms >= deadline_ms:
                refuse(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
            else:
                self._held.append(each)
                self._held_size += size
        return done + len(held) - len(self._held)

    @property
    def waits_for_rows(self) -> bool:
        """Whether new records would be news."""
        return self.sessions.is_waiting

    def next_deadline_ms(self) -> int | None:
        found = [self._timers.next_deadline_ms(), self.sessions.next_deadline_ms(), *(each[0] for each in self._held)]
        return min((each for each in found if each is not None), default=None)


class _ShareRead:
    """One read of whole batches below the high watermark, or the last stable offset."""

    def __init__(self, reader: LogReaderProxy, placement: LocalReplica, row: Row, wanted: ShareRange, on_read: OnRead) -> None:
        self._reader = reader
        self._placement = placement
        self._row = row
        self._wanted = wanted
        self._end_offset = row.last_stable_offset if wanted.is_committed else row.high_watermark
        self._segment_base_offset: Offset = row.active_base_offset
        self._position = 0
        self._on_read = on_read

    def start(self) -> bool:
        return self._ask(LOOKUP, self._wanted.offset, self._row.high_watermark, self._on_found)

    def _ask(self, kind: int, value_a: int, value_b: int, then: Callable[[Answer], None], extent: Extent | None = None) -> bool:
        placement, wanted = self._placement, self._wanted

        def on_answer(answer: Answer | None, descriptor: int) -> None:
            if descriptor >= 0:
                os.close(descriptor)
            if answer is None:
                self._on_read(None)
            elif answer.error_code == ErrorCode.OFFSET_OUT_OF_RANGE and kind == LOOKUP:
                # Compaction has taken all that was there; or retention, which the next look at the row shows.
                is_gone = placement.is_compacted and wanted.offset >= self._row.log_start_offset
                self._on_read(SharedRead(b"", (), self._end_offset) if is_gone else None)
            elif answer.error_code:
                self._on_read(None)
            else:
                then(answer)

        generation = self._row.segment_list_generation
        return self._reader.ask(kind, placement.topic, placement.partition, generation, value_a, value_b, on_answer, extent)

    def _or_fail(self, is_asked: bool) -> None:
        if not is_asked:
            self._on_read(None)

    def _on_found(self, found: Answer) -> None:
        self._segment_base_offset, self._position = found.a, found.b
        if found.a == self._row.active_base_offset:
            self._read(found, self._row.active_position, IS_ACTIVE)
        else:
            self._or_fail(self._ask(OPEN, found.a, 0, lambda opened: self._read(found, opened.a, 0) if opened.b == found.d else self._on_read(None)))

    def _read(self, found: Answer, limit: int, flags: int) -> None:
        extent = Extent(self._wanted.size_bytes, limit, found.d, WHOLE_BATCHES | FIRST_WHATEVER | flags)
        self._or_fail(self._ask(READ, found.a, found.b, self._on_portion, extent))

    def _on_portion(self, answer: Answer) -> None:
        told = ReadAnswer.unpacked(answer.offsets)
        parts = self._reader.arena.take(told) if told.parts else []
        data = b"".join([part.memory for part in parts])
        del parts
        batches: list[ReadBatch] = []
        offset, position, next_offset = self._wanted.offset, 0, self._wanted.offset
        while position + RECORDS_AT <= len(data):
            header = read_batch_header(data, position)
            end = position + max(header.size_bytes, LOG_OVERHEAD)
            is_far = bool(batches) and header.base_offset > offset + OFFSETS_MAX
            if header.last_offset >= self._end_offset or end > len(data) or is_far:
                break
            if header.last_offset >= offset:
                producer_id = header.producer_id if header.attributes & TRANSACTIONAL_FLAG else NO_PRODUCER
                batches.append(ReadBatch(header.base_offset, header.last_offset, position, end, bool(header.attributes & CONTROL_FLAG), producer_id))
                next_offset = header.last_offset + 1
            position = end
        read = SharedRead(data, batches, next_offset) if batches else None
        if read is not None and self._wanted.is_committed and any(batch.producer_id != NO_PRODUCER for batch in batches):
            self._without_aborted(read)
        else:
            self._on_read(read)

    def _without_aborted(self, read: SharedRead) -> None:
        """Leave out the batches of aborted transactions: there is then no record at their offsets, and they are done."""
        placement, offset = self._placement, self._wanted.offset
        if offset >= placement.table.aborted_end(placement.row):
            self._on_read(read)
            return

        def on_answer(answer: Answer | None, descriptor: int) -> None:
            aborted = read_aborted(answer, descriptor) if answer is not None and not answer.error_code else []
            if descriptor >= 0:
                os.close(descriptor)
            if answer is None or answer.error_code:
                self._on_read(None)
                return
            known = [batch for batch in read.batches if batch.last_offset < answer.a]
            left = without_aborted(known, aborted)
            self._on_read(SharedRead(read.data, left, known[-1].last_offset + 1) if known else None)

        span = Span(self._segment_base_offset, Position(self._position + read.batches[-1].end_position))
        where = placement.topic, placement.partition, self._row.segment_list_generation
        self._or_fail(self._reader.ask(ABORTED, *where, offset, self._row.last_stable_offset, on_answer, span=span))


def without_aborted(batches: Sequence[ReadBatch], aborted: Sequence[tuple[int, int, int]]) -> list[ReadBatch]:
    """Return the batches of no aborted transaction; `aborted`: producer id, first offset, offset of the marker."""
    by_producer: dict[int, list[tuple[int, int]]] = {}
    for producer_id, first_offset, marker_offset in aborted:
        by_producer.setdefault(producer_id, []).append((first_offset, marker_offset))

    def is_aborted(batch: ReadBatch) -> bool:
        return any(
            first_offset <= batch.base_offset and batch.last_offset < marker_offset for first_offset, marker_offset in by_producer.get(batch.producer_id, ())
        )

    return [batch for batch in batches if not is_aborted(batch)]
