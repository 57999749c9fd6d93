"""Heartbeat 0-4: a member of a group is alive, and learns whether a rebalance goes on.

Owned by nobody; messages as data. Weak spot: none known; kio knows every version.
"""

from __future__ import annotations

from typing import Annotated, Final, NamedTuple

from appliance.protocol.apis import ApiKey
from appliance.protocol.schema import INT16, INT32, STRING, Field, Message


class HeartbeatRequest(NamedTuple):
    """Who is alive, and in which generation."""

    group_id: Annotated[str, Field(STRING)] = ""
    generation_id: Annotated[int, Field(INT32)] = -1
    member_id: Annotated[str, Field(STRING)] = ""
    group_instance_id: Annotated[str | None, Field(STRING, since=3, nullable_since=3)] = None


class HeartbeatResponse(NamedTuple):
    """NONE, or what is to be done."""

    throttle_time_ms: Annotated[int, Field(INT32, since=1)] = 0
    error_code: Annotated[int, Field(INT16)] = 0


REQUEST: Final = Message(ApiKey.HEARTBEAT, "Heartbeat request", HeartbeatRequest)
RESPONSE: Final = Message(ApiKey.HEARTBEAT, "Heartbeat response", HeartbeatResponse)
