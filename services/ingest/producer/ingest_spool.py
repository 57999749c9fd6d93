"""The spool: batches that wait on the state disk while no leader can be reached and the memory for them is used up.

Owned by one ingest; `STATE/ingest/K/spool/NUMBER.spool`, records as in `spool_records`. Batches are written behind each other and taken in order;
that one is done is written, too, and a file is removed when everything in it and in all before it is done. Nothing is synced: the page cache outlives `kill
-9`. What a life leaves is found by the next one (`left_over`), in order.

What a failure leaves behind:
* `kill -9` while a batch is written: the CRC of its description does not match, or the file ends early; the batch was not in the spool yet (its sender was
  not answered; of plain syslog it counts as `crash`).
* `kill -9` between storing a batch and writing that it is done: it is found again. If it has identities the leader's answer tells that it is stored; if not
  (plain syslog, which promises no more) it is stored twice, and counted once.
* power cut: the end of a file, or all of it, may be missing or zeros: senders who were answered with acks=0 or not at all lose that.
* data that does not match its CRC when it is read: that batch is lost, and counted (`ingest.spool_damages`); the others are not.
* disk full or failing: counted (`ingest.spool_failures`), said once; `write` says False, the batch stays in memory, and back-pressure begins.
Weak spots: a partition whose leader never comes back keeps its file, and with it those behind; a state disk that hangs holds the whole process.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Protocol

from appliance.base.clock import Clock
from appliance.base.logging import Logger
from appliance.records.crc32c import crc32c
from appliance.shm.counters import Counters
from appliance.storage import file_io
from services.ingest.producer.spool_files import SpoolFile, SpoolPosition, find_batches, spool_path
from services.ingest.records.share import Share
from services.ingest.replay.spool_records import SpooledShare, SpoolEntry, encode_batch, encode_done

FILES: Final = 16
RETRY_MS: Final = 1000


class Spoolable(Protocol):
    """`OutgoingBatch`, as far as it is needed."""

    topic: str
    partition: int
    record_count: int

    @property
    def shares(self) -> Sequence[Share]: ...


class IngestSpool:
    """`write`, `read`, `done`."""

    def __init__(self, directory: str, limit_bytes: int, clock: Clock, counters: Counters, log: Logger) -> None:
        """`limit_bytes` 0: nothing is written, what a previous life left is read all the same."""
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
        self._places: dict[object, SpoolPosition] = {}
        self._next_number = 0
        self._first_file = 0
        self.left_over: list[SpoolEntry] = []
        """What previous lives left, in order; each is to be given to `adopt`, or to `forget`."""
        self._left_places: dict[int, SpoolPosition] = {}
        self.on_done: Callable[[object], None] = lambda _batch: None
        self._find()

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self._files.values())

    def __len__(self) -> int:
        """Batches that wait in it."""
        return len(self._places) + len(self._left_places)

    @property
    def has_room(self) -> bool:
        """Whether a batch may be written, as far as is known; after a failure it is tried again when `RETRY_MS` are over."""
        return self.size_bytes < self._limit_bytes and self._clock.monotonic_ms() >= self._retry_at_ms

    # -- what previous lives left

    def _find(self) -> None:
        try:
            found = find_batches(self._directory, self._on_damage)
        except OSError as error:
            # It is left to the next life. Files and batches of this one have numbers above all that may be in use.
            self._on_failure("read", error)
            self._first_file = self._clock.wall_ms()
            self._next_number = self._first_file << 20
            return
        self._files, self._next_number = found.files, found.next_number
        self.left_over = list(found.batches.values())
        self._left_places = found.places
        self._remove_done()

    def _on_damage(self, path: str, position: int) -> None:
        self._damages.add()
        self._log.warning(f"the spool file {path} ends in a half-written record at {position}")

    def adopt(self, batch: object, left: SpoolEntry) -> None:
        """From now on `batch` stands for what was left."""
        self._places[batch] = self._left_places.pop(left.number)

    def forget(self, left: SpoolEntry) -> None:
        """It is stored, as its leader says."""
        self.adopt(left.number, left)
        self.done(left.number)

    # -- this life's

    def write(self, batch: Spoolable, data: bytes) -> bool:
        """Put a batch behind the others. False: it is full, or off, or the disk fails; the batch stays where it is."""
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
        self._places[batch] = SpoolPosition(spooled.number, file.number, data_at, len(data), data_crc)
        self._written.add()
        return True

    def read(self, batch: object) -> bytes | None:
        """Its bytes; None: they cannot be read, or are not what was written. It is lost then."""
        place = self._places[batch]
        try:
            fd = file_io.open_path(spool_path(self._directory, place.file), file_io.READ_ONLY)
            try:
                data = file_io.pread_all(fd, place.position, place.size_bytes)
            finally:
                file_io.close_all([fd])
        except OSError as error:
            self._on_failure("read", error)
            return None
        if len(data) == place.size_bytes and crc32c(data) == place.crc:
            return data
        self._damages.add()
        self._log.error(f"the spool file {spool_path(self._directory, place.file)} is damaged at {place.position}: a batch in it is lost")
        return None

    def done(self, batch: object) -> None:
        """It is stored, or given up."""
        place = self._places.pop(batch)
        self.on_done(batch)
        self._files[place.file].live -= 1
        if not self._places and not self._left_places:
            self._close_file()  # nothing is left: all files go
        elif self._fd >= 0 or any(file.live for file in self._files.values()):
            file = self._open()
            if file is not None:
                self._append(file, (encode_done(place.number),))
        self._remove_done()

    # -- files

    def _open(self) -> SpoolFile | None:
        """The file to write to."""
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
            self._log.notice("the spool is written again")
        return True

    def _close_file(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            file_io.close_all([fd])

    def _remove_done(self) -> None:
        """Files from the oldest on in which nothing waits; the open one stays. A file in between stays: it says what of those before it is done."""
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
        self._close_file()  # half a record may stand at its end
        if not self._is_failing:
            self._is_failing = True
            words = (error.strerror or str(error)).lower()
            self._log.error(f"the spool in {self._directory} cannot be {what}: {words}; records wait in memory, and then their senders do")

    def close(self) -> None:
        self._close_file()
