"""DescribeGroups 0-6: state and members of groups of the classic protocol.

Owned by nobody; messages as data. Weak spot: none known; kio knows every version.
"""

from __future__ import annotations

from typing import Annotated, Final, NamedTuple

from appliance.protocol.apis import ApiKey
from appliance.protocol.describe_cluster import OPERATIONS_NOT_ASKED
from appliance.protocol.schema import BOOL, BYTES, INT16, INT32, STRING, ArrayOf, Field, Message


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


REQUEST: Final = Message(ApiKey.DESCRIBE_GROUPS, "DescribeGroups request", DescribeGroupsRequest)
RESPONSE: Final = Message(ApiKey.DESCRIBE_GROUPS, "DescribeGroups response", DescribeGroupsResponse)
