"""UnregisterBroker 0: forget a box that is gone for good. Owned by nobody; messages as data. Weak spot: Kafka serves it without ZooKeeper only."""

from __future__ import annotations

from typing import Annotated, Final, NamedTuple

from appliance.protocol.apis import ApiKey
from appliance.protocol.schema import INT16, INT32, STRING, Field, Message


class UnregisterBrokerRequest(NamedTuple):
    """Which box."""

    broker_id: Annotated[int, Field(INT32)]


class UnregisterBrokerResponse(NamedTuple):
    """Forgotten, or why not."""

    throttle_time_ms: Annotated[int, Field(INT32)] = 0
    error_code: Annotated[int, Field(INT16)] = 0
    error_message: Annotated[str | None, Field(STRING, nullable_since=0)] = None


REQUEST: Final = Message(ApiKey.UNREGISTER_BROKER, "UnregisterBroker request", UnregisterBrokerRequest)
RESPONSE: Final = Message(ApiKey.UNREGISTER_BROKER, "UnregisterBroker response", UnregisterBrokerResponse)
