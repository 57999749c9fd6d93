"""JoinGroup 0-9: become a member of a group, and learn at the end of the rebalance in which generation.

Owned by nobody; messages as data. Version 0 knows one timeout, which stands for both; versions before 7 write the name of
no protocol as an empty text. Weak spot: none known; kio knows every version.
"""

from __future__ import annotations

from typing import Annotated, Final, NamedTuple

from appliance.protocol.apis import ApiKey
from appliance.protocol.schema import BOOL, BYTES, INT16, INT32, STRING, ArrayOf, Field, Message, OlderShape

NO_GENERATION: Final = -1


class JoinGroupProtocol(NamedTuple):
    """A protocol (of a consumer: an assignor) that the member speaks, and what it says in it: its subscription."""

    name: Annotated[str, Field(STRING)]
    metadata: Annotated[bytes, Field(BYTES)] = b""


class JoinGroupRequest(NamedTuple):
    """`member_id` is empty for who is new; `protocols` stand in the order of his preference."""

    group_id: Annotated[str, Field(STRING)] = ""
    session_timeout_ms: Annotated[int, Field(INT32)] = 45_000
    rebalance_timeout_ms: Annotated[int, Field(INT32, since=1)] = -1
    member_id: Annotated[str, Field(STRING)] = ""
    group_instance_id: Annotated[str | None, Field(STRING, since=5, nullable_since=5)] = None
    protocol_type: Annotated[str, Field(STRING)] = ""
    protocols: Annotated[tuple[JoinGroupProtocol, ...], Field(ArrayOf(JoinGroupProtocol))] = ()
    reason: Annotated[str | None, Field(STRING, since=8, nullable_since=8)] = None


class JoinGroupMember(NamedTuple):
    """One member, for the group leader; `metadata` is what it said in the protocol that was chosen."""

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


REQUEST: Final = Message(ApiKey.JOIN_GROUP, "JoinGroup request", JoinGroupRequest, OlderShape(0, JoinGroupRequest, _with_one_timeout, _as_it_is))
RESPONSE: Final = Message(ApiKey.JOIN_GROUP, "JoinGroup response", JoinGroupResponse, OlderShape(6, JoinGroupResponse, _as_answered, _without_null))
