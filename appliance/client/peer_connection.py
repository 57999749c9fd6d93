"""A non-blocking connection to another box's Kafka port, driven by its owner's poller and turns; it reconnects by itself.

It connects when there is a request, agrees on versions, logs in where boxes do, sends requests one after the other, and passes
each response to its callback, in order. Every request ends once: with its response, or with None (the
connection was lost or could not be made, the peer does not serve the API, or the time-out passed).
Whether a lost request was carried out is unknown; none is sent twice. Callbacks are called from the
poller and `do_work`, never from within `request`; they may send requests and close. Owned by one agent.
Weak spot: a late response delays those behind it, as on any Kafka connection; so a request that times
out closes the connection.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from appliance.base.clock import Clock
from appliance.base.errors import ProtocolViolation
from appliance.client.address import Address
from appliance.client.peer_stream import HostLookup, PeerStream, StreamEnded
from appliance.ipc.frames import Registry
from appliance.protocol import api_versions
from appliance.protocol.apis import CODED_APIS, ApiKey
from appliance.protocol.framing import REQUEST_HEADER, frame
from appliance.protocol.schema import BODY_SIZE_MAX, Message
from appliance.protocol.wire import INT32, MALFORMED, NO_TAGGED_FIELDS, malformed, skip_tagged_fields

if TYPE_CHECKING:
    from appliance.base.settings import Box
    from appliance.security.tls_contexts import PeerContext

CONNECT_TIMEOUT_MS = 1_000
HANDSHAKE_TIMEOUT_MS = 5_000
"""Of TLS, beyond that: keys of RSA take 6 ms of a busy peer."""
AGREE_TIMEOUT_MS = 5_000
PAUSE_MS_FIRST = 20
PAUSE_MS_QUICK = 100
"""A box that restarts is found within this."""
PAUSE_MS_MAX = 500
QUICK_PAUSES = 100
"""So many tries are quick, then it is asked less often: it is not coming back in a moment."""

_CLIENT_SOFTWARE = api_versions.ApiVersionsRequest("millrace", "1")
_API_VERSIONS_VERSION = 3
_CORRELATION_ID_MAX = 0x7FFFFFFF
_ANSWER_SIZE_MIN = INT32.size


class PeerAnswer(NamedTuple):
    """What came back: the response's fields lie in `memory[position:limit]`. Memory that was not taken by `take_memory` is gone after the callback."""

    version: int
    memory: memoryview
    position: int
    limit: int


Encode = Callable[[int], bytes]
"""The request's body in a version."""
OnAnswer = Callable[[PeerAnswer | None], None]
"""May raise ProtocolViolation: the answer cannot be read, so the connection is given up. It is not called again."""
TakeMemory = Callable[[int], memoryview | None]
"""Memory for an answer of so many bytes; None: none is free now, ask again with the next turn. The answer is not read before."""


class _Request(NamedTuple):
    api_key: int
    version_min: int
    version_max: int
    encode: Encode
    on_answer: OnAnswer
    deadline_ns: int
    take_memory: TakeMemory | None = None
    correlation_id: int = -1


