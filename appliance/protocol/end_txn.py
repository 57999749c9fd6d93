"""EndTxn 0-5: a transaction is committed or aborted.

Owned by nobody; messages as data. From version 5 the answer says who the producer is in its next transaction (KIP-890). Weak spot: none
known; kio knows every version.
"""

from __future__ import annotations

from typing import Annotated, Final, NamedTuple

from appliance.protocol.apis import ApiKey
from appliance.protocol.schema import BOOL, INT16, INT32, INT64, STRING, Field, Message


class EndTxnRequest(NamedTuple):
    """A transaction, and whether what it wrote counts."""

    transactional_id: Annotated[str, Field(STRING)] = ""
    producer_id: Annotated[int, Field(INT64)] = -1
    producer_epoch: Annotated[int, Field(INT16)] = -1
    is_commit: Annotated[bool, Field(BOOL)] = False


class EndTxnResponse(NamedTuple):
    """NONE, or why not; −1 and −1 where the producer stays who it is."""

    throttle_time_ms: Annotated[int, Field(INT32)] = 0
    error_code: Annotated[int, Field(INT16)] = 0
    producer_id: Annotated[int, Field(INT64, since=5)] = -1
    producer_epoch: Annotated[int, Field(INT16, since=5)] = -1


REQUEST: Final = Message(ApiKey.END_TXN, "EndTxn request", EndTxnRequest)
RESPONSE: Final = Message(ApiKey.END_TXN, "EndTxn response", EndTxnResponse)
