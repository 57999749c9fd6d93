"""Where a response has its throttle time, so that a response that is encoded already can be given one (KIP-219)."""

from __future__ import annotations

from typing import Final

from appliance.protocol.apis import CODED_APIS, SHARE_STATE_KEYS, ApiKey
from appliance.protocol.wire import INT16, INT32

_HEAD_BYTES: Final = 8
"""Size of the frame and correlation id."""

THROTTLE_SINCE: Final[dict[int, int]] = {
    ApiKey.FETCH: 1,
    ApiKey.LIST_OFFSETS: 2,
    ApiKey.METADATA: 3,
    ApiKey.OFFSET_COMMIT: 3,
    ApiKey.OFFSET_FETCH: 3,
    ApiKey.FIND_COORDINATOR: 1,
    ApiKey.JOIN_GROUP: 2,
    ApiKey.HEARTBEAT: 1,
    ApiKey.LEAVE_GROUP: 1,
    ApiKey.SYNC_GROUP: 1,
    ApiKey.DESCRIBE_GROUPS: 1,
    ApiKey.LIST_GROUPS: 1,
    ApiKey.CREATE_TOPICS: 2,
    ApiKey.DELETE_TOPICS: 1,
    ApiKey.OFFSET_FOR_LEADER_EPOCH: 2,
}
"""Versions from which the throttle time is the first field. All other APIs have had it from the beginning, but for these:"""
_LAST: Final = frozenset(
    {
        ApiKey.PRODUCE,
        ApiKey.CREATE_DELEGATION_TOKEN,
        ApiKey.RENEW_DELEGATION_TOKEN,
        ApiKey.EXPIRE_DELEGATION_TOKEN,
        ApiKey.DESCRIBE_DELEGATION_TOKEN,
    }
)
"""the throttle time is the last field (Produce 0 has none);"""
_AFTER_ERROR: Final = frozenset({ApiKey.OFFSET_DELETE})
"""it comes after an error code;"""
_NONE: Final = frozenset(
    {
        ApiKey.SASL_HANDSHAKE,
        ApiKey.SASL_AUTHENTICATE,
        ApiKey.WRITE_TXN_MARKERS,
        ApiKey.API_VERSIONS,
        *SHARE_STATE_KEYS,
    }
)
"""there is none; or, in ApiVersions, it is between others and is left as it is."""


def with_throttle_time(api_key: int, version: int, start: bytes, throttle_ms: int) -> bytes:
    """Return the first piece of a response frame, or the whole frame where the time is last, with this throttle time if its version has one."""
    flexible = CODED_APIS[api_key].is_flexible(version)
    if api_key in _NONE:
        return start
    if api_key in _LAST:
        # Behind it are tagged fields: an empty section is one byte. With others, which errors of Produce have, the time stays 0.
        position = len(start) - INT32.size - flexible
        if api_key == ApiKey.PRODUCE and (version == 0 or (flexible and start[-1] != 0) or start[position : position + INT32.size] != bytes(INT32.size)):
            return start
    else:
        if version < THROTTLE_SINCE.get(api_key, 0):
            return start
        position = _HEAD_BYTES + flexible + (INT16.size if api_key in _AFTER_ERROR else 0)
    if position + INT32.size > len(start):
        return start
    return start[:position] + INT32.pack(throttle_ms) + start[position + INT32.size :]
