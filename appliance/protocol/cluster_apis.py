"""APIs about the brokers of a cluster: messages as data.

DescribeCluster 0-1, UnregisterBroker 0 (Kafka serves it without ZooKeeper only) and
FindCoordinator 0-6.
"""

from collections.abc import Sequence
from typing import Annotated, Final, NamedTuple

from appliance.protocol.apis import ApiKey
from appliance.protocol.schema import BOOL, INT8, INT16, INT32, STRING, ArrayOf, Field, Message
from appliance.protocol.wire import Buffer

# -- DescribeCluster: the brokers, and which of them is the controller.

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
    """The cluster, or an error."""

    throttle_time_ms: Annotated[int, Field(INT32)] = 0
    error_code: Annotated[int, Field(INT16)] = 0
    error_message: Annotated[str | None, Field(STRING, nullable_since=0)] = None
    endpoint_type: Annotated[int, Field(INT8, since=1)] = ENDPOINT_BROKERS
    cluster_id: Annotated[str, Field(STRING)] = ""
    controller_id: Annotated[int, Field(INT32)] = -1
    brokers: Annotated[tuple[DescribedBroker, ...], Field(ArrayOf(DescribedBroker))] = ()
    cluster_authorized_operations: Annotated[int, Field(INT32)] = OPERATIONS_NOT_ASKED


DESCRIBE_CLUSTER_REQUEST: Final = Message(ApiKey.DESCRIBE_CLUSTER, "DescribeCluster request", DescribeClusterRequest)
DESCRIBE_CLUSTER_RESPONSE: Final = Message(ApiKey.DESCRIBE_CLUSTER, "DescribeCluster response", DescribeClusterResponse)


# -- UnregisterBroker: remove a broker that will not return.


class UnregisterBrokerRequest(NamedTuple):
    """The broker to remove."""

    broker_id: Annotated[int, Field(INT32)]


class UnregisterBrokerResponse(NamedTuple):
    """NONE, or an error."""

    throttle_time_ms: Annotated[int, Field(INT32)] = 0
    error_code: Annotated[int, Field(INT16)] = 0
    error_message: Annotated[str | None, Field(STRING, nullable_since=0)] = None


UNREGISTER_BROKER_REQUEST: Final = Message(ApiKey.UNREGISTER_BROKER, "UnregisterBroker request", UnregisterBrokerRequest)
UNREGISTER_BROKER_RESPONSE: Final = Message(ApiKey.UNREGISTER_BROKER, "UnregisterBroker response", UnregisterBrokerResponse)


# -- FindCoordinator: which broker coordinates a group or a transactional id.
#
# Up to version 3 a request has one key and the response one coordinator at its top level, from version
# 4 both are lists; here they always are. A response of version 3 or older has only the first coordinator.

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
    """The coordinator of one key, or an error."""

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


FIND_COORDINATOR_REQUEST: Final = Message(ApiKey.FIND_COORDINATOR, "FindCoordinator request", FindCoordinatorRequest)
FIND_COORDINATOR_RESPONSE: Final = Message(ApiKey.FIND_COORDINATOR, "FindCoordinator response", FindCoordinatorResponse)


def decode_find_coordinator(buffer: Buffer, position: int, limit: int, version: int) -> FindCoordinatorRequest:
    request = FIND_COORDINATOR_REQUEST.decode(buffer, position, limit, version)
    return request if version >= _BATCHED_SINCE else request._replace(keys=(request.key,))


def encode_find_coordinator_response(version: int, correlation_id: int, coordinators: Sequence[Coordinator], throttle_time_ms: int = 0) -> bytes:
    """The whole frame; `coordinators` has one answer per key of the request."""
    if version >= _BATCHED_SINCE:
        return FIND_COORDINATOR_RESPONSE.encode_response(version, correlation_id, FindCoordinatorResponse(throttle_time_ms, coordinators=tuple(coordinators)))
    _key, node_id, host, port, error_code, error_message = coordinators[0]
    return FIND_COORDINATOR_RESPONSE.encode_response(
        version, correlation_id, FindCoordinatorResponse(throttle_time_ms, error_code, error_message, node_id, host, port)
    )
