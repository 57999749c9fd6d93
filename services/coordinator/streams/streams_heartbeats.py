"""StreamsGroupHeartbeat: a member joins with its topology, reports its tasks, receives new ones, or leaves.

What its fields say alone is checked first (`request_problem`); the rest is decided in the group's turn, as for consumer groups
(`consumer_heartbeats.py`). A member that joins again under its own id is the same member with nothing in its hands. Owned by the group
coordinator. Weak spot: static members are refused, as in Kafka 4.2.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from appliance.base.errors import ErrorCode
from appliance.protocol.streams_apis import StreamsGroupHeartbeatRequest, StreamsGroupHeartbeatResponse, TaskIds, Topology
from services.coordinator.groups.group_log import Replies
from services.coordinator.groups.group_turns import Refusal
from services.coordinator.groups.member import ClientIdentity
from services.coordinator.groups.member_deadlines import MemberDeadlines, Wait
from services.coordinator.groups.ports import NAME_COST
from services.coordinator.streams.streams_group import StreamsGroup
from services.coordinator.streams.streams_member import NO_TASKS, StreamsMember, StreamsWish, TaskSet, as_rows, reconciled, tasks_of
from services.coordinator.streams.topology import TASKS_MAX, normalized, topology_problem

JOIN: Final = 0
LEAVE: Final = -1
LEAVE_FOR_A_WHILE: Final = -2
NAME_CHARACTERS_MAX: Final = 1_024
"""Of ids, hosts, and all tags of a member together: they stay in memory."""
ReplyToHeartbeat = Callable[[StreamsGroupHeartbeatResponse], None]
Again = Callable[[int], None]


class GroupNews(Protocol):
    """What responses say of the group as a whole, and what members may say to it."""

    def ask_shutdown(self, member_id: str) -> None:
        """All members are to end."""

    def with_news(self, response: StreamsGroupHeartbeatResponse, member: StreamsMember, endpoint_epoch: int) -> StreamsGroupHeartbeatResponse: ...


def request_problem(request: StreamsGroupHeartbeatRequest) -> Refusal | None:
    """What is wrong with it, whatever the group."""
    invalid = _invalid(request)
    if not invalid and (request.instance_id is not None or request.member_epoch == LEAVE_FOR_A_WHILE):
        invalid = "Static membership is not yet supported."
    if invalid:
        return Refusal(ErrorCode.INVALID_REQUEST, invalid)
    return topology_problem(request.topology) if request.topology is not None else None


def _invalid(request: StreamsGroupHeartbeatRequest) -> str:
    epoch = request.member_epoch
    tasks = (request.active_tasks, request.standby_tasks, request.warmup_tasks)
    endpoint = request.user_endpoint
    texts = (request.group_id, request.member_id, request.rack_id or "", request.process_id or "", endpoint.host if endpoint is not None else "")
    if not request.member_id:
        return "MemberId can't be empty."
    if not request.group_id:
        return "GroupId can't be empty."
    if request.instance_id == "":
        return "InstanceId can't be empty."
    if request.rack_id == "":
        return "RackId can't be empty."
    if epoch < LEAVE_FOR_A_WHILE:
        return f"MemberEpoch is {epoch}, but must be greater than or equal to -2."
    if max(map(len, texts)) > NAME_CHARACTERS_MAX or sum(len(tag.key) + len(tag.value) + NAME_COST for tag in request.client_tags or ()) > NAME_CHARACTERS_MAX:
        return f"Ids, hosts, and all client tags together may have {NAME_CHARACTERS_MAX} characters."
    if epoch == JOIN:
        return _invalid_join(request, tasks)
    if None in tasks and tasks != (None, None, None):
        return "If one task-type is non-null, all must be non-null."
    if request.topology is not None:
        return "Topology can only be provided when (re-)joining."
    return _unsupported(request)


def _invalid_join(request: StreamsGroupHeartbeatRequest, tasks: tuple[tuple[TaskIds, ...] | None, ...]) -> str:
    if request.rebalance_timeout_ms == -1:
        return "RebalanceTimeoutMs must be provided in first request."
    for name, rows in zip(("ActiveTasks", "StandbyTasks", "WarmupTasks"), tasks, strict=True):
        if rows != ():
            return f"{name} must be empty when (re-)joining."
    if request.topology is None:
        return "Topology must be non-null when (re-)joining."
    return _unsupported(request)


def _unsupported(request: StreamsGroupHeartbeatRequest) -> str:
    if request.task_offsets is not None:
        return "TaskOffsets are not supported yet."
    if request.task_end_offsets is not None:
        return "TaskEndOffsets are not supported yet."
    if request.warmup_tasks:
        return "WarmupTasks are not supported yet."
    if sum(len(row.partitions) for rows in (request.active_tasks, request.standby_tasks) for row in rows or ()) > 2 * TASKS_MAX:
        return "The member names more tasks than a group may have."
    return ""


class StreamsHeartbeat:
    """One heartbeat of a member that is there, or joins. Implements `group_turns.Operation`."""

    def __init__(
        self,
        request: StreamsGroupHeartbeatRequest,
        client: ClientIdentity,
        size_max: int,
        deadlines: MemberDeadlines,
        news: GroupNews,
        replies: Replies,
        reply: ReplyToHeartbeat,
        again: Again,
    ) -> None:
        self._request = request
        self._client = client._replace(client_id=client.client_id[:NAME_CHARACTERS_MAX])
        self._size_max = size_max
        self._deadlines = deadlines
        self._news = news
        self._replies = replies
        self._reply = reply
        self.again = again
        self._before = StreamsMember(request.member_id)
        self._member: StreamsMember | None = None
        rows = (request.active_tasks, request.standby_tasks, request.warmup_tasks)
        self._owned = None if None in rows else TaskSet(*(NO_TASKS if each is None else tasks_of(each) for each in rows))

    # ---- what it wants

    def change(self, group: StreamsGroup, now_ms: int) -> None:
        request = self._request
        member = self._known(group)
        topology = self._topology(group)
        self._check_tasks(group)
        self._before = member
        wish = member.wish
        changed = wish._replace(
            rack_id=request.rack_id or wish.rack_id,
            client=self._client,
            rebalance_timeout_ms=wish.rebalance_timeout_ms if request.rebalance_timeout_ms == -1 else request.rebalance_timeout_ms,
            topology_epoch=wish.topology_epoch if topology is None else topology.epoch,
            process_id=wish.process_id if request.process_id is None else request.process_id,
            endpoint=request.user_endpoint or wish.endpoint,
            tags=wish.tags if request.client_tags is None else request.client_tags,
        )
        if group.topology is None:
            group.topology = topology
        is_new = member.member_id not in group.members
        if is_new or changed != wish:
            group.put(member._replace(wish=changed))
        if is_new or _assigns_otherwise(changed) != _assigns_otherwise(wish):
            group.group_epoch += 1
        if self._deadlines.has(Wait.SESSION, member.member_id):
            self._deadlines.renew_session(member._replace(wish=changed), now_ms)

    def _known(self, group: StreamsGroup) -> StreamsMember:
        request = self._request
        member = group.members.get(request.member_id)
        if member is not None:
            self._check_epoch(member)
            return member
        if request.member_epoch != JOIN:
            raise Refusal(ErrorCode.UNKNOWN_MEMBER_ID, f"Member {request.member_id} is not a member of group {request.group_id}.")
        if len(group.members) >= self._size_max:
            raise Refusal(ErrorCode.GROUP_MAX_SIZE_REACHED, f"The streams group has reached its maximum capacity of {self._size_max} members.")
        return StreamsMember(request.member_id)

    def _check_epoch(self, member: StreamsMember) -> None:
        """As `MemberHeartbeat._check_epoch`."""
        epoch, current = self._request.member_epoch, member.current
        if epoch in (JOIN, current.epoch):
            return
        if epoch < current.epoch and epoch == current.previous_epoch and self._owned is not None and not self._owned - current.assigned:
            return
        than = "greater" if epoch > current.epoch else "smaller"
        text = (
            f"The streams group member has a {than} member epoch ({epoch}) than the one known by the group coordinator ({current.epoch}). "
            "The member must abandon all its partitions and rejoin."
        )
        raise Refusal(ErrorCode.FENCED_MEMBER_EPOCH, text)

    def _topology(self, group: StreamsGroup) -> Topology | None:
        """Return the topology that the member has joined with; the group's stays, and an older one only gets a status."""
        if self._request.topology is None:
            return None
        topology = normalized(self._request.topology)
        if group.topology is not None and topology.epoch >= group.topology.epoch and topology != group.topology:
            raise Refusal(ErrorCode.INVALID_REQUEST, "Topology updates are not supported yet.")
        return topology

    def _check_tasks(self, group: StreamsGroup) -> None:
        """A member has no tasks that the topology does not have."""
        configured = group.configured
        if self._owned is None or configured is None or not configured.is_ready:
            return
        for tasks in self._owned:
            for subtopology_id, partition in tasks:
                if subtopology_id not in configured.subtopologies:
                    raise Refusal(ErrorCode.INVALID_REQUEST, f"Subtopology {subtopology_id[:NAME_CHARACTERS_MAX]} does not exist in the topology.")
                if not configured.has_task(subtopology_id, partition):
                    count = configured.subtopologies[subtopology_id].task_count
                    text = f"Task {partition} for subtopology {subtopology_id} is invalid. Number of tasks for this subtopology: {count}"
                    raise Refusal(ErrorCode.INVALID_REQUEST, text)

    # ---- what it gets

    def conclude(self, group: StreamsGroup, now_ms: int) -> None:
        member = group.members.get(self._request.member_id)
        if member is not None and not member.is_reconciled_to(group.target_epoch):
            target, known = group.target_of(member.member_id), member
            stepped = reconciled(member, group.target_epoch, target, lambda role, task: group.is_free(known, role, task), self._owned)
            if stepped.current != member.current:
                group.put(stepped)
                member = stepped
        self._member = member

    def answer(self, error: ErrorCode, now_ms: int) -> None:
        if error is ErrorCode.NONE and self._member is None:  # another request of the same turn took it out
            error = ErrorCode.UNKNOWN_MEMBER_ID
        if error is not ErrorCode.NONE or self._member is None:
            self.refuse(Refusal(error))
            return
        if self._request.shutdown_application:
            self._news.ask_shutdown(self._request.member_id)
        current, assigned = self._member.current, self._member.current.assigned
        response = StreamsGroupHeartbeatResponse(
            member_id=self._member.member_id, member_epoch=current.epoch, heartbeat_interval_ms=self._deadlines.heartbeat_interval_ms
        )
        is_unheard = self._owned is not None and self._owned != assigned  # of an answer that was lost, perhaps
        if self._request.member_epoch == JOIN or assigned != self._before.current.assigned or is_unheard:
            response = response._replace(active_tasks=as_rows(assigned.active), standby_tasks=as_rows(assigned.standby), warmup_tasks=as_rows(assigned.warmup))
        self._replies.say(self._reply, self._news.with_news(response, self._member, self._request.endpoint_information_epoch))

    def refuse(self, refusal: Refusal) -> None:
        self._replies.say(self._reply, refused_heartbeat(refusal))


