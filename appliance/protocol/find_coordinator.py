"""FindCoordinator 0-6: which broker coordinates a group or a transactional id.

Owned by nobody; messages as data. Up to version 3 a request has one key and the response one answer at its top level, from
version 4 both are lists; here they are always lists, so callers see one shape. Weak spot: a response of version 3 or older
can only carry one answer, the first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Final, NamedTuple

from appliance.protocol.apis import ApiKey
from appliance.protocol.schema import INT8, INT16, INT32, STRING, ArrayOf, Field, Message
from appliance.protocol.wire import Buffer

GROUP_KEY: Final = 0
TRANSACTION_KEY: Final = 1
SHARE_KEY: Final = 2
_BATCHED_SINCE: Final = 4


class FindCoordinatorRequest(NamedTuple):
    """Keys of one type; `keys` holds the one key of older versions too."""

    key: Annotated[str, Field(STRING, until=3)] = ""
    key_type: Annotated[int, Field(INT8, since=1)] = GROUP_KEY
    keys: Annotated[tuple[str, ...], Field(ArrayOf(STRING), since=_BATCHED_SINCE)] = ()


class Coordinator(NamedTuple):
    """The answer for one key."""

    key: Annotated[str, Field(STRING)]
    node_id: Annotated[int, Field(INT32)] = -1
    host: Annotated[str, Field(STRING)] = ""
    port: Annotated[int, Field(INT32)] = -1
    error_code: Annotated[int, Field(INT16)] = 0
    error_message: Annotated[str | None, Field(STRING, nullable_since=0)] = None


class FindCoordinatorResponse(NamedTuple):
    """Both shapes: the first coordinator's fields up to version 3, the list from version 4."""

    throttle_time_ms: Annotated[int, Field(INT32, since=1)] = 0
    error_code: Annotated[int, Field(INT16, until=3)] = 0
    error_message: Annotated[str | None, Field(STRING, since=1, until=3, nullable_since=0)] = None
    node_id: Annotated[int, Field(INT32, until=3)] = -1
    host: Annotated[str, Field(STRING, until=3)] = ""
    port: Annotated[int, Field(INT32, until=3)] = -1
    coordinators: Annotated[tuple[Coordinator, ...], Field(ArrayOf(Coordinator), since=_BATCHED_SINCE)] = ()


REQUEST: Final = Message(ApiKey.FIND_COORDINATOR, "FindCoordinator request", FindCoordinatorRequest)
RESPONSE: Final = Message(ApiKey.FIND_COORDINATOR, "FindCoordinator response", FindCoordinatorResponse)


def decode_find_coordinator(buffer: Buffer, position: int, limit: int, version: int) -> FindCoordinatorRequest:
    request = REQUEST.decode(buffer, position, limit, version)
    return request if version >= _BATCHED_SINCE else request._replace(keys=(request.key,))


def encode_find_coordinator_response(version: int, correlation_id: int, coordinators: Sequence[Coordinator], throttle_time_ms: int = 0) -> bytes:
    """The whole frame; `coordinators` has one answer per key of the request."""
    if version >= _BATCHED_SINCE:
        return RESPONSE.encode_response(version, correlation_id, FindCoordinatorResponse(throttle_time_ms, coordinators=tuple(coordinators)))
    _key, node_id, host, port, error_code, error_message = coordinators[0]
    return RESPONSE.encode_response(version, correlation_id, FindCoordinatorResponse(throttle_time_ms, error_code, error_message, node_id, host, port))
