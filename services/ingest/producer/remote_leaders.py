"""Send batches to leaders on other boxes by Produce to their Kafka port.

Owned by `BatchSender`. One connection for each box with at most `REQUESTS_MAX` requests in flight;
each request has one batch of a partition, so its batches stay in order. The result of a lost
request is unknown: its batches are offered again under their sequences, to the leader of that
moment.

Weak: an acceptor answers in order, so a partition with slow followers delays the answers of the
others by up to `PRODUCE_TIMEOUT_MS`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from appliance.base.clock import Clock
from appliance.client.address import Address
from appliance.client.peer_connection import PeerAnswer, PeerConnection
from appliance.cluster.metadata_image import BrokerImage
from appliance.ipc.frames import Registry
from appliance.protocol.apis import ApiKey
from appliance.protocol.produce_client import VERSION_MAX, VERSION_MIN, PartitionBatch, decode_produce_response, encode_produce
from appliance.shm.counters import Counters
from services.ingest.producer.local_leaders import Answers
from services.ingest.producer.partition_queues import PartitionQueue
from services.ingest.producer.producer_batch import ProducerBatch

if TYPE_CHECKING:
    from appliance.security.tls_contexts import PeerContext

REQUESTS_MAX = 5
REQUEST_BYTES_MAX = 1 << 20
PRODUCE_TIMEOUT_MS = 10_000
ANSWER_TIMEOUT_MS = 15_000
ANSWER_BYTES_MAX = 1 << 20
_ALL, _LEADER = -1, 1


class _Peer:
    """One box: its registration, the connection, and the requests in flight."""

    def __init__(self, broker: BrokerImage, connection: PeerConnection) -> None:
        self.broker = broker
        self.connection = connection
        self.requests: dict[int, list[ProducerBatch]] = {}


class RemoteLeaders:
    """All other boxes."""

    def __init__(
        self, registry: Registry, clock: Clock, answers: Answers, copy_out: Callable[[ProducerBatch], None], counters: Counters, tls: PeerContext | None
    ) -> None:
        self._tls = tls
        self._registry = registry
        self._clock = clock
        self._answers = answers
        self._copy_out = copy_out
        """Copies a batch's bytes from the arena to `data`."""
        self._brokers: Mapping[int, BrokerImage] = {}
        self._peers: dict[int, _Peer] = {}
        self._number = 0
        self._sent = counters.counter("ingest.batches_elsewhere")

    def set_brokers(self, brokers: Mapping[int, BrokerImage]) -> None:
        """Set the boxes of the metadata image. A changed registration is another incarnation of the
        box: the results of its requests in flight are unknown."""
        self._brokers = brokers
        for broker_id, peer in list(self._peers.items()):
            if brokers.get(broker_id) != peer.broker:
                del self._peers[broker_id]
                peer.connection.close()
                self._lose([batch for batches in peer.requests.values() for batch in batches])

    def serves(self, leader: int) -> bool:
        """True if its last request succeeded, or none was sent yet."""
        peer = self._peers.get(leader)
        return leader in self._brokers and (peer is None or peer.connection.is_ready or not peer.connection.failures)

    @property
    def away(self) -> set[int]:
        """Boxes that were tried and cannot be reached now."""
        return {broker_id for broker_id in self._peers if not self.serves(broker_id)}

    def offer(self, leader: int, queues: Sequence[PartitionQueue], now_ns: int) -> int:
        """Send waiting batches of queues that this box leads; return the number of batches."""
        peer = self._peer(leader)
        sent = 0
        while peer is not None and len(peer.requests) < REQUESTS_MAX:
            batches = self._gather(leader, queues, now_ns)
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
            connection = PeerConnection(Address(broker.host, broker.port), "millrace-ingest", self._registry, self._clock, self._tls, ANSWER_BYTES_MAX)
            peer = self._peers[leader] = _Peer(broker, connection)
        return peer

    def _gather(self, leader: int, queues: Sequence[PartitionQueue], now_ns: int) -> list[ProducerBatch]:
        """Take at most one batch of each queue, up to `REQUEST_BYTES_MAX`."""
        gathered: list[ProducerBatch] = []
        size_bytes = 0
        for queue in queues:
            if not queue.waiting or queue.capacity(now_ns, leader) <= 0:
                continue
            batch = queue.waiting[0]
            if gathered and size_bytes + batch.size_bytes > REQUEST_BYTES_MAX:
                continue
            self._copy_out(batch)
            if not batch.was_leased:
                batch.restore_acks()  # its leader's own lease counts now
            data = bytearray(batch.data)
            self._answers.on_offering(batch, queue.stamp(batch, data))
            batch.data = bytes(data)
            queue.waiting.popleft()
            queue.on_offered(batch)
            gathered.append(batch)
            size_bytes += batch.size_bytes
        return gathered

    def _send(self, peer: _Peer, batches: list[ProducerBatch]) -> None:
        self._number = number = self._number + 1
        peer.requests[number] = batches
        self._sent.add(len(batches))
        acks = _ALL if any(batch.wants_all for batch in batches) else _LEADER
        # Encoded now and kept: when the connection is up, a batch may have been redirected and
        # stamped anew.
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
        for peer in self._peers.values():
            peer.connection.close()
        self._peers.clear()
