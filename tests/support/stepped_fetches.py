"""Fetch and ListOffsets handlers stepped by hand: real rows, a real log-reader proxy, real files, a played log-reader.

One disk `d0`; every partition has the same segment. Requests and answers are bytes (Fetch 7, ListOffsets
1). Weak spot: a played log-reader returns whatever the test sets.
"""

from __future__ import annotations

import array
import os
import socket
import struct
import weakref
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

from appliance.base.clock import ManualClock
from appliance.base.layout import BoxLayout
from appliance.base.logging import Logger
from appliance.base.model import FIRST_OFFSET, LeaderEpoch, Offset, Position, TopicId
from appliance.cluster.lease_gate import LeaseGate
from appliance.cluster.metadata_cache import LocalReplica, MetadataCache, RowAddress
from appliance.cluster.metadata_image import BrokerImage, MetadataImage, PartitionImage, TopicImage
from appliance.ipc.descriptors import DESCRIPTOR, DescriptorKind, Progress, progress_of
from appliance.ipc.frames import listen_unix
from appliance.ipc.log_reader_messages import ABORTED, CHECK, EPOCH_END, LOOKUP, OPEN, Answer, Question, aborted_answer, pack_answer, unpack_question
from appliance.ipc.log_reader_proxy import LogReaderProxy
from appliance.protocol.apis import ApiKey
from appliance.protocol.fetch import FetchPartition, ForgottenPartition
from appliance.protocol.framing import RequestHeader
from appliance.protocol.replica_fetch import FetchedPartition, ReplicaFetch, decode_replica_fetch_response, encode_replica_fetch
from appliance.protocol.wire import write_compact_string, write_tagged_fields
from appliance.runtime.poller import Poller
from appliance.security.transport import PlainTransport
from appliance.shm.counters import Counters
from appliance.shm.partition_table import ROLE_LEADER, PartitionTableReader, PartitionTableWriter, Row
from services.acceptor.connection import Connection
from services.acceptor.delayed import DelayedRequests
from services.acceptor.dispatch import InterBrokerHandler
from services.acceptor.fetch.cold_reads import ColdReads
from services.acceptor.fetch.record_ranges import FileRange
from services.acceptor.fetch.residency import choose_residency
from services.acceptor.handlers.fetch import FetchHandler
from services.acceptor.handlers.offset_lookups import ListOffsetsHandler, OffsetForLeaderEpochHandler
from services.acceptor.inter_broker import InterBrokerGate

FETCH_VERSION, LIST_OFFSETS_VERSION = 7, 1
FOLLOWER_VERSION = 17
TOPIC, TOPIC_ID = "t", TopicId(bytes(16))
BROKER_EPOCH = 77
BOX_ADDRESS, STRANGER = "127.0.0.1", "192.0.2.66"


class Asked(NamedTuple):
    partition: int
    offset: int = 0
    max_bytes: int = 1 << 20


class Followed(NamedTuple):
    partition: int
    offset: int = 0
    leader_epoch: int = 0
    last_fetched_epoch: int = 0
    damaged_offset: int = -1


class Part(NamedTuple):
    partition: int
    error_code: int
    size_bytes: int
    aborted: tuple[tuple[int, int], ...] = ()


class SteppedView(MetadataCache):
    """Places that a test lays out; the image is the test's too."""

    def __init__(self, side: SteppedFetches) -> None:
        super().__init__(1, cast(Any, SimpleNamespace(by_disk={})))
        self._side = weakref.proxy(side)

    def placement(self, topic: str, partition: int) -> LocalReplica | None:
        self._side.looks += 1
        found: LocalReplica | None = self._side.placements.get((topic, partition))
        return found


