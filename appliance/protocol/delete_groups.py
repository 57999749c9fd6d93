"""DeleteGroups 0-2: empty groups go, with their offsets.

Owned by nobody; messages as data. Weak spot: none known; kio knows every version.
"""

from __future__ import annotations

from typing import Annotated, Final, NamedTuple

from appliance.protocol.apis import ApiKey
from appliance.protocol.schema import INT16, INT32, STRING, ArrayOf, Field, Message


class DeleteGroupsRequest(NamedTuple):
    """Groups by their ids."""

    group_ids: Annotated[tuple[str, ...], Field(ArrayOf(STRING))] = ()


class DeletedGroup(NamedTuple):
    """What became of one group."""

    group_id: Annotated[str, Field(STRING)]
    error_code: Annotated[int, Field(INT16)] = 0


class DeleteGroupsResponse(NamedTuple):
    """Results in the order of the request."""

    throttle_time_ms: Annotated[int, Field(INT32)] = 0
    groups: Annotated[tuple[DeletedGroup, ...], Field(ArrayOf(DeletedGroup))] = ()


REQUEST: Final = Message(ApiKey.DELETE_GROUPS, "DeleteGroups request", DeleteGroupsRequest)
RESPONSE: Final = Message(ApiKey.DELETE_GROUPS, "DeleteGroups response", DeleteGroupsResponse)
