"""A log directory: who owns it, whether it was left cleanly, which partitions it holds, its checkpoints.

Owned by the log-writer of its disk from `open` until it closes or dies; the lock goes with the process. Names that mean nothing here are listed in
`unknown_names` and left alone: a directory that we do not know is somebody's data. Weak spot: the lock is of this machine only;
a directory on a network file system can be opened twice.
"""

from __future__ import annotations

import errno
import threading
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from itertools import count

from appliance.base.clock import Clock
from appliance.base.errors import ConfigurationProblems, DiskFull, ErrorCode, RequestRefused
from appliance.base.model import TopicId, TopicPartition
from appliance.storage import checkpoints, file_io
from appliance.storage.checkpoints import BrokenCheckpoint
from appliance.storage.directory_identity import CLEAN_SHUTDOWN_MARKER, KNOWN_NAMES, LOCK_FILE, claim_identity, lock_holder
from appliance.storage.meta_properties import MetaProperties, encode_partition_metadata, read_topic_id
from appliance.storage.partition_directory import (
    DELETE_SUFFIX,
    STRAY_SUFFIX,
    PartitionDirectory,
    is_leaving,
    leaving_name,
    parse_partition_name,
)
from appliance.storage.segment_files import LOG_SUFFIX, PARTITION_METADATA, offset_of_name, segment_path

TO_BE_SAVED_MAX = 16
"""More than threads that save; what was never saved leaves by that."""


class CollectedOffsets(dict[TopicPartition, int]):
    """Offsets by partition for a checkpoint, as they were at one moment; a larger `number` was collected later."""

    __slots__ = ("number",)

    def __init__(self, number: int, offsets: Mapping[TopicPartition, int]) -> None:
        super().__init__(offsets)
        self.number = number


