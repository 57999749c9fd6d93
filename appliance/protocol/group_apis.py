"""APIs of consumer groups (classic protocol): messages as data.

JoinGroup 0-9, SyncGroup 0-5, Heartbeat 0-4, LeaveGroup 0-5, DescribeGroups 0-6, ListGroups 0-5 and
DeleteGroups 0-2. kio knows every version. Where old versions have another shape, callers see the
newest one only.
"""

from typing import Annotated, Final, NamedTuple

from appliance.base.invariants import check
from appliance.protocol.apis import ApiKey
from appliance.protocol.cluster_apis import OPERATIONS_NOT_ASKED
from appliance.protocol.schema import BOOL, BYTES, INT16, INT32, STRING, ArrayOf, Field, Message, OlderShape

# -- JoinGroup: become a member, and learn the new generation when the rebalance ends.
#
# Version 0 has one timeout, which stands for both; versions before 7 write a null protocol name as an
# empty string.

NO_GENERATION: Final = -1


class JoinGroupProtocol(NamedTuple):
    """A protocol that the member supports (for a consumer: an assignor) and its subscription in it."""

    name: Annotated[str, Field(STRING)]
    metadata: Annotated[bytes, Field(BYTES)] = b""


class JoinGroupRequest(NamedTuple):
    """`member_id` is empty for a new member; `protocols` are in the order of its preference."""

    group_id: Annotated[str, Field(STRING)] = ""
    session_timeout_ms: Annotated[int, Field(INT32)] = 45_000
    rebalance_timeout_ms: Annotated[int, Field(INT32, since=1)] = -1
    member_id: Annotated[str, Field(STRING)] = ""
    group_instance_id: Annotated[str | None, Field(STRING, since=5, nullable_since=5)] = None
    protocol_type: Annotated[str, Field(STRING)] = ""
    protocols: Annotated[tuple[JoinGroupProtocol, ...], Field(ArrayOf(JoinGroupProtocol))] = ()
    reason: Annotated[str | None, Field(STRING, since=8, nullable_since=8)] = None


class JoinGroupMember(NamedTuple):
    """One member, for the group leader; `metadata` is its subscription in the chosen protocol."""

    member_id: Annotated[str, Field(STRING)]
    group_instance_id: Annotated[str | None, Field(STRING, since=5, nullable_since=5)] = None
    metadata: Annotated[bytes, Field(BYTES)] = b""


class JoinGroupResponse(NamedTuple):
    """The generation; `members` is empty for all but the group leader."""

    throttle_time_ms: Annotated[int, Field(INT32, since=2)] = 0
    error_code: Annotated[int, Field(INT16)] = 0
    generation_id: Annotated[int, Field(INT32)] = NO_GENERATION
    protocol_type: Annotated[str | None, Field(STRING, since=7, nullable_since=7)] = None
    protocol_name: Annotated[str | None, Field(STRING, nullable_since=7)] = None
    group_leader_id: Annotated[str, Field(STRING)] = ""
    skip_assignment: Annotated[bool, Field(BOOL, since=9)] = False
    member_id: Annotated[str, Field(STRING)] = ""
    members: Annotated[tuple[JoinGroupMember, ...], Field(ArrayOf(JoinGroupMember))] = ()


def _with_one_timeout(request: JoinGroupRequest) -> JoinGroupRequest:
    return request._replace(rebalance_timeout_ms=request.session_timeout_ms)


def _as_it_is(request: JoinGroupRequest) -> JoinGroupRequest:
    return request


def _without_null(response: JoinGroupResponse) -> JoinGroupResponse:
    return response if response.protocol_name is not None else response._replace(protocol_name="")


def _as_answered(response: JoinGroupResponse) -> JoinGroupResponse:
    return response


JOIN_GROUP_REQUEST: Final = Message(ApiKey.JOIN_GROUP, "JoinGroup request", JoinGroupRequest, OlderShape(0, JoinGroupRequest, _with_one_timeout, _as_it_is))
JOIN_GROUP_RESPONSE: Final = Message(ApiKey.JOIN_GROUP, "JoinGroup response", JoinGroupResponse, OlderShape(6, JoinGroupResponse, _as_answered, _without_null))


# -- SyncGroup: the group leader sends the assignments of a generation; each member receives its own.


class SyncGroupAssignment(NamedTuple):
    """One member's assignment, encoded by the chosen protocol."""

    member_id: Annotated[str, Field(STRING)]
    assignment: Annotated[bytes, Field(BYTES)] = b""


class SyncGroupRequest(NamedTuple):
    """`assignments` is empty for all but the group leader."""

    group_id: Annotated[str, Field(STRING)] = ""
    generation_id: Annotated[int, Field(INT32)] = -1
    member_id: Annotated[str, Field(STRING)] = ""
    group_instance_id: Annotated[str | None, Field(STRING, since=3, nullable_since=3)] = None
    protocol_type: Annotated[str | None, Field(STRING, since=5, nullable_since=5)] = None
    protocol_name: Annotated[str | None, Field(STRING, since=5, nullable_since=5)] = None
    assignments: Annotated[tuple[SyncGroupAssignment, ...], Field(ArrayOf(SyncGroupAssignment))] = ()


