"""One connection to one broker: requests out, responses in, matched by correlation id; several may be in flight.

Owned by one thread. Blocking, with a time-out on every step. After any failure the connection is
closed, because it is unknown what the broker did with the requests in flight. Weak spot: it does not
reconnect; its users know which requests may be repeated (`cluster`, `fetch`, `producer`).
"""

from __future__ import annotations

import select
import socket
import time
from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from appliance.base.clock import Clock, SystemClock
from appliance.base.errors import ErrorCode, ProtocolViolation
from appliance.base.invariants import check
from appliance.client.address import Address
from appliance.client.errors import BrokerUnreachable, ConnectionLost, ReplyTimedOut, VersionUnsupported
from appliance.client.messages import API_VERSIONS, CORRELATION_ID, Answered, Asked, ClientApi, decode_response, encode_request
from appliance.protocol.api_versions import ApiVersionsRequest, ApiVersionsResponse

if TYPE_CHECKING:
    from appliance.client.security import ClientSecurity  # it brings OpenSSL

CONNECT_TIMEOUT_MS = 5_000
REQUEST_TIMEOUT_MS = 30_000
MAX_RESPONSE_BYTES = 256 * 1024 * 1024
UNIX_RETRY_SECONDS = 0.02
TLS_ALERT = b"\x15\x03"
"""The first bytes of a TLS server's answer to what is no TLS (RFC 8446, 5.1)."""
WANTS_TLS = (
    "a listener with TLS ends connections like this: name a properties file by --command-config FILE or MILLRACE_COMMAND_CONFIG, "
    "with security.protocol=SSL (or SASL_SSL) and ssl.truststore.location"
)
CLIENT_SOFTWARE = ApiVersionsRequest("millrace", "1")


class Response(NamedTuple):
    """One response; `body` is of the class that `api` names."""

    correlation_id: int
    api: ClientApi[Any, Any]
    version: int
    body: Any


class _Sent(NamedTuple):
    correlation_id: int
    api: ClientApi[Any, Any]
    version: int


