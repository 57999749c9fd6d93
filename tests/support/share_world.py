"""Share groups of one box on logs in memory, for tests that answer appends and move the clock."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from typing import Any, cast

from appliance.base.errors import ErrorCode
from appliance.base.model import TopicId
from appliance.protocol import share_apis as apis
from appliance.protocol.share_state_apis import ReadStateResult
from appliance.runtime.timers import Timers
from services.coordinator.groups.member import ClientIdentity
from services.coordinator.groups.ports import KnownTopic
from services.coordinator.share.share_group_records import ShareGroupPlaces
from services.coordinator.share.share_groups import (
    ShareGroups,
    ShareSettings,
)
from services.coordinator.share.share_leaders import LogBounds, ShareEvent, ShareLeaders
from services.coordinator.share.share_offsets import OnEnds, ShareOffsets
from services.coordinator.share.share_partition import ShareLimits
from services.coordinator.share.share_persister import TIMEOUT_MS, SharePersister
from services.coordinator.share.share_sessions import OnRead, ReadBatch, SharedRead, ShareRange, ShareSessions
from services.coordinator.share.share_states import Place, ShareKey, ShareStates
from tests.support.group_world import LogInMemory, Replies

TOPIC = TopicId(b"t" * 16)
CLIENT = ClientIdentity("worker", "/10.0.0.1")
LOCK_MS = 1_000
STATE_PARTITIONS = 3


class PromptReads(SharePersister):
    """The log has at once what a read appends; all other appends wait for the test."""

    log: LogInMemory

    def read(self, key: ShareKey, leader_epoch: int, on_done: Callable[[ReadStateResult], None], timeout_ms: int = TIMEOUT_MS) -> None:
        before = len(self.log.waiting)
        super().read(key, leader_epoch, on_done, timeout_ms)
        if len(self.log.waiting) > before:
            self.log.waiting.insert(0, self.log.waiting.pop())
            self.log.answer_one()


class World:
    """One box: a topic `jobs` with two partitions, batches of two records, and logs that answer when a test says so."""

    broker_id = 1

    def __init__(self, former: World | None = None, sessions_max: int = 3, limit: int = 2, lock_ms: int = LOCK_MS) -> None:
        self.log: LogInMemory = former.log if former is not None else LogInMemory()
        self.groups_log: LogInMemory = former.groups_log if former is not None else LogInMemory()
        self.now_ms = 1_000_000
        self.high_watermark = 6
        self.leader_epoch = 0
        self.problem = ErrorCode.NONE
        self.generation = 1
        self.can_read = True
        self.has_lease = True
        self.timers = Timers()
        settings = ShareSettings(group_share_max_size=2, group_share_max_share_sessions=sessions_max)
        self.of_group = ShareLimits(limit, lock_ms, 100)
        self.last_stable_offset: int | None = None
        """Of a group with read_committed."""
        self.events: Counter[ShareEvent] = Counter()
        self.states = ShareStates(self.log, lambda: self.now_ms)
        self.places = ShareGroupPlaces(self.groups_log, self.name_of)
        for topic in (self.states, self.places):
            topic.partition_count = STATE_PARTITIONS
        for partition in range(STATE_PARTITIONS):
            self.states.begin_load(partition)
            self.states.load(partition, self.log.content.get(partition, ()))
            self.states.finish_load(partition, self.now_ms)
            self.places.begin_load(partition)
            for record in self.groups_log.content.get(partition, ()):
                self.places.load(partition, record)
            self.places.finish_load(partition)
        persister = PromptReads(self.states, self, cast(Any, None), self.timers, lambda: self.now_ms)
        persister.log = self.log
        self.leaders = ShareLeaders(persister, self, self.timers, lambda: self.now_ms, lambda event, count: self.events.update({event: count}))
        self.sessions = ShareSessions(settings, self.leaders, self, lambda: self.now_ms)
        self.groups = ShareGroups(settings, self.places, persister, self, self.timers, self.sessions.on_member_gone)
        self.offsets = ShareOffsets(self.groups, self.places, persister, self, self)
        self.offsets.on_begun_anew = self.leaders.forget_group

    def state_leaders(self) -> tuple[int, ...]:
        return (self.broker_id,) * STATE_PARTITIONS

    def ends(self, places: Collection[Place], on_ends: OnEnds) -> None:
        on_ends(dict.fromkeys(places, self.high_watermark))

    def settle(self, code: ErrorCode = ErrorCode.NONE) -> None:
        """Answer all appends, and those that follow them."""
        while self.log.waiting or self.groups_log.waiting:
            self.log.answer_all(code)
            self.groups_log.answer_all(code)

    # ---- `SharedTopics` and `SharedLogs`

    def find(self, topic: str) -> KnownTopic | None:
        return KnownTopic(TOPIC, 2) if topic == "jobs" else None

    def name_of(self, topic_id: TopicId) -> str | None:
        return "jobs" if topic_id == TOPIC else None

    def refusal(self, group_id: str) -> tuple[ErrorCode, str | None]:
        return (ErrorCode.GROUP_ID_NOT_FOUND if group_id == "readers" else ErrorCode.NONE), None

    def first_offset(self, group_id: str, bounds: LogBounds) -> int:
        return bounds.log_start_offset

    def bounds(self, topic_id: TopicId, partition: int) -> LogBounds:
        if self.problem is not ErrorCode.NONE:
            return LogBounds(self.problem)
        if topic_id != TOPIC or partition > 1:
            return LogBounds(ErrorCode.UNKNOWN_TOPIC_ID if topic_id != TOPIC else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return LogBounds(ErrorCode.NONE, 0, self.high_watermark, self.leader_epoch, self.last_stable_offset or 0)

    def is_certain(self, topic_id: TopicId) -> bool:
        return self.has_lease

    def is_named(self, topic_id: TopicId, partition: int) -> bool:
        return self.problem is not ErrorCode.NONE

    def timing(self, group_id: str) -> tuple[int, int]:
        return 45_000, 5_000

    def limits(self, group_id: str) -> ShareLimits:
        return self.of_group

    def is_committed(self, group_id: str) -> bool:
        return self.last_stable_offset is not None

    def read(self, wanted: ShareRange, on_read: OnRead) -> bool:
        """Batches have two records and two bytes."""
        offset, end_offset = wanted.offset, self.high_watermark if self.last_stable_offset is None else self.last_stable_offset
        if self.can_read:
            batches = [ReadBatch(base, base + 1, at, at + 2, False) for at, base in zip(range(0, 99, 2), range(offset & ~1, end_offset, 2), strict=False)]
            on_read(SharedRead(bytes(range(offset & ~1, end_offset)), batches, end_offset))
        return self.can_read

    # ---- requests

    def heartbeat(self, member_id: str = "m", member_epoch: int = 0, topics: tuple[str, ...] | None = ("jobs",), group: str = "workers") -> Replies[Any]:
        replies: Replies[Any] = Replies()
        self.groups.heartbeat(apis.ShareGroupHeartbeatRequest(group, member_id, member_epoch, None, topics), CLIENT, self.now_ms, replies)
        return replies

    def join(self, member_id: str = "m") -> Any:
        replies = self.heartbeat(member_id)
        self.settle()
        return replies.only

    def fetch(self, epoch: int, *batches: tuple[int, int, tuple[int, ...]], member_id: str = "m", partition: int = 0, **fields: Any) -> Replies[Any]:
        part = apis.SharePartitionRequest(partition, tuple(apis.AcknowledgementBatch(*each) for each in batches))
        request = apis.ShareFetchRequest("workers", member_id, epoch, max_records=100, topics=(apis.ShareTopicRequest(TOPIC, (part,)),))
        replies: Replies[Any] = Replies()
        self.sessions.fetch(request._replace(**fields), 2, self.now_ms, replies)
        return replies

    def acknowledge(self, epoch: int, *batches: tuple[int, int, tuple[int, ...]], member_id: str = "m", renews: bool = False) -> Replies[Any]:
        part = apis.SharePartitionRequest(0, tuple(apis.AcknowledgementBatch(*each) for each in batches))
        replies: Replies[Any] = Replies()
        request = apis.ShareAcknowledgeRequest("workers", member_id, epoch, renews, (apis.ShareTopicRequest(TOPIC, (part,)),))
        self.sessions.acknowledge(request, 2, self.now_ms, replies)
        return replies

    def wait(self, ms: int) -> None:
        self.now_ms += ms
        self.timers.fire_due(self.now_ms, 1_000)
        self.sessions.work(self.now_ms)


def acquired(replies: Replies[Any]) -> list[tuple[int, int, int]]:
    return [tuple(each) for topic in replies.only.topics for part in topic.partitions for each in part.acquired]


def code_of(replies: Replies[Any]) -> int:
    (topic,) = replies.only.topics
    return int(topic.partitions[0].error_code)
