"""DescribeCluster: brokers and controller, answered from the image. Owned by one acceptor. Weak spot: there are no ACLs, so everybody may do everything."""

from __future__ import annotations

from collections.abc import Callable

from appliance.base.errors import ErrorCode
from appliance.cluster.metadata_cache import MetadataCache
from appliance.protocol.cluster_apis import (
    DESCRIBE_CLUSTER_REQUEST,
    DESCRIBE_CLUSTER_RESPONSE,
    ENDPOINT_BROKERS,
    ENDPOINT_UNKNOWN,
    OPERATIONS_NOT_ASKED,
    DescribeClusterRequest,
    DescribeClusterResponse,
    DescribedBroker,
)
from appliance.protocol.framing import RequestHeader
from services.acceptor.connection import Connection
from services.acceptor.operations import CLUSTER_OPERATIONS


class DescribeClusterHandler:
    """All such requests of one acceptor."""

    def __init__(self, view: MetadataCache, on_reply: Callable[[Connection], None]) -> None:
        self._view = view
        self._on_reply = on_reply

    def handle(self, connection: Connection, header: RequestHeader, buffer: memoryview, limit: int) -> None:
        request = DESCRIBE_CLUSTER_REQUEST.decode(buffer, header.body_position, limit, header.api_version)
        reply = connection.expect_reply(False)
        reply.pieces = [DESCRIBE_CLUSTER_RESPONSE.encode_response(header.api_version, header.correlation_id, self._describe(request))]
        reply.ready = True
        self._on_reply(connection)

    def _describe(self, request: DescribeClusterRequest) -> DescribeClusterResponse:
        if request.endpoint_type != ENDPOINT_BROKERS:
            unknown = request.endpoint_type == ENDPOINT_UNKNOWN
            code = ErrorCode.UNSUPPORTED_ENDPOINT_TYPE if unknown else ErrorCode.MISMATCHED_ENDPOINT_TYPE
            return DescribeClusterResponse(0, code, f"This is an endpoint of brokers (type {ENDPOINT_BROKERS}); type {request.endpoint_type} was asked for.")
        image = self._view.image
        return DescribeClusterResponse(
            cluster_id=image.cluster_id,
            controller_id=image.controller_id,
            brokers=tuple(DescribedBroker(broker.id, broker.host, broker.port, broker.rack) for broker in image.brokers.values()),
            cluster_authorized_operations=CLUSTER_OPERATIONS if request.include_cluster_authorized_operations else OPERATIONS_NOT_ASKED,
        )
