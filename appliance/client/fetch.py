"""Reading a topic from some place on, and on: long polls to every leader, through restarts and moves of leadership.

Owned by one thread, which calls `poll`. Each partition's next offset is kept here and nowhere else: nothing is committed.
One fetch is under way per leader, sent before the records of the last one are handed out, so broker and reader work at the
same time. Weak spot: order is kept within a partition only, as everywhere in Kafka.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from enum import IntEnum
from typing import Any, NamedTuple

from appliance.base.errors import ErrorCode, ProtocolViolation, RequestRefused
from appliance.base.model import NO_LEADER, BrokerId, Offset, TopicPartition
from appliance.client.admin import UNSERVED_WAIT_MS, list_offsets, try_list_offsets
from appliance.client.cluster import Backoff, ClusterClient
from appliance.client.connection import ClientConnection, await_readable
from appliance.client.errors import METADATA_IS_STALE, ClientFailed, ConnectionLost, ReplyTimedOut, error_code, is_retriable, refused
from appliance.client.messages import FETCH, ClientFetchRequest, ClientFetchResponse, PartitionOfFetch, PartitionToFetch, TopicToFetch
from appliance.protocol.offset_apis import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP
from appliance.records.batch import MAGIC, RECORDS_AT, BatchHeader, read_batch_header
from appliance.records.compression import CorruptBatch
from appliance.records.record import Record, iterate_records

FETCH_WAIT_MS_MAX = 500
FETCH_BYTES_MAX = 8 * 1024 * 1024
PARTITION_FETCH_BYTES_MAX = 1024 * 1024
METADATA_AGE_MS_MAX = 60_000
LEADERLESS_LOOK_AGAIN_MS = 500
SILENCE_MS_MAX = 30_000
GIVE_UP_AFTER_MS = 60_000
UNSERVED_LOOKS_MS_MAX = 30_000
"""Between two looks for partitions that are not served; the first follow after `LEADERLESS_LOOK_AGAIN_MS`."""


class StartAt(IntEnum):
    """Where to begin reading, as ListOffsets names it; any other number is a timestamp in ms."""

    LATEST = LATEST_TIMESTAMP
    EARLIEST = EARLIEST_TIMESTAMP


class PartitionRecords(NamedTuple):
    """What came from one partition, in offset order."""

    partition: int
    records: list[Record]


class _LongPoll:
    """One leader's connection and what is under way on it: partition → the offset that was asked for."""

    def __init__(self, connection: ClientConnection) -> None:
        self.connection = connection
        self.asked: dict[int, Offset] = {}
        self.sent_ms = 0


