"""InitProducerId 0-5: an id and an epoch for a producer, and the end of what an earlier one with its transactional id left open.

Owned by nobody; messages as data. Weak spot: none known; kio knows every version.
"""

from __future__ import annotations

from typing import Annotated, Final, NamedTuple

from appliance.protocol.apis import ApiKey
from appliance.protocol.schema import INT16, INT32, INT64, STRING, Field, Message

NO_PRODUCER_ID: Final = -1
NO_PRODUCER_EPOCH: Final = -1


class InitProducerIdRequest(NamedTuple):
    """Without a transactional id the producer is idempotent only; id and epoch are those it has, if it has any."""

    transactional_id: Annotated[str | None, Field(STRING, nullable_since=0)] = None
    transaction_timeout_ms: Annotated[int, Field(INT32)] = 60_000
    producer_id: Annotated[int, Field(INT64, since=3)] = NO_PRODUCER_ID
    producer_epoch: Annotated[int, Field(INT16, since=3)] = NO_PRODUCER_EPOCH


class InitProducerIdResponse(NamedTuple):
    """Who the producer is from now on; −1 and −1 with an error."""

    throttle_time_ms: Annotated[int, Field(INT32)] = 0
    error_code: Annotated[int, Field(INT16)] = 0
    producer_id: Annotated[int, Field(INT64)] = NO_PRODUCER_ID
    producer_epoch: Annotated[int, Field(INT16)] = NO_PRODUCER_EPOCH


REQUEST: Final = Message(ApiKey.INIT_PRODUCER_ID, "InitProducerId request", InitProducerIdRequest)
RESPONSE: Final = Message(ApiKey.INIT_PRODUCER_ID, "InitProducerId response", InitProducerIdResponse)
