"""DescribeCluster 0-1: the brokers and who controls them. Owned by nobody; messages as data. Weak spot: none known."""

from __future__ import annotations

from typing import Annotated, Final, NamedTuple

from appliance.protocol.apis import ApiKey
from appliance.protocol.schema import BOOL, INT8, INT16, INT32, STRING, ArrayOf, Field, Message

ENDPOINT_UNKNOWN: Final = 0
ENDPOINT_BROKERS: Final = 1
OPERATIONS_NOT_ASKED: Final = -(2**31)


class DescribeClusterRequest(NamedTuple):
    """`endpoint_type`: brokers (1) or controllers (2)."""

    include_cluster_authorized_operations: Annotated[bool, Field(BOOL)] = False
    endpoint_type: Annotated[int, Field(INT8, since=1)] = ENDPOINT_BROKERS


class DescribedBroker(NamedTuple):
    """How a client reaches one broker."""

    broker_id: Annotated[int, Field(INT32)]
    host: Annotated[str, Field(STRING)]
    port: Annotated[int, Field(INT32)]
    rack: Annotated[str | None, Field(STRING, nullable_since=0)] = None


class DescribeClusterResponse(NamedTuple):
    """The cluster, or why not."""

    throttle_time_ms: Annotated[int, Field(INT32)] = 0
    error_code: Annotated[int, Field(INT16)] = 0
    error_message: Annotated[str | None, Field(STRING, nullable_since=0)] = None
    endpoint_type: Annotated[int, Field(INT8, since=1)] = ENDPOINT_BROKERS
    cluster_id: Annotated[str, Field(STRING)] = ""
    controller_id: Annotated[int, Field(INT32)] = -1
    brokers: Annotated[tuple[DescribedBroker, ...], Field(ArrayOf(DescribedBroker))] = ()
    cluster_authorized_operations: Annotated[int, Field(INT32)] = OPERATIONS_NOT_ASKED


REQUEST: Final = Message(ApiKey.DESCRIBE_CLUSTER, "DescribeCluster request", DescribeClusterRequest)
RESPONSE: Final = Message(ApiKey.DESCRIBE_CLUSTER, "DescribeCluster response", DescribeClusterResponse)
