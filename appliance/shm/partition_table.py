"""The partition table: the state of each partition of a disk as its log-writer has applied it. One
writer, any number of readers.

It has 10,000 rows and is never resized. A row starts and ends with its sequence: the writer stores
the trailing copy, then the fields, then the leading copy; a reader copies the whole row and accepts
it if both are equal. Rows are found by a scan when the generation of the table changes. A compact
array of the sequences shows in 0.2 µs per 1,000 rows what changed. Weak: a writer that dies within
a row leaves it torn; readers give up after a number of retries, and the next incarnation creates a
new table.
"""

from __future__ import annotations

from struct import Struct
from typing import Any, NamedTuple

from appliance.base.errors import MillraceError
from appliance.base.invariants import InvariantViolation, check
from appliance.base.model import LeaderEpoch, Offset, Position, TopicId
from appliance.shm.mapping import HEADER_BYTES, MAX_WORD, WORD_BYTES, SharedObject, signed, unsigned

# Partition table: byte, name, meaning.
#
# │     0 │                        │ magic MLRtable in the header
# │    64 │ GENERATION_WORD        │ changes when rows are added, removed or change their role
# │   128 │ SLEEPING_WORD          │ 1 while the log-writer sleeps; sources check before ringing
# │   192 │ FENCE_WORD             │ 1: publish nothing more; stored by controller, supervisor
# │   256 │ DISK_STATE_WORD        │ 0 starting, 1 online, 2 full, 3 offline
# │   264 │ ROWS_USED_WORD         │ rows below this number have been used
# │   272 │ RECOVERY_DONE_WORD     │ bytes scanned
# │   280 │ RECOVERY_TOTAL_WORD    │ bytes to scan
# │   320 │ APPEND_SINCE_WORD      │ since when the loop waits for its disk, ns; 0: no wait
# │   328 │ FLUSH_SINCE_WORD       │ the same for a slice of a flush round
# │   336 │ PROBE_SINCE_WORD       │ the same for a probe
# │   344 │ PROBED_WORD            │ when a probe last succeeded, ns
# │   352 │ SUSPECT_WORD           │ 1: the disk failed; the next incarnation reads the disk
# │   360 │ TURNS_WORD             │ turns that the log-writer has made
# │   512 │ SEQUENCES_POSITION     │ 10,000 words: the sequences of the rows, contiguous
# │ 80512 │ ROWS_POSITION          │ 10,000 rows of 128 bytes
# │1360512│ SEALED_BYTES_POSITION  │ 10,000 words: size of each log without its active segment
# │1440512│ ABORTED_END_POSITION   │ 10,000 words: the offset after the newest abort marker

PURPOSE = b"MLRtable"
ROWS = 10_000
ROW_WORDS = 16
ROW_BYTES = ROW_WORDS * WORD_BYTES

# Control words after the header, each on its own cache line where another process polls it.
GENERATION_WORD = HEADER_BYTES // WORD_BYTES
"""Changes when a row is added, removed or changes its role; readers then scan again."""
SLEEPING_WORD = GENERATION_WORD + 8
FENCE_WORD = GENERATION_WORD + 16
"""1: this incarnation publishes nothing more. Stored by the controller when the disk is overdue, by
the supervisor when it is removed; the writer checks it whenever the disk returns control."""
DISK_STATE_WORD = GENERATION_WORD + 24
ROWS_USED_WORD = GENERATION_WORD + 25
RECOVERY_DONE_WORD = GENERATION_WORD + 26
RECOVERY_TOTAL_WORD = GENERATION_WORD + 27
APPEND_SINCE_WORD = GENERATION_WORD + 32
"""Start of the current call that waits for the disk, monotonic ns; 0 outside of one."""
FLUSH_SINCE_WORD = GENERATION_WORD + 33
"""The same for the current slice of a flush round."""
PROBE_SINCE_WORD = GENERATION_WORD + 34
PROBED_WORD = GENERATION_WORD + 35
"""Time of the last probe that the disk answered, monotonic ns."""
SUSPECT_WORD = GENERATION_WORD + 36
"""1: the disk failed, so the page cache may differ from it; the next incarnation trusts neither
these rows nor older ones."""
TURNS_WORD = GENERATION_WORD + 37
"""Turns that the log-writer has made; it does not grow while the process does not run."""

