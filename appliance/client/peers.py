"""Questions to the other boxes, by broker id: connections are made when they are first needed, dropped when the image knows the box no longer, or elsewhere.

A box whose registration is gone is not waited for: who waits for its answer hears at once that there is none. Several `lane`s to one box are several
connections, for requests that must not wait for each other: an acceptor answers one after the other. Owned by one process.
Weak spot: the address is what clients are told; boxes have no listener of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from appliance.base.clock import Clock
from appliance.client.address import Address
from appliance.client.peer_connection import PeerConnection
from appliance.cluster.metadata_image import BrokerImage
from appliance.ipc.frames import Registry
from appliance.protocol.schema import Message

OnAnswer = Callable[[Any], None]
"""Called once, never from within `ask`: the answer's body, or None when there is none; whether the question was acted upon nobody knows then."""


class _Line:
    """One connection, and who waits on it."""

    def __init__(self, broker: BrokerImage, connection: PeerConnection) -> None:
        self.broker = broker
        self.connection = connection
        self.waiting: dict[int, OnAnswer] = {}


class Peers:
    """All of one process."""

    def __init__(self, client_id: str, registry: Registry, clock: Clock) -> None:
        self._client_id = client_id
        self._registry = registry
        self._clock = clock
        self._brokers: Mapping[int, BrokerImage] = {}
        self._lines: dict[tuple[int, int], _Line] = {}
        self._lost: list[OnAnswer] = []
        self._questions = 0

    def refresh(self, brokers: Mapping[int, BrokerImage]) -> None:
        """Brokers as the image has them now. Another registration of a box (its broker epoch) is another life of it."""
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
        lane: int = 0,
    ) -> None:
        """Ask in the highest version that both sides speak, from `version_min` on."""
        line = self._line(broker_id, lane)
        if line is None:
            self._lost.append(on_answer)
            return
        self._questions = number = self._questions + 1
        line.waiting[number] = on_answer

        def answered(body: Any) -> None:
            if line.waiting.pop(number, None) is not None:
                on_answer(body)

        line.connection.ask(question, reply, body, answered, timeout_ms, version_min)

    def _line(self, broker_id: int, lane: int) -> _Line | None:
        broker = self._brokers.get(broker_id)
        if broker is None:
            return None
        line = self._lines.get((broker_id, lane))
        if line is None:
            made = PeerConnection(Address(broker.host, broker.port), self._client_id, self._registry, self._clock)
            line = self._lines[broker_id, lane] = _Line(broker, made)
        return line

    def do_work(self, now_ns: int) -> int:
        """Connections' turns, and the answers that will not come."""
        lost, self._lost = self._lost, []
        for on_answer in lost:
            on_answer(None)
        return len(lost) + sum(line.connection.do_work(now_ns) for line in list(self._lines.values()))

    def close(self) -> None:
        """Nobody is told."""
        for line in self._lines.values():
            line.connection.close()
        self._lines.clear()
        self._lost.clear()
