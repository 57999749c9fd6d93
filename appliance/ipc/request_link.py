"""A connection to a process of the same box that answers requests in any order and may restart
meanwhile.

While the process is down, requests wait here, each with its deadline, and are sent to its next
incarnation. A request that `incarnations_max` incarnations had when they died is not sent again: it
may be what kills the controller, and the coordinator would execute it twice. Weak: waiting requests
are on the heap, at most `WAITING_BYTES_MAX`; further ones are refused.

The connection to the controller, for acceptors, ingests and the coordinator: forwarded requests,
and notifications of a new metadata image.

If a dead incarnation of the controller had already executed an operation, it answers as for a
repetition (TOPIC_ALREADY_EXISTS), which Kafka's clients expect after a time-out. So a request may
be sent to two incarnations.

The connection from an acceptor to the coordinator of the box.

A request goes to one incarnation only: a second one would add the same member twice. If the
coordinator dies, its requests are answered as lost, so that the client looks up its coordinator and
retries. New requests wait a little for the next incarnation.
"""

from __future__ import annotations

import select
from collections.abc import Callable
from typing import NamedTuple

from appliance.base.clock import Clock
from appliance.base.layout import BoxLayout
from appliance.ipc.frames import MAX_PAYLOAD_BYTES, Frame, FrameSocket, PeerGone, Registry, connect_unix
from appliance.ipc.request_frames import GENERATION, IMAGE_CHANGED
from appliance.shm.counters import read_counters

RECONNECT_NS = 20_000_000
COORDINATOR = "coordinator"
WAITING_BYTES_MAX = 32 << 20
"""Limit for all requests in flight; clients that disconnect cannot revoke theirs."""

OnResponse = Callable[[bytes | None], None]
"""Called with the payload of the answer, or None if the deadline passed."""

OnLost = Callable[[], None]
"""Called if too many incarnations died with a request; whether it was executed is unknown."""


class _Waiting(NamedTuple):
    kind: int
    payload: bytes
    deadline_ns: int
    on_response: OnResponse
    on_lost: OnLost | None
    answer_timeout_ms: int
    incarnations: int = 0


class RequestLink:
    """The connection of one process to another; reconnects by itself."""

    def __init__(self, path: str, registry: Registry, clock: Clock, incarnations_max: int, on_news: Callable[[Frame], None]) -> None:
        """`on_news` receives the frames that answer no request."""
        self._path = path
        self._registry = registry
        self._clock = clock
        self._incarnations_max = incarnations_max
        self._on_news = on_news
        self._socket: FrameSocket | None = None
        self._next_attempt_ns = 0
        self._next_token = 1
        self._waiting: dict[int, _Waiting] = {}
        self._waiting_bytes = 0
        self._interest = 0

    @property
    def connected(self) -> bool:
        return self._socket is not None

    def request(
        self, kind: int, payload: bytes, timeout_ms: int, on_response: OnResponse, on_lost: OnLost | None = None, *, answer_timeout_ms: int = 0
    ) -> None:
        """Send a request, or keep it until the other side runs.

        A payload that does not fit in a frame is answered empty at once; one that exceeds the limit
        of waiting bytes is answered None. Without `on_lost`, a lost request is answered None. With
        `answer_timeout_ms` the answer may take that long, and `timeout_ms` covers the connection.
        """
        if len(payload) > MAX_PAYLOAD_BYTES:
            on_response(b"")
            return
        if self._waiting and self._waiting_bytes + len(payload) > WAITING_BYTES_MAX:
            on_response(None)
            return
        self._waiting_bytes += len(payload)
        token = self._next_token
        self._next_token = token + 1
        self._waiting[token] = _Waiting(kind, payload, self._clock.monotonic_ns() + timeout_ms * 1_000_000, on_response, on_lost, answer_timeout_ms)
        if self._socket is not None:
            self._send(self._socket, token)

    def do_work(self, now_ns: int) -> int:
        """Connect if it is time, end requests whose deadline passed. Never blocks."""
        work = 0
        if self._waiting:
            expired = [token for token, waiting in self._waiting.items() if waiting.deadline_ns <= now_ns]
            for token in expired:
                work += 1
                self._take(token).on_response(None)
        if self._socket is None and now_ns >= self._next_attempt_ns:
            self._next_attempt_ns = now_ns + RECONNECT_NS
            self._connect()
        return work

    def _take(self, token: int) -> _Waiting:
        waiting = self._waiting.pop(token)
        self._waiting_bytes -= len(waiting.payload)
        return waiting

    def _connect(self) -> None:
        sock = connect_unix(self._path)
        if sock is None:
            return
        self._socket = sock
        self._interest = select.EPOLLIN | select.EPOLLRDHUP
        self._registry.register(sock.fileno(), self._interest, self._on_event)
        for token in list(self._waiting):
            if self._socket is not sock:
                return
            if token in self._waiting:  # the callback of a lost request may have removed it
                self._send(sock, token)

    def _send(self, sock: FrameSocket, token: int) -> None:
        waiting = self._waiting[token]
        try:
            sock.send(waiting.kind, token, waiting.payload)
        except PeerGone:
            self._hang_up()
            return
        if waiting.answer_timeout_ms:
            waiting = waiting._replace(deadline_ns=self._clock.monotonic_ns() + waiting.answer_timeout_ms * 1_000_000)
        self._waiting[token] = waiting._replace(incarnations=waiting.incarnations + 1)
        self._update_interest(sock)

    def _update_interest(self, sock: FrameSocket) -> None:
        interest = select.EPOLLIN | select.EPOLLRDHUP | (select.EPOLLOUT if sock.wants_write else 0)
        if interest != self._interest:
            self._interest = interest
            self._registry.modify(sock.fileno(), interest)

    def _on_event(self, events: int) -> None:
        sock = self._socket
        if sock is None:
            return
        try:
            if events & select.EPOLLOUT:
                sock.flush()
                self._update_interest(sock)
            if events & ~select.EPOLLOUT:
                for frame in sock.receive():
                    if not frame.token:
                        self._on_news(frame)
                    elif frame.token in self._waiting:
                        self._take(frame.token).on_response(frame.payload)
        except PeerGone:
            self._hang_up()

    def _hang_up(self) -> None:
        sock, self._socket = self._socket, None
        if sock is None:
            return
        self._registry.unregister(sock.fileno())
        sock.close()
        for token in [token for token, waiting in self._waiting.items() if waiting.incarnations >= self._incarnations_max]:
            if token in self._waiting:
                self._lose(self._take(token))

    def _lose(self, waiting: _Waiting) -> None:
        if waiting.on_lost is not None:
            waiting.on_lost()
        else:
            waiting.on_response(None)

    def close(self) -> None:
        sock, self._socket = self._socket, None
        if sock is not None:
            self._registry.unregister(sock.fileno())
            sock.close()


