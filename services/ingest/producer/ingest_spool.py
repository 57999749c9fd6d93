"""The spool: batches that wait on the state disk for a leader.

Owned by one ingest; `STATE/ingest/K/spool/NUMBER.spool`, records as in `spool_records`. Batches are
appended and taken in order. That a batch is done is a record, too; a file is removed when
everything in it and in all files before it is done. Nothing is synced: the page cache survives
`kill -9`. The next incarnation finds what is left (`left_over`).

After a failure:

* `kill -9` while a batch is written: its CRC does not match or the file ends early. The batch was
  not in the spool yet; its sender was not answered (plain syslog: counted as `crash`).
* `kill -9` between storing a batch and recording that it is done: the batch is found again. If it
  has identities, its leader is asked and confirms it. If not (plain syslog), it is stored twice and
  counted once.
* power cut: the end of a file, or all of it, may be missing or zero. Senders that were answered
  with acks=0, or expect no answers, lose those records.
* data does not match its CRC when it is read: that batch is lost and counted
  (`ingest.spool_damages`).
* disk full or failing: counted (`ingest.spool_failures`), logged once; `write` returns False, the
  batch stays in memory, and back-pressure begins.

Weak: a partition whose leader never returns keeps its file and all later ones; a hung state disk
blocks the process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple, Protocol

from appliance.base.clock import Clock
from appliance.base.logging import Logger
from appliance.records.crc32c import crc32c
from appliance.shm.counters import Counters
from appliance.storage import file_io
from services.ingest.records.ack_group import Share
from services.ingest.replay.spool_records import HEADER, SpooledShare, SpoolEntry, encode_batch, encode_done, read_description, read_header

SUFFIX: Final = ".spool"

OnDamage = Callable[[str, int], None]
"""Path and position."""


class SpoolPosition(NamedTuple):
    """The position of a batch's data."""

    number: int
    file: int
    position: int
    size_bytes: int
    crc: int


class SpoolFile:
    """One file; `live` counts its batches that are not done."""

    __slots__ = ("live", "number", "size_bytes")

    def __init__(self, number: int, size_bytes: int = 0) -> None:
        self.number = number
        self.size_bytes = size_bytes
        self.live = 0


def spool_path(directory: str, number: int) -> str:
    return f"{directory}/{number:010d}{SUFFIX}"


class FoundBatches:
    """The batches of a spool directory, in the order of writing."""

    def __init__(self) -> None:
        self.files: dict[int, SpoolFile] = {}
        self.batches: dict[int, SpoolEntry] = {}
        self.positions: dict[int, SpoolPosition] = {}
        self.next_number = 0


def find_batches(directory: str, on_damage: OnDamage) -> FoundBatches:
    """Read all files of the directory. Raises OSError."""
    found = FoundBatches()
    if not file_io.exists(directory):
        return found
    for name in sorted(file_io.listdir(directory)):
        number = name.removesuffix(SUFFIX)
        if name != number and number.isdigit():
            _read_file(directory, int(number), found, on_damage)
    return found


def _read_file(directory: str, number: int, found: FoundBatches, on_damage: OnDamage) -> None:
    path = spool_path(directory, number)
    fd = file_io.open_path(path, file_io.READ_ONLY)
    try:
        file = found.files[number] = SpoolFile(number, file_io.size_of(fd))
        for described, position, data in _records_of(fd, file.size_bytes, path, on_damage):
            if isinstance(described, int):
                found.next_number = max(found.next_number, described + 1)
                done = found.positions.pop(described, None)
                if done is not None:
                    found.files[done.file].live -= 1
                    del found.batches[described]
            else:
                size_bytes, crc = data
                found.next_number = max(found.next_number, described.number + 1)
                found.batches[described.number] = described
                found.positions[described.number] = SpoolPosition(described.number, number, position, size_bytes, crc)
                file.live += 1
    finally:
        file_io.close_all([fd])