class SyncGroupResponse(NamedTuple):
    """The member's own assignment."""

    throttle_time_ms: Annotated[int, Field(INT32, since=1)] = 0
    error_code: Annotated[int, Field(INT16)] = 0
    protocol_type: Annotated[str | None, Field(STRING, since=5, nullable_since=5)] = None
    protocol_name: Annotated[str | None, Field(STRING, since=5, nullable_since=5)] = None
    assignment: Annotated[bytes, Field(BYTES)] = b""


SYNC_GROUP_REQUEST: Final = Message(ApiKey.SYNC_GROUP, "SyncGroup request", SyncGroupRequest)
SYNC_GROUP_RESPONSE: Final = Message(ApiKey.SYNC_GROUP, "SyncGroup response", SyncGroupResponse)


# -- Heartbeat: a member is alive, and learns whether a rebalance is under way.


class HeartbeatRequest(NamedTuple):
    """The member that is alive, and its generation."""

    group_id: Annotated[str, Field(STRING)] = ""
    generation_id: Annotated[int, Field(INT32)] = -1
    member_id: Annotated[str, Field(STRING)] = ""
    group_instance_id: Annotated[str | None, Field(STRING, since=3, nullable_since=3)] = None


class HeartbeatResponse(NamedTuple):
    """NONE, or an error code that says what the member has to do (such as join again)."""

    throttle_time_ms: Annotated[int, Field(INT32, since=1)] = 0
    error_code: Annotated[int, Field(INT16)] = 0


HEARTBEAT_REQUEST: Final = Message(ApiKey.HEARTBEAT, "Heartbeat request", HeartbeatRequest)
HEARTBEAT_RESPONSE: Final = Message(ApiKey.HEARTBEAT, "Heartbeat response", HeartbeatResponse)


# -- LeaveGroup: members leave their group.
#
# Up to version 2 a request names one member and the response has one error code: that of the whole
# request, or else that of its one member. From version 3 both are lists; here they always are.

_SINGLE_UNTIL: Final = 2


class LeavingMember(NamedTuple):
    """A member by its id, or a static one by its instance id alone."""

    member_id: Annotated[str, Field(STRING)] = ""
    group_instance_id: Annotated[str | None, Field(STRING, nullable_since=0)] = None
    reason: Annotated[str | None, Field(STRING, since=5, nullable_since=5)] = None


class LeaveGroupRequest(NamedTuple):
    """Members of one group."""

    group_id: Annotated[str, Field(STRING)] = ""
    members: Annotated[tuple[LeavingMember, ...], Field(ArrayOf(LeavingMember))] = ()


class LeftMember(NamedTuple):
    """The result for one member."""

    member_id: Annotated[str, Field(STRING)] = ""
    group_instance_id: Annotated[str | None, Field(STRING, nullable_since=0)] = None
    error_code: Annotated[int, Field(INT16)] = 0


class LeaveGroupResponse(NamedTuple):
    """Results in the order of the request."""

    throttle_time_ms: Annotated[int, Field(INT32, since=1)] = 0
    error_code: Annotated[int, Field(INT16)] = 0
    members: Annotated[tuple[LeftMember, ...], Field(ArrayOf(LeftMember))] = ()


class _OneMember(NamedTuple):
    group_id: Annotated[str, Field(STRING)]
    member_id: Annotated[str, Field(STRING)]


class _OneResult(NamedTuple):
    throttle_time_ms: Annotated[int, Field(INT32, since=1)] = 0
    error_code: Annotated[int, Field(INT16)] = 0


def _widen_request(request: _OneMember) -> LeaveGroupRequest:
    return LeaveGroupRequest(request.group_id, (LeavingMember(request.member_id),))


def _narrow_request(request: LeaveGroupRequest) -> _OneMember:
    check(len(request.members) == 1, f"{len(request.members)} members leave in a version that knows one")
    return _OneMember(request.group_id, request.members[0].member_id)


def _widen_response(response: _OneResult) -> LeaveGroupResponse:
    return LeaveGroupResponse(*response)


def _narrow_response(response: LeaveGroupResponse) -> _OneResult:
    check(len(response.members) <= 1, f"{len(response.members)} members left in a version that knows one")
    return _OneResult(response.throttle_time_ms, response.error_code or sum(member.error_code for member in response.members))


LEAVE_GROUP_REQUEST: Final = Message(
    ApiKey.LEAVE_GROUP, "LeaveGroup request", LeaveGroupRequest, OlderShape(_SINGLE_UNTIL, _OneMember, _widen_request, _narrow_request)
)
LEAVE_GROUP_RESPONSE: Final = Message(
    ApiKey.LEAVE_GROUP, "LeaveGroup response", LeaveGroupResponse, OlderShape(_SINGLE_UNTIL, _OneResult, _widen_response, _narrow_response)
)


