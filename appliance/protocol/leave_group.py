"""LeaveGroup 0-5: members leave their group.

Owned by nobody; messages as data. Up to version 2 a request names one member and the response has one error code, from version 3
both are lists; here they are always lists. Weak spot: a response of version 2 or older only carries one error code: that of the
whole, or else that of its one member.
"""

from __future__ import annotations

from typing import Annotated, Final, NamedTuple

from appliance.base.invariants import check
from appliance.protocol.apis import ApiKey
from appliance.protocol.schema import INT16, INT32, STRING, ArrayOf, Field, Message, OlderShape

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
    """What became of one member."""

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


REQUEST: Final = Message(ApiKey.LEAVE_GROUP, "LeaveGroup request", LeaveGroupRequest, OlderShape(_SINGLE_UNTIL, _OneMember, _widen_request, _narrow_request))
RESPONSE: Final = Message(
    ApiKey.LEAVE_GROUP, "LeaveGroup response", LeaveGroupResponse, OlderShape(_SINGLE_UNTIL, _OneResult, _widen_response, _narrow_response)
)