class ClientConnection:
    """A connection after the exchange of ApiVersions. Raises BrokerUnreachable if no broker answers in Kafka's protocol."""

    def __init__(self, address: Address, *, client_id: str = "millrace", clock: Clock | None = None, connect_timeout_ms: int = CONNECT_TIMEOUT_MS,
                 request_timeout_ms: int = REQUEST_TIMEOUT_MS, response_bytes_max: int = MAX_RESPONSE_BYTES,
                 security: ClientSecurity | None = None) -> None:  # fmt: skip
        """`security` None: neither TLS nor SASL. A larger response than `response_bytes_max` ends the connection."""
        self.address = address
        self.client_id = client_id
        self.request_timeout_ms = request_timeout_ms
        self._response_bytes_max = response_bytes_max
        self._clock: Clock = clock or SystemClock()
        self._under_way: deque[_Sent] = deque()
        self._next_correlation_id = 1
        self._versions: dict[int, tuple[int, int]] = {}
        connect = _connect_unix if address.is_unix else _connect
        self._socket: socket.socket | None = connect(address, connect_timeout_ms, self._clock)
        is_encrypted = security is not None and security.is_encrypted
        if security is not None and not address.is_unix:
            self._socket = security.encrypt(self._socket, address.host, connect_timeout_ms)
        try:
            try:
                self._agree_on_versions(connect_timeout_ms)
            except ConnectionLost:
                if not address.is_unix:
                    raise
                # Its acceptor ended before it took the connection: the next one has a socket of its own.
                self._socket = connect(address, connect_timeout_ms, self._clock)
                self._agree_on_versions(connect_timeout_ms)
        except ConnectionLost as error:
            hint = ", or does not admit this user (docs/security.md, Local administration)" if address.is_unix else ""
            if not is_encrypted and not address.is_unix and not isinstance(error, ReplyTimedOut):
                hint = f"; {WANTS_TLS}"
            raise BrokerUnreachable(f"no Kafka broker answers at {address}: {error}{hint}") from error
        except ProtocolViolation as error:
            self.close()
            raise BrokerUnreachable(f"what listens at {address} does not speak Kafka's protocol: {error}") from error
        except BaseException:  # such as the time-out of a command
            self.close()
            raise
        if security is not None and (security.acting is not None or not address.is_unix):
            try:
                security.authenticate(lambda api, body: self.request(api, body, connect_timeout_ms), address)
            except BaseException:
                self.close()
                raise

    # --- what callers use

    def request(self, api: ClientApi[Asked, Answered], body: Asked, timeout_ms: int | None = None) -> Answered:
        """Send and wait for the response's body. Nothing else may be under way."""
        check(not self._under_way, "a plain request on a connection that has requests under way would take their response")
        self.send(api, body)
        answered: Answered = self.receive(timeout_ms).body
        return answered

    def send(self, api: ClientApi[Asked, Any], body: Asked, *, expects_response: bool = True) -> int:
        """Send without waiting; `receive` gives the responses in this order. Returns the correlation id."""
        version = self.version_of(api)
        correlation_id = self._next_correlation_id
        self._next_correlation_id = (correlation_id + 1) & 0x7FFFFFFF
        self._send_frame(encode_request(api, version, correlation_id, self.client_id, body))
        if expects_response:
            self._under_way.append(_Sent(correlation_id, api, version))
        return correlation_id

    def receive(self, timeout_ms: int | None = None) -> Response:
        """The response to the oldest request under way."""
        check(self._under_way, "a response was awaited, but no request is under way")
        try:
            frame = self._receive_frame(self.request_timeout_ms if timeout_ms is None else timeout_ms)
            sent = self._under_way.popleft()
            (correlation_id,) = CORRELATION_ID.unpack_from(frame)
            if correlation_id != sent.correlation_id:
                raise ProtocolViolation("client_response", f"an answer to request {correlation_id} while {sent.correlation_id} was due")
            return Response(correlation_id, sent.api, sent.version, decode_response(sent.api, sent.version, frame))
        except ProtocolViolation as error:
            self.close()
            raise ConnectionLost(f"the broker at {self.address} sent what cannot be read: {error}") from error

    def version_of(self, api: ClientApi[Any, Any]) -> int:
        """The newest version that both sides speak."""
        low, high = self._versions.get(api.key, (0, -1))
        version = min(high, api.version_max)
        if version < max(low, api.version_min):
            offered = f"{low}-{high}" if high >= low else "none"
            ours = f"{api.version_min}-{api.version_max}"
            raise VersionUnsupported(f"the broker at {self.address} offers {api.name} versions {offered}, this client speaks {ours}")
        return version

    @property
    def under_way(self) -> int:
        """Requests that have not been answered."""
        return len(self._under_way)

    @property
    def is_open(self) -> bool:
        return self._socket is not None

    def fileno(self) -> int:
        """For select: readable means that a response (or the end) has begun to arrive."""
        return -1 if self._socket is None else self._socket.fileno()

    @property
    def has_buffered(self) -> bool:
        """True if TLS has decrypted bytes that select does not report."""
        pending = getattr(self._socket, "pending", None)
        return pending is not None and bool(pending())

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        self._under_way.clear()

    # --- bytes

    def _agree_on_versions(self, timeout_ms: int) -> None:
        body = self._ask_versions(API_VERSIONS.version_max, timeout_ms)
        if body is None:
            body = self._ask_versions(0, timeout_ms)
        if body is None or body.error_code != ErrorCode.NONE:
            self.close()
            raise ConnectionLost("it refuses to say which versions it speaks")
        self._versions = {api.api_key: (api.version_min, api.version_max) for api in body.apis}

    def _ask_versions(self, version: int, timeout_ms: int) -> ApiVersionsResponse | None:
        """The broker's ApiVersions answer, or None if it does not know this version of the question."""
        correlation_id = self._next_correlation_id
        self._next_correlation_id += 1
        self._send_frame(encode_request(API_VERSIONS, version, correlation_id, self.client_id, CLIENT_SOFTWARE))
        frame = self._receive_frame(timeout_ms)
        if len(frame) < 6 or CORRELATION_ID.unpack_from(frame)[0] != correlation_id:
            raise ProtocolViolation("client_response", "the answer belongs to no question")
        if int.from_bytes(frame[4:6], "big") == ErrorCode.UNSUPPORTED_VERSION:
            return None
        return decode_response(API_VERSIONS, version, frame)

    def _send_frame(self, frame: bytes) -> None:
        if self._socket is None:
            raise ConnectionLost(f"the connection to {self.address} is closed")
        try:
            self._socket.settimeout(self.request_timeout_ms / 1000)
            self._socket.sendall(frame)
        except OSError as error:
            self.close()
            raise ConnectionLost(f"lost the connection to {self.address} while sending: {_reason(error)}") from error

    def _receive_frame(self, timeout_ms: int) -> bytes:
        deadline_ms = self._clock.monotonic_ms() + timeout_ms
        size = self._receive_exactly(4, deadline_ms)
        if size.startswith(TLS_ALERT):  # as a size it would be 336 MiB, more than a response may have
            self.close()
            raise ConnectionLost(f"the listener at {self.address} answers with a TLS alert")
        size_bytes = int.from_bytes(size, "big", signed=True)
        if not CORRELATION_ID.size <= size_bytes <= self._response_bytes_max:
            raise ProtocolViolation("client_response", f"it announces a frame of {size_bytes} bytes")
        return bytes(self._receive_exactly(size_bytes, deadline_ms))

    def _receive_exactly(self, size_bytes: int, deadline_ms: int) -> bytearray:
        received = bytearray(size_bytes)
        view = memoryview(received)
        position = 0
        while position < size_bytes:
            if self._socket is None:
                raise ConnectionLost(f"the connection to {self.address} is closed")
            try:
                self._socket.settimeout(max(deadline_ms - self._clock.monotonic_ms(), 1) / 1000)
                count = self._socket.recv_into(view[position:])
            except TimeoutError as error:
                self.close()
                raise ReplyTimedOut(f"the broker at {self.address} did not answer in time") from error
            except OSError as error:
                self.close()
                raise ConnectionLost(f"lost the connection to {self.address}: {_reason(error)}") from error
            if count == 0:
                self.close()
                raise ConnectionLost(f"the broker at {self.address} closed the connection")
            position += count
        return received


