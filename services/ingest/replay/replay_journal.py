"""The replay journal: records which identities are in which batch.

Owned by one ingest; `STATE/ingest/K/journal/NUMBER.journal`, records as in `journal_records`.
`write` puts a record into the page cache, which survives `kill -9`, before its batch is offered;
nothing is synced. `note` keeps a record that can wait (a batch is stored) for the next `write`, at
most a second. After `limit_bytes` / 8 or `keep_ms` / 8 the next file starts with a checkpoint of
what is still needed. Files older than `keep_ms` or beyond `limit_bytes` are removed.

After a failure:

* `kill -9` before or inside the write: the batch was never offered. A half-written record fails its
  CRC. Its records are new when they are repeated.
* `kill -9` after the write, before or after offer, append, completion or answer: the next
  incarnation asks the leader (`journalled_batches`).
* power cut: the end of the journal, or all of it, may be missing or zero. Repeats are then stored
  twice, as without a journal; no record is lost by that. The log may lack what the journal reports
  as stored, so each file starts with its boot id, and leaders are asked about everything in a file
  of another boot.
* damaged record: the rest of that file is ignored; repeats of its records are stored twice.
* disk full or failing: counted (`ingest.replay_journal_failures`), logged once, retried with a new
  file every second. Meanwhile this incarnation recognises repeats, the next will not.

Weak: a hung state disk blocks the whole process, as it blocks the controller.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from appliance.base.clock import Clock
from appliance.base.logging import Logger
from appliance.shm.counters import Counters
from appliance.storage import file_io
from services.ingest.replay.journal_records import UNKNOWN_BOOT, Begun, Damaged, JournalRecord, decode_all, encode

SUFFIX: Final = ".journal"
SEGMENTS: Final = 8
RETRY_MS: Final = 1000
FLUSH_MS: Final = 1000

Checkpoint = Callable[[], Iterable[JournalRecord]]


class ReplayJournal:
    """Read the files of previous incarnations with `read_one`, then `write`."""

    def __init__(
        self,
        directory: str,
        boot: bytes,
        limit_bytes: int,
        keep_ms: int,
        clock: Clock,
        counters: Counters,
        log: Logger,
        checkpoint: Checkpoint = lambda: (),
    ) -> None:
        """`boot`: the machine's present boot id (`boot_id`)."""
        self._boot = boot
        self._directory = directory
        self.limit_bytes = limit_bytes
        self._keep_ms = keep_ms
        self._clock = clock
        self._log = log
        self._checkpoint = checkpoint
        self._failures = counters.counter("ingest.replay_journal_failures")
        self._damages = counters.counter("ingest.replay_journal_damages")
        self._bytes = counters.gauge("ingest.replay_journal_bytes")
        self._is_failing = False
        self._fd = -1
        self._position = 0
        self._checkpoint_bytes = 0
        self._opened_ms = 0
        self._retry_at_ms = 0
        self._noted: list[bytes] = []
        self._noted_ms = 0
        self._sizes: dict[int, int] = {}
        """Size of each file by number, oldest first."""
        self._written_ms: dict[int, int] = {}
        """Time of the last write of each file, by the wall clock."""
        self._first_number = 0
        self._find_files()
        self._number = max(self._sizes, default=self._first_number)
        self.unread = list(self._sizes)
        """Files of previous incarnations that were not read yet."""

    def _path(self, number: int) -> str:
        return f"{self._directory}/{number:010d}{SUFFIX}"

    def _find_files(self) -> None:
        try:
            file_io.make_directories(self._directory)
            names = sorted(name for name in file_io.listdir(self._directory) if name.endswith(SUFFIX) and name[: -len(SUFFIX)].isdigit())
            for name in names:
                status = file_io.stat(f"{self._directory}/{name}")
                number = int(name[: -len(SUFFIX)])
                self._sizes[number], self._written_ms[number] = status.st_size, status.st_mtime_ns // 1_000_000
        except OSError as error:
            self._on_failure("read", error)
            self._first_number = self._clock.wall_ms()  # above all numbers that may be in use

    # -- what previous incarnations wrote

    def read_one(self) -> Iterator[JournalRecord]:
        """Yield the records of the oldest unread file, its boot id first. A file that is too old is
        skipped."""
        number = self.unread.pop(0)
        if self._clock.wall_ms() - self._written_ms[number] >= self._keep_ms:
            return
        try:
            yield UNKNOWN_BOOT  # files of earlier versions have no boot id
            yield from decode_all(file_io.read_file(self._path(number)))
        except OSError as error:
            self._on_failure("read", error)
        except Damaged as damage:
            self._damages.add()
            message = f"the replay journal {self._path(number)} is damaged at {damage.position}"
            self._log.warning(f"{message}: repeats of the records after that are stored twice")

    # -- writing

    def note(self, record: JournalRecord) -> None:
        """Write the record with the next `write`, or within a second."""
        if not self._noted:
            self._noted_ms = self._clock.monotonic_ms()
        self._noted.append(encode(record))

    def write(self, *records: JournalRecord) -> None:
        """Write these records behind those that were noted. Never raises."""
        self._write([encode(record) for record in records])

    def turn(self, now_ms: int) -> int:
        """Write what was noted a second ago; start the next file when it is time."""
        if self._noted and now_ms - self._noted_ms >= FLUSH_MS:
            self._write([])
            return 1
        if self._fd >= 0 and now_ms - self._opened_ms >= self._keep_ms // SEGMENTS:
            self._close_file()
            if self._position > self._checkpoint_bytes:
                self._open_file(now_ms)
            self._remove_old()
            return 1
        return 0

    def _write(self, encoded: list[bytes]) -> None:
        now_ms = self._clock.monotonic_ms()
        pieces, self._noted = self._noted + encoded, []
        if self._fd >= 0 and self._position - self._checkpoint_bytes >= self.limit_bytes // SEGMENTS:
            self._close_file()
        if self._fd < 0 and not self._open_file(now_ms):
            return
        self._append(pieces)

    def _append(self, pieces: list[bytes]) -> bool:
        if not pieces:
            return True
        size_bytes = sum(map(len, pieces))
        try:
            file_io.write_all(self._fd, pieces, self._position, size_bytes)
        except OSError as error:
            self._on_failure("written", error)
            return False
        self._position += size_bytes
        self._sizes[self._number] = self._position
        self._bytes.set(sum(self._sizes.values()))
        self._written_ms[self._number] = self._clock.wall_ms()
        if self._is_failing:
            self._is_failing = False
            self._log.notice("writing to the replay journal works again")
        return True

    def _open_file(self, now_ms: int) -> bool:
        """Start a file with a checkpoint of what is still needed."""
        if now_ms < self._retry_at_ms:
            return False
        number = self._number + 1
        try:
            self._fd = file_io.open_path(self._path(number), file_io.CREATE_EMPTY)
        except OSError as error:
            self._on_failure("opened", error)
            return False
        self._number, self._position, self._opened_ms = number, 0, now_ms
        self._sizes[number], self._written_ms[number] = 0, self._clock.wall_ms()
        if not self._append([encode(Begun(self._boot)), *[encode(record) for record in self._checkpoint()]]):
            self._unlink(number)
            return False
        self._checkpoint_bytes = self._position
        self._remove_old()
        return True

    def _close_file(self) -> None:
        fd, self._fd = self._fd, -1
        file_io.close_all([fd])

    def _remove_old(self) -> None:
        """Remove the oldest files; the checkpoint of the open file has what is needed of them."""
        total_bytes = sum(self._sizes.values())
        for number in list(self._sizes):
            if (number == self._number and self._fd >= 0) or number in self.unread:
                break
            if total_bytes <= self.limit_bytes and self._clock.wall_ms() - self._written_ms.get(number, 0) < self._keep_ms:
                break
            size_bytes = self._sizes[number]
            if not self._unlink(number):
                break
            total_bytes -= size_bytes

    def _unlink(self, number: int) -> bool:
        try:
            file_io.unlink_if_there(self._path(number))
        except OSError as error:
            self._on_failure("removed", error)
            return False
        del self._sizes[number]
        self._written_ms.pop(number, None)
        return True

    def _on_failure(self, what: str, error: OSError) -> None:
        self._failures.add()
        self._retry_at_ms = self._clock.monotonic_ms() + RETRY_MS
        if self._fd >= 0:
            self._close_file()  # half a record may be at its end
        if not self._is_failing:
            self._is_failing = True
            reason = (error.strerror or str(error)).lower()
            message = f"the replay journal in {self._directory} cannot be {what}: {reason}"
            self._log.error(f"{message}; if ingest crashed now, repeated records would be stored twice")

    def close(self) -> None:
        if self._noted:
            self._write([])
        if self._fd >= 0:
            self._close_file()