class SteppedFetches:
    """`partitions` partitions, each with the segment `content` of batches `batch_bytes` long; ten records in each batch."""

    def __init__(self, layout: BoxLayout, segment: Path, batch_bytes: int, partitions: int, files_max: int = 4096, max_message_bytes: int = 1 << 20,
                 prefers_racks: bool = False, lease: LeaseGate | None = None) -> None:  # fmt: skip
        self.clock = ManualClock()
        self.clock.advance_ms(1_000)
        self.poller = Poller()
        self.counters = Counters.create_or_adopt(layout, "acceptor@0", 1)
        self.batch_bytes = batch_bytes
        self._segment = os.open(segment, os.O_RDONLY)
        self.size_bytes = os.fstat(self._segment).st_size
        self.writer = PartitionTableWriter.create(layout.shared_memory_name("table", "d0", 1), 1)
        self.offset = self.size_bytes // batch_bytes * 10
        for partition in range(partitions):
            end = self.offset
            row = Row._make((bytes(16), partition, 0, ROLE_LEADER, 0, 0, end, end, end, 1, 1, 0, 0, self.size_bytes, 0, self.size_bytes, 1))
            self.writer.add_row(row)
        self.table = PartitionTableReader.attach(layout.shared_memory_name("table", "d0", 1))
        self.offered: list[tuple[int, ...]] = []
        """what the log-writer was given"""
        self.proxy = proxy = cast(Any, SimpleNamespace(disk="d0", serving=True, table=self.table, offer_or_queue=self._offer))
        self.placements = {
            (TOPIC, partition): LocalReplica(TOPIC, bytes(16), partition, proxy, RowAddress(self.table, partition, partition + 1), max_message_bytes)
            for partition in range(partitions)
        }
        self.looks = 0
        self.view = view = SteppedView(self)
        self.listening = listen_unix(layout.log_reader_socket("d0"), socket.SOCK_SEQPACKET)
        self.peer: socket.socket | None = None
        self.reader = LogReaderProxy("d0", layout, self.poller, self.clock, self.counters, 10_000)
        self.delayed = DelayedRequests()
        self.answered: deque[Connection] = deque()
        self.questions_seen: list[Question] = []
        readers = {"d0": self.reader}
        cold = ColdReads(readers, self.clock, self.counters, self.answered.append, self.answered.append)
        ids = iter(range(1, 1 << 20))
        residency = choose_residency("auto")
        self._silence = os.open(os.devnull, os.O_WRONLY)
        self.gate = InterBrokerGate("127.0.0.0/8", self.counters, self.clock, Logger("acceptor@0", descriptor=self._silence))
        self.register(dict.fromkeys(range(1, 8), BROKER_EPOCH))
        self.fetches = FetchHandler(
            view,
            readers,
            self.delayed,
            self.clock,
            self.counters,
            50 << 20,
            files_max,
            residency,
            cold,
            100,
            lambda: next(ids),
            self.gate,
            self.answered.append,
            prefers_racks,
            lease,
        )
        by_time = ListOffsetsHandler(view, readers, self.clock, self.counters, self.answered.append)
        self.list_offsets = InterBrokerHandler(ApiKey.LIST_OFFSETS, by_time, self.gate, self.answered.append)
        self.epoch_ends_of = OffsetForLeaderEpochHandler(view, readers, self.counters, self.answered.append)
        self._socks: list[socket.socket] = []
        self.epoch_ends: dict[int, tuple[int, int]] = {}
        """leader epoch → what the log-reader says of its end"""
        self.epoch_error = 0
        """Error code of the log-reader instead of them."""
        self.not_found = False
        """no record is so young"""
        self.aborted: list[tuple[int, int, int]] = []
        """(producer id, first offset, offset of the marker) of every partition, as the log-reader
        returns it
        """

    def _offer(self, descriptor: tuple[int, ...], _charge: int, _part: object) -> bool:
        self.offered.append(descriptor)
        return True

    # -- clients

    def connect(self, address: str = BOX_ADDRESS) -> Connection:
        ours, theirs = socket.socketpair()
        self._socks += (ours, theirs)
        return Connection(PlainTransport(ours), address, self.clock.monotonic_ns())

    def register(self, broker_epochs: dict[int, int]) -> None:
        """The brokers that the image has, with their broker epochs."""
        self.gate.refresh({broker_id: BrokerImage(broker_id, BOX_ADDRESS, 9092, None, epoch) for broker_id, epoch in broker_epochs.items()})

    def fetch(
        self,
        connection: Connection,
        asked: Iterable[Asked],
        session: tuple[int, int] = (0, -1),
        max_wait_ms: int = 0,
        min_bytes: int = 1,
        isolation_level: int = 0,
    ) -> Connection:
        partitions = b"".join(struct.pack(">iqqi", each.partition, each.offset, -1, each.max_bytes) for each in asked)
        count = len(partitions) // 24
        body = struct.pack(">iiiibii", -1, max_wait_ms, min_bytes, 50 << 20, isolation_level, *session)
        body += (_array(1, _string(TOPIC) + _array(count, partitions)) if count else _array(0, b"")) + _array(0, b"")
        self.fetches.handle(connection, RequestHeader(1, FETCH_VERSION, 7, "", 0), memoryview(body), len(body))
        return connection

    def follow(
        self,
        connection: Connection,
        wanted: Iterable[Followed],
        session: tuple[int, int] = (0, -1),
        max_wait_ms: int = 0,
        replica_id: int = 2,
        rack: str = "",
        forgotten: Iterable[int] = (),
    ) -> Connection:
        """As `fetch`, of version 17: of box `replica_id`, or of a consumer (-1) in `rack`. `forgotten`: partitions that it takes back."""
        partitions = [
            FetchPartition._make(("", TOPIC_ID, each.partition, each.leader_epoch, each.offset, each.last_fetched_epoch, 0, 1 << 20, each.damaged_offset))
            for each in wanted
        ]
        gone = [ForgottenPartition("", TOPIC_ID, partition) for partition in forgotten]
        body = encode_replica_fetch(ReplicaFetch(replica_id, BROKER_EPOCH, max_wait_ms, 1, 50 << 20, *session, partitions, gone))
        if rack:
            tags = len(write_tagged_fields([(1, bytes(13))]))
            assert body[-tags - 1 : -tags] == b"\1"
            body = body[: -tags - 1] + write_compact_string(rack) + body[-tags:]
        self.fetches.handle(connection, RequestHeader(1, FOLLOWER_VERSION, 7, "", 0), memoryview(body), len(body))
        return connection

    def followed(self, connection: Connection) -> tuple[int, list[FetchedPartition]]:
        """(session id, partitions) of the answer to `follow`."""
        data = self.response(connection)
        told = decode_replica_fetch_response(data, 9, len(data), FOLLOWER_VERSION)
        assert told.error_code == 0
        return told.session_id, told.partitions

    def progress(self) -> list[Progress]:
        """What the log-writer received about followers since the last call."""
        told, self.offered = self.offered, []
        assert {each[0] for each in told} <= {int(DescriptorKind.PROGRESS)}
        return [progress_of(DESCRIPTOR.unpack(DESCRIPTOR.pack(*each))) for each in told]

    def change_row(self, partition: int, **fields: int) -> None:
        self.writer.store(partition, Row(**(self.placements[TOPIC, partition].read_row()._asdict() | fields)))

    def assign(
        self,
        replicas: tuple[int, ...],
        isr: tuple[int, ...] | None = None,
        leader: int = 1,
        racks: dict[int, str] | None = None,
        config: dict[str, str] | None = None,
        box_config: dict[str, str] | None = None,
    ) -> None:
        """What the image says of every partition, and of us."""
        isr = replicas if isr is None else isr
        partitions = tuple(PartitionImage(leader, LeaderEpoch(0), replicas, isr) for _ in self.placements)
        brokers = {each: BrokerImage(each, f"box{each}", 9092, (racks or {}).get(each)) for each in replicas}
        self.view.set_image(MetadataImage(1, "c", 1, brokers, {TOPIC: TopicImage(TOPIC, TOPIC_ID, partitions, config or {})}, box_config or {}))
        for placement in self.placements.values():
            placement.replicas, placement.isr = replicas, isr

    def ask_offsets(self, connection: Connection, topics: Iterable[Iterable[int]], timestamp: int = 5) -> Connection:
        entries = [list(partitions) for partitions in topics]
        packed = b"".join(_string(TOPIC) + _array(len(entry), b"".join(struct.pack(">iq", each, timestamp) for each in entry)) for entry in entries)
        body = struct.pack(">i", -1) + _array(len(entries), packed)
        self.list_offsets.handle(connection, RequestHeader(2, LIST_OFFSETS_VERSION, 7, "", 0), memoryview(body), len(body))
        return connection

    def ask_epoch_ends(self, connection: Connection, partitions: Iterable[int]) -> Connection:
        """OffsetForLeaderEpoch 2: a consumer asks where leader epoch 0 ends."""
        packed = [struct.pack(">iii", partition, -1, 0) for partition in partitions]
        body = _array(1, _string(TOPIC) + _array(len(packed), b"".join(packed)))
        self.epoch_ends_of.handle(connection, RequestHeader(23, 2, 7, "", 0), memoryview(body), len(body))
        return connection

    def remember(self, partition: int, offset: int) -> None:
        """A consumer that stood there left a cursor: where the batch begins is known, how long it is is not."""
        placement = self.placements[TOPIC, partition]
        placement.segment_list_generation = 1
        placement.remember(Offset(offset), FIRST_OFFSET, Position(offset // 10 * self.batch_bytes))

    def answers(self, connection: Connection) -> int:
        """How many answers a connection has been given; each is to be given once."""
        return self.answered.count(connection)

    def response(self, connection: Connection) -> bytes:
        assert self.answers(connection) == 1
        self.answered.remove(connection)
        connection.collect_ready()
        pieces, connection.outgoing = connection.outgoing, deque()
        return b"".join(
            os.pread(piece.file.descriptor, piece.size_bytes, piece.position) if isinstance(piece, FileRange) else bytes(cast(bytes, piece)) for piece in pieces
        )

    def fetched(self, connection: Connection) -> tuple[int, list[Part]]:
        """(session id, parts) of the answer to Fetch."""
        data = self.response(connection)
        error_code, session_id, topics = struct.unpack_from(">hii", data, 12)
        assert error_code == 0
        position, parts = 22, []
        for _ in range(topics):
            (length,) = struct.unpack_from(">h", data, position)
            position += 2 + length
            (count,) = struct.unpack_from(">i", data, position)
            position += 4
            for _ in range(count):
                partition, code, *_, aborted_count = struct.unpack_from(">ihqqqi", data, position)
                numbers = struct.unpack_from(f">{2 * max(0, aborted_count)}q", data, position + 34)
                position += 34 + 8 * len(numbers)
                (size_bytes,) = struct.unpack_from(">i", data, position)
                position += 4 + max(0, size_bytes)
                parts.append(Part(partition, code, max(0, size_bytes), tuple(zip(numbers[::2], numbers[1::2], strict=True))))
        assert position == len(data)
        return session_id, parts

    def offsets(self, connection: Connection) -> list[tuple[int, int]]:
        """(partition, error code) of the answer to ListOffsets, in order."""
        data = self.response(connection)
        (topics,) = struct.unpack_from(">i", data, 8)
        position, found = 12, []
        for _ in range(topics):
            position += 2 + len(TOPIC)
            (count,) = struct.unpack_from(">i", data, position)
            position += 4
            for _ in range(count):
                found.append(struct.unpack_from(">ih", data, position))
                position += 22
        return found

    def move(self, partition: int, more_bytes: int) -> None:
        """A produce of one record."""
        row = self.placements[TOPIC, partition].read_row()
        self.writer.store_progress(partition, row.log_end_offset + 1, row.high_watermark + 1, row.active_position + more_bytes)

    def move_stable(self, partition: int, last_stable_offset: int, aborted_end_offset: int = 0) -> None:
        """A transaction began or ended; the newest abort marker lies before `aborted_end_offset`."""
        row = self.placements[TOPIC, partition].read_row()
        self.writer.store_aborted_end(partition, Offset(aborted_end_offset))
        self.writer.store(partition, row._replace(last_stable_offset=Offset(last_stable_offset)))

    # -- the log-reader

    def take_questions(self) -> list[Question]:
        """What has come and was not answered yet."""
        if self.peer is None:
            try:
                self.peer = self.listening.accept()[0]
            except BlockingIOError:
                return []  # nothing was ever asked
            self.peer.setblocking(False)
        found = []
        while True:
            try:
                message = self.peer.recv(2_000)
            except BlockingIOError:
                break
            if not message:
                self.peer = None  # this incarnation has ended for the proxy
                break
            found.append(unpack_question(message))
        self.questions_seen += found
        return found

    def answer(self, question: Question) -> None:
        assert self.peer is not None
        kind, token = question.kind, question.token
        if kind == CHECK:
            return
        if kind == OPEN:
            self.peer.sendmsg(
                [pack_answer(Answer(kind, token, 0, self.size_bytes, 1))], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [self._segment]))]
            )
        elif kind == LOOKUP:
            base_offset = question.value_a // 10 * 10
            ahead: list[int] = []
            if question.ahead_bytes:
                step = 10 * max(1, question.ahead_bytes // self.batch_bytes)
                for offset in range(base_offset + step, question.value_b, step):
                    ahead += (offset, offset // 10 * self.batch_bytes, self.batch_bytes)
            self.peer.send(pack_answer(Answer(kind, token, 0, 0, base_offset // 10 * self.batch_bytes, self.batch_bytes, 0, base_offset, tuple(ahead))))
        elif kind == ABORTED:
            found: list[Any] = [each for each in self.aborted if each[2] >= question.value_a and each[1] < question.value_b]
            answer, descriptor = aborted_answer(token, question.value_b, found)
            rights = [] if descriptor < 0 else [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [descriptor]))]
            self.peer.sendmsg([pack_answer(answer)], rights)
            if descriptor >= 0:
                os.close(descriptor)
        elif kind == EPOCH_END and self.epoch_error:
            self.peer.send(pack_answer(Answer(kind, token, self.epoch_error, 0, 0)))
        elif kind == EPOCH_END:
            self.peer.send(pack_answer(Answer(kind, token, 0, *self.epoch_ends.get(question.value_a, (3, 5)))))
        elif self.not_found:
            self.peer.send(pack_answer(Answer(kind, token, 0, -1, -1, -1)))
        else:
            self.peer.send(pack_answer(Answer(kind, token, 0, 3, 5, 0)))

    def serve(self) -> None:
        """Answer until nothing is asked any more."""
        while True:
            questions = self.take_questions()
            if not questions:
                self.poller.poll(0)
                questions = self.take_questions()
                if not questions:
                    return
            for number, question in enumerate(questions):
                self.answer(question)
                if number % 64 == 63:
                    self.poller.poll(0)
            self.poller.poll(0)

    def kill_reader(self) -> None:
        """The next request finds it dead, without a listener."""
        assert self.peer is not None
        self.peer.close()
        self.listening.close()
        self.peer = None

    def close(self) -> None:
        self.reader.close()
        self.poller.close()
        self.table.close()
        self.writer.close()
        self.counters.close()
        os.close(self._segment)
        os.close(self._silence)
        self.listening.close()
        for sock in (*self._socks, self.peer):
            if sock is not None:
                sock.close()


def _string(text: str) -> bytes:
    return struct.pack(">h", len(text)) + text.encode()


def _array(count: int, packed: bytes) -> bytes:
    return struct.pack(">i", count) + packed
