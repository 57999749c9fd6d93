"""Requests that the controller answers: forwarded whole, answered with its body behind our header.

If the controller dies more than once over a request, nothing is known about it. The client gets
UNKNOWN_SERVER_ERROR, as from Kafka when a request fails inside a broker, and reports that to its caller;
a closed connection would make it send the same request again. Owned by one acceptor. Weak spots: the
response is trusted to be of the requested version; a request that cannot be decoded closes the connection.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from appliance.base.errors import ErrorCode
from appliance.client.peers import CONTROLLER_CLIENT, UNAUTHORIZED
from appliance.ipc.request_frames import KAFKA_REQUEST, pack_kafka_request
from appliance.ipc.request_link import ControllerLink
from appliance.protocol.apis import SERVED_APIS, ApiKey
from appliance.protocol.framing import RequestHeader
from appliance.protocol.schema import response_frame
from appliance.protocol.wire import INT32
from appliance.security.principals import ANONYMOUS, BY_TOKEN, FROM_BOX, RequestOrigin
from services.acceptor.audit.audit_trail import AUDITED
from services.acceptor.closings import CONTROLLER_SILENT, UNREADABLE
from services.acceptor.connection import Connection, PendingReply

if TYPE_CHECKING:
    from services.acceptor.audit.audit_trail import AuditTrail, PendingChange
    from services.acceptor.authorization.request_judge import RequestJudge  # it imports all schemas

FORWARD_TIMEOUT_MS = 60_000
"""Longer than any client waits. If the controller has not answered by then, the connection is closed."""
MUTATING_SINCE: dict[int, int] = {ApiKey.CREATE_TOPICS: 2, ApiKey.DELETE_TOPICS: 1, ApiKey.CREATE_PARTITIONS: 0}
"""APIs with a quota in the controller, and from which version their responses begin with a throttle time."""
TOKEN_KEYS = frozenset({ApiKey.CREATE_DELEGATION_TOKEN, ApiKey.RENEW_DELEGATION_TOKEN, ApiKey.EXPIRE_DELEGATION_TOKEN, ApiKey.DESCRIBE_DELEGATION_TOKEN})
LOST_MESSAGE = "The controller failed more than once while it had this request; whether it was carried out is not known."
UNAUTHORIZED_MESSAGE = "The box that passed this request on has no authorizer, the controller's box has one; configure authorizer.class.name on all boxes."


class ForwardedHandler:
    """All requests of one acceptor that go to the controller."""

    def __init__(
        self,
        controller: ControllerLink,
        on_reply: Callable[[Connection], None],
        judge: RequestJudge | None = None,
        is_box: Callable[[Connection], bool] = lambda _connection: False,
    ) -> None:
        """`judge` authorizes requests; None: everything is allowed. `is_box` says whether a box has this connection. `on_throttled`
        is called for what the controller throttles."""
        self.on_throttled: Callable[[PendingReply, RequestHeader, int], None] = lambda _reply, _header, _ms: None
        self._controller = controller
        self._on_reply = on_reply
        self._judge = judge
        self._is_box = is_box
        self.audit: AuditTrail | None = None

    def handle(self, connection: Connection, header: RequestHeader, buffer: memoryview, limit: int) -> None:
        reply = connection.expect_reply(False)
        flexible = SERVED_APIS[header.api_key].is_flexible(header.api_version)
        complete: Callable[[bytes], bytes] | None = None
        change: PendingChange | None = None

        def on_response(body: bytes | None) -> None:
            if body and complete is not None:
                body = complete(body)
            if change is not None and body != b"":
                change.on_answer(body)
            if body:
                if header.api_key in MUTATING_SINCE and header.api_version >= MUTATING_SINCE[header.api_key] and (throttle_ms := INT32.unpack_from(body)[0]):
                    self.on_throttled(reply, header, throttle_ms)
                reply.pieces = [response_frame(flexible, header.correlation_id, body)]
            else:
                request = f"API {header.api_key}, version {header.api_version}"
                reply.closes = True
                if body is None:
                    reply.closing = (CONTROLLER_SILENT, f"the controller sent no response ({request})")
                else:
                    reply.closing = (UNREADABLE, f"the controller could not decode the request ({request})")
            reply.ready = True
            self._on_reply(connection)

        def on_lost() -> None:
            from appliance.protocol.forwarded_apis import error_answer  # the acceptor needs these schemas only here

            on_response(error_answer(payload, ErrorCode.UNKNOWN_SERVER_ERROR, LOST_MESSAGE))

        body, packed_origin = bytes(buffer[header.body_position : limit]), connection.packed_origin
        is_from_box = False
        if header.client_id.startswith(CONTROLLER_CLIENT):
            if self._judge is not None and header.client_id.endswith(UNAUTHORIZED):
                on_response(_refused(header, body, ErrorCode.NOT_CONTROLLER, UNAUTHORIZED_MESSAGE))
                return
            is_from_box = self._is_box(connection)  # a client id alone is no proof
            if is_from_box:
                packed_origin = connection.origin._replace(flags=connection.origin.flags | FROM_BOX).pack()
        if self.audit is not None and header.api_key in AUDITED:
            change = self.audit.begin(connection, header, body, is_from_box)
            if change is not None and change.refusal is not None:
                on_response(change.refusal)
                return
        if header.api_key in TOKEN_KEYS and not may_use_tokens(connection.origin):
            on_response(_refused(header, body, ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED))
            return
        if self._judge is not None and connection.rights is not None:
            judged = self._judge.judge(connection.rights, header.api_key, header.api_version, body)
            if judged.body is None:
                on_response(judged.answer)
                return
            body, complete = judged.body, judged.complete
        payload = pack_kafka_request(header.api_key, header.api_version, header.client_id, connection.address, body, packed_origin)
        self._controller.request(KAFKA_REQUEST, payload, FORWARD_TIMEOUT_MS, on_response, on_lost)


def may_use_tokens(origin: RequestOrigin) -> bool:
    """Return whether the client may ask about delegation tokens: it has authenticated, and not with one."""
    return not origin.flags & BY_TOKEN and origin.principal != ANONYMOUS


def _refused(header: RequestHeader, body: bytes, code: ErrorCode, message: str | None = None) -> bytes:
    """The response with an error in each place; empty for a request that cannot be decoded."""
    from appliance.protocol.forwarded_apis import error_answer  # rarely needed

    payload = pack_kafka_request(header.api_key, header.api_version, "", "", body)
    return error_answer(payload, code, message) or b""
