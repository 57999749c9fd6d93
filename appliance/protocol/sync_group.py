"""SyncGroup 0-5: the group leader hands in the assignments of a generation, and every member gets its own.

Owned by nobody; messages as data. Weak spot: none known; kio knows every version.
"""

from __future__ import annotations

from typing import Annotated, Final, NamedTuple

from appliance.protocol.apis import ApiKey
from appliance.protocol.schema import BYTES, INT16, INT32, STRING, ArrayOf, Field, Message


class SyncGroupAssignment(NamedTuple):
    """What one member is given, in the words of the protocol that was chosen."""

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


REQUEST: Final = Message(ApiKey.SYNC_GROUP, "SyncGroup request", SyncGroupRequest)
RESPONSE: Final = Message(ApiKey.SYNC_GROUP, "SyncGroup response", SyncGroupResponse)
