"""Requests that the coordinator answers: handed on whole, answered with its body under our header, sometimes after minutes (a member waits for others).

Owned by one acceptor. What comes while the coordinator is away waits a little for its next life; what it had when it died is answered with an error that
clients know (`protocol/forwarded_apis.py`). AddOffsetsToTxn may be the first that is heard of any group: `__consumer_offsets` is made before it, because
clients ask for the group's coordinator afterwards only. Weak spot: a client that leaves while its request waits is not told of to the coordinator.
"""

from __future__ import annotations

from collections.abc import Callable

from appliance.base.errors import ErrorCode
from appliance.cluster.metadata_cache import MetadataCache
from appliance.cluster.state_log import OFFSETS_TOPIC
from appliance.ipc.controller_link import ControllerLink
from appliance.ipc.coordinator_link import CoordinatorLink
from appliance.ipc.request_frames import KAFKA_REQUEST, pack_kafka_request
from appliance.protocol.apis import SERVED_APIS, ApiKey
from appliance.protocol.framing import RequestHeader
from appliance.protocol.schema import response_frame
from services.acceptor.closings import UNREADABLE
from services.acceptor.connection import RUNS_AHEAD, Connection
from services.acceptor.state_topics import with_state_topic

COORDINATED_KEYS = frozenset(
    {
        ApiKey.OFFSET_COMMIT,
        ApiKey.OFFSET_FETCH,
        ApiKey.JOIN_GROUP,
        ApiKey.HEARTBEAT,
        ApiKey.LEAVE_GROUP,
        ApiKey.SYNC_GROUP,
        ApiKey.DESCRIBE_GROUPS,
        ApiKey.LIST_GROUPS,
        ApiKey.DELETE_GROUPS,
        ApiKey.OFFSET_DELETE,
        ApiKey.TXN_OFFSET_COMMIT,
        ApiKey.CONSUMER_GROUP_HEARTBEAT,
        ApiKey.CONSUMER_GROUP_DESCRIBE,
        ApiKey.INIT_PRODUCER_ID,
        ApiKey.ADD_PARTITIONS_TO_TXN,
        ApiKey.ADD_OFFSETS_TO_TXN,
        ApiKey.END_TXN,
        ApiKey.DESCRIBE_TRANSACTIONS,
        ApiKey.LIST_TRANSACTIONS,
    }
)
"""As in `forwarded_apis`, whose codecs an acceptor does without until its coordinator is away; a test holds them together."""
UNSENT_TIMEOUT_MS = 5_000
ANSWER_TIMEOUT_MS = 24 * 3600 * 1000
"""A member may wait for a rebalance for as long as he likes; the coordinator ends that, not we."""


class CoordinatedHandler:
    """All requests of one acceptor that go to the coordinator."""

    def __init__(self, coordinator: CoordinatorLink, view: MetadataCache, controller: ControllerLink, on_reply: Callable[[Connection], None]) -> None:
        self._coordinator = coordinator
        self._view = view
        self._controller = controller
        self._on_reply = on_reply

    def handle(self, connection: Connection, header: RequestHeader, buffer: memoryview, limit: int) -> None:
        reply = connection.expect_reply(header.api_key in RUNS_AHEAD)
        flexible = SERVED_APIS[header.api_key].is_flexible(header.api_version)
        body = bytes(buffer[header.body_position : limit])
        request = pack_kafka_request(header.api_key, header.api_version, header.client_id, connection.address, body)

        def on_response(payload: bytes | None) -> None:
            answer = payload
            if answer is None:
                from appliance.protocol.forwarded_apis import error_answer  # the acceptor needs these schemas only here

                answer = error_answer(request, ErrorCode.COORDINATOR_NOT_AVAILABLE)
            if answer:
                reply.pieces = [response_frame(flexible, header.correlation_id, answer)]
            else:
                reply.closes = True
                reply.closing = (UNREADABLE, f"the coordinator cannot read what it asked (API {header.api_key}, version {header.api_version})")
            reply.ready = True
            self._on_reply(connection)

        def ask() -> None:
            self._coordinator.request(KAFKA_REQUEST, request, UNSENT_TIMEOUT_MS, on_response, answer_timeout_ms=ANSWER_TIMEOUT_MS)

        if header.api_key == ApiKey.ADD_OFFSETS_TO_TXN:
            with_state_topic(self._view, self._controller, OFFSETS_TOPIC, ask)
        else:
            ask()