def _connect(address: Address, timeout_ms: int, _clock: Clock) -> socket.socket:
    try:
        connected = socket.create_connection(address, timeout_ms / 1000)
    except OSError as error:
        raise BrokerUnreachable(f"no broker at {address}: {_reason(error)}") from error
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connected


def _connect_unix(address: Address, timeout_ms: int, clock: Clock) -> socket.socket:
    """Connect to the Unix socket of a box. While its acceptor starts again none listens there, or its queue is full: retry until the time-out."""
    deadline_ms = clock.monotonic_ms() + timeout_ms
    while True:
        connected = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
        try:
            connected.connect(address.host)
        except OSError as error:
            connected.close()
            if isinstance(error, ConnectionRefusedError | FileNotFoundError | BlockingIOError) and clock.monotonic_ms() < deadline_ms:
                time.sleep(UNIX_RETRY_SECONDS)
                continue
            raise BrokerUnreachable(f"no broker at {address}: {_reason(error)}") from error
        connected.settimeout(timeout_ms / 1000)
        return connected


def _reason(error: OSError) -> str:
    if isinstance(error, TimeoutError | BlockingIOError):
        return "it did not answer in time"
    return (error.strerror or str(error)).lower()


# ---- waiting for several connections


def await_readable(connections: Iterable[ClientConnection], timeout_ms: float) -> list[ClientConnection]:
    """Return the connections with something to read, or broken; wait for the first one up to `timeout_ms`.

    Level-triggered: what was not read is reported again. poll(2), because select(2) takes no descriptor above 1,023."""
    by_descriptor = {connection.fileno(): connection for connection in connections}
    if buffered := [connection for connection in by_descriptor.values() if connection.has_buffered]:
        return buffered
    poll = select.poll()
    for descriptor in by_descriptor:
        poll.register(descriptor, select.POLLIN)
    return [by_descriptor[descriptor] for descriptor, _ in poll.poll(max(timeout_ms, 0))]
