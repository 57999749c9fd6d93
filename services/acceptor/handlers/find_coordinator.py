"""FindCoordinator: the leader of the partition of a state topic that a group or a transactional id belongs to, answered from the image.

A state topic that is not there is created by the controller first, while the request waits; what that takes too long for is COORDINATOR_NOT_AVAILABLE,
which clients ask again. Owned by one acceptor. Source: Kafka's `KafkaApis.getCoordinator`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from appliance.base.errors import ErrorCode
from appliance.cluster.metadata_cache import MetadataCache
from appliance.cluster.state_log import OFFSETS_TOPIC, TRANSACTIONS_TOPIC, partition_of
from appliance.ipc.controller_link import ControllerLink
from appliance.protocol.cluster_apis import GROUP_KEY, SHARE_KEY, TRANSACTION_KEY, Coordinator, decode_find_coordinator, encode_find_coordinator_response
from appliance.protocol.framing import RequestHeader
from services.acceptor.connection import Connection
from services.acceptor.state_topics import with_state_topic

STATE_TOPICS = {GROUP_KEY: OFFSETS_TOPIC, TRANSACTION_KEY: TRANSACTIONS_TOPIC}


class FindCoordinatorHandler:
    """All such requests of one acceptor."""

    def __init__(self, view: MetadataCache, controller: ControllerLink, on_reply: Callable[[Connection], None]) -> None:
        self._view = view
        self._controller = controller
        self._on_reply = on_reply

    def handle(self, connection: Connection, header: RequestHeader, buffer: memoryview, limit: int) -> None:
        request = decode_find_coordinator(buffer, header.body_position, limit, header.api_version)
        reply = connection.expect_reply(False)
        keys = tuple(dict.fromkeys(request.keys))

        def answer() -> None:
            found = self._find(request.key_type, keys)
            reply.pieces = [encode_find_coordinator_response(header.api_version, header.correlation_id, found)]
            reply.ready = True
            self._on_reply(connection)

        topic = STATE_TOPICS.get(request.key_type)
        if topic is None:
            answer()
        else:
            with_state_topic(self._view, self._controller, topic, answer)

    def _find(self, key_type: int, keys: Sequence[str]) -> list[Coordinator]:
        topic = STATE_TOPICS.get(key_type)
        if topic is None and key_type != SHARE_KEY:
            reason = f"There is no coordinator for keys of type {key_type}."
            return [Coordinator(key, error_code=ErrorCode.INVALID_REQUEST, error_message=reason) for key in keys]
        return [self._coordinator(topic, key) for key in keys]

    def _coordinator(self, topic: str | None, key: str) -> Coordinator:
        image = self._view.image
        found = image.topics.get(topic) if topic is not None else None
        partitions = found.partitions if found is not None else ()
        leader = partitions[partition_of(key, len(partitions))].leader if partitions else -1
        broker = image.brokers.get(leader)
        if broker is None:
            return Coordinator(key, error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE, error_message="The coordinator is not available.")
        return Coordinator(key, broker.id, broker.host, broker.port)
