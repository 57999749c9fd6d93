"""WriteTxnMarkers 0-2: a transaction coordinator ends transactions in the partitions that a broker leads.

Owned by nobody; messages as data. Weak spot: kio begins at version 1, from which version 0 differs by its old forms only.
"""

from __future__ import annotations

from typing import Annotated, Final, NamedTuple

from appliance.protocol.apis import ApiKey
from appliance.protocol.schema import BOOL, INT8, INT16, INT32, INT64, ArrayOf, Field, Message
from appliance.protocol.topic_partitions import TopicPartitions, TopicResult

SECOND_PROTOCOL: Final = 2
"""A `transaction_version` in which a marker has a larger producer epoch than the batches of its transaction (KIP-890)."""


class TxnMarker(NamedTuple):
    """How one transaction ended, and where to say so. `coordinator_epoch` is the leader epoch of the coordinator's partition. `transaction_version` is that of
    the transaction (KIP-1228)."""

    producer_id: Annotated[int, Field(INT64)]
    producer_epoch: Annotated[int, Field(INT16)]
    is_commit: Annotated[bool, Field(BOOL)]
    topics: Annotated[tuple[TopicPartitions, ...], Field(ArrayOf(TopicPartitions))] = ()
    coordinator_epoch: Annotated[int, Field(INT32)] = 0
    transaction_version: Annotated[int, Field(INT8, since=2)] = 0


class WriteTxnMarkersRequest(NamedTuple):
    """Markers of several transactions."""

    markers: Annotated[tuple[TxnMarker, ...], Field(ArrayOf(TxnMarker))] = ()


class TxnMarkerResult(NamedTuple):
    """What became of one transaction's markers."""

    producer_id: Annotated[int, Field(INT64)]
    topics: Annotated[tuple[TopicResult, ...], Field(ArrayOf(TopicResult))] = ()


class WriteTxnMarkersResponse(NamedTuple):
    """Results in the order of the request."""

    markers: Annotated[tuple[TxnMarkerResult, ...], Field(ArrayOf(TxnMarkerResult))] = ()


REQUEST: Final = Message(ApiKey.WRITE_TXN_MARKERS, "WriteTxnMarkers request", WriteTxnMarkersRequest)
RESPONSE: Final = Message(ApiKey.WRITE_TXN_MARKERS, "WriteTxnMarkers response", WriteTxnMarkersResponse)
