"""Requests to other boxes by broker id. A connection is made at the first request, and closed when the image removes or moves the box.

If a box's registration ends, its waiting requests end at once without a response. Several connections
to one box (argument `channel`) serve requests that must not wait for each other: an acceptor answers one connection
in order. Owned by one process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from appliance.base.clock import Clock
from appliance.client.address import Address
from appliance.client.peer_connection import PeerAnswer, PeerConnection
from appliance.cluster.metadata_image import BrokerImage
from appliance.ipc.frames import Registry
from appliance.ipc.request_frames import KafkaRequest
from appliance.protocol.schema import Message

if TYPE_CHECKING:
    from appliance.security.tls_contexts import PeerContext

CONTROLLER_CLIENT: Final = "controller of broker "
"""How the client id of a box's controller begins; the broker id follows."""
UNAUTHORIZED: Final = ", without authorizer"
"""How it ends if a client's request is passed on by a box that does not authorize its clients."""

_BOX_CLIENTS: Final = (CONTROLLER_CLIENT, "coordinator of broker ", "acceptor of broker ", "millrace-ingest", "millrace-console")
_FOLLOWERS: Final = ("-fetcher", "-repair")

OnAnswer = Callable[[Any], None]
"""Called once, never from within `ask`: with the body of the response, or None; then it is unknown whether the request was carried out."""
OnBody = Callable[[bytes | None, bool], None]
"""As `OnAnswer`, with whether the request was sent: one that was not is not carried out."""


def may_be_box(client_id: str) -> bool:
    """Return whether a process of a box has this client id. Clients may choose the same."""
    return client_id.startswith(_BOX_CLIENTS) or (client_id.startswith("broker-") and client_id.endswith(_FOLLOWERS))


class _Line:
    """One connection, with its waiting requests."""

    def __init__(self, broker: BrokerImage, connection: PeerConnection) -> None:
        self.broker = broker
        self.connection = connection
        self.waiting: dict[int, OnAnswer] = {}


class Peers:
    """All of one process."""

    def __init__(self, client_id: str, registry: Registry, clock: Clock, tls: PeerContext | None) -> None:
        """`tls`: as `peer_context` makes it."""
        self._tls = tls
        self._client_id = client_id
        self._registry = registry
        self._clock = clock
        self._brokers: Mapping[int, BrokerImage] = {}
        self._lines: dict[tuple[int, int], _Line] = {}
        self._lost: list[OnAnswer] = []
        self._questions = 0

    def refresh(self, brokers: Mapping[int, BrokerImage]) -> None:
        """Set the brokers of the image. A new registration of a box (broker epoch) closes its connections."""
        self._brokers = brokers
        for key in [key for key, line in self._lines.items() if brokers.get(key[0]) != line.broker]:
            line = self._lines.pop(key)
            line.connection.close()
            self._lost += line.waiting.values()

    def ask(
        self,
        broker_id: int,
        question: Message[Any],
        reply: Message[Any],
        body: Any,
        on_answer: OnAnswer,
        timeout_ms: int,
        *,
        version_min: int | None = None,
        channel: int = 0,
    ) -> None:
        """Ask in the highest version that both sides speak, from `version_min` on."""
        line = self._line(broker_id, channel)
        if line is None:
            self._lost.append(on_answer)
        else:
            line.connection.ask(question, reply, body, self._once(line, on_answer), timeout_ms, version_min)

    def pass_on(self, broker_id: int, request: KafkaRequest, on_body: OnBody, timeout_ms: int, *, channel: int, client_id: str) -> None:
        """Send a client's request as it is, in its version. Each channel has one client id."""
        is_sent = False

        def encode(_version: int) -> bytes:
            nonlocal is_sent
            is_sent = True
            return request.body

        def on_answer(body: bytes | None) -> None:
            on_body(body, is_sent)

        line = self._line(broker_id, channel, client_id)
        if line is None:
            self._lost.append(on_answer)
            return
        answered, version = self._once(line, on_answer), request.api_version

        def on_bytes(answer: PeerAnswer | None) -> None:
            answered(None if answer is None else bytes(answer.memory[answer.position : answer.limit]))

        line.connection.request(request.api_key, version, version, encode, on_bytes, timeout_ms)

    def _once(self, line: _Line, on_answer: OnAnswer) -> OnAnswer:
        """Return what calls `on_answer`, unless the end of the box's registration has done so."""
        self._questions = number = self._questions + 1
        line.waiting[number] = on_answer

        def answered(body: Any) -> None:
            if line.waiting.pop(number, None) is not None:
                on_answer(body)

        return answered

    def _line(self, broker_id: int, channel: int, client_id: str = "") -> _Line | None:
        broker = self._brokers.get(broker_id)
        if broker is None:
            return None
        line = self._lines.get((broker_id, channel))
        if line is None:
            made = PeerConnection(Address(broker.host, broker.port), client_id or self._client_id, self._registry, self._clock, self._tls)
            line = self._lines[broker_id, channel] = _Line(broker, made)
        return line

    def do_work(self, now_ns: int) -> int:
        """Connections' turns, and the answers that will not come."""
        if not self._lines and not self._lost:
            return 0
        lost, self._lost = self._lost, []
        for on_answer in lost:
            on_answer(None)
        return len(lost) + sum(line.connection.do_work(now_ns) for line in list(self._lines.values()))

    def close(self) -> None:
        """Close without calling any callback."""
        for line in self._lines.values():
            line.connection.close()
        self._lines.clear()
        self._lost.clear()