SEQUENCES_POSITION = 512
ROWS_POSITION = (SEQUENCES_POSITION + ROWS * WORD_BYTES + 127) // 128 * 128
SEALED_BYTES_POSITION = ROWS_POSITION + ROWS * ROW_BYTES
ABORTED_END_POSITION = SEALED_BYTES_POSITION + ROWS * WORD_BYTES
LED_SINCE_POSITION = ABORTED_END_POSITION + ROWS * WORD_BYTES
SIZE_BYTES = LED_SINCE_POSITION + ROWS * WORD_BYTES
assert TURNS_WORD * WORD_BYTES < SEQUENCES_POSITION and ROWS_POSITION % WORD_BYTES == 0

# Row: byte, name, meaning.
#
# │     0 │ SEQUENCE               │ stored last
# │     8 │ TOPIC_ID_HIGH          │ first 8 bytes of the topic id, as a big-endian number
# │    16 │ TOPIC_ID_LOW           │ last 8 bytes
# │    24 │ PARTITION_AND_GENERATION│ 32 bits partition, 32 bits row generation (0 = no row)
# │    32 │ ROLE_AND_EPOCH         │ 32 bits role, 32 bits leader epoch (signed)
# │    40 │ LOG_START_OFFSET       │ signed, as the next three
# │    48 │ LOG_END_OFFSET         │
# │    56 │ HIGH_WATERMARK         │
# │    64 │ LAST_STABLE_OFFSET     │
# │    72 │ ISR_AND_CONFIG         │ 16 bits ISR size, 16 bits min.insync.replicas, 32 bits config
# │    80 │ ACTIVE_BASE_OFFSET     │ the active segment, and
# │    88 │ ACTIVE_POSITION        │ where its valid bytes end
# │    96 │ WATERMARK_BASE_OFFSET  │ the segment of the high watermark, and
# │   104 │ WATERMARK_POSITION     │ its byte in it: the limit of readers
# │   112 │ SEGMENT_LIST_GENERATION│ changes at roll, deletion, truncation
# │   120 │ TRAILING_SEQUENCE      │ stored first

(
    SEQUENCE,
    TOPIC_ID_HIGH,
    TOPIC_ID_LOW,
    PARTITION_AND_GENERATION,
    ROLE_AND_EPOCH,
    LOG_START_OFFSET,
    LOG_END_OFFSET,
    HIGH_WATERMARK,
    LAST_STABLE_OFFSET,
    ISR_AND_CONFIG,
    ACTIVE_BASE_OFFSET,
    ACTIVE_POSITION,
    WATERMARK_BASE_OFFSET,
    WATERMARK_POSITION,
    SEGMENT_LIST_GENERATION,
    TRAILING_SEQUENCE,
) = range(ROW_WORDS)

ROLE_NONE, ROLE_LEADER, ROLE_FOLLOWER, ROLE_OFFLINE = range(4)

DISK_STARTING, DISK_ONLINE, DISK_FULL, DISK_OFFLINE = range(4)
DISK_STATE_NAMES = ("starting", "online", "full", "offline")

_ROW = Struct("@16Q")
assert _ROW.size == ROW_BYTES
READ_RETRIES = 64

_HALF = (1 << 32) - 1


class TableFull(MillraceError):
    """A disk holds at most 10,000 partitions."""


class TornRow(MillraceError):
    """A row stayed torn through all retries: its writer died in it, or is rewriting it.

    Retriable.
    """


