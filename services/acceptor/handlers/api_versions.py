"""ApiVersions: what this broker serves; also for versions it does not know, which get a version 0 body (KIP-511)."""

from __future__ import annotations

from collections.abc import Callable

from appliance.protocol.api_versions import api_versions_problem, decode_api_versions, encode_api_versions_response, encode_unsupported_version
from appliance.protocol.apis import SERVED_APIS, ApiKey
from appliance.protocol.request_header import RequestHeader
from services.acceptor.connection import Connection


class ApiVersionsHandler:
    """Answers at once."""

    def __init__(self, on_reply: Callable[[Connection], None]) -> None:
        self._on_reply = on_reply

    def handle(self, connection: Connection, header: RequestHeader, buffer: memoryview, limit: int) -> None:
        version = header.api_version
        reply = connection.expect_reply(False)
        if not SERVED_APIS[ApiKey.API_VERSIONS].serves(version):
            reply.pieces = [encode_unsupported_version(header.correlation_id)]
        else:
            problem = api_versions_problem(decode_api_versions(buffer, header.body_position, limit, version), version)
            reply.pieces = [encode_api_versions_response(version, header.correlation_id, problem or 0)]
        reply.ready = True
        self._on_reply(connection)