class StreamsLeave:
    """A member leaves."""

    def __init__(self, request: StreamsGroupHeartbeatRequest, news: GroupNews, replies: Replies, reply: ReplyToHeartbeat, again: Again) -> None:
        self._request = request
        self._news = news
        self._replies = replies
        self._reply = reply
        self.again = again

    def change(self, group: StreamsGroup, now_ms: int) -> None:
        request = self._request
        if request.member_id not in group.members:
            raise Refusal(ErrorCode.UNKNOWN_MEMBER_ID, f"Member {request.member_id} is not a member of group {request.group_id}.")
        group.remove(request.member_id)
        group.group_epoch += 1

    def conclude(self, group: StreamsGroup, now_ms: int) -> None:
        """There is nothing to tell it."""

    def answer(self, error: ErrorCode, now_ms: int) -> None:
        if error is ErrorCode.NONE:
            if self._request.shutdown_application:
                self._news.ask_shutdown(self._request.member_id)
            self._replies.say(self._reply, StreamsGroupHeartbeatResponse(member_id=self._request.member_id, member_epoch=self._request.member_epoch))
        else:
            self.refuse(Refusal(error))

    def refuse(self, refusal: Refusal) -> None:
        self._replies.say(self._reply, refused_heartbeat(refusal))


class Look:
    """The group is looked at again without a request: it has waited long enough for members."""

    def change(self, group: StreamsGroup, now_ms: int) -> None:
        """Nothing; the target is settled after it."""

    def conclude(self, group: StreamsGroup, now_ms: int) -> None:
        """Members hear of their tasks with their next heartbeat."""

    def answer(self, error: ErrorCode, now_ms: int) -> None:
        """The next heartbeat settles the target if the log refused it."""

    def refuse(self, refusal: Refusal) -> None:
        """The group has another coordinator."""

    def again(self, now_ms: int) -> None:
        """Streams groups do not become others while they have members."""


def _assigns_otherwise(wish: StreamsWish) -> tuple[object, ...]:
    """What of a member makes another assignment."""
    return wish.topology_epoch, wish.process_id, wish.rack_id, wish.tags


def refused_heartbeat(refusal: Refusal) -> StreamsGroupHeartbeatResponse:
    return StreamsGroupHeartbeatResponse(error_code=refusal.code, error_message=refusal.message or None)