CONTROLLER_INCARNATIONS_MAX = 2
"""Incarnations that may receive a request: a death may have any cause, and must not lose the
requests beside it."""


class ControllerLink(RequestLink):
    """The connection of one process to the controller."""

    def __init__(self, layout: BoxLayout, registry: Registry, clock: Clock, on_image_changed: Callable[[int], None]) -> None:
        def on_news(frame: Frame) -> None:
            if frame.kind == IMAGE_CHANGED:
                on_image_changed(GENERATION.unpack(frame.payload)[0])

        super().__init__(layout.controller_socket, registry, clock, CONTROLLER_INCARNATIONS_MAX, on_news)


COORDINATOR_INCARNATIONS_MAX = 1
SILENT_NS = 8_500_000_000
"""No turn of the coordinator takes longer than 5 s."""
LOOK_NS = 500_000_000


class CoordinatorLink(RequestLink):
    """The connection of one acceptor to the coordinator.

    A member may wait for the others of its group longer than for any other answer. If the
    coordinator does not run (suspended, starved), it is lost after `SILENT_NS`, as if it had died:
    the group may have another coordinator by then, and the watchdog takes 30 s.
    """

    def __init__(self, layout: BoxLayout, registry: Registry, clock: Clock) -> None:
        super().__init__(layout.coordinator_socket, registry, clock, COORDINATOR_INCARNATIONS_MAX, lambda _frame: None)
        self._layout = layout
        self._next_look_ns = 0

    def do_work(self, now_ns: int) -> int:
        work = super().do_work(now_ns)
        if self._waiting and now_ns >= self._next_look_ns:
            self._next_look_ns = now_ns + LOOK_NS
            snapshot = read_counters(self._layout, COORDINATOR)
            if snapshot is not None and snapshot.heartbeat_ns and now_ns - snapshot.heartbeat_ns > SILENT_NS:
                work += self._lose_sent()
        return work

    def _lose_sent(self) -> int:
        sent = [token for token, waiting in self._waiting.items() if waiting.incarnations]
        for token in sent:
            if token in self._waiting:
                self._lose(self._take(token))
        return len(sent)
