"""Repair damaged batches that this box's scrubbers found: fetch them from an in-sync replica and
give them to the log-writer.

One damage at a time, with a pause between two requests. The leader is asked first, as a consumer;
if this box leads, a follower in sync, which serves everything below its high watermark. The
response is checked here batch by batch; the log-writer decides whether it fits. If no copy fits,
the damage is logged once and left until the scrubber finds it again. If no box could be asked, the
repair is retried. Other damages of a segment with wrong offsets wait for the scrubber, which checks
a repaired segment again: they may have the same cause. Owned by the replica-fetcher. Weak spots:
damage larger than a response stays; the active segment is not scrubbed, so its damage is found
after it is closed.
"""

from __future__ import annotations

import os
from collections import deque
from functools import partial
from typing import Protocol

from appliance.base.errors import ErrorCode
from appliance.base.layout import BoxLayout
from appliance.base.model import NO_LEADER_EPOCH, NO_OFFSET, LeaderEpoch, TopicId
from appliance.client.address import Address
from appliance.client.peer_connection import PeerAnswer, PeerConnection
from appliance.cluster.metadata_image import BrokerImage, MetadataImage, PartitionImage
from appliance.ipc.descriptors import Completion, RepairOrder, repair_descriptor
from appliance.ipc.disk_reports import FoundDamage, read_report, report_file
from appliance.ipc.log_writer_proxy import LogWriterProxy
from appliance.ipc.proxies import LogWriterProxies
from appliance.protocol.apis import ApiKey
from appliance.protocol.fetch import CONSUMER_REPLICA_ID, NO_SESSION_EPOCH, FetchPartition
from appliance.protocol.replica_fetch import VERSION_MAX, VERSION_MIN, FetchedPartition, ReplicaFetch, decode_replica_fetch_response, encode_replica_fetch
from appliance.shm.arena import Arena
from appliance.storage.batch_repair import RepairVerdict
from appliance.storage.scrub import OFFSETS
from services.replica_fetcher.replica_answers import find_good_batches
from services.replica_fetcher.replica_counters import FetcherResources

# ---- one repair


PIECE_BYTES = 1 << 20
"""The size of the first request; larger ones follow if the log-writer cannot decide by it."""


class Repair:
    """The repair of one `damage` on `disk`."""

    def __init__(self, disk: str, damage: FoundDamage) -> None:
        self.disk = disk
        self.damage = damage
        self.sources: list[BrokerImage] = []
        """Boxes that may have a healthy copy; the first one is asked now."""
        self.piece_bytes = PIECE_BYTES
        self.empty_answers = 0
        self.is_final = False
        """True if every box that could have a healthy copy has answered; else another attempt may
        succeed."""
        self.is_reported = False
        self.reasons: list[str] = []

    @property
    def name(self) -> str:
        return f"{self.damage.topic}-{self.damage.partition}"

    @property
    def segment(self) -> tuple[str, str, int, int]:
        return self.disk, self.damage.topic, self.damage.partition, self.damage.base_offset

    def begin(self, own_id: int, partition: PartitionImage | None, brokers: dict[int, BrokerImage]) -> None:
        """Start an attempt with the replicas that are in sync now, the leader first."""
        self.reasons, self.sources = [], []
        self.piece_bytes, self.empty_answers = PIECE_BYTES, 0
        if partition is None:
            self.is_final = False
            self.reasons.append("the topic is not known")
            return
        candidates = [partition.leader, *(replica for replica in partition.isr if replica != partition.leader)]
        self.sources = [brokers[replica] for replica in candidates if replica != own_id and replica in brokers]
        self.is_final = set(partition.replicas) <= {own_id, *(source.id for source in self.sources)}
        if not self.sources:
            self.reasons.append("there is no other replica" if self.is_final else "no other replica is in sync")

    def give_source_up(self, reason: str, may_change: bool = False) -> None:
        """Continue with the next box."""
        self.reasons.append(f"broker {self.sources[0].id}: {reason}")
        self.is_final = self.is_final and not may_change
        del self.sources[0]
        self.piece_bytes, self.empty_answers = PIECE_BYTES, 0

    def want_more(self, most_bytes: int) -> bool:
        """Request a larger piece; return False if the largest was not enough."""
        if self.piece_bytes >= most_bytes:
            return False
        self.piece_bytes = min(most_bytes, 4 * self.piece_bytes)
        return True


class RepairOwner(Protocol):
    """Receives the completions of repair orders."""

    def on_ordered(self, copy: RepairCopy, completion: Completion | None) -> None:
        """`completion` is None if the log-writer died or was detached. Called once per order."""


class RepairCopy:
    """A response in the arena, and later the order whose completion the log-writer sends."""

    def __init__(self, owner: RepairOwner, repair: Repair, arena: Arena, position: int) -> None:
        self.repair = repair
        self.position = position
        self.reaches = False
        """True if it reaches beyond the position of the damage."""
        self._owner: RepairOwner | None = owner
        self._arena: Arena | None = arena

    def end(self, completion: Completion | None) -> None:
        owner, self._owner = self._owner, None
        if owner is not None:
            owner.on_ordered(self, completion)

    def release(self) -> None:
        """Free the memory: the log-writer has finished with it, or is dead."""
        arena, self._arena = self._arena, None
        if arena is not None:
            arena.free(self.position)