class PeerConnection:
    """One line to one box."""

    def __init__(
        self, address: Address, client_id: str, registry: Registry, clock: Clock, tls: PeerContext | None, answer_bytes_max: int = BODY_SIZE_MAX
    ) -> None:
        """`tls` None: in clear text."""
        self.address = address
        self.problem = ""
        """Why the last connection ended, or could not be made; empty once there is one."""
        self.failures = 0
        """How often in a row it ended that way."""
        self.is_ready = False
        """Both sides have agreed on versions, and this one has logged in if it must."""
        self._client_id = client_id.encode()
        self._registry = registry
        self._clock = clock
        self._tls = tls
        self._answer_bytes_max = answer_bytes_max
        self._versions: dict[int, tuple[int, int]] = {}
        self._waiting: deque[_Request] = deque()
        self._sent: deque[_Request] = deque()
        self._refused: list[_Request] = []
        self._lookup: HostLookup | None = None
        self._stream: PeerStream | None = None
        self._tries = 0
        self._deadline_ns = 0
        self._next_attempt_ns = 0
        self._next_correlation_id = 1
        self.given_up = ""
        """Why the connection is being closed; empty while it is not."""

    # --- what the owner uses

    @property
    def under_way(self) -> int:
        """Requests without an answer."""
        return len(self._waiting) + len(self._sent) + len(self._refused)

    @property
    def hears_answer(self) -> bool:
        """Whether a part of the next answer has arrived."""
        return self._stream is not None and self._stream.hears_frame

    def request(
        self, api_key: int, version_min: int, version_max: int, encode: Encode, on_answer: OnAnswer, timeout_ms: int, take_memory: TakeMemory | None = None
    ) -> None:
        """Ask in the highest version that both sides speak between `version_min` and `version_max`. Waits until there is a connection."""
        deadline_ns = self._clock.monotonic_ns() + timeout_ms * 1_000_000
        self._waiting.append(_Request(int(api_key), version_min, version_max, encode, on_answer, deadline_ns, take_memory))
        if self.is_ready:
            self._send_waiting()

    def ask(
        self,
        question: Message[Any],
        reply: Message[Any],
        body: Any,
        on_answer: Callable[[Any], None],
        timeout_ms: int,
        version_min: int | None = None,
        version_max: int | None = None,
    ) -> None:
        """As `request`, for messages as data: `on_answer` gets the body of `reply`, or None."""

        def on_bytes(answer: PeerAnswer | None) -> None:
            if answer is None:
                on_answer(None)
                return
            try:
                read = reply.decode(answer.memory, answer.position, answer.limit, answer.version)
            except ProtocolViolation:
                on_answer(None)
                raise
            on_answer(read)

        api = question.api
        lowest = api.version_min if version_min is None else version_min
        highest = api.version_max if version_max is None else version_max
        self.request(api.key, lowest, highest, lambda version: question.encode(version, body), on_bytes, timeout_ms)

    def do_work(self, now_ns: int) -> int:
        """Connect if requests wait and the pause is over; end requests that timed out. Never blocks; returns how much was done."""
        work = self._end_refused()
        stream = self._stream
        if stream is not None:
            if reason := self.given_up or stream.failure or self._lateness(now_ns):
                self._hang_up(reason)
                work += 1
            elif stream.resume():
                work += 1
        if self._waiting:
            work += self._expire(now_ns)
        if self._stream is None and self._waiting and now_ns >= self._next_attempt_ns:
            work += self._connect(now_ns)
        return work

    def set_address(self, address: Address) -> None:
        """Where the box is now; a connection to elsewhere is given up."""
        if address != self.address:
            self.address = address
            self._lookup = None
            self.disconnect("the box has another address")

    def disconnect(self, reason: str) -> None:
        """Give the connection up: what is under way ends with None at the next turn, and the next request makes a new one at once."""
        self.failures = 0
        self._next_attempt_ns = 0
        if self._stream is not None:
            self.given_up = reason

    def close(self) -> None:
        """Close without calling any callback."""
        self._close_stream()
        for requests in (self._waiting, self._sent, self._refused):
            requests.clear()

    # --- connecting

    def _connect(self, now_ns: int) -> int:
        lookup = self._lookup
        if lookup is None:
            lookup = self._lookup = HostLookup(self.address)
        if lookup.found is None:
            return 0
        self._lookup = None
        if not lookup.found:
            self._hang_up(f"there is no host {self.address.host}")
            return 1
        self._tries += 1
        try:
            encrypt = None if self._tls is None else partial(self._tls.wrap, host=self.address.host)
            self._stream = PeerStream(lookup.found[self._tries % len(lookup.found)], self._registry, self, encrypt)
        except StreamEnded as ended:
            self._hang_up(str(ended))
        self._deadline_ns = now_ns + CONNECT_TIMEOUT_MS * 1_000_000
        return 1

    def on_connected(self) -> None:
        self._deadline_ns = self._clock.monotonic_ns() + AGREE_TIMEOUT_MS * 1_000_000
        version = _API_VERSIONS_VERSION
        asked = _Request(ApiKey.API_VERSIONS, version, version, _encode_api_versions, self._on_versions, self._deadline_ns)
        self._send(asked, version)

    def _on_versions(self, answer: PeerAnswer | None) -> None:
        if answer is None:
            return
        response = api_versions.RESPONSE.decode(answer.memory, answer.position, answer.limit, answer.version)
        if response.error_code:
            raise ProtocolViolation("peer-answer", f"ApiVersions {answer.version} is refused with error {response.error_code}")
        self._versions = {api.api_key: (api.version_min, api.version_max) for api in response.apis}
        if self._tls is not None and self._tls.logs_in is not None:
            self._log_in(self._tls.logs_in)
        else:
            self._on_ready()

    def _log_in(self, box: Box) -> None:
        from appliance.client.peer_login import PeerLogin  # few boxes need it
        from appliance.protocol import sasl_apis
        from appliance.security.scram import ScramFailed

        try:
            login = PeerLogin.of(box)
        except ValueError as problem:
            raise StreamEnded(str(problem)) from problem
        assert login is not None
        tokens = login.tokens()

        def send(question: Message[Any], version: int, body: Any, on_answer: OnAnswer) -> None:
            self._send(_Request(question.api.key, version, version, lambda _: question.encode(version, body), on_answer, self._deadline_ns), version)

        def on_handshake(answer: PeerAnswer | None) -> None:
            if answer is not None:
                read = sasl_apis.SASL_HANDSHAKE_RESPONSE.decode(answer.memory, answer.position, answer.limit, answer.version)
                if read.error_code:
                    raise StreamEnded(f"it does not take {login.mechanism}: error {read.error_code} (sasl.enabled.mechanisms of its listener)")
                send_token(next(tokens))

        def send_token(token: bytes) -> None:
            send(sasl_apis.SASL_AUTHENTICATE_REQUEST, 1, sasl_apis.SaslAuthenticateRequest(token), on_token)

        def on_token(answer: PeerAnswer | None) -> None:
            if answer is None:
                return
            read = sasl_apis.SASL_AUTHENTICATE_RESPONSE.decode(answer.memory, answer.position, answer.limit, answer.version)
            if read.error_code:
                raise StreamEnded(f"it refused inter.broker.user {login.user!r}: {read.error_message}")
            try:
                send_token(tokens.send(bytes(read.auth_bytes)))
            except StopIteration:
                self._on_ready()
            except ScramFailed as failed:
                raise StreamEnded(f"it cannot be trusted: {failed}") from failed

        send(sasl_apis.SASL_HANDSHAKE_REQUEST, 1, sasl_apis.SaslHandshakeRequest(login.mechanism), on_handshake)

    def _on_ready(self) -> None:
        self.is_ready = True
        self.failures = 0
        self.problem = ""
        self._send_waiting()

    # --- requests and answers

    def _send_waiting(self) -> None:
        while self._waiting:
            request = self._waiting.popleft()
            low, high = self._versions.get(request.api_key, (0, -1))
            version = min(high, request.version_max)
            if version < max(low, request.version_min):
                self._refused.append(request)
            else:
                self._send(request, version)

    def _send(self, request: _Request, version: int) -> None:
        stream = self._stream
        assert stream is not None
        correlation_id = self._next_correlation_id
        self._next_correlation_id = correlation_id % _CORRELATION_ID_MAX + 1
        header = REQUEST_HEADER.pack(request.api_key, version, correlation_id, len(self._client_id)) + self._client_id
        if CODED_APIS[request.api_key].is_flexible(version):
            header += NO_TAGGED_FIELDS
        # From here on `version_max` is the version that was agreed on.
        self._sent.append(request._replace(version_max=version, correlation_id=correlation_id))
        stream.send(frame(header + request.encode(version)))

    def take_memory(self, size_bytes: int) -> memoryview | None:
        if not self._sent:
            raise ProtocolViolation("peer-answer", "an answer to no request")
        if not _ANSWER_SIZE_MIN <= size_bytes <= self._answer_bytes_max:
            raise ProtocolViolation("peer-answer", f"an answer of {size_bytes} bytes, {_ANSWER_SIZE_MIN} to {self._answer_bytes_max} are allowed")
        take = self._sent[0].take_memory
        return memoryview(bytearray(size_bytes)) if take is None else take(size_bytes)

    def on_frame(self, memory: memoryview, size_bytes: int) -> None:
        request = self._sent[0]
        position = _body_position(memory, size_bytes, request)
        self._sent.popleft()
        request.on_answer(PeerAnswer(request.version_max, memory, position, size_bytes))

    # --- ends

    @property
    def _handshake_ns(self) -> int:
        return HANDSHAKE_TIMEOUT_MS * 1_000_000 if self._stream is not None and self._stream.is_handshaking else 0

    def _lateness(self, now_ns: int) -> str:
        if not self.is_ready and self._deadline_ns <= now_ns - self._handshake_ns:
            return "it could not be reached in time"
        return "it did not answer in time" if any(request.deadline_ns <= now_ns for request in self._sent) else ""

    def _expire(self, now_ns: int) -> int:
        expired = [request for request in self._waiting if request.deadline_ns <= now_ns]
        if not expired:
            return 0
        self._waiting = deque(request for request in self._waiting if request.deadline_ns > now_ns)
        for request in expired:
            request.on_answer(None)
        return len(expired)

    def _end_refused(self) -> int:
        refused, self._refused = self._refused, []
        for request in refused:
            low, high = self._versions.get(request.api_key, (0, -1))
            self.problem = f"it serves API {request.api_key} in versions {low} to {high}, {request.version_min} to {request.version_max} are asked for"
            request.on_answer(None)
        return len(refused)

    def on_end(self, reason: str, is_breach: bool) -> None:
        if is_breach or not self.is_ready or self.under_way:
            self._hang_up(reason)
        else:
            self._close_stream()  # a peer may close an idle connection

    def _hang_up(self, reason: str) -> None:
        """Close the connection; all requests end with None. Callbacks may send new ones, which wait for the next connection."""
        lost = [*self._sent, *self._waiting]
        self._sent.clear()
        self._waiting.clear()
        was_given_up = bool(self.given_up)
        self._close_stream()
        if not was_given_up:
            self.problem = reason
            self._next_attempt_ns = self._clock.monotonic_ns() + reconnect_pause_ms(self.failures) * 1_000_000
            self.failures += 1
        for request in lost:
            request.on_answer(None)

    def _close_stream(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.close()
        self.is_ready = False
        self.given_up = ""


def reconnect_pause_ms(failures: int) -> int:
    """How long to wait after so many failures in a row before the next try."""
    return PAUSE_MS_MAX if failures >= QUICK_PAUSES else min(PAUSE_MS_FIRST << min(failures, 8), PAUSE_MS_QUICK)


def _encode_api_versions(version: int) -> bytes:
    return api_versions.REQUEST.encode(version, _CLIENT_SOFTWARE)


def _body_position(memory: memoryview, size_bytes: int, request: _Request) -> int:
    (correlation_id,) = INT32.unpack_from(memory)
    if correlation_id != request.correlation_id:
        raise ProtocolViolation("peer-answer", f"an answer to request {correlation_id} while {request.correlation_id} was due")
    position = INT32.size
    if request.api_key == ApiKey.API_VERSIONS or not CODED_APIS[request.api_key].is_flexible(request.version_max):
        return position
    try:
        return skip_tagged_fields(memory, position, size_bytes)
    except MALFORMED as error:
        raise malformed("response header", 1, error) from error
