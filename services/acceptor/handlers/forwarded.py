"""Requests that the controller answers: handed on whole, answered with its body under our header.

Owned by one acceptor. Weak spot: the controller's answer is trusted to be of the version that was asked. One that the controller died over is
answered with an error that clients do not try again; see `broker.lost_requests`.
"""

from __future__ import annotations

from collections.abc import Callable

from appliance.ipc.controller_link import ControllerLink
from appliance.ipc.request_frames import KAFKA_REQUEST, pack_kafka_request
from appliance.protocol.apis import SERVED_APIS
from appliance.protocol.request_header import RequestHeader
from appliance.protocol.schema import response_frame
from services.acceptor.closings import CONTROLLER_SILENT, UNREADABLE
from services.acceptor.connection import Connection
from services.acceptor.lost_requests import lost_answer

FORWARD_TIMEOUT_MS = 60_000
"""Longer than any client waits: what the controller did not answer by then is answered by closing the connection."""


class ForwardedHandler:
    """All requests of one acceptor that go to the controller."""

    def __init__(self, controller: ControllerLink, on_reply: Callable[[Connection], None]) -> None:
        self._controller = controller
        self._on_reply = on_reply

    def handle(self, connection: Connection, header: RequestHeader, buffer: memoryview, limit: int) -> None:
        reply = connection.expect_reply(False)
        flexible = SERVED_APIS[header.api_key].is_flexible(header.api_version)

        def on_response(payload: bytes | None) -> None:
            if payload:
                reply.pieces = [response_frame(flexible, header.correlation_id, payload)]
            else:
                request = f"API {header.api_key}, version {header.api_version}"
                reply.closes = True
                if payload is None:
                    reply.closing = (CONTROLLER_SILENT, f"the controller gave no answer ({request})")
                else:
                    reply.closing = (UNREADABLE, f"the controller cannot read what it asked ({request})")
            reply.ready = True
            self._on_reply(connection)

        def on_lost() -> None:
            on_response(lost_answer(payload))

        body = bytes(buffer[header.body_position : limit])
        payload = pack_kafka_request(header.api_key, header.api_version, header.client_id, connection.address, body)
        self._controller.request(KAFKA_REQUEST, payload, FORWARD_TIMEOUT_MS, on_response, on_lost)
