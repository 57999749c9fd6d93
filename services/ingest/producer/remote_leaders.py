"""The way of an ingest's batches to leaders on other boxes: Produce to their Kafka port, one connection a box, several partitions a request.

Owned by the outlet. At most `REQUESTS_MAX` requests are under way to a box; a partition has one batch in each, so its batches stay in order. A request that was
lost is unknown: its batches go again under their sequences, wherever the leader is then. Weak: an acceptor answers in order, so a partition whose followers are
slow holds the answers of the others for as long as `PRODUCE_TIMEOUT_MS`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from appliance.base.clock import Clock
from appliance.client.address import Address
from appliance.client.peer_connection import PeerAnswer, PeerConnection
from appliance.cluster.metadata_image import BrokerImage
from appliance.ipc.registry import Registry
from appliance.protocol.apis import ApiKey
from appliance.protocol.produce_client import VERSION_MAX, VERSION_MIN, PartitionBatch, decode_produce_response, encode_produce
from appliance.shm.counters import Counters
from services.ingest.producer.local_leaders import Answers
from services.ingest.producer.partition_queue import PartitionQueue
from services.ingest.producer.producer_batch import ProducerBatch

REQUESTS_MAX = 5
REQUEST_BYTES_MAX = 1 << 20
PRODUCE_TIMEOUT_MS = 10_000
ANSWER_TIMEOUT_MS = 15_000
ANSWER_BYTES_MAX = 1 << 20
_ALL, _LEADER = -1, 1


class _Peer:
    """One box: its registration, our connection, and what is under way to it."""

    def __init__(self, broker: BrokerImage, connection: PeerConnection) -> None:
        self.broker = broker
        self.connection = connection
        self.requests: dict[int, list[ProducerBatch]] = {}


class RemoteLeaders:
    """All other boxes."""

    def __init__(self, registry: Registry, clock: Clock, answers: Answers, take_out: Callable[[ProducerBatch], None], counters: Counters) -> None:
        self._registry = registry
        self._clock = clock
        self._answers = answers
        self._take_out = take_out
        """Makes sure that a batch's bytes are in `data`."""
        self._brokers: Mapping[int, BrokerImage] = {}
        self._peers: dict[int, _Peer] = {}
        self._number = 0
        self._sent = counters.counter("ingest.batches_elsewhere")

    def set_brokers(self, brokers: Mapping[int, BrokerImage]) -> None:
        """As the image has them. Another registration is another life of the box: what was under way to the old one is unknown."""
        self._brokers = brokers
        for broker_id, peer in list(self._peers.items()):
            if brokers.get(broker_id) != peer.broker:
                del self._peers[broker_id]
                peer.connection.close()
                self._lose([batch for batches in peer.requests.values() for batch in batches])

    def serves(self, leader: int) -> bool:
        """Whether it took the last thing that it was asked, or nothing was tried yet."""
        peer = self._peers.get(leader)
        return leader in self._brokers and (peer is None or peer.connection.is_ready or not peer.connection.failures)

    @property
    def away(self) -> set[int]:
        """Boxes that cannot be reached now, of those that were tried."""
        return {broker_id for broker_id in self._peers if not self.serves(broker_id)}

    def offer(self, leader: int, lanes: Sequence[PartitionQueue], now_ns: int) -> int:
        """Send what waits in lanes that this box leads; how many batches went."""
        peer = self._peer(leader)
        sent = 0
        while peer is not None and len(peer.requests) < REQUESTS_MAX:
            batches = self._gather(leader, lanes, now_ns)
            if not batches:
                break
            self._send(peer, batches)
            sent += len(batches)
        return sent

    def _peer(self, leader: int) -> _Peer | None:
        broker = self._brokers.get(leader)
        if broker is None:
            return None
        peer = self._peers.get(leader)
        if peer is None:
            connection = PeerConnection(Address(broker.host, broker.port), "millrace-ingest", self._registry, self._clock, ANSWER_BYTES_MAX)
            peer = self._peers[leader] = _Peer(broker, connection)
        return peer

    def _gather(self, leader: int, lanes: Sequence[PartitionQueue], now_ns: int) -> list[ProducerBatch]:
        """At most one batch a lane."""
        gathered: list[ProducerBatch] = []
        size_bytes = 0
        for lane in lanes:
            if not lane.waiting or lane.room(now_ns, leader) <= 0:
                continue
            batch = lane.waiting[0]
            if gathered and size_bytes + batch.size_bytes > REQUEST_BYTES_MAX:
                continue
            self._take_out(batch)
            data = bytearray(batch.data)
            self._answers.on_offering(batch, lane.stamp(batch, data))
            batch.data = bytes(data)
            lane.waiting.popleft()
            lane.on_offered(batch)
            gathered.append(batch)
            size_bytes += batch.size_bytes
        return gathered

    def _send(self, peer: _Peer, batches: list[ProducerBatch]) -> None:
        self._number = number = self._number + 1
        peer.requests[number] = batches
        self._sent.add(len(batches))
        acks = _ALL if any(batch.wants_all for batch in batches) else _LEADER
        # Kept, not encoded again: by the time the connection is made a batch may have gone another way, which its leader refuses by its sequence.
        body = encode_produce(acks, PRODUCE_TIMEOUT_MS, [PartitionBatch(batch.topic, batch.partition, batch.data) for batch in batches])
        peer.connection.request(
            ApiKey.PRODUCE, VERSION_MIN, VERSION_MAX, lambda _version: body, lambda answer: self._on_answer(peer, number, answer), ANSWER_TIMEOUT_MS
        )

    def _on_answer(self, peer: _Peer, number: int, answer: PeerAnswer | None) -> None:
        batches = peer.requests.pop(number, None)
        if batches is None:
            return
        codes: dict[tuple[str, int], int] = {}
        try:
            if answer is not None:
                results = decode_produce_response(answer.memory, answer.position, answer.limit, answer.version)
                codes = {(result.topic, result.partition): result.error_code for result in results}
        finally:
            for batch in batches:
                code = codes.get((batch.topic, batch.partition))
                if code is None:
                    self._answers.on_unknown(batch)
                elif code:
                    self._answers.on_refused(batch, code)
                else:
                    self._answers.on_stored(batch)

    def _lose(self, batches: Sequence[ProducerBatch]) -> None:
        for batch in batches:
            self._answers.on_unknown(batch)

    def do_work(self, now_ns: int) -> int:
        return sum(peer.connection.do_work(now_ns) for peer in list(self._peers.values()))

    def close(self) -> None:
        """Nobody is told."""
        for peer in self._peers.values():
            peer.connection.close()
        self._peers.clear()
