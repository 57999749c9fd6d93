"""ListGroups 0-5: the groups that a broker coordinates.

Owned by nobody; messages as data. Weak spot: none known; kio knows every version.
"""

from __future__ import annotations

from typing import Annotated, Final, NamedTuple

from appliance.protocol.apis import ApiKey
from appliance.protocol.schema import INT16, INT32, STRING, ArrayOf, Field, Message


class ListGroupsRequest(NamedTuple):
    """Of which states and types (in any case); none for all."""

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


REQUEST: Final = Message(ApiKey.LIST_GROUPS, "ListGroups request", ListGroupsRequest)
RESPONSE: Final = Message(ApiKey.LIST_GROUPS, "ListGroups response", ListGroupsResponse)