LOOK_NS = 1_000_000_000
PAUSE_NS = 50_000_000
"""Between two requests: 20 MiB/s of repairs at most, as long as pieces are small."""
AGAIN_NS = 30_000_000_000
"""The pause before a repair that no box could serve is retried."""
WAIT_MS = 500
EMPTY_ANSWERS_MAX = 10
"""Empty responses of a replica that still reads from its disk."""


class ReplicaRepairs:
    """`do_work` is part of the replica-fetcher's turn; `image` is the newest."""

    def __init__(self, layout: BoxLayout, proxies: LogWriterProxies, resources: FetcherResources) -> None:
        self.image = MetadataImage.empty()
        self._layout = layout
        self._proxies = proxies
        self._own_id, self._settings, self._arena, self._registry, self._clock, self._counters, self._log, self._tls = resources
        self._seen_ns: dict[str, int] = {}
        self._known: set[tuple[str, FoundDamage]] = set()
        self._waiting: deque[Repair] = deque()
        self._later: list[tuple[int, Repair]] = []
        self._under_way: Repair | None = None
        self._is_waiting = False
        """True while a response or a completion is awaited."""
        self._copy: RepairCopy | None = None
        """The memory that the response is received into."""
        self._connection: PeerConnection | None = None
        self._look_ns = 0
        self._next_ns = 0

    def do_work(self, now_ns: int) -> int:
        if now_ns >= self._look_ns:
            self._look_ns = now_ns + LOOK_NS
            self._look(now_ns)
        work = self._connection.do_work(now_ns) if self._connection is not None else 0
        if self._is_waiting or now_ns < self._next_ns:
            return work
        if self._under_way is None:
            if not self._waiting:
                self._close_connection()
                return work
            self._under_way = self._waiting.popleft()
            self._under_way.begin(self._own_id, self._partition(self._under_way), self.image.brokers)
        self._next_ns = now_ns + PAUSE_NS
        self._ask(self._under_way)
        return work + 1

    def wake_ns(self) -> int:
        """Return when the next turn is due without an event; 0: never."""
        return self._next_ns if not self._is_waiting and (self._waiting or self._under_way) else 0

    # -- findings

    def _look(self, now_ns: int) -> None:
        for disk in self._proxies.by_disk:
            path = report_file(self._layout, disk)
            try:
                changed_ns = os.stat(path).st_mtime_ns
            except OSError:
                continue
            if self._seen_ns.get(disk) != changed_ns:
                self._seen_ns[disk] = changed_ns
                self._take_findings(disk, [damage for damage in read_report(path).damages if not damage.is_rebuildable])
        self._waiting.extend(repair for due_ns, repair in self._later if due_ns <= now_ns)
        self._later = [each for each in self._later if each[0] > now_ns]

    def _take_findings(self, disk: str, damages: list[FoundDamage]) -> None:
        new = [damage for damage in damages if (disk, damage) not in self._known]
        self._known = {(disk, damage) for damage in damages} | {known for known in self._known if known[0] != disk}
        self._later = [(due_ns, repair) for due_ns, repair in self._later if (repair.disk, repair.damage) in self._known]
        new.sort(key=lambda damage: (damage.topic, damage.partition, damage.base_offset, damage.position))
        self._waiting.extend(Repair(disk, damage) for damage in new)

    def _partition(self, repair: Repair) -> PartitionImage | None:
        topic = self.image.topics.get(repair.damage.topic)
        return topic.partitions[repair.damage.partition] if topic is not None and repair.damage.partition < len(topic.partitions) else None

    # -- the copy from another box

    def _ask(self, repair: Repair) -> None:
        topic, partition = self.image.topics.get(repair.damage.topic), self._partition(repair)
        if not repair.sources or topic is None or partition is None:
            self._finish(repair, False)
            return
        address = Address(repair.sources[0].host, repair.sources[0].port)
        if self._connection is None or self._connection.address != address:
            self._close_connection()
            client_id, size_bytes = f"broker-{self._own_id}-repair", self._arena.size_bytes
            self._connection = PeerConnection(address, client_id, self._registry, self._clock, self._tls, size_bytes)
        epoch = partition.leader_epoch
        wanted = FetchPartition("", topic.topic_id, repair.damage.partition, epoch, repair.damage.sound_offset, NO_LEADER_EPOCH, NO_OFFSET, repair.piece_bytes)
        fetch = ReplicaFetch(CONSUMER_REPLICA_ID, -1, WAIT_MS, 1, repair.piece_bytes, 0, NO_SESSION_EPOCH, [wanted])
        self._is_waiting = True
        self._connection.request(
            ApiKey.FETCH,
            VERSION_MIN,
            VERSION_MAX,
            lambda _version: encode_replica_fetch(fetch),
            partial(self._on_answer, repair, topic.topic_id, epoch),
            self._settings.socket_timeout_ms,
            partial(self._take_memory, repair),
        )

    def _take_memory(self, repair: Repair, size_bytes: int) -> memoryview | None:
        position = self._arena.allocate(size_bytes)
        if position < 0:
            return None
        self._copy = RepairCopy(self, repair, self._arena, position)
        return self._arena.memory[position : position + size_bytes]

    def _on_answer(self, repair: Repair, topic_id: TopicId, leader_epoch: LeaderEpoch, answer: PeerAnswer | None) -> None:
        self._is_waiting = False
        copy, self._copy = self._copy, None
        is_ordered = False
        try:
            if answer is None or copy is None:
                repair.give_source_up("it cannot be reached", may_change=True)
                return
            fetched = decode_replica_fetch_response(answer.memory, answer.position, answer.limit, answer.version)
            found = [each for each in fetched.partitions if (each.topic_id, each.partition) == (topic_id, repair.damage.partition)]
            if fetched.error_code or not found or found[0].error_code:
                error = fetched.error_code or (found[0].error_code if found else ErrorCode.UNKNOWN_TOPIC_ID)
                repair.give_source_up(f"it answers with error {error}", error != ErrorCode.OFFSET_OUT_OF_RANGE)
            else:
                is_ordered = self._judge(copy, found[0], answer.memory, leader_epoch)
        finally:
            if copy is not None and not is_ordered:
                copy.release()

    def _judge(self, copy: RepairCopy, fetched: FetchedPartition, memory: memoryview, leader_epoch: LeaderEpoch) -> bool:
        """Check the copy and offer it to the log-writer; return True if it was offered."""
        repair, start = copy.repair, fetched.records_position
        if not fetched.records_size:
            repair.empty_answers += 1
            if repair.empty_answers >= EMPTY_ANSWERS_MAX:
                repair.give_source_up("it sends nothing", may_change=True)
            return False
        good = find_good_batches(memory, start, start + fetched.records_size, repair.damage.sound_offset, leader_epoch)
        if not good.batch_count:
            repair.give_source_up(f"its copy is not valid: {good.problem}")
            return False
        length = good.end - good.position
        copy.reaches = repair.damage.sound_position + length > repair.damage.position
        row = self._row(repair)
        if row is None:
            repair.give_source_up("there is no such log here", may_change=True)
            return False
        proxy, index, row_generation = row
        order = RepairOrder(repair.damage.base_offset, repair.damage.sound_position, repair.sources[0].id)
        if not proxy.offer_or_queue(repair_descriptor(index, row_generation, copy.position + good.position, length, order), length, copy):
            repair.give_source_up("the log-writer is gone", may_change=True)
            return False
        self._is_waiting = True
        return True

    def _row(self, repair: Repair) -> tuple[LogWriterProxy, int, int] | None:
        proxy, topic = self._proxies.by_disk.get(repair.disk), self.image.topics.get(repair.damage.topic)
        if proxy is None or proxy.table is None or topic is None:
            return None
        for index, row in proxy.table.rows():
            if row.partition == repair.damage.partition and row.topic_id == topic.topic_id:
                return proxy, index, row.row_generation
        return None

    # -- completions

    def on_ordered(self, copy: RepairCopy, completion: Completion | None) -> None:
        repair = copy.repair
        self._is_waiting = False
        if completion is None:
            repair.give_source_up("the log-writer is gone", may_change=True)
        elif completion.error_code:
            repair.give_source_up(f"the log-writer answers with error {completion.error_code}", completion.error_code != ErrorCode.KAFKA_STORAGE_ERROR)
        elif completion.record_count == RepairVerdict.DIFFERS:
            repair.give_source_up("its copy differs, perhaps because it was compacted")
        elif completion.record_count == RepairVerdict.REPAIR or (completion.record_count == RepairVerdict.SOUND and copy.reaches):
            self._finish(repair, True)
        elif not repair.want_more(self._settings.answer_bytes_max // 2):
            repair.give_source_up("the damage is larger than what can be fetched at once")

    def _finish(self, repair: Repair, is_done: bool) -> None:
        self._under_way = None
        damage = repair.damage
        if is_done:
            if damage.kind == OFFSETS:
                self._waiting = deque(each for each in self._waiting if each.segment != repair.segment)
            return
        if not repair.is_final and (repair.disk, damage) in self._known:
            self._later.append((self._clock.monotonic_ns() + AGAIN_NS, repair))
        if repair.is_final:
            self._counters.repairs_left.add()
        if repair.is_final or not repair.is_reported:
            repair.is_reported = True
            words = "could not be repaired, no healthy copy fits" if repair.is_final else "cannot be repaired yet"
            text = f"disk {repair.disk}: damage in {repair.name} at offset {damage.offset} {words}: {'; '.join(repair.reasons)}"
            write = self._log.error if repair.is_final else self._log.warning
            write(text, topic=damage.topic, partition=damage.partition, disk=repair.disk, offset=damage.offset)

    # -- ends

    def _close_connection(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def close(self) -> None:
        self._close_connection()
        copy, self._copy = self._copy, None
        if copy is not None:
            copy.release()