def _records_of(fd: int, size_bytes: int, path: str, on_damage: OnDamage) -> Iterator[tuple[SpoolEntry | int, int, tuple[int, int]]]:
    """Yield each batch, or the number of a batch that is done; with position, size and CRC of the
    data."""
    position = 0
    while position < size_bytes:
        header = read_header(file_io.pread_all(fd, position, HEADER.size))
        content = file_io.pread_all(fd, position, HEADER.size + header.description_bytes) if header else b""
        described = read_description(header, content) if header else None
        if header is None or described is None or position + len(content) + header.data_bytes > size_bytes:
            on_damage(path, position)
            return
        yield described, position + len(content), (header.data_bytes, header.data_crc)
        position += len(content) + header.data_bytes


FILES: Final = 16
RETRY_MS: Final = 1000


class Spoolable(Protocol):
    """`ProducerBatch`, as far as it is needed."""

    topic: str
    partition: int
    record_count: int

    @property
    def shares(self) -> Sequence[Share]: ...


class IngestSpool:
    """`write` a batch, `read` it back, and report it `done`."""

    def __init__(self, directory: str, limit_bytes: int, clock: Clock, counters: Counters, log: Logger) -> None:
        """`limit_bytes` 0: nothing is written; what a previous incarnation left is read."""
        self._directory = directory
        self._limit_bytes = limit_bytes
        self._clock = clock
        self._log = log
        self._failures = counters.counter("ingest.spool_failures")
        self._damages = counters.counter("ingest.spool_damages")
        self._written = counters.counter("ingest.spool_batches")
        self._bytes_now = counters.gauge("ingest.spool_bytes")
        self._is_failing = False
        self._fd = -1
        self._retry_at_ms = 0
        self._files: dict[int, SpoolFile] = {}
        self._positions: dict[object, SpoolPosition] = {}
        self._next_number = 0
        self._first_file = 0
        self.left_over: list[SpoolEntry] = []
        """Batches of previous incarnations, in order; the owner passes each to `adopt` or to
        `forget`."""
        self._left_positions: dict[int, SpoolPosition] = {}
        self.on_done: Callable[[object], None] = lambda _batch: None
        self._find()

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self._files.values())

    def __len__(self) -> int:
        """Return the number of batches that wait in the spool."""
        return len(self._positions) + len(self._left_positions)

    @property
    def has_space(self) -> bool:
        """True if a batch may be written as far as is known; after a failure, again after
        `RETRY_MS`."""
        return self.size_bytes < self._limit_bytes and self._clock.monotonic_ms() >= self._retry_at_ms

    # -- what previous incarnations left

    def _find(self) -> None:
        try:
            found = find_batches(self._directory, self._on_damage)
        except OSError as error:
            # The next incarnation reads them. Numbers of files and batches start above all that may
            # be in use.
            self._on_failure("read", error)
            self._first_file = self._clock.wall_ms()
            self._next_number = self._first_file << 20
            return
        self._files, self._next_number = found.files, found.next_number
        self.left_over = list(found.batches.values())
        self._left_positions = found.positions
        self._remove_done()

    def _on_damage(self, path: str, position: int) -> None:
        self._damages.add()
        self._log.warning(f"the spool file {path} ends in a half-written record at {position}")

    def adopt(self, batch: object, left: SpoolEntry) -> None:
        """`batch` stands for the spooled batch from now on."""
        self._positions[batch] = self._left_positions.pop(left.number)

    def forget(self, left: SpoolEntry) -> None:
        """The leader has confirmed that the batch is stored."""
        self.adopt(left.number, left)
        self.done(left.number)

    # -- this incarnation's

    def write(self, batch: Spoolable, data: bytes) -> bool:
        """Append a batch. False if the spool is full, off, or its disk fails; then the batch stays
        where it is."""
        described = [SpooledShare(share.group.listener.name, share.count, share.copies, share.parts) for share in batch.shares]
        spooled = SpoolEntry(self._next_number, batch.topic, batch.partition, batch.record_count, described)
        head, data_crc = encode_batch(spooled, data)
        if self.size_bytes + len(head) + len(data) > self._limit_bytes:
            return False
        file = self._open()
        if file is None:
            return False
        data_at = file.size_bytes + len(head)
        if not self._append(file, (head, data)):
            return False
        self._next_number += 1
        file.live += 1
        self._positions[batch] = SpoolPosition(spooled.number, file.number, data_at, len(data), data_crc)
        self._written.add()
        return True

    def read(self, batch: object) -> bytes | None:
        """Return the batch's bytes; None if they cannot be read or do not match their CRC, so that
        the batch is lost."""
        entry = self._positions[batch]
        try:
            fd = file_io.open_path(spool_path(self._directory, entry.file), file_io.READ_ONLY)
            try:
                data = file_io.pread_all(fd, entry.position, entry.size_bytes)
            finally:
                file_io.close_all([fd])
        except OSError as error:
            self._on_failure("read", error)
            return None
        if len(data) == entry.size_bytes and crc32c(data) == entry.crc:
            return data
        self._damages.add()
        self._log.error(f"the spool file {spool_path(self._directory, entry.file)} is damaged at {entry.position}: one batch is lost")
        return None

    def done(self, batch: object) -> None:
        """The batch is stored or given up."""
        entry = self._positions.pop(batch)
        self.on_done(batch)
        self._files[entry.file].live -= 1
        if not self._positions and not self._left_positions:
            self._close_file()  # nothing is left: all files are removed
        elif self._fd >= 0 or any(file.live for file in self._files.values()):
            file = self._open()
            if file is not None:
                self._append(file, (encode_done(entry.number),))
        self._remove_done()

    # -- files

    def _open(self) -> SpoolFile | None:
        """Return the file to write to."""
        if self._fd >= 0:
            file = self._files[max(self._files)]
            if file.size_bytes < self._limit_bytes // FILES:
                return file
            self._close_file()
        if self._clock.monotonic_ms() < self._retry_at_ms:
            return None
        number = max(self._files, default=self._first_file) + 1
        try:
            file_io.make_directories(self._directory)
            self._fd = file_io.open_path(spool_path(self._directory, number), file_io.CREATE_EMPTY)
        except OSError as error:
            self._on_failure("opened", error)
            return None
        file = self._files[number] = SpoolFile(number)
        return file

    def _append(self, file: SpoolFile, pieces: tuple[bytes, ...]) -> bool:
        size_bytes = sum(map(len, pieces))
        try:
            file_io.write_all(self._fd, pieces, file.size_bytes, size_bytes)
        except OSError as error:
            self._on_failure("written", error)
            return False
        file.size_bytes += size_bytes
        self._bytes_now.set(self.size_bytes)
        if self._is_failing:
            self._is_failing = False
            self._log.notice("writing to the spool works again")
        return True

    def _close_file(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            file_io.close_all([fd])

    def _remove_done(self) -> None:
        """Remove the oldest files as long as no batch waits in them. A file between others stays,
        because it records which batches of earlier files are done."""
        for number in sorted(self._files):
            if self._files[number].live or (self._fd >= 0 and number == max(self._files)):
                break
            try:
                file_io.unlink_if_there(spool_path(self._directory, number))
            except OSError as error:
                self._on_failure("removed", error)
                break
            del self._files[number]
        self._bytes_now.set(self.size_bytes)

    def _on_failure(self, what: str, error: OSError) -> None:
        self._failures.add()
        self._retry_at_ms = self._clock.monotonic_ms() + RETRY_MS
        self._close_file()  # half a record may be at its end
        if not self._is_failing:
            self._is_failing = True
            reason = (error.strerror or str(error)).lower()
            message = f"the spool in {self._directory} cannot be {what}: {reason}"
            self._log.error(f"{message}; records wait in memory, and senders are not read when it is used up")

    def close(self) -> None:
        self._close_file()
