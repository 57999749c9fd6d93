"""The group coordinator of one box: requests in, replies and appends out, for the partitions of `__consumer_offsets` that the box leads.

Every API is one method `(request, version, client, now_ms, reply)`, whose reply is called once, in this turn or in a later one. What the coordinator
does by itself (time-outs, answers of appends, long jobs, replies that wait) it does in `tick`, a bounded amount at a time, so that a group of thousands
delays no other group. It owns no socket, file or clock. Owned by the coordinator process. Weak spot: memory is proportional to groups, members and offsets
of the partitions that are loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from functools import partial
from typing import Final

from appliance.base.errors import ErrorCode
from appliance.base.model import ProducerId
from appliance.cluster.state_log import LoadedRecord, StateLog
from appliance.protocol.consumer_group_apis import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from appliance.protocol.group_apis import (
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    ListGroupsRequest,
    ListGroupsResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from appliance.protocol.group_offset_apis import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
)
from appliance.protocol.streams_apis import (
    StreamsGroupDescribeRequest,
    StreamsGroupDescribeResponse,
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatResponse,
)
from appliance.protocol.transaction_apis import TxnOffsetCommitRequest, TxnOffsetCommitResponse
from appliance.runtime.timers import Timers
from services.coordinator.groups.consumer_groups import ConsumerGroups, end_membership
from services.coordinator.groups.group_directory import GroupDirectory
from services.coordinator.groups.group_loading import GroupLoading
from services.coordinator.groups.group_log import GroupLog, Replies
from services.coordinator.groups.group_views import GroupViews
from services.coordinator.groups.joining import Joining, Syncing
from services.coordinator.groups.member import ClientIdentity
from services.coordinator.groups.offset_commits import OffsetCommits, OffsetFetches
from services.coordinator.groups.offset_removal import OffsetRemoval
from services.coordinator.groups.ports import GroupSettings, LegacyOffsets, OnRefused, Topics
from services.coordinator.groups.rebalances import MemberDepartures, Rebalances
from services.coordinator.streams.streams_groups import Memberships, StreamsGroups, end_streams

REPLIES_A_TURN: Final = 256
ANSWERS_A_TURN: Final = 256
TIMERS_A_TURN: Final = 64

NOW: Final = 0
"""A deadline that is over, whatever the time."""


class GroupCoordinator:
    """`new_member_id` gives a text that was never given before (a UUID). Until `begin` nothing expires."""

    def __init__(
        self,
        state_log: StateLog,
        settings: GroupSettings,
        new_member_id: Callable[[], str],
        topics: Topics,
        legacy: LegacyOffsets,
        on_refused: OnRefused,
    ) -> None:
        self.directory = GroupDirectory(settings.offsets_topic_num_partitions, settings.max_groups, on_refused)
        self._timers = Timers()
        self._replies = Replies()
        self._log = GroupLog(state_log, settings.offsets_commit_timeout_ms)
        self._rebalances = Rebalances(settings, self._timers, self._replies, self._log)
        self._joining = Joining(settings, self.directory, self._rebalances, self._replies, self._log, new_member_id)
        self._syncing = Syncing(self.directory, self._rebalances, self._replies, self._log)
        self._leaving = MemberDepartures(self.directory, self._rebalances)
        self._commits = OffsetCommits(settings, self.directory, self._rebalances, self._replies, self._log, topics, legacy)
        self._fetches = OffsetFetches(self.directory, self._replies, topics, legacy)
        self._removal = OffsetRemoval(settings, self.directory, self._timers, self._replies, self._log, topics)
        self._views = GroupViews(self.directory)
        self._consumers = ConsumerGroups(settings, self.directory, self._rebalances, self._replies, self._log, self._timers, topics, new_member_id)
        self._streams = StreamsGroups(settings, self.directory, self._rebalances, self._replies, self._log, self._timers, topics)
        self._loading = GroupLoading(settings, self.directory, self._rebalances, self._log, Memberships(self._consumers, self._streams))

    @property
    def skipped_records(self) -> int:
        """Records that a load could not read, or whose type is unknown."""
        return self._loading.skipped_records

    # ---- members

    def join_group(self, request: JoinGroupRequest, version: int, client: ClientIdentity, now_ms: int, reply: Callable[[JoinGroupResponse], None]) -> None:
        members = self._consumers.find(request.group_id)
        if members is not None and not members.is_empty:
            again = partial(self._again, self.join_group, request, version, client, reply)
            self._consumers.join_group(members, request, version, client, now_ms, reply, again)
        else:
            self._joining.join(request, version, client, now_ms, reply)
        self._send()

    def sync_group(self, request: SyncGroupRequest, version: int, client: ClientIdentity, now_ms: int, reply: Callable[[SyncGroupResponse], None]) -> None:
        members = self._consumers.find(request.group_id)
        if members is not None:
            self._consumers.sync_group(members, request, now_ms, reply, partial(self._again, self.sync_group, request, version, client, reply))
        else:
            self._syncing.sync(request, now_ms, reply)
        self._send()

    def heartbeat(self, request: HeartbeatRequest, version: int, client: ClientIdentity, now_ms: int, reply: Callable[[HeartbeatResponse], None]) -> None:
        members = self._consumers.find(request.group_id)
        if members is not None:
            self._consumers.classic_heartbeat(members, request, now_ms, reply, partial(self._again, self.heartbeat, request, version, client, reply))
        else:
            self._replies.say(reply, HeartbeatResponse(error_code=self._syncing.heartbeat(request, now_ms)))
        self._send()

    def leave_group(self, request: LeaveGroupRequest, version: int, client: ClientIdentity, now_ms: int, reply: Callable[[LeaveGroupResponse], None]) -> None:
        members = self._consumers.find(request.group_id)
        if members is not None:
            self._consumers.leave_group(members, request, now_ms, reply, partial(self._again, self.leave_group, request, version, client, reply))
        else:
            self._replies.say(reply, self._leaving.leave(request, now_ms))
        self._send()

    def consumer_group_heartbeat(
        self,
        request: ConsumerGroupHeartbeatRequest,
        version: int,
        client: ClientIdentity,
        now_ms: int,
        reply: Callable[[ConsumerGroupHeartbeatResponse], None],
    ) -> None:
        again = partial(self._again, self.consumer_group_heartbeat, request, version, client, reply)
        self._consumers.heartbeat(request, version, client, now_ms, reply, again)
        self._send()

    def streams_group_heartbeat(
        self,
        request: StreamsGroupHeartbeatRequest,
        version: int,
        client: ClientIdentity,
        now_ms: int,
        reply: Callable[[StreamsGroupHeartbeatResponse], None],
    ) -> None:
        again = partial(self._again, self.streams_group_heartbeat, request, version, client, reply)
        self._streams.heartbeat(request, client, now_ms, reply, again)
        self._send()

    def _again(self, rule: Callable[..., None], request: object, version: int, client: ClientIdentity, reply: object, now_ms: int) -> None:
        """The request's group went from one protocol to the other while it waited."""
        rule(request, version, client, now_ms, reply)

    # ---- offsets

    def offset_commit(
        self, request: OffsetCommitRequest, version: int, client: ClientIdentity, now_ms: int, reply: Callable[[OffsetCommitResponse], None]
    ) -> None:
        self._commits.commit(request, version, now_ms, reply)
        self._send()

    def txn_offset_commit(
        self, request: TxnOffsetCommitRequest, version: int, client: ClientIdentity, now_ms: int, reply: Callable[[TxnOffsetCommitResponse], None]
    ) -> None:
        self._commits.commit_transactional(request, version, now_ms, reply)
        self._send()

    def complete_transaction(self, partition: int, producer_id: ProducerId, is_commit: bool) -> None:
        """The marker of this producer is in this partition of `__consumer_offsets`, below its high watermark."""
        self._loading.end_transaction(partition, producer_id, is_commit)
        self.directory.end_transaction(partition, producer_id, is_commit)

    def offset_fetch(
        self, request: OffsetFetchRequest, version: int, client: ClientIdentity, now_ms: int, reply: Callable[[OffsetFetchResponse], None]
    ) -> None:
        self._fetches.fetch(request, version, reply)
        self._send()

    def offset_delete(
        self, request: OffsetDeleteRequest, version: int, client: ClientIdentity, now_ms: int, reply: Callable[[OffsetDeleteResponse], None]
    ) -> None:
        self._removal.delete_offsets(request, now_ms, reply)
        self._send()

    def on_topics_deleted(self, topics: Collection[str], now_ms: int) -> None:
        """Their offsets end in all groups that are loaded."""
        self._removal.on_topics_deleted(topics, now_ms)

    # ---- groups

    def delete_groups(
        self, request: DeleteGroupsRequest, version: int, client: ClientIdentity, now_ms: int, reply: Callable[[DeleteGroupsResponse], None]
    ) -> None:
        self._removal.delete_groups(request, now_ms, reply)
        self._send()

    def describe_groups(
        self, request: DescribeGroupsRequest, version: int, client: ClientIdentity, now_ms: int, reply: Callable[[DescribeGroupsResponse], None]
    ) -> None:
        self._replies.say(reply, self._views.describe(request, version))
        self._send()

    def consumer_group_describe(
        self,
        request: ConsumerGroupDescribeRequest,
        version: int,
        client: ClientIdentity,
        now_ms: int,
        reply: Callable[[ConsumerGroupDescribeResponse], None],
    ) -> None:
        self._replies.say(reply, self._consumers.describe(request))
        self._send()

    def streams_group_describe(
        self,
        request: StreamsGroupDescribeRequest,
        version: int,
        client: ClientIdentity,
        now_ms: int,
        reply: Callable[[StreamsGroupDescribeResponse], None],
    ) -> None:
        self._replies.say(reply, self._streams.describe(request))
        self._send()

    def list_groups(self, request: ListGroupsRequest, version: int, client: ClientIdentity, now_ms: int, reply: Callable[[ListGroupsResponse], None]) -> None:
        self._replies.say(reply, self._views.list_groups(request))
        self._send()

    # ---- partitions

    def begin_load(self, partition: int) -> None:
        """This box leads the partition; its requests get COORDINATOR_LOAD_IN_PROGRESS until `finish_load`."""
        self._loading.begin(partition)

    def load(self, partition: int, records: Iterable[LoadedRecord]) -> None:
        """Its records in the order of the log, in as many calls as the caller likes."""
        self._loading.load(partition, records)

    def finish_load(self, partition: int, now_ms: int) -> None:
        """Everything below the high watermark was loaded: requests are answered."""
        self._loading.finish(partition, now_ms)
        self._send()

    def unload(self, partition: int, now_ms: int) -> None:
        """Another box leads the partition, or none; waiting requests get NOT_COORDINATOR."""
        self._loading.forget(partition)
        for hosted in self.directory.unload(partition):
            if hosted.classic is not None:
                self._rebalances.abandon(hosted.classic, ErrorCode.NOT_COORDINATOR, now_ms)
            end_membership(hosted, ErrorCode.NOT_COORDINATOR)
            end_streams(hosted, ErrorCode.NOT_COORDINATOR)
        self._send()

    # ---- time

    def begin(self, now_ms: int) -> None:
        """Offsets grow old from now on."""
        self._removal.begin(now_ms)

    def tick(self, now_ms: int) -> int:
        """One bounded turn; returns how much was done."""
        done = self._log.deliver(now_ms, ANSWERS_A_TURN)
        done += self._timers.fire_due(now_ms, TIMERS_A_TURN)
        done += self._removal.work()
        return done + self._send()

    def next_deadline_ms(self) -> int | None:
        """When `tick` has something to do; a time long past if it has now, None if it never has."""
        if self._replies or self._log.has_answers or self._removal.has_work:
            return NOW
        return self._timers.next_deadline_ms()

    def _send(self) -> int:
        return self._replies.send(REPLIES_A_TURN)
