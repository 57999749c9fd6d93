"""Kafka's small text checkpoints: version, count, one entry a line; and the writer of a disk's
four.

A checkpoint is never newer than what it describes: data first, then the checkpoint. Weak spot: the
whole file is written each time (10,000 partitions: about 300 KB).

Steps of a checkpoint, `meta.properties` and the marker: `.tmp` → sync → rename → directory synced. The
offsets are collected under the lock that the file is written under, so it never goes back. A crash
leaves the old content, and perhaps a `.tmp`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping

from appliance.base.model import FIRST_OFFSET, NO_OFFSET, Offset, TopicPartition
from appliance.storage import file_io

RECOVERY_POINTS = "recovery-point-offset-checkpoint"
LOG_START_OFFSETS = "log-start-offset-checkpoint"
HIGH_WATERMARKS = "replication-offset-checkpoint"
CLEANED = "cleaner-offset-checkpoint"
"""First dirty offsets of compacted logs."""
FILES = (RECOVERY_POINTS, HIGH_WATERMARKS, LOG_START_OFFSETS, CLEANED)

_VERSION = "0"


class BrokenCheckpoint(ValueError):
    """The text of a checkpoint file does not hold together."""


def encode_lines(entries: Iterable[str]) -> bytes:
    """Return the text of a checkpoint with these entries, one a line."""
    lines = list(entries)
    return "\n".join([_VERSION, str(len(lines)), *lines, ""]).encode()


def decode_lines(content: bytes) -> list[list[str]]:
    """Return the words of each entry; an empty file has no entries. Raises `BrokenCheckpoint`."""
    try:
        lines = content.decode().split("\n")
    except UnicodeDecodeError:
        raise BrokenCheckpoint("it is not text") from None
    while lines and not lines[-1]:
        lines.pop()
    if not lines:
        return []
    if lines[0] != _VERSION:
        raise BrokenCheckpoint(f"its version is {lines[0]!r}, not {_VERSION}")
    if len(lines) < 2 or not lines[1].isdigit() or int(lines[1]) != len(lines) - 2:
        raise BrokenCheckpoint(f"it names {lines[1] if len(lines) > 1 else 'no count'!r} entries and has {max(0, len(lines) - 2)}")
    return [line.split() for line in lines[2:]]


def read_offsets(path: str) -> dict[TopicPartition, Offset]:
    """Return offsets by partition; a missing file has none. Raises `BrokenCheckpoint`, OSError."""
    try:
        content = file_io.read_file(path)
    except FileNotFoundError:
        return {}
    offsets = {}
    for words in decode_lines(content):
        try:
            topic, partition, offset = words
            offsets[TopicPartition(topic, int(partition))] = Offset(int(offset))
        except ValueError:
            raise BrokenCheckpoint(f"the line {' '.join(words)!r} is not 'topic partition offset'") from None
    return offsets


def write_offsets(path: str, offsets: Mapping[TopicPartition, Offset]) -> None:
    """Replace a checkpoint file durably. Raises OSError; the old file is kept then."""
    file_io.replace_file(path, encode_lines(f"{name.topic} {name.partition} {offset}" for name, offset in sorted(offsets.items())))


class CheckpointWriter:
    """Owns the checkpoint files of one log directory. Several threads may use it.

    Offsets are collected under the lock that the file is written under. So a file never goes back
    to an older state, and a change of a log that the log-writer makes before it calls `forget` or
    `cap` is either in the lines that a thread has collected, or is applied to them afterwards.
    """

    def __init__(self, path: str) -> None:
        self.lines: dict[str, dict[TopicPartition, Offset]] = {file: {} for file in FILES}
        """What each file says, as it was read or written last."""
        self.problems: list[str] = []
        self.unserved: set[TopicPartition] = set()
        """Logs that are not open: their lines are kept."""
        self._path = path
        self._lock = threading.Lock()

    def load(self) -> None:
        """Read the files. A damaged one counts as empty, as in Kafka: offset 0 means a longer scan
        and an earlier log start, never a loss."""
        for file in FILES:
            try:
                self.lines[file] = read_offsets(f"{self._path}/{file}")
            except BrokenCheckpoint as problem:
                self.problems.append(f"{self._path}/{file}: {problem}")

    def save(self, file: str, collect: Callable[[], Mapping[TopicPartition, Offset]]) -> Mapping[TopicPartition, Offset]:
        """Write the offsets that `collect` returns, and return them. Raises StorageFailed."""
        try:
            with self._lock:
                offsets, before = collect(), self.lines[file]
                lines = {name: before[name] for name in tuple(self.unserved) if name in before} | dict(offsets)
                write_offsets(f"{self._path}/{file}", lines)
                self.lines[file] = lines
        except OSError as error:
            raise file_io.storage_failure(f"write {self._path}/{file}", error) from error
        return offsets

    def raise_to(self, name: TopicPartition, offsets: Mapping[str, Offset]) -> None:
        """Count a log that came from another disk as if each file had this line of it. The record
        of its move says the same until the files do."""
        with self._lock:
            for file, offset in offsets.items():
                self.lines[file][name] = max(offset, self.lines[file].get(name, FIRST_OFFSET))

    def forget(self, name: TopicPartition) -> None:
        """Remove the lines of an earlier log, durably, before another log gets its name. Its log
        start offset would hide the new log's records; its recovery point would keep a start from
        scanning them. Usually there is no such line."""
        self._limit(name, NO_OFFSET)

    def cap(self, name: TopicPartition, log_end_offset: Offset, log_start_offset: Offset = FIRST_OFFSET) -> None:
        """Lower the lines of a truncated log to its end, durably, before it grows again. Usually
        none is above it. A log start offset on record that is below `log_start_offset`, because the
        log was begun anew, is raised: a log that begins later than on record has lost its start.
        """
        self._limit(name, log_end_offset)
        if self.lines[LOG_START_OFFSETS].get(name, log_start_offset) < log_start_offset:
            self.save(LOG_START_OFFSETS, lambda: {**self.lines[LOG_START_OFFSETS], name: log_start_offset})

    def _limit(self, name: TopicPartition, largest: Offset) -> None:
        # The order matters: a save that has released the lock has updated the lines.
        if not self._lock.locked() and all(lines.get(name, -1) <= largest for lines in self.lines.values()):
            return
        try:
            with self._lock:
                for file, lines in self.lines.items():
                    if lines.get(name, -1) > largest:
                        kept = {other: offset for other, offset in lines.items() if other != name}
                        if largest >= 0:
                            kept[name] = largest
                        write_offsets(f"{self._path}/{file}", kept)
                        self.lines[file] = kept
        except OSError as error:
            raise file_io.storage_failure(f"correct the checkpoints of log {name} in {self._path}", error) from error