class TopicTail:
    """`poll` returns records as they arrive. `on_notice` gets a sentence about each lost connection and each gap."""

    def __init__(self, cluster: ClusterClient, topic: str, *, start_at: int = StartAt.LATEST, start_offset: Offset | None = None,
                 partitions: Iterable[int] | None = None, fetch_wait_ms_max: int = FETCH_WAIT_MS_MAX,
                 give_up_after_ms: int = GIVE_UP_AFTER_MS, on_notice: Callable[[str], None] | None = None) -> None:  # fmt: skip
        self.topic = topic
        self._cluster = cluster
        self._only = None if partitions is None else frozenset(partitions)
        self._fetch_wait_ms_max = fetch_wait_ms_max
        self._on_notice = on_notice or (lambda notice: None)
        self._backoff = cluster.backoff(give_up_after_ms)
        self._leaders: dict[int, BrokerId] = {}
        self._next_offsets: dict[int, Offset] = {}
        self._starts: dict[int, int] = {}
        """Partition → where reading it begins, as `StartAt`."""
        self.unserved: dict[int, str] = {}
        """Partitions whose place is not known yet, because nothing serves them, and why. They are looked for less and less often."""
        self._next_unserved_ms = self._unserved_pause_ms = 0
        self.long_polls: dict[BrokerId, _LongPoll] = {}
        """The open long poll at each leader."""
        self._metadata_is_stale = False
        self._metadata_ms = 0
        self._look_at_leaders()
        missing = sorted((self._only or set()) - self._leaders.keys())
        if missing:
            count = len(cluster.latest.topics[topic].partitions)
            raise RequestRefused(ErrorCode.INVALID_PARTITIONS, f"topic {topic!r} has no partition {missing[0]}; it has {count}, counted from 0")
        if start_offset is None:
            self._find_first_places(start_at)
        else:
            self._next_offsets = dict.fromkeys(self._leaders, start_offset)

    @property
    def next_offsets(self) -> dict[int, Offset]:
        """Partition → the offset of the next record that `poll` will give from it."""
        return dict(self._next_offsets)

    def poll(self, timeout_ms: int) -> list[PartitionRecords]:
        """What has come, waiting up to `timeout_ms` for the first of it. Raises RequestRefused (topic gone …) or ClientFailed (no broker for too long)."""
        clock = self._cluster.clock
        deadline_ms = clock.monotonic_ms() + timeout_ms
        while True:
            got: list[PartitionRecords] = []
            try:
                self._send_fetches()
                for leader in self._wait(deadline_ms - clock.monotonic_ms()):
                    got += self._receive(leader)
                self._drop_silent()
            except (ClientFailed, RequestRefused, ProtocolViolation) as error:
                self._on_trouble(error)
            if got or clock.monotonic_ms() >= deadline_ms:
                return got

    def close(self) -> None:
        for long_poll in self.long_polls.values():
            long_poll.connection.close()
        self.long_polls.clear()

    # --- leaders of the partitions

    def _look_at_leaders(self) -> None:
        topic = self._cluster.topic(self.topic, complete=False)
        known, self._leaders = self._leaders, {each.partition: each.leader for each in topic.partitions if self._only is None or each.partition in self._only}
        self._metadata_is_stale = False
        self._metadata_ms = self._cluster.clock.monotonic_ms()
        if known and (added := self._leaders.keys() - known.keys()):
            # Partitions that were added while we read: whatever is in them came after we began.
            self._starts |= dict.fromkeys(added, int(StartAt.EARLIEST))
            self.unserved |= dict.fromkeys(sorted(added), "it is new")
            self._next_unserved_ms = self._unserved_pause_ms = 0
        if self.unserved and self._metadata_ms >= self._next_unserved_ms:
            self._look_for_unserved()

    def _maybe_look_at_leaders(self) -> None:
        age_ms = self._cluster.clock.monotonic_ms() - self._metadata_ms
        is_due = NO_LEADER in self._leaders.values() or (bool(self.unserved) and self._cluster.clock.monotonic_ms() >= self._next_unserved_ms)
        is_short = is_due and age_ms > LEADERLESS_LOOK_AGAIN_MS
        if self._metadata_is_stale or is_short or age_ms > METADATA_AGE_MS_MAX:
            self._look_at_leaders()

    def _find_first_places(self, timestamp: int) -> None:
        """Find where to begin in each partition that is served, and say which are not. Raises RequestRefused or ClientFailed if none is."""
        clock, backoff = self._cluster.clock, self._cluster.backoff()
        # What comes from now on is wanted, also if the end can be asked for later only.
        self._starts = dict.fromkeys(self._leaders, clock.wall_ms() if timestamp == StartAt.LATEST else timestamp)
        waits_until_ms = clock.monotonic_ms() + UNSERVED_WAIT_MS
        while (error := self._try_places(self._leaders.keys() - self._next_offsets.keys(), timestamp)) is not None:
            if self._next_offsets and clock.monotonic_ms() >= waits_until_ms:
                for partition in sorted(self._leaders.keys() - self._next_offsets.keys()):
                    is_led = self._leaders[partition] != NO_LEADER
                    why = str(error).partition(": ")[2] or str(error)  # without the partition that was refused last
                    self.unserved[partition] = why if is_led else "it has no leader: its disk or its box is offline"
                    self._on_notice(f"{self.topic}-{partition} is not served: {self.unserved[partition]}")
                return
            backoff.pause_or_raise(error)
            self._look_at_leaders()

    def _try_places(self, partitions: Iterable[int], timestamp: int) -> Exception | None:
        """Ask each leader once, and wait for it a few seconds only; return an error of those that did not say."""
        asked = [TopicPartition(self.topic, partition) for partition in partitions]
        found, error = try_list_offsets(self._cluster, asked, timestamp, timeout_ms=UNSERVED_WAIT_MS)
        none_so_late = [partition for partition, place in found.items() if place.offset < 0]
        if none_so_late:
            ends, late_error = try_list_offsets(self._cluster, none_so_late, StartAt.LATEST, timeout_ms=UNSERVED_WAIT_MS)
            found, error = {partition: ends.get(partition, place) for partition, place in found.items()}, error or late_error
        self._next_offsets.update({partition.partition: place.offset for partition, place in found.items() if place.offset >= 0})
        return error

    def _look_for_unserved(self) -> None:
        """A leader that hangs delays the others by each look, so the looks become rare."""
        by_start: dict[int, list[int]] = {}
        for partition in self.unserved:
            by_start.setdefault(self._starts[partition], []).append(partition)
        for start, partitions in by_start.items():
            self._try_places(partitions, start)
        for partition in self.unserved.keys() & self._next_offsets.keys():
            del self.unserved[partition]
            self._on_notice(f"{self.topic}-{partition} is served now; going on at offset {self._next_offsets[partition]}")
        self._unserved_pause_ms = min(max(2 * self._unserved_pause_ms, LEADERLESS_LOOK_AGAIN_MS), UNSERVED_LOOKS_MS_MAX)
        self._next_unserved_ms = self._cluster.clock.monotonic_ms() + self._unserved_pause_ms

    def _find_places(self, partitions: Iterable[int], timestamp: int) -> None:
        asked = [TopicPartition(self.topic, partition) for partition in partitions]
        found = list_offsets(self._cluster, asked, timestamp)
        none_so_late = [partition for partition, place in found.items() if place.offset < 0]
        if none_so_late:
            found.update(list_offsets(self._cluster, none_so_late, StartAt.LATEST))
        self._next_offsets.update({partition.partition: place.offset for partition, place in found.items()})

    # --- sending

    def _send_fetches(self) -> None:
        self._maybe_look_at_leaders()
        placed = {leader for partition, leader in self._leaders.items() if partition in self._next_offsets}
        for leader in sorted(placed - {NO_LEADER}):
            long_poll = self.long_polls.get(leader)
            if long_poll is None:
                long_poll = self.long_polls[leader] = _LongPoll(self._cluster.open_connection(leader))
            if not long_poll.asked:
                self._send_fetch(leader, long_poll)

    def _send_fetch(self, leader: BrokerId, long_poll: _LongPoll) -> None:
        offsets = self._next_offsets
        asked = {partition: offsets[partition] for partition, its_leader in sorted(self._leaders.items())
                 if its_leader == leader and partition in offsets}  # fmt: skip
        wanted = tuple(PartitionToFetch(partition, fetch_offset=offset, max_bytes=PARTITION_FETCH_BYTES_MAX) for partition, offset in asked.items())
        request = ClientFetchRequest(max_wait_ms=self._fetch_wait_ms_max, max_bytes=FETCH_BYTES_MAX, topics=(TopicToFetch(self.topic, partitions=wanted),))
        long_poll.connection.send(FETCH, request)
        long_poll.asked = asked
        long_poll.sent_ms = self._cluster.clock.monotonic_ms()

    # --- receiving

    def _wait(self, timeout_ms: int) -> list[BrokerId]:
        """Leaders whose answer has begun to arrive."""
        waiting = {long_poll.connection: leader for leader, long_poll in self.long_polls.items() if long_poll.asked}
        if not waiting:
            self._cluster.sleep(max(min(timeout_ms, LEADERLESS_LOOK_AGAIN_MS), 0) / 1000)
            return []
        return [waiting[connection] for connection in await_readable(waiting, timeout_ms)]

    def _receive(self, leader: BrokerId) -> list[PartitionRecords]:
        long_poll = self.long_polls[leader]
        body: ClientFetchResponse = long_poll.connection.receive().body
        asked, long_poll.asked = long_poll.asked, {}
        if body.error_code != ErrorCode.NONE:
            raise refused(body.error_code, f"read topic {self.topic!r}")
        got = []
        for topic in body.topics:
            for answer in topic.partitions:
                partition = answer.partition
                # An answer to an older question (leadership moved to and fro) would give records twice.
                if asked.get(partition) == self._next_offsets.get(partition):
                    got += self._take(partition, answer)
        if not self._metadata_is_stale:
            self._backoff.succeeded()
        return got

    def _take(self, partition: int, answer: PartitionOfFetch) -> list[PartitionRecords]:
        code = error_code(answer.error_code)
        if code == ErrorCode.OFFSET_OUT_OF_RANGE:
            self._move_into_range(partition)
            return []
        if code in METADATA_IS_STALE:
            self._metadata_is_stale = True
            self._pause(refused(code, f"read {self.topic}-{partition}"))
            return []
        if code != ErrorCode.NONE:
            raise refused(answer.error_code, f"read {self.topic}-{partition}")
        fetched = read_fetched(answer.records or b"", self._next_offsets[partition])
        self._next_offsets[partition] = Offset(fetched.next_offset)
        return [PartitionRecords(partition, fetched.records)] if fetched.records else []

    def _move_into_range(self, partition: int) -> None:
        """Retention took what was to be read, or the log is shorter than it was: go on at the nearest end, and say so."""
        wanted = self._next_offsets[partition]
        self._find_places([partition], StartAt.EARLIEST)
        start = self._next_offsets[partition]
        if start > wanted:
            self._on_notice(f"{self.topic}-{partition}: offsets {wanted} to {start - 1} are deleted already; going on at {start}")
            return
        self._find_places([partition], StartAt.LATEST)
        self._on_notice(f"{self.topic}-{partition}: the log ends at {self._next_offsets[partition]}, before offset {wanted}; going on at its end")

    # --- trouble

    def _drop_silent(self) -> None:
        """A long poll that is not answered long after its time: the broker hangs."""
        now_ms = self._cluster.clock.monotonic_ms()
        for long_poll in self.long_polls.values():
            if long_poll.asked and now_ms - long_poll.sent_ms > self._fetch_wait_ms_max + SILENCE_MS_MAX:
                long_poll.connection.close()
                raise ReplyTimedOut(f"the broker at {long_poll.connection.address} does not answer")

    def _on_trouble(self, error: Exception) -> None:
        if isinstance(error, ProtocolViolation):
            self.close()  # whatever else this stream holds cannot be trusted; the same offsets are asked for again
            error = ConnectionLost(f"could not read topic {self.topic!r}: {error}")
        if not is_retriable(error) or (isinstance(error, RequestRefused) and error.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
            raise error
        self.long_polls = {leader: long_poll for leader, long_poll in self.long_polls.items() if long_poll.connection.is_open}
        self._metadata_is_stale = True
        self._pause(error)

    def _pause(self, error: Exception) -> None:
        if self._backoff.tries == 0:
            self._on_notice(f"{error}; retrying")
        self._backoff.pause_or_raise(error)


# ---- fetched batches: whole, checked, without records before the fetch offset


MAX_BATCH_BYTES = 256 * 1024 * 1024


class FetchedRecords(NamedTuple):
    """Records from a fetch offset on, and the offset to ask for next."""

    records: list[Record]
    next_offset: int


def read_fetched(fetched: bytes, fetch_offset: int) -> FetchedRecords:
    """All records at or after `fetch_offset`. Raises ProtocolViolation for bytes that are no batches, fail their checksum, or are more than
    `MAX_BATCH_BYTES` when decompressed."""
    records: list[Record] = []
    next_offset = fetch_offset
    for header, batch in _batches(fetched, fetch_offset):
        if not header.is_control:
            records += _records_of(batch, header, next_offset, MAX_BATCH_BYTES)
        next_offset = header.last_offset + 1
    return FetchedRecords(records, next_offset)


def _batches(fetched: bytes, fetch_offset: int) -> Iterator[tuple[BatchHeader, bytes]]:
    """The whole batches that do not end before `fetch_offset`, not opened yet."""
    position = 0
    while position + RECORDS_AT <= len(fetched):
        header = read_batch_header(fetched, position)
        if header.magic != MAGIC:
            raise ProtocolViolation("fetched_batch", f"the batch at offset {header.base_offset} has format {header.magic}, this client reads format {MAGIC}")
        if header.size_bytes < RECORDS_AT:
            raise ProtocolViolation("fetched_batch", f"the batch at offset {header.base_offset} claims {header.size_bytes} bytes")
        end = position + header.size_bytes
        if end > len(fetched):
            break
        if header.last_offset >= fetch_offset:
            yield header, fetched[position:end]
            fetch_offset = header.last_offset + 1
        position = end


def _records_of(batch: bytes, header: BatchHeader, next_offset: int, batch_bytes_max: int) -> Iterator[Record]:
    try:
        for record in iterate_records(batch, batch_bytes_max):
            if record.offset >= next_offset:
                yield record
    except CorruptBatch as error:
        raise ProtocolViolation("fetched_batch", f"the batch at offset {header.base_offset} is damaged: {error}") from error


# ---- one page of a partition, for people


PAGE_BYTES_MAX = 4 * 1024 * 1024
"""As fetched; a page ends after it."""
PAGE_BATCH_BYTES_MAX = 32 * 1024 * 1024
PAGE_RECORD_BYTES_MAX = 8 * 1024 * 1024
"""Of keys, values and headers, decompressed; the record that crosses it is the last."""
PAGE_FETCHES_MAX = 8


class RecordPage:
    """Records from `next_offset` on, at most `records_max` and none at or after `end`, each as `show` returns it. `show` cuts: 32 MiB of zeros are a
    batch of 1 kB, so neither whole records nor more than one opened batch are kept."""

    def __init__(self, next_offset: int, end: int, records_max: int, show: Callable[[Record], Any]) -> None:
        self.records: list[Any] = []
        self.next_offset = next_offset
        self._end = end
        self._records_max = records_max
        self._show = show
        self._size_bytes = 0

    @property
    def is_full(self) -> bool:
        return self.next_offset >= self._end or len(self.records) >= self._records_max or self._size_bytes >= PAGE_RECORD_BYTES_MAX

    def add(self, fetched: bytes) -> None:
        """Open batches until the page is full. Raises ProtocolViolation."""
        for header, batch in _batches(fetched, self.next_offset):
            if not header.is_control:
                self._open(header, batch)
            if self.is_full:
                return
            self.next_offset = min(header.last_offset + 1, self._end)

    def _open(self, header: BatchHeader, batch: bytes) -> None:
        for record in _records_of(batch, header, self.next_offset, PAGE_BATCH_BYTES_MAX):
            if record.offset >= self._end:
                self.next_offset = self._end
            if self.is_full:
                return
            self.records.append(self._show(record))
            self._size_bytes += len(record.key or b"") + len(record.value or b"") + sum(len(name) + len(value or b"") for name, value in record.headers)
            self.next_offset = record.offset + 1


def read_page(cluster: ClusterClient, partition: TopicPartition, page: RecordPage) -> None:
    """Fill a page with as many records as a few fetches of `PAGE_BYTES_MAX` bring. Aborted transactions are not left out. Raises RequestRefused,
    ClientFailed or ProtocolViolation."""
    backoff = cluster.backoff()
    size_bytes = 0
    for _ in range(PAGE_FETCHES_MAX):
        if page.is_full or size_bytes >= PAGE_BYTES_MAX:
            break
        offset = page.next_offset
        fetched = _fetch_once(cluster, partition, offset, backoff)
        size_bytes += len(fetched)
        page.add(fetched)
        if page.next_offset == offset:
            break


def _fetch_once(cluster: ClusterClient, partition: TopicPartition, offset: int, backoff: Backoff) -> bytes:
    """Ask the leader; again while the leadership moves."""
    wanted = (PartitionToFetch(partition.partition, fetch_offset=offset, max_bytes=PARTITION_FETCH_BYTES_MAX),)
    request = ClientFetchRequest(max_wait_ms=0, max_bytes=PAGE_BYTES_MAX, topics=(TopicToFetch(partition.topic, partitions=wanted),))
    while True:
        leader = next((each.leader for each in cluster.topic(partition.topic, complete=False).partitions if each.partition == partition.partition), NO_LEADER)
        try:
            body = cluster.ask_broker(leader, FETCH, request)
            answers = [each for topic in body.topics for each in topic.partitions]
            code = body.error_code or (answers[0].error_code if answers else ErrorCode.UNKNOWN_SERVER_ERROR)
            if code != ErrorCode.NONE:
                raise refused(code, f"read {partition}")
            return answers[0].records or b""
        except (RequestRefused, ClientFailed) as error:
            if not is_retriable(error):
                raise
            backoff.pause_or_raise(error)