class LogDirectory:
    """Make one with `open`. Every method that touches the disk raises `StorageFailed` or `DiskFull`."""

    def __init__(self, path: str, clock: Clock, lock_fd: int, identity: MetaProperties) -> None:
        self.path = path
        self.identity = identity
        self.was_clean = False
        self.recovery_points: dict[TopicPartition, int] = {}
        self.high_watermarks: dict[TopicPartition, int] = {}
        self.log_start_offsets: dict[TopicPartition, int] = {}
        self.cleaned_offsets: dict[TopicPartition, int] = {}
        """First dirty offsets of compacted logs."""
        self.saved_recovery_points: Mapping[TopicPartition, int] = {}
        """As they stand in the checkpoint: a start after a power cut scans from there."""
        self.unknown_names: list[str] = []
        self.problems: list[str] = []
        """What was found damaged at `open` and is replaced by safe values; for people."""
        self._clock = clock
        self._lock_fd = lock_fd
        self._unserved: dict[str, dict[TopicPartition, int]] = {}
        self._unserved_names: set[TopicPartition] = set()
        self._leaving: list[str] = []
        self._renames = 0
        self._saving = threading.Lock()
        """Checkpoints are written by several threads; the log-writer's loop takes it only to forget what was said of a name that gets another log."""
        self._lines: dict[str, dict[TopicPartition, int]] = {}
        """What each checkpoint says now."""
        self._to_be_saved: dict[int, dict[TopicPartition, int]] = {}
        """By identity; each call on it is one step of the interpreter."""
        self._numbers = count(1)
        self._saved_numbers: dict[str, int] = {}
        """Of each checkpoint: which collection it holds. One that was collected earlier and comes later is not written."""

    @classmethod
    def open(cls, path: str, broker_id: int, cluster_id: str | None, clock: Clock, new_directory_id: str = "") -> LogDirectory:
        """Take the directory over; it is made if it is missing. `cluster_id` None: whatever it says.
        `new_directory_id` becomes its id if it has none yet.

        Raises `ConfigurationProblems` if another process has it, or it belongs to another broker or cluster.
        """
        try:
            file_io.make_directories(path)
            lock_fd = _lock(path)
            try:
                directory = cls(path, clock, lock_fd, claim_identity(path, broker_id, cluster_id, new_directory_id))
                directory._load()
            except BaseException:
                file_io.close(lock_fd)
                raise
        except OSError as error:
            raise file_io.storage_failure(f"open log directory {path}", error) from error
        return directory

    def _load(self) -> None:
        marker = f"{self.path}/{CLEAN_SHUTDOWN_MARKER}"
        self.was_clean = file_io.exists(marker)
        self.recovery_points = self._read_checkpoint(checkpoints.RECOVERY_POINTS)
        self.high_watermarks = self._read_checkpoint(checkpoints.HIGH_WATERMARKS)
        self.log_start_offsets = self._read_checkpoint(checkpoints.LOG_START_OFFSETS)
        self.cleaned_offsets = self._read_checkpoint(checkpoints.CLEANED)
        self.saved_recovery_points = self.recovery_points
        for name in sorted(file_io.listdir(self.path)):
            if name.endswith(DELETE_SUFFIX) and is_leaving(name):
                self._leaving.append(name)
            elif name not in KNOWN_NAMES and not name.endswith(".tmp") and not is_leaving(name) and parse_partition_name(name) is None:
                self.unknown_names.append(name)
        if self.was_clean:  # from here on a crash is a crash
            file_io.unlink(marker)
            file_io.fsync_directory(self.path)

    def leave_unserved(self, names: Iterable[TopicPartition]) -> None:
        """These logs stay closed in this life: their lines in the checkpoints are kept as they were read, and unless they were left
        cleanly, the directory will not be either: the next start must recover them."""
        wanted = set(names)
        self._unserved = {
            checkpoint: {name: offset for name, offset in offsets.items() if name in wanted}
            for checkpoint, offsets in (
                (checkpoints.RECOVERY_POINTS, self.recovery_points),
                (checkpoints.HIGH_WATERMARKS, self.high_watermarks),
                (checkpoints.LOG_START_OFFSETS, self.log_start_offsets),
            )
        }
        self._unserved_names = wanted

    def serve_again(self, name: TopicPartition) -> None:
        """One of those is open after all, or gone: its lines are its owner's."""
        self._unserved_names.discard(name)
        for offsets in self._unserved.values():
            offsets.pop(name, None)

    def is_unserved(self, name: TopicPartition) -> bool:
        return name in self._unserved_names

    def _read_checkpoint(self, name: str) -> dict[TopicPartition, int]:
        """A broken checkpoint counts as empty, as in Kafka: offsets 0 mean more scanning and a lower start, never loss."""
        try:
            offsets = checkpoints.read_offsets(f"{self.path}/{name}")
        except BrokenCheckpoint as problem:
            self.problems.append(f"{self.path}/{name}: {problem}")
            return {}
        self._lines[name] = dict(offsets)
        return offsets

    def partition_directories(self) -> dict[TopicPartition, PartitionDirectory]:
        """Partitions with a plain directory; `topic_id` is None where `partition.metadata` is missing or broken (see `problems`)."""
        found = {}
        try:
            for name in sorted(file_io.listdir(self.path)):
                topic_partition = parse_partition_name(name)
                if topic_partition is not None and file_io.is_directory(f"{self.path}/{name}"):
                    found[topic_partition] = PartitionDirectory(topic_partition, self._path_of(topic_partition), self._topic_id(topic_partition))
        except OSError as error:
            raise file_io.storage_failure(f"list log directory {self.path}", error) from error
        return found

    def forget_pages(self, topic_partition: TopicPartition, above: int = 0) -> None:
        """After a failed sync the page cache may show what never reached the disk: drop it, so that recovery reads what is there. Of segments that end at
        or below offset `above` it stays."""
        path = self._path_of(topic_partition)
        try:
            bases = sorted(base for name in file_io.listdir(path) if (base := offset_of_name(name, LOG_SUFFIX)) is not None)
            for base in bases[max(0, bisect_right(bases, above) - 1) :]:
                file_io.forget_pages(segment_path(path, base, LOG_SUFFIX))
        except OSError as error:
            raise file_io.storage_failure(f"read {path} again", error) from error

    def _topic_id(self, topic_partition: TopicPartition) -> TopicId | None:
        try:
            return read_topic_id(self._path_of(topic_partition))
        except ValueError as problem:
            self.problems.append(f"{self._path_of(topic_partition)}: {problem}")
            return None

    def create_partition(self, topic: str, partition: int, topic_id: TopicId) -> str:
        """Make the partition's directory, durable with its `partition.metadata`; its path. The same topic id again is success.

        Raises `RequestRefused(INCONSISTENT_TOPIC_ID)` if the directory belongs to another topic of that name.
        """
        topic_partition = TopicPartition(topic, partition)
        path = self._path_of(topic_partition)
        is_new = False
        try:
            known = None
            if file_io.exists(path):
                known = self._topic_id(topic_partition)
                if known is not None and known != topic_id:
                    raise RequestRefused(
                        ErrorCode.INCONSISTENT_TOPIC_ID, f"{path} holds topic id {known}, not {topic_id}; a former topic of that name is still there"
                    )
            else:
                self.forget_former_lines(topic_partition)
                file_io.mkdir(path)
                is_new = True
            if known is None:
                file_io.replace_file(f"{path}/{PARTITION_METADATA}", encode_partition_metadata(topic_id))
            else:  # a former life may have died between renaming and syncing
                file_io.fsync_directory(path)
            file_io.fsync_directory(self.path)
        except OSError as error:
            if is_new:
                self.undo_creation(topic_partition)
            raise file_io.storage_failure(f"create log {topic_partition} in {self.path}", error) from error
        return path

    def holds(self, topic_partition: TopicPartition) -> bool:
        """Whether the partition has a directory here, served or not."""
        try:
            return file_io.exists(self._path_of(topic_partition))
        except OSError as error:
            raise file_io.storage_failure(f"look for log {topic_partition} in {self.path}", error) from error

    def may_hold(self, topic_partition: TopicPartition, topic_id: TopicId) -> bool:
        """Whether the partition has a directory here, served or not, and nothing says that it is another topic's."""
        try:
            if not file_io.exists(self._path_of(topic_partition)):
                return False
            return read_topic_id(self._path_of(topic_partition)) in (topic_id, None)
        except ValueError:
            return True
        except OSError as error:
            raise file_io.storage_failure(f"look for log {topic_partition} in {self.path}", error) from error

    def undo_creation(self, topic_partition: TopicPartition) -> None:
        """Remove the directory of a partition that was made just now and holds no record. A failure leaves an empty log, which harms nobody:
        the creation is repeated, or the topic deleted."""
        path = self._path_of(topic_partition)
        try:
            for name in file_io.listdir(path):
                file_io.unlink(f"{path}/{name}")
            file_io.rmdir(path)
        except OSError:
            pass  # what made the creation fail

    def mark_deleted(self, topic_partition: TopicPartition) -> None:
        """Rename the partition's directory out of the way; `delete_some` removes it. One that is not there is success."""
        self._rename_away(topic_partition, DELETE_SUFFIX)
        self.serve_again(topic_partition)

    def set_aside(self, topic_partition: TopicPartition) -> None:
        """Rename to `-stray`: a replica that no longer belongs here, kept and not served."""
        self._rename_away(topic_partition, STRAY_SUFFIX)

    def mark_directory_deleted(self, path: str, topic_partition: TopicPartition) -> None:
        """The same for a copy of that partition under another name."""
        self._rename_away(topic_partition, DELETE_SUFFIX, path)

    def give_up(self, name: str) -> None:
        """What lies under `name` was given up while it was made: `delete_some` removes it."""
        self._leaving.append(name)

    def carry(self, name: TopicPartition, recovery_point: int, high_watermark: int, log_start_offset: int) -> None:
        """A log that came from another disk: every checkpoint that is written from now on has a line of it, whoever collected the lines, and when."""
        for checkpoint, offset in (
            (checkpoints.RECOVERY_POINTS, recovery_point),
            (checkpoints.HIGH_WATERMARKS, high_watermark),
            (checkpoints.LOG_START_OFFSETS, log_start_offset),
        ):
            self._unserved[checkpoint] = {**self._unserved.get(checkpoint, {}), name: offset}

    def _rename_away(self, topic_partition: TopicPartition, suffix: str, path: str = "") -> None:
        self._renames += 1
        unique = f"{self._clock.wall_ms():016x}{file_io.process_id():08x}{self._renames:08x}"
        name = leaving_name(topic_partition, unique, suffix)
        try:
            try:
                file_io.rename(path or self._path_of(topic_partition), f"{self.path}/{name}")
            except FileNotFoundError:
                return
            if suffix == DELETE_SUFFIX:
                self._leaving.append(name)
            file_io.fsync_directory(self.path)
        except OSError as error:
            raise file_io.storage_failure(f"rename log {topic_partition} in {self.path}", error) from error

    def delete_some(self, budget_bytes: int) -> int:
        """Remove up to about `budget_bytes` of what was marked deleted; the bytes freed. 0 when nothing is left to delete.

        A file larger than the budget is shortened from its end, slice by slice: freeing gigabytes at once stalls a disk.
        """
        freed = 0
        try:
            while self._leaving and freed < budget_bytes:
                freed += self._delete_slice(f"{self.path}/{self._leaving[0]}", budget_bytes - freed)
        except OSError as error:
            raise file_io.storage_failure(f"delete {self.path}/{self._leaving[0]}", error) from error
        return freed

    def _delete_slice(self, directory: str, budget_bytes: int) -> int:
        """One step in the first directory that leaves: shorten or remove one file, or remove the directory.

        A task that was planned before the deletion may still rename, remove or write files in it: the next step lists it again.
        """
        try:
            names = file_io.listdir(directory)
        except FileNotFoundError:
            names = None
        if not names:
            if names is not None:
                try:
                    file_io.rmdir(directory)
                except OSError as error:
                    if error.errno != errno.ENOTEMPTY:
                        raise
                    return 1
            self._leaving.pop(0)
            return 0
        path = f"{directory}/{min(names)}"
        try:
            return self._delete_from(path, budget_bytes)
        except FileNotFoundError:
            return 1
        except IsADirectoryError:  # not ours: leave it and what is around it to an operator
            self.problems.append(f"{path} is a directory inside a deleted partition; remove it by hand")
            self._leaving.pop(0)
            return 1

    def _delete_from(self, path: str, budget_bytes: int) -> int:
        """Shorten or remove a file; the bytes freed, at least 1."""
        size_bytes = file_io.stat(path).st_size
        if size_bytes > budget_bytes:
            fd = file_io.open_path(path, file_io.READ_WRITE)
            try:
                file_io.ftruncate(fd, size_bytes - budget_bytes)
            finally:
                file_io.close(fd)
            return budget_bytes
        file_io.unlink(path)
        return max(1, size_bytes)

    @property
    def is_deleting(self) -> bool:
        return bool(self._leaving)

    def to_be_saved(self, offsets: dict[TopicPartition, int]) -> dict[TopicPartition, int]:
        """`offsets`, which another thread is going to save: until then `forget_former_lines` reaches into them, too. For the log-writer's loop."""
        if len(self._to_be_saved) >= TO_BE_SAVED_MAX:
            self._to_be_saved.pop(next(iter(self._to_be_saved)), None)
        collected = CollectedOffsets(next(self._numbers), offsets)
        self._to_be_saved[id(collected)] = collected
        return collected

    def save_recovery_points(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Only after what they promise is durable (`FlushRound.sync`)."""
        self._save(checkpoints.RECOVERY_POINTS, offsets)

    def save_high_watermarks(self, offsets: Mapping[TopicPartition, int]) -> None:
        self._save(checkpoints.HIGH_WATERMARKS, offsets)

    def save_log_start_offsets(self, offsets: Mapping[TopicPartition, int]) -> None:
        self._save(checkpoints.LOG_START_OFFSETS, offsets)

    def save_cleaned_offsets(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Only after the swapped directories are synced."""
        self._save(checkpoints.CLEANED, offsets)

    def _save(self, name: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Make the checkpoint durable with `offsets`, or leave it as it is if another thread has saved what was collected later: a log start offset that went
        back would bring answered DeleteRecords back."""
        number = offsets.number if isinstance(offsets, CollectedOffsets) else next(self._numbers)
        try:
            with self._saving:
                lines = {**self._unserved.get(name, {}), **offsets}
                self._to_be_saved.pop(id(offsets), None)
                if number < self._saved_numbers.get(name, 0):
                    return
                checkpoints.write_offsets(f"{self.path}/{name}", lines)
                self._lines[name] = lines
                self._saved_numbers[name] = number
                if name == checkpoints.RECOVERY_POINTS:
                    self.saved_recovery_points = offsets
        except OSError as error:
            raise file_io.storage_failure(f"write {self.path}/{name}", error) from error

    def forget_former_lines(self, topic_partition: TopicPartition) -> None:
        """Before another log gets this name, durably: what a checkpoint says of the one that had it is not said of the new one. Its log start offset would
        take every record of a log that has not grown past it, its recovery point would keep a start from scanning. As a rule no line is left of it."""
        for offsets in (self.recovery_points, self.high_watermarks, self.log_start_offsets, self.cleaned_offsets):
            offsets.pop(topic_partition, None)
        waiting = [offsets for offsets in list(self._to_be_saved.values()) if topic_partition in offsets]
        # In this order: what does not wait any more is being saved, or saved.
        if not waiting and not self._saving.locked() and not any(topic_partition in lines for lines in self._lines.values()):
            return
        try:
            with self._saving:
                for offsets in waiting:
                    offsets.pop(topic_partition, None)
                for name, lines in list(self._lines.items()):
                    if topic_partition in lines:
                        kept = {other: offset for other, offset in lines.items() if other != topic_partition}
                        checkpoints.write_offsets(f"{self.path}/{name}", kept)
                        self._lines[name] = kept
        except OSError as error:
            raise file_io.storage_failure(f"forget a former log {topic_partition} in {self.path}", error) from error
        self.saved_recovery_points = {other: offset for other, offset in self.saved_recovery_points.items() if other != topic_partition}

    def cap_lines(self, topic_partition: TopicPartition, log_end_offset: int) -> None:
        """A log was cut there. Before it grows again, durably: no checkpoint says more of it, those neither that another thread has collected and not written
        yet. As a rule none does, and nothing is written."""
        for offsets in (self.recovery_points, self.high_watermarks, self.log_start_offsets, self.cleaned_offsets):
            _cap(offsets, topic_partition, log_end_offset)
        waiting = [offsets for offsets in list(self._to_be_saved.values()) if offsets.get(topic_partition, 0) > log_end_offset]
        # In this order: what does not wait any more is being saved, or saved.
        if not waiting and not self._saving.locked() and not any(lines.get(topic_partition, 0) > log_end_offset for lines in self._lines.values()):
            return
        try:
            with self._saving:
                for offsets in waiting:
                    _cap(offsets, topic_partition, log_end_offset)
                for name, lines in list(self._lines.items()):
                    if lines.get(topic_partition, 0) > log_end_offset:
                        capped = {**lines, topic_partition: log_end_offset}
                        checkpoints.write_offsets(f"{self.path}/{name}", capped)
                        self._lines[name] = capped
        except OSError as error:
            raise file_io.storage_failure(f"write down in {self.path} that log {topic_partition} ends at {log_end_offset}", error) from error
        self.saved_recovery_points = {**self.saved_recovery_points, topic_partition: min(log_end_offset, self.saved_recovery_points.get(topic_partition, 0))}

    def sync_file_system(self) -> None:
        """Make everything durable that was written to the file system of this directory so far. By the descriptor of the lock, which is open since
        before the first write: it is told of every write that failed, whoever else was told."""
        try:
            file_io.sync_file_system(self._lock_fd)
        except OSError as error:
            raise file_io.storage_failure(f"flush {self.path}", error) from error

    def space(self) -> file_io.Space:
        """Total and free bytes of the disk."""
        try:
            return file_io.space(self.path)
        except OSError as error:
            raise file_io.storage_failure(f"ask for the free space of {self.path}", error) from error

    def close_clean(
        self,
        recovery_points: Mapping[TopicPartition, int],
        high_watermarks: Mapping[TopicPartition, int],
        log_start_offsets: Mapping[TopicPartition, int],
    ) -> None:
        """After every log was closed: checkpoints, then the marker that says so (see `leave_unserved`), then the lock goes."""
        self.save_recovery_points(recovery_points)
        self.save_high_watermarks(high_watermarks)
        self.save_log_start_offsets(log_start_offsets)
        try:
            if self.was_clean or not self._unserved_names:
                file_io.replace_file(f"{self.path}/{CLEAN_SHUTDOWN_MARKER}", b'{"version":0,"brokerEpoch":-1}')
        except OSError as error:
            raise file_io.storage_failure(f"mark {self.path} as cleanly closed", error) from error
        self.abandon()

    def abandon(self) -> None:
        """Give the lock back and leave everything as it is: the next start recovers."""
        lock_fd, self._lock_fd = self._lock_fd, -1
        if lock_fd >= 0:
            file_io.close_all((lock_fd,))

    def _path_of(self, topic_partition: TopicPartition) -> str:
        return f"{self.path}/{topic_partition}"


def _cap(offsets: dict[TopicPartition, int], topic_partition: TopicPartition, offset: int) -> None:
    if offsets.get(topic_partition, 0) > offset:
        offsets[topic_partition] = offset


def _lock(path: str) -> int:
    lock_fd = file_io.open_path(f"{path}/{LOCK_FILE}", file_io.READ_WRITE_CREATE)
    try:
        if not file_io.lock_exclusively(lock_fd):
            raise ConfigurationProblems([f"log directory {path} is in use by {lock_holder(lock_fd)}; stop that first, or name another directory"])
        content = f"{file_io.process_id()}\n".encode()
        try:
            file_io.write_all(lock_fd, (content,), 0, len(content))  # in place: on a full disk a file that was emptied stays empty
            file_io.ftruncate(lock_fd, len(content))
        except OSError as error:
            if not isinstance(file_io.storage_failure("", error), DiskFull):
                raise
            # who holds the lock is for people to read; the lock itself holds without
    except BaseException:
        file_io.close(lock_fd)
        raise
    return lock_fd
