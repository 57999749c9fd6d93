"""AddOffsetsToTxn 0-4: the offsets of a group join a transaction.

Owned by nobody; messages as data. Weak spot: none known; kio knows every version.
"""

from __future__ import annotations

from typing import Annotated, Final, NamedTuple

from appliance.protocol.apis import ApiKey
from appliance.protocol.schema import INT16, INT32, INT64, STRING, Field, Message


class AddOffsetsToTxnRequest(NamedTuple):
    """A transaction and a group."""

    transactional_id: Annotated[str, Field(STRING)] = ""
    producer_id: Annotated[int, Field(INT64)] = -1
    producer_epoch: Annotated[int, Field(INT16)] = -1
    group_id: Annotated[str, Field(STRING)] = ""


class AddOffsetsToTxnResponse(NamedTuple):
    """NONE, or why not."""

    throttle_time_ms: Annotated[int, Field(INT32)] = 0
    error_code: Annotated[int, Field(INT16)] = 0


REQUEST: Final = Message(ApiKey.ADD_OFFSETS_TO_TXN, "AddOffsetsToTxn request", AddOffsetsToTxnRequest)
RESPONSE: Final = Message(ApiKey.ADD_OFFSETS_TO_TXN, "AddOffsetsToTxn response", AddOffsetsToTxnResponse)