class Row(NamedTuple):
    """One partition as its log-writer sees it. Offsets have Kafka's names; positions are bytes in a
    segment file."""

    topic_id: bytes
    partition: int
    row_generation: int
    role: int
    leader_epoch: LeaderEpoch
    log_start_offset: Offset
    log_end_offset: Offset
    high_watermark: Offset
    last_stable_offset: Offset
    isr_size: int
    min_insync_replicas: int
    config_generation: int
    active_base_offset: Offset
    active_position: Position
    watermark_base_offset: Offset
    watermark_position: Position
    segment_list_generation: int


def row_of(words: tuple[Any, ...]) -> Row:
    """Return the row with these sixteen words (a RowSnapshot)."""
    partition_and_generation = words[PARTITION_AND_GENERATION]
    role_and_epoch = words[ROLE_AND_EPOCH]
    isr_and_config = words[ISR_AND_CONFIG]
    epoch = role_and_epoch & _HALF
    return Row(
        words[TOPIC_ID_HIGH].to_bytes(8, "big") + words[TOPIC_ID_LOW].to_bytes(8, "big"),
        partition_and_generation >> 32,
        partition_and_generation & _HALF,
        role_and_epoch >> 32,
        epoch - (1 << 32) if epoch >> 31 else epoch,
        signed(words[LOG_START_OFFSET]),
        signed(words[LOG_END_OFFSET]),
        signed(words[HIGH_WATERMARK]),
        signed(words[LAST_STABLE_OFFSET]),
        isr_and_config >> 48,
        isr_and_config >> 32 & 0xFFFF,
        isr_and_config & _HALF,
        words[ACTIVE_BASE_OFFSET],
        words[ACTIVE_POSITION],
        words[WATERMARK_BASE_OFFSET],
        words[WATERMARK_POSITION],
        words[SEGMENT_LIST_GENERATION],
    )


def _to_words(row: Row) -> tuple[int, ...]:
    """Return the fourteen words between the two sequences."""
    return (
        int.from_bytes(row.topic_id[:8], "big"),
        int.from_bytes(row.topic_id[8:], "big"),
        row.partition << 32 | row.row_generation,
        row.role << 32 | (row.leader_epoch & _HALF),
        unsigned(row.log_start_offset),
        unsigned(row.log_end_offset),
        unsigned(row.high_watermark),
        unsigned(row.last_stable_offset),
        row.isr_size << 48 | row.min_insync_replicas << 32 | row.config_generation,
        row.active_base_offset,
        row.active_position,
        row.watermark_base_offset,
        row.watermark_position,
        row.segment_list_generation,
    )