# -- DescribeGroups: state and members of groups.


class DescribeGroupsRequest(NamedTuple):
    """Groups by their ids."""

    group_ids: Annotated[tuple[str, ...], Field(ArrayOf(STRING))] = ()
    include_authorized_operations: Annotated[bool, Field(BOOL, since=3)] = False


class DescribedMember(NamedTuple):
    """One member; `client_host` is Java's text of an address, with a slash in front. Bytes are empty unless the group is stable."""

    member_id: Annotated[str, Field(STRING)]
    group_instance_id: Annotated[str | None, Field(STRING, since=4, nullable_since=4)] = None
    client_id: Annotated[str, Field(STRING)] = ""
    client_host: Annotated[str, Field(STRING)] = ""
    metadata: Annotated[bytes, Field(BYTES)] = b""
    assignment: Annotated[bytes, Field(BYTES)] = b""


class DescribedGroup(NamedTuple):
    """One group; an unknown one is "Dead"."""

    error_code: Annotated[int, Field(INT16)] = 0
    error_message: Annotated[str | None, Field(STRING, since=6, nullable_since=6)] = None
    group_id: Annotated[str, Field(STRING)] = ""
    group_state: Annotated[str, Field(STRING)] = ""
    protocol_type: Annotated[str, Field(STRING)] = ""
    protocol_name: Annotated[str, Field(STRING)] = ""
    members: Annotated[tuple[DescribedMember, ...], Field(ArrayOf(DescribedMember))] = ()
    authorized_operations: Annotated[int, Field(INT32, since=3)] = OPERATIONS_NOT_ASKED


class DescribeGroupsResponse(NamedTuple):
    """Groups in the order of the request."""

    throttle_time_ms: Annotated[int, Field(INT32, since=1)] = 0
    groups: Annotated[tuple[DescribedGroup, ...], Field(ArrayOf(DescribedGroup))] = ()


DESCRIBE_GROUPS_REQUEST: Final = Message(ApiKey.DESCRIBE_GROUPS, "DescribeGroups request", DescribeGroupsRequest)
DESCRIBE_GROUPS_RESPONSE: Final = Message(
    ApiKey.DESCRIBE_GROUPS,
    "DescribeGroups response",
    DescribeGroupsResponse,
    error=lambda _version, request, code, _text: DescribeGroupsResponse(0, tuple(DescribedGroup(code, group_id=each) for each in request.group_ids)),
)


# -- ListGroups: the groups that a broker coordinates.


class ListGroupsRequest(NamedTuple):
    """Filters by state and type (case does not matter); empty: all groups."""

    states_filter: Annotated[tuple[str, ...], Field(ArrayOf(STRING), since=4)] = ()
    types_filter: Annotated[tuple[str, ...], Field(ArrayOf(STRING), since=5)] = ()


class ListedGroup(NamedTuple):
    """One group; its type is "classic" or "consumer"."""

    group_id: Annotated[str, Field(STRING)]
    protocol_type: Annotated[str, Field(STRING)] = ""
    group_state: Annotated[str, Field(STRING, since=4)] = ""
    group_type: Annotated[str, Field(STRING, since=5)] = ""


class ListGroupsResponse(NamedTuple):
    """Groups in any order."""

    throttle_time_ms: Annotated[int, Field(INT32, since=1)] = 0
    error_code: Annotated[int, Field(INT16)] = 0
    groups: Annotated[tuple[ListedGroup, ...], Field(ArrayOf(ListedGroup))] = ()


LIST_GROUPS_REQUEST: Final = Message(ApiKey.LIST_GROUPS, "ListGroups request", ListGroupsRequest)
LIST_GROUPS_RESPONSE: Final = Message(ApiKey.LIST_GROUPS, "ListGroups response", ListGroupsResponse)


# -- DeleteGroups: delete empty groups with their offsets.


class DeleteGroupsRequest(NamedTuple):
    """Groups by their ids."""

    group_ids: Annotated[tuple[str, ...], Field(ArrayOf(STRING))] = ()


class DeletedGroup(NamedTuple):
    """The result for one group."""

    group_id: Annotated[str, Field(STRING)]
    error_code: Annotated[int, Field(INT16)] = 0


class DeleteGroupsResponse(NamedTuple):
    """Results in the order of the request."""

    throttle_time_ms: Annotated[int, Field(INT32)] = 0
    groups: Annotated[tuple[DeletedGroup, ...], Field(ArrayOf(DeletedGroup))] = ()


DELETE_GROUPS_REQUEST: Final = Message(ApiKey.DELETE_GROUPS, "DeleteGroups request", DeleteGroupsRequest)
DELETE_GROUPS_RESPONSE: Final = Message(
    ApiKey.DELETE_GROUPS,
    "DeleteGroups response",
    DeleteGroupsResponse,
    error=lambda _version, request, code, _text: DeleteGroupsResponse(0, tuple(DeletedGroup(group_id, code) for group_id in request.group_ids)),
)
