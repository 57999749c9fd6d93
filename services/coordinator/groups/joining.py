"""JoinGroup, SyncGroup and Heartbeat of the classic protocol: which clients become members, and whether the group rebalances.

The checks have Kafka's order, because clients act on the error that they get. From version 4 on, a
dynamic member gets its id first and joins with it: a join whose response was lost leaves no member
behind. A static member replaces the former process of its instance (KIP-345), without a rebalance if
the group is stable and its protocol stays. Owned by the group coordinator. Weak spot: the metadata of
members is not read, only compared with the former one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from appliance.base.errors import ErrorCode
from appliance.protocol.group_apis import HeartbeatRequest, JoinGroupRequest, JoinGroupResponse, SyncGroupAssignment, SyncGroupRequest, SyncGroupResponse
from services.coordinator.groups.group import Group, GroupState, bytes_of
from services.coordinator.groups.group_directory import NAME_CHARACTERS_MAX, GroupDirectory, HostedGroup
from services.coordinator.groups.group_log import GroupLog, Replies, group_error, ignore_answer
from services.coordinator.groups.group_membership import ClassicMembership
from services.coordinator.groups.group_records import metadata_record
from services.coordinator.groups.member import ClientIdentity, Member, ReplyToJoin, ReplyToSync
from services.coordinator.groups.ports import GroupSettings, NameBound
from services.coordinator.groups.rebalances import Rebalances, members_for_leader

MEMBER_ID_REQUIRED_SINCE: Final = 4
SKIP_ASSIGNMENT_SINCE: Final = 9
MEMBER_ID_DELIMITER: Final = "-"
MEMBER_ID_SIZE_MAX: Final = (1 << 15) - 1


METADATA_BYTES_MAX: Final = 16 << 20
"""Bytes of member metadata of one group. A generation is one record of the state topic, of 1 MB by
default; members that have only joined were bounded by nothing but the size of their requests."""


class Joining:
    """Handles JoinGroup; a parked request is kept in its member."""

    def __init__(
        self, settings: GroupSettings, directory: GroupDirectory, rebalances: Rebalances, replies: Replies, log: GroupLog, new_member_id: Callable[[], str]
    ) -> None:
        self._settings = settings
        self._directory = directory
        self._rebalances = rebalances
        self._replies = replies
        self._log = log
        self._new_member_id = new_member_id

    def join(self, request: JoinGroupRequest, version: int, client: ClientIdentity, now_ms: int, reply: ReplyToJoin) -> None:
        error = self._directory.refusal(request.group_id, may_create=not request.member_id)
        settings = self._settings
        if error is ErrorCode.NONE and not settings.group_min_session_timeout_ms <= request.session_timeout_ms <= settings.group_max_session_timeout_ms:
            error = ErrorCode.INVALID_SESSION_TIMEOUT
        if error is not ErrorCode.NONE:
            self._refuse(reply, error, request.member_id)
            return
        if request.member_id:
            group = self._directory.find_classic(request.group_id)
            if group is None:
                self._refuse(reply, ErrorCode.UNKNOWN_MEMBER_ID, request.member_id)
                return
        else:
            group = self._made_classic(self._directory.host(request.group_id, now_ms), now_ms)
            if group is None:  # its members use the consumer protocol
                self._refuse(reply, ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
                return
        self._join_group(group, request, version, client, now_ms, reply)
        self._rebalances.maybe_complete(group, now_ms)

    def _made_classic(self, hosted: HostedGroup, now_ms: int) -> Group | None:
        """Return the classic group; an empty group of the other protocol is converted and keeps its offsets."""
        if hosted.classic is None and hosted.membership.is_empty:
            tombstones = hosted.membership.tombstones()
            if tombstones:
                self._log.append(hosted.partition, tombstones, ignore_answer)
            hosted.membership = ClassicMembership(Group(hosted.group_id, hosted.partition, now_ms))
        return hosted.classic

    def _join_group(self, group: Group, request: JoinGroupRequest, version: int, client: ClientIdentity, now_ms: int, reply: ReplyToJoin) -> None:
        if not self._has_capacity(group, request.member_id) or not self._has_memory(group, request):
            self._remove_refused(group, request.member_id)
            self._refuse_member(reply)
        elif len(request.protocol_type) > NAME_CHARACTERS_MAX or not group.supports(request.protocol_type, request.protocols):
            self._refuse(reply, ErrorCode.INCONSISTENT_GROUP_PROTOCOL, request.member_id)
        elif request.member_id:
            self._join_with_id(group, request, client, now_ms, reply)
        else:
            self._join_without_id(group, request, version, client, now_ms, reply)

    def _has_capacity(self, group: Group, member_id: str) -> bool:
        """During a rebalance only members that have joined count, so the last ones of a group that is too large are refused."""
        size_max = self._settings.group_max_size
        member = group.members.get(member_id)
        match group.state:
            case GroupState.PREPARING_REBALANCE:
                return (member is not None and member.awaiting_join is not None) or group.awaiting_join_count < size_max
            case GroupState.COMPLETING_REBALANCE | GroupState.STABLE:
                return member is not None or len(group.members) < size_max
            case _:
                return True

    def _has_memory(self, group: Group, request: JoinGroupRequest) -> bool:
        """Whether the metadata of all members stays below the bound. A member that joins again replaces its own."""
        former = group.members.get(request.member_id or group.static_members.get(request.group_instance_id or "", ""))
        growth = bytes_of(request.protocols) - (bytes_of(former.protocols) if former is not None else 0)
        return group.metadata_bytes + growth <= METADATA_BYTES_MAX and self._directory.may_grow(growth + (former is None))

    def _remove_refused(self, group: Group, member_id: str) -> None:
        self._rebalances.forget_pending(group, member_id)
        member = group.members.get(member_id)
        if member is not None:
            self._rebalances.drop_member(group, member, ErrorCode.GROUP_MAX_SIZE_REACHED, "")

    def _refuse_member(self, reply: ReplyToJoin) -> None:
        self._directory.on_refused(NameBound.MEMBERS)
        self._refuse(reply, ErrorCode.GROUP_MAX_SIZE_REACHED)

    def _refuse(self, reply: ReplyToJoin, error: ErrorCode, member_id: str = "") -> None:
        self._replies.say(reply, JoinGroupResponse(error_code=error, member_id=member_id))

    # ---- without a member id

    def _join_without_id(self, group: Group, request: JoinGroupRequest, version: int, client: ClientIdentity, now_ms: int, reply: ReplyToJoin) -> None:
        instance = request.group_instance_id
        member_id = (client.client_id if instance is None else instance) + MEMBER_ID_DELIMITER + self._new_member_id()
        if len(member_id.encode()) > MEMBER_ID_SIZE_MAX:
            self._refuse(reply, ErrorCode.UNKNOWN_SERVER_ERROR)  # too long for a record and for a response
        elif instance is not None and instance in group.static_members:
            self._replace(group, group.members[group.static_members[instance]], member_id, request, version, now_ms, reply)
        elif instance is None and version >= MEMBER_ID_REQUIRED_SINCE and len(group.pending_members) >= self._settings.group_max_size:
            self._refuse_member(reply)  # Kafka has no bound for ids that no member has joined with
        elif instance is None and version >= MEMBER_ID_REQUIRED_SINCE:
            self._rebalances.add_pending(group, member_id, request.session_timeout_ms, now_ms)
            self._refuse(reply, ErrorCode.MEMBER_ID_REQUIRED, member_id)
        else:
            self._add(group, member_id, request, client, now_ms, reply)

    def _add(self, group: Group, member_id: str, request: JoinGroupRequest, client: ClientIdentity, now_ms: int, reply: ReplyToJoin) -> None:
        member = Member(member_id, request.group_instance_id, client, request.rebalance_timeout_ms, request.session_timeout_ms, request.protocols)
        self._rebalances.add_member(group, member, request.protocol_type, reply, now_ms)

    # ---- with a member id

    def _join_with_id(self, group: Group, request: JoinGroupRequest, client: ClientIdentity, now_ms: int, reply: ReplyToJoin) -> None:
        member_id = request.member_id
        if member_id in group.pending_members:
            if request.group_instance_id is None:
                self._add(group, member_id, request, client, now_ms, reply)
            else:  # static members get no id in advance
                self._refuse(reply, ErrorCode.UNKNOWN_SERVER_ERROR, member_id)
            return
        problem = group.member_problem(member_id, request.group_instance_id)
        if problem is not ErrorCode.NONE:
            self._refuse(reply, problem, member_id)
            return
        member = group.members[member_id]
        is_same = member.protocols == request.protocols
        stays = is_same and (group.state is GroupState.COMPLETING_REBALANCE or (group.state is GroupState.STABLE and group.group_leader_id != member_id))
        if stays:  # the response to its JoinGroup was lost, or nothing changed
            self._replies.say(reply, self._rebalances.joined(group, member))
            return
        self._rebalances.update_member(group, member, request.protocols, request.rebalance_timeout_ms, request.session_timeout_ms, reply)
        self._rebalances.maybe_prepare(group, now_ms)

    # ---- a static member that restarted

    def _replace(self, group: Group, member: Member, member_id: str, request: JoinGroupRequest, version: int, now_ms: int, reply: ReplyToJoin) -> None:
        former = (member.member_id, member.protocols, member.rebalance_timeout_ms, member.session_timeout_ms)
        former_leader_id = group.group_leader_id or ""
        self._rebalances.rename_member(group, member, member_id, now_ms)
        self._rebalances.update_member(group, member, request.protocols, request.rebalance_timeout_ms, request.session_timeout_ms, reply)
        if group.state is GroupState.COMPLETING_REBALANCE:
            self._rebalances.prepare(group, now_ms)  # the group leader may be assigning to the old id
        elif group.state is GroupState.STABLE and group.select_protocol() != group.protocol_name:
            self._rebalances.maybe_prepare(group, now_ms)
        elif group.state is GroupState.STABLE:
            generation_id = group.generation_id

            def on_done(error: ErrorCode, position: int, now_ms: int) -> None:
                still_waits = member.awaiting_join is reply and group.members.get(member_id) is member
                if not still_waits or group.state is not GroupState.STABLE or group.generation_id != generation_id:
                    return  # the rebalance that began meanwhile answers, and appends its own metadata
                if error is ErrorCode.NONE:
                    self._rebalances.answer_join(group, member, self._replaced(group, member, former_leader_id, version))
                else:
                    refused = JoinGroupResponse(
                        error_code=group_error(error),
                        generation_id=generation_id,
                        protocol_type=group.protocol_type,
                        protocol_name=group.protocol_name,
                        group_leader_id=former_leader_id,
                    )
                    self._rebalances.answer_join(group, member, refused)
                    group.rename(member, former[0])
                    group.update(member, *former[1:])
                self._rebalances.renew_session(group, member, now_ms)

            assignments = {each.member_id: each.assignment for each in group.members.values()}
            self._log.append(group.partition, [metadata_record(group, assignments)], on_done)

    def _replaced(self, group: Group, member: Member, former_leader_id: str, version: int) -> JoinGroupResponse:
        """Return a response after which no member assigns: `skip_assignment` from version 9 on. Older clients receive a leader id that has left
        the group, so none takes itself for the leader."""
        is_leader = group.group_leader_id == member.member_id
        knows = version >= SKIP_ASSIGNMENT_SINCE
        return JoinGroupResponse(
            generation_id=group.generation_id,
            protocol_type=group.protocol_type,
            protocol_name=group.protocol_name,
            group_leader_id=(group.group_leader_id or "") if knows else former_leader_id,
            skip_assignment=is_leader and knows,
            member_id=member.member_id,
            members=members_for_leader(group) if is_leader and knows else (),
        )


# ---- SyncGroup: the group leader's assignments


class Syncing:
    """Handles SyncGroup and Heartbeat."""

    def __init__(self, directory: GroupDirectory, rebalances: Rebalances, replies: Replies, log: GroupLog) -> None:
        self._directory = directory
        self._rebalances = rebalances
        self._replies = replies
        self._log = log

    # ---- SyncGroup

    def sync(self, request: SyncGroupRequest, now_ms: int, reply: ReplyToSync) -> None:
        error = self._directory.refusal(request.group_id)
        if error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            error = ErrorCode.REBALANCE_IN_PROGRESS  # the rebalance is lost; old clients know this error, not the other one
        group = self._directory.find_classic(request.group_id)
        if error is ErrorCode.NONE:
            error = ErrorCode.UNKNOWN_MEMBER_ID if group is None else self._sync_problem(group, request)
        if error is not ErrorCode.NONE or group is None:
            self._replies.say(reply, SyncGroupResponse(error_code=error))
            return
        member = group.members[request.member_id]
        if group.state is GroupState.STABLE:
            self._rebalances.on_synced(group, member)
            self._rebalances.renew_session(group, member, now_ms)
            response = SyncGroupResponse(protocol_type=group.protocol_type, protocol_name=group.protocol_name, assignment=member.assignment)
            self._replies.say(reply, response)
            return
        self._rebalances.answer_sync(member, SyncGroupResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS))
        member.awaiting_sync = reply
        self._rebalances.on_synced(group, member)
        if group.group_leader_id == member.member_id and not group.is_assigning:
            self._assign(group, request.assignments)

    def _sync_problem(self, group: Group, request: SyncGroupRequest) -> ErrorCode:
        problem = self._member_problem(group, request.member_id, request.group_instance_id, request.generation_id)
        if problem is not ErrorCode.NONE:
            return problem
        if request.protocol_type is not None and request.protocol_type != group.protocol_type:
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        if request.protocol_name is not None and request.protocol_name != group.protocol_name:
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        return ErrorCode.REBALANCE_IN_PROGRESS if group.state is GroupState.PREPARING_REBALANCE else ErrorCode.NONE

    def _assign(self, group: Group, given: tuple[SyncGroupAssignment, ...]) -> None:
        """Append and send the assignments of the group leader; a member that it left out gets none, and unknown members are ignored."""
        by_member = dict(given)
        assignments = {member_id: by_member.get(member_id, b"") for member_id in group.members}
        generation_id = group.generation_id

        def on_done(error: ErrorCode, position: int, now_ms: int) -> None:
            if group.state is not GroupState.COMPLETING_REBALANCE or group.generation_id != generation_id:
                return  # a rebalance began meanwhile and has answered all members
            if error is ErrorCode.NONE:
                for member in group.members.values():
                    member.assignment = assignments[member.member_id]
                self._rebalances.answer_all_syncs(group, ErrorCode.NONE, now_ms)
                group.move_to(GroupState.STABLE, now_ms)
            else:
                self._rebalances.answer_all_syncs(group, group_error(error), now_ms)
                self._rebalances.maybe_prepare(group, now_ms)

        group.is_assigning = True
        self._log.append(group.partition, [metadata_record(group, assignments)], on_done)

    # ---- Heartbeat

    def heartbeat(self, request: HeartbeatRequest, now_ms: int) -> ErrorCode:
        error = self._directory.refusal(request.group_id)
        if error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            return ErrorCode.NONE  # sessions start when the group is loaded
        if error is not ErrorCode.NONE:
            return error
        group = self._directory.find_classic(request.group_id)
        if group is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        problem = self._member_problem(group, request.member_id, request.group_instance_id, request.generation_id)
        if problem is not ErrorCode.NONE:
            return problem
        self._rebalances.renew_session(group, group.members[request.member_id], now_ms)
        return ErrorCode.REBALANCE_IN_PROGRESS if group.state is GroupState.PREPARING_REBALANCE else ErrorCode.NONE

    def _member_problem(self, group: Group, member_id: str, group_instance_id: str | None, generation_id: int) -> ErrorCode:
        problem = group.member_problem(member_id, group_instance_id)
        if problem is ErrorCode.NONE and generation_id != group.generation_id:
            return ErrorCode.ILLEGAL_GENERATION
        return problem