class PartitionTableWriter:
    """The log-writer's side."""

    def __init__(self, shared: SharedObject) -> None:
        self.shared = shared
        self._words = shared.words
        self._free: list[int] = []
        self._next_generation = 1

    @classmethod
    def create(cls, name: str, incarnation: int) -> PartitionTableWriter:
        return cls(SharedObject.create(name, PURPOSE, SIZE_BYTES, incarnation))

    @property
    def free_rows(self) -> int:
        """Return how many rows `add_row` still accepts."""
        return len(self._free) + ROWS - self._words[ROWS_USED_WORD]

    def add_row(self, row: Row) -> tuple[int, int]:
        """Publish a new row; returns its index and its row generation. Raises TableFull."""
        words = self._words
        if self._free:
            index = self._free.pop()
        else:
            index = words[ROWS_USED_WORD]
            if index >= ROWS:
                raise TableFull(f"this disk holds {ROWS} partitions already; add a disk or delete topics")
            words[ROWS_USED_WORD] = index + 1
        generation = self._next_generation
        self._next_generation += 1
        self.store(index, row._replace(row_generation=generation))
        self.announce()
        return index, generation

    def store(self, index: int, row: Row) -> None:
        """Rewrite a whole row."""
        fields = _to_words(row)
        # before the first store: an exception within the row would tear it
        if min(fields) < 0 or max(fields) > MAX_WORD:
            raise InvariantViolation(f"a row cannot hold {row}")
        words = self._words
        base = ROWS_POSITION // WORD_BYTES + index * ROW_WORDS
        sequence = words[base] + 1
        words[base + TRAILING_SEQUENCE] = sequence
        for word, value in enumerate(fields, base + 1):
            words[word] = value
        words[base] = sequence
        words[SEQUENCES_POSITION // WORD_BYTES + index] = sequence

    def store_progress(self, index: int, log_end_offset: Offset, high_watermark: Offset, active_position: Position) -> None:
        """Publish an append to the active segment that advanced the high watermark to the log end
        (sole replica, no open transaction). Hot path."""
        words = self._words
        base = ROWS_POSITION // WORD_BYTES + index * ROW_WORDS
        sequence = words[base] + 1
        words[base + TRAILING_SEQUENCE] = sequence
        words[base + LOG_END_OFFSET] = log_end_offset
        words[base + HIGH_WATERMARK] = high_watermark
        words[base + LAST_STABLE_OFFSET] = high_watermark
        words[base + ACTIVE_POSITION] = active_position
        words[base + WATERMARK_POSITION] = active_position
        words[base] = sequence
        words[SEQUENCES_POSITION // WORD_BYTES + index] = sequence

    def store_sealed_bytes(self, index: int, size_bytes: int) -> None:
        """Store the size in bytes of a row's log without its active segment."""
        self._words[SEALED_BYTES_POSITION // WORD_BYTES + index] = size_bytes

    def store_aborted_end(self, index: int, offset: Offset) -> None:
        """Store the end of the newest abort marker in a row's log, before the row that lets
        consumers read that far."""
        self._words[ABORTED_END_POSITION // WORD_BYTES + index] = offset

    def store_led_since(self, index: int, leader_epoch: LeaderEpoch) -> None:
        """Store the leader epoch in which the leader of a row began to lead, before the row that
        publishes it."""
        self._words[LED_SINCE_POSITION // WORD_BYTES + index] = leader_epoch

    def remove_row(self, index: int) -> None:
        """Remove a row; its index may be reused under another row generation."""
        words = self._words
        base = ROWS_POSITION // WORD_BYTES + index * ROW_WORDS
        check(words[base + PARTITION_AND_GENERATION] & _HALF, f"row {index} was removed twice or never added")
        sequence = words[base] + 1
        words[base + TRAILING_SEQUENCE] = sequence
        for word in range(base + 1, base + TRAILING_SEQUENCE):
            words[word] = 0
        words[base] = sequence
        words[SEQUENCES_POSITION // WORD_BYTES + index] = sequence
        self._free.append(index)
        self.announce()

    def announce(self) -> None:
        """Announce that rows were added, removed or changed their role, so that readers scan again."""
        self._words[GENERATION_WORD] += 1

    def set_disk_state(self, state: int) -> None:
        self._words[DISK_STATE_WORD] = state
        self.announce()

    def set_suspect(self) -> None:
        """Mark the disk as failed: the next incarnation must read it again."""
        self._words[SUSPECT_WORD] = 1

    def set_recovery_progress(self, done_bytes: int, total_bytes: int) -> None:
        self._words[RECOVERY_DONE_WORD] = done_bytes
        self._words[RECOVERY_TOTAL_WORD] = total_bytes

    def close(self) -> None:
        self.shared.close()
        self.shared.unlink()


class PartitionTableReader:
    """The readers' side: a read-only mapping."""

    def __init__(self, shared: SharedObject) -> None:
        self.shared = shared
        self.words = shared.words
        self._memory = shared.memory
        self.unpack_row = _ROW.unpack_from
        """Reads the words of a row, which may be torn; tests write between two calls."""
        self.torn_rows = 0
        """Number of torn rows that the last `rows()` skipped. If the writer runs, scan again."""

    @classmethod
    def attach(cls, name: str) -> PartitionTableReader:
        return cls(SharedObject.attach(name, PURPOSE, writable=False))

    @property
    def generation(self) -> int:
        return self.words[GENERATION_WORD]

    @property
    def disk_state(self) -> int:
        return self.words[DISK_STATE_WORD]

    @property
    def is_suspect(self) -> bool:
        """Whether the disk failed under its writer."""
        return bool(self.words[SUSPECT_WORD])

    @property
    def recovery_progress(self) -> tuple[int, int]:
        return self.words[RECOVERY_DONE_WORD], self.words[RECOVERY_TOTAL_WORD]

    @property
    def is_recovered(self) -> bool:
        """Whether the writer has opened all logs of its disk."""
        done, total = self.recovery_progress
        return self.disk_state != DISK_STARTING and done == total

    def read_words(self, index: int) -> tuple[Any, ...]:
        """Return the sixteen words of a row as one consistent snapshot. Raises TornRow after
        bounded retries."""
        position = ROWS_POSITION + index * ROW_BYTES
        for _ in range(READ_RETRIES):
            words = self.unpack_row(self._memory, position)
            if words[SEQUENCE] == words[TRAILING_SEQUENCE]:
                return words
        raise TornRow(f"row {index} of {self.shared.name} stays torn")

    def read(self, index: int) -> Row:
        """Return a consistent row. Raises TornRow after bounded retries."""
        return row_of(self.read_words(index))

    def sealed_bytes(self, index: int) -> int:
        """Return the bytes of a row's log without its active segment. Add the row's
        `active_position` for the whole log, except during a roll."""
        return self.words[SEALED_BYTES_POSITION // WORD_BYTES + index]

    def aborted_end(self, index: int) -> Offset:
        """Return the end of the newest abort marker of a row's log, 0 without one; at least as new
        as a row that was read before."""
        return self.words[ABORTED_END_POSITION // WORD_BYTES + index]  # type: ignore[return-value]

    def led_since(self, index: int) -> LeaderEpoch:
        """Return since which leader epoch the leader of a row has led without a break and so has
        truncated nothing. For a row with role LEADER that was read before."""
        return self.words[LED_SINCE_POSITION // WORD_BYTES + index]  # type: ignore[return-value]

    def rows(self) -> list[tuple[int, Row]]:
        """Return the used rows with their indexes; torn (see `torn_rows`) and removed rows are
        skipped."""
        found = []
        self.torn_rows = 0
        for index in range(self.words[ROWS_USED_WORD]):
            try:
                row = self.read(index)
            except TornRow:
                self.torn_rows += 1
                continue
            if row.row_generation:
                found.append((index, row))
        return found

    def identities(self) -> list[int]:
        """Return partition and row generation of each used row, 0 for a removed one.

        No two rows of an incarnation have the same value, so equal answers mean that no row was
        added or removed. 20 ns per row; check `generation` first.
        """
        return self._column(PARTITION_AND_GENERATION)

    def roles_and_epochs(self) -> list[int]:
        """Return role and leader epoch of each used row, as one word each."""
        return self._column(ROLE_AND_EPOCH)

    def _column(self, word: int) -> list[int]:
        first = ROWS_POSITION // WORD_BYTES + word
        return self.words[first : first + self.words[ROWS_USED_WORD] * ROW_WORDS : ROW_WORDS].tolist()

    def sequences(self) -> bytes:
        """Return the sequences of all used rows; compare with the previous answer to detect
        changes."""
        end = SEQUENCES_POSITION + self.words[ROWS_USED_WORD] * WORD_BYTES
        return bytes(self._memory[SEQUENCES_POSITION:end])

    def close(self) -> None:
        self.shared.close()


def topic_id_words(topic_id: TopicId) -> tuple[int, int]:
    """Return a topic id as the two words of a row."""
    return int.from_bytes(topic_id[:8], "big"), int.from_bytes(topic_id[8:], "big")
