"""APIs whose whole answer is a function of the metadata image and the request. Owned by one acceptor. Weak spot: none known."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

from appliance.broker.box_view import BoxView
from appliance.broker.connection import Connection
from appliance.metadata.metadata_image import MetadataImage
from appliance.protocol.request_header import RequestHeader
from appliance.protocol.schema import Message

Request = TypeVar("Request", bound=tuple[Any, ...])
Response = TypeVar("Response", bound=tuple[Any, ...])


class ImageAnswers(Generic[Request, Response]):
    """All requests of one API of one acceptor."""

    def __init__(
        self,
        view: BoxView,
        request: Message[Request],
        response: Message[Response],
        answer: Callable[[MetadataImage, Request], Response],
        on_reply: Callable[[Connection], None],
    ) -> None:
        self._view = view
        self._request = request
        self._response = response
        self._answer = answer
        self._on_reply = on_reply

    def handle(self, connection: Connection, header: RequestHeader, buffer: memoryview, limit: int) -> None:
        request = self._request.decode(buffer, header.body_position, limit, header.api_version)
        reply = connection.expect_reply(False)
        reply.pieces = [self._response.encode_response(header.api_version, header.correlation_id, self._answer(self._view.image, request))]
        reply.ready = True
        self._on_reply(connection)
