"""A group coordinator in memory with members of streams groups, and threads of an application that behave as Kafka's do."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from appliance.base.errors import ErrorCode
from appliance.protocol.streams_apis import (
    CopartitionGroup,
    DescribedStreamsGroup,
    KeyValue,
    StreamsGroupDescribeRequest,
    StreamsGroupDescribeResponse,
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatResponse,
    Subtopology,
    TaskIds,
    TopicInfo,
    Topology,
)
from services.coordinator.streams.streams_member import NOTHING, TaskSet, as_rows, tasks_of
from tests.support.group_world import CLIENT, GROUP, Replies, World

COUNT = TopicInfo("app-count-changelog", configs=(KeyValue("cleanup.policy", "compact"),))
BY_HOST = TopicInfo("app-by-host-repartition")
TOPOLOGY = Topology(
    0,
    (
        Subtopology("0", ("syslog",), repartition_sink_topics=("app-by-host-repartition",)),
        Subtopology("1", changelog_topics=(COUNT,), repartition_source_topics=(BY_HOST,), copartition_groups=(CopartitionGroup((), (), (0,)),)),
    ),
)
"""Two subtopologies: `syslog`, of four partitions, is repartitioned and counted."""
ALL_TASKS = frozenset((name, partition) for name in "01" for partition in range(4))
STATEFUL = frozenset(task for task in ALL_TASKS if task[0] == "1")


class StreamsWorld(World):
    """`beat` sends any heartbeat; a test that wants a member which keeps the rules takes a `Thread`."""

    def beat(
        self,
        member_id: str = "a",
        epoch: int = 0,
        *,
        topology: Topology | None = None,
        owned: TaskSet | None = None,
        process: str = "p",
        group: str = GROUP,
        **fields: Any,
    ) -> Replies[StreamsGroupHeartbeatResponse]:
        """A join is complete by itself."""
        if epoch == 0:
            owned = NOTHING if owned is None else owned
            fields = {"rebalance_timeout_ms": 60_000, "process_id": process, "client_tags": (), "topology": topology or TOPOLOGY} | fields
        elif topology is not None:
            fields["topology"] = topology
        rows: Iterable[tuple[TaskIds, ...] | None] = (None, None, None) if owned is None else tuple(map(as_rows, owned))
        fields = dict(zip(("active_tasks", "standby_tasks", "warmup_tasks"), rows, strict=True)) | fields
        told = Replies[StreamsGroupHeartbeatResponse]()
        self.coordinator.streams_group_heartbeat(StreamsGroupHeartbeatRequest(group, member_id, epoch, **fields), 0, CLIENT, self.now_ms, told)
        return told

    def told(self, *args: Any, **fields: Any) -> StreamsGroupHeartbeatResponse:
        """The answer, when the log has answered."""
        told = self.beat(*args, **fields)
        self.settle()
        return told.only

    def describe_streams(self, group: str = GROUP, with_operations: bool = False) -> DescribedStreamsGroup:
        told = Replies[StreamsGroupDescribeResponse]()
        self.coordinator.streams_group_describe(StreamsGroupDescribeRequest((group,), with_operations), 0, CLIENT, self.now_ms, told)
        return told.only.groups[0]

    def with_topics(self) -> StreamsWorld:
        """The internal topics are there."""
        self.topics.set_count(COUNT.name, 4)
        self.topics.set_count(BY_HOST.name, 4)
        return self

    def run(self, *threads: Thread, rounds: int = 60) -> None:
        """Members send requests in turn until no answer changes anything."""
        quiet_rounds = 0
        for _ in range(rounds):
            before = [(thread.holds, thread.epoch) for thread in threads]
            for thread in threads:
                thread.ask()
                self.settle()
                thread.look()
            quiet_rounds = quiet_rounds + 1 if before == [(thread.holds, thread.epoch) for thread in threads] else 0
            if quiet_rounds == 2:
                return
        raise AssertionError(f"not settled after {rounds} rounds")


class Thread:
    """A member: it gives up what is taken from it at once, and says so with its next request."""

    def __init__(self, world: StreamsWorld, member_id: str, process: str | None = None, **fields: Any) -> None:
        self.world = world
        self.member_id = member_id
        self.process = process or f"process-{member_id}"
        self.fields = fields
        self.epoch = 0
        self.holds = NOTHING
        self.waiting: Replies[StreamsGroupHeartbeatResponse] | None = None
        self.last: StreamsGroupHeartbeatResponse | None = None

    def ask(self) -> None:
        self.waiting = self.world.beat(self.member_id, self.epoch, owned=self.holds, process=self.process, **(self.fields if self.epoch == 0 else {}))

    def look(self) -> None:
        """Take the answer, if it has come."""
        if not self.waiting:
            return
        response, self.waiting = self.waiting.only, None
        if response.error_code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.GROUP_ID_NOT_FOUND):
            self.epoch, self.holds = 0, NOTHING
            return
        if response.error_code:
            return
        self.last, self.epoch = response, response.member_epoch
        if response.active_tasks is not None:
            rows = (response.active_tasks, response.standby_tasks or (), response.warmup_tasks or ())
            self.holds = TaskSet(*map(tasks_of, rows))

    def statuses(self) -> list[int]:
        assert self.last is not None and self.last.status is not None
        return [each.status_code for each in self.last.status]
