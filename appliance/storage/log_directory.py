"""A log directory: its owner, whether it was closed cleanly, its partitions, its checkpoints.

Owned by the log-writer of its disk from `open` until it closes or dies; the lock ends with the
process. Unknown names are listed in `unknown_names` and left alone: they may be an operator's data.
Weak spot: the lock is of this machine only, so a directory on a network file system can be opened
twice.

Open and close:

* Open after a clean stop: checkpoints read → marker unlinked → directory synced → logs opened.
  Close: for each log: final time index entry → snapshot; then a flush round each or, from 8 logs
  on, one `syncfs` for all; then per directory: three checkpoints → marker (synced).
* Crash: no marker: the next start scans from the recovery points.

Create a partition:

* Steps: checkpoint lines of an earlier log of that name removed, durable → directory →
  `partition.metadata.tmp` → sync → rename → partition directory synced → log directory synced. If a
  step fails, what this call created is removed again.
* Crash: a directory without `partition.metadata`, or an empty log. The command is repeated: the
  same id is success, a missing id is written, another id is refused.

Delete a partition, or set it aside:

* Steps: rename to `-delete` → log directory synced → files shortened and unlinked in slices →
  directory removed. Set aside: rename to `-stray` → log directory synced.
* Crash: a `-delete` directory; `delete_some` continues.
* Background tasks that were planned before the deletion hold the directory by a descriptor
  (`PinnedDirectory`) or check whether the log still exists. So they neither fail nor touch a new
  partition of that name. A missing file of a partition that was not deleted fails the disk.

A full disk: An append that fails with ENOSPC is undone; a checkpoint keeps its old version.
Opening a log in the same boot usually writes nothing; one that must write waits. Logs that stay
closed keep their lines in the checkpoints (`CheckpointWriter.unserved`), and the directory gets no
marker at its end unless it had one at its start.
"""

from __future__ import annotations

import errno
from bisect import bisect_right
from collections.abc import Collection

from appliance.base.clock import Clock
from appliance.base.errors import ConfigurationProblems, DiskFull, ErrorCode, RequestRefused, StorageFailed
from appliance.base.model import FIRST_OFFSET, Offset, TopicId, TopicPartition
from appliance.records.crc32c import crc32c
from appliance.storage import file_io
from appliance.storage.checkpoints import BrokenCheckpoint, CheckpointWriter
from appliance.storage.directory_identity import (
    CLEAN_SHUTDOWN_MARKER,
    KNOWN_NAMES,
    LOCK_FILE,
    MetaProperties,
    claim_identity,
    encode_partition_metadata,
    lock_holder,
    read_topic_id,
)
from appliance.storage.known_segments import SEGMENTS, KnownSegments, SegmentFile, decode_segments, encode_segments, look_at_segments
from appliance.storage.log import Log
from appliance.storage.partition_directory import (
    DELETE_SUFFIX,
    STRAY_SUFFIX,
    PartitionDirectory,
    is_leaving,
    leaving_name,
    parse_partition_name,
)
from appliance.storage.segment_files import LOG_SUFFIX, PARTITION_METADATA, offset_of_name, segment_path


class LogDirectory:
    """Make one with `open`.

    Every method that touches the disk raises `StorageFailed` or `DiskFull`.
    """

    def __init__(self, path: str, clock: Clock, lock_fd: int, identity: MetaProperties) -> None:
        self.path = path
        self.identity = identity
        self.was_clean = False
        self.checkpoints = CheckpointWriter(path)
        self.unknown_names: list[str] = []
        self.problems = self.checkpoints.problems
        """What was found damaged at `open` and is replaced by safe values; for people."""
        self.segments: dict[TopicPartition, dict[Offset, SegmentFile]] = {}
        """What each log had at the last clean stop, as far as that is known."""
        self._clock = clock
        self._lock_fd = lock_fd
        self._leaving: list[str] = []
        self._renames = 0

    @classmethod
    def open(cls, path: str, broker_id: int, cluster_id: str | None, clock: Clock, new_directory_id: str = "") -> LogDirectory:
        """Lock and open the directory; it is created if it is missing.

        `cluster_id` None accepts any. `new_directory_id` becomes its id if it has none. Raises
        `ConfigurationProblems` if another process has locked it, or it belongs to another broker or
        cluster.
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
        self.checkpoints.load()
        self._load_segments(file_io.read_file(marker) if self.was_clean else b"")
        for name in sorted(file_io.listdir(self.path)):
            if name.endswith(DELETE_SUFFIX) and is_leaving(name):
                self._leaving.append(name)
            elif name not in KNOWN_NAMES and not name.endswith(".tmp") and not is_leaving(name) and parse_partition_name(name) is None:
                self.unknown_names.append(name)
        if self.was_clean:  # from here on a crash is a crash
            file_io.unlink(marker)
            file_io.fsync_directory(self.path)

    def _load_segments(self, marker: bytes) -> None:
        """After a clean stop the list counts if the marker names it: Kafka, which may have used the
        directory since, writes none.
        """
        try:
            content = file_io.read_file(f"{self.path}/{SEGMENTS}")
            if not self.was_clean or marker == _marker_of(content):
                self.segments = decode_segments(content)
        except FileNotFoundError:
            pass
        except BrokenCheckpoint as problem:
            self.problems.append(f"{self.path}/{SEGMENTS}: {problem}")

    def partition_directories(self) -> dict[TopicPartition, PartitionDirectory]:
        """Return the partitions with a plain directory; `topic_id` is None if `partition.metadata`
        is missing or broken (see `problems`).
        """
        found = {}
        try:
            for name in sorted(file_io.listdir(self.path)):
                topic_partition = parse_partition_name(name)
                if topic_partition is not None and file_io.is_directory(f"{self.path}/{name}"):
                    found[topic_partition] = PartitionDirectory(topic_partition, self._path_of(topic_partition), self._topic_id(topic_partition))
        except OSError as error:
            raise file_io.storage_failure(f"list log directory {self.path}", error) from error
        return found

    def forget_pages(self, topic_partition: TopicPartition, above: Offset = FIRST_OFFSET) -> None:
        """Drop a log's pages from the page cache after a failed sync, so that recovery reads the
        disk.

        The page cache may show bytes that were never written. Pages of segments that end at or
        below offset `above` stay.
        """
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
        """Create the partition's directory, durable with `partition.metadata`; return its path.
        Repeating it with the same topic id succeeds.

        Raises `RequestRefused(INCONSISTENT_TOPIC_ID)` if the directory belongs to another topic of
        that name.
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
                self.checkpoints.forget(topic_partition)
                file_io.mkdir(path)
                is_new = True
            if known is None:
                file_io.replace_file(f"{path}/{PARTITION_METADATA}", encode_partition_metadata(topic_id))
            else:  # an earlier incarnation may have died between the rename and the sync
                file_io.fsync_directory(path)
            file_io.fsync_directory(self.path)
        except OSError as error:
            if is_new:
                self.undo_creation(topic_partition)
            raise file_io.storage_failure(f"create log {topic_partition} in {self.path}", error) from error
        return path

    def holds(self, topic_partition: TopicPartition) -> bool:
        """Return whether the partition has a directory here, served or not."""
        try:
            return file_io.exists(self._path_of(topic_partition))
        except OSError as error:
            raise file_io.storage_failure(f"look for log {topic_partition} in {self.path}", error) from error

    def may_hold(self, topic_partition: TopicPartition, topic_id: TopicId) -> bool:
        """Return whether the partition has a directory here, served or not, that may be of this
        topic id.
        """
        try:
            if not file_io.exists(self._path_of(topic_partition)):
                return False
            return read_topic_id(self._path_of(topic_partition)) in (topic_id, None)
        except ValueError:
            return True
        except OSError as error:
            raise file_io.storage_failure(f"look for log {topic_partition} in {self.path}", error) from error

    def undo_creation(self, topic_partition: TopicPartition) -> None:
        """Remove the directory of a partition that was created just now and holds no record.

        A failure leaves an empty log, which does no harm: the creation is repeated, or the topic
        deleted.
        """
        path = self._path_of(topic_partition)
        try:
            for name in file_io.listdir(path):
                file_io.unlink(f"{path}/{name}")
            file_io.rmdir(path)
        except OSError:
            pass  # what made the creation fail

    def mark_deleted(self, topic_partition: TopicPartition) -> None:
        """Rename the partition's directory to `-delete`; `delete_some` removes it.

        A missing one is success.
        """
        self._rename_away(topic_partition, DELETE_SUFFIX)
        self.checkpoints.unserved.discard(topic_partition)

    def set_aside(self, topic_partition: TopicPartition) -> None:
        """Rename the directory to `-stray`: a replica that no longer belongs here, kept and not
        served.
        """
        self._rename_away(topic_partition, STRAY_SUFFIX)

    def mark_directory_deleted(self, path: str, topic_partition: TopicPartition) -> None:
        """Rename a copy of the partition under another path to `-delete`."""
        self._rename_away(topic_partition, DELETE_SUFFIX, path)

    def give_up(self, name: str) -> None:
        """Let `delete_some` remove the directory `name`, which was abandoned during its creation."""
        self._leaving.append(name)

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
        """Remove up to about `budget_bytes` of what was marked deleted; return the bytes freed, 0
        if nothing is left.

        A file larger than the budget is shortened from its end, slice by slice: freeing gigabytes
        at once stalls a disk.
        """
        freed = 0
        try:
            while self._leaving and freed < budget_bytes:
                freed += self._delete_slice(f"{self.path}/{self._leaving[0]}", budget_bytes - freed)
        except OSError as error:
            raise file_io.storage_failure(f"delete {self.path}/{self._leaving[0]}", error) from error
        return freed

    def _delete_slice(self, directory: str, budget_bytes: int) -> int:
        """One step in the first directory that leaves: shorten or remove one file, or remove the
        directory.

        A task that was planned before the deletion may still rename, remove or write files in it:
        the next step lists it again.
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
        """Whether a directory waits for its removal."""
        return bool(self._leaving)

    def sync_file_system(self) -> None:
        """Make everything durable that was written to the file system of this directory.

        syncfs reports each failed write since its descriptor was opened. The descriptor of the lock
        was opened before the first write, so none is missed."""
        try:
            file_io.sync_file_system(self._lock_fd)
        except OSError as error:
            raise file_io.storage_failure(f"flush {self.path}", error) from error

    def space(self) -> file_io.Space:
        """Return the size and the free space of the disk in bytes."""
        try:
            return file_io.space(self.path)
        except OSError as error:
            raise file_io.storage_failure(f"ask for the free space of {self.path}", error) from error

    def close_clean(self, logs: Collection[Log] = ()) -> None:
        """Write the list of segments of `logs`, the marker of a clean stop, and release the lock.

        Every log is closed, and every checkpoint saved. After an unclean start there is no marker if
        a log was never opened: the next start has to recover it."""
        try:
            if self.was_clean or not self.checkpoints.unserved:
                known: dict[TopicPartition, KnownSegments] = {name: self.segments[name] for name in self.checkpoints.unserved if name in self.segments}
                known |= {log.topic_partition: look_at_segments(log.directory, log.segment_base_offsets) for log in logs}
                content = encode_segments(known)
                file_io.replace_file(f"{self.path}/{SEGMENTS}", content)
                file_io.replace_file(f"{self.path}/{CLEAN_SHUTDOWN_MARKER}", _marker_of(content))
        except OSError as error:
            raise file_io.storage_failure(f"mark {self.path} as cleanly closed", error) from error
        self.abandon()

    def abandon(self) -> None:
        """Release the lock and write nothing: the next start recovers."""
        lock_fd, self._lock_fd = self._lock_fd, -1
        if lock_fd >= 0:
            file_io.close_all((lock_fd,))

    def _path_of(self, topic_partition: TopicPartition) -> str:
        return f"{self.path}/{topic_partition}"


def _marker_of(segments: bytes) -> bytes:
    """Return the text of the clean marker, Kafka's with the checksum of the list of segments."""
    return b'{"version":0,"brokerEpoch":-1,"segments":"%08x"}' % crc32c(segments)


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
            # the lock holds without the process id, which only an operator reads
    except BaseException:
        file_io.close(lock_fd)
        raise
    return lock_fd


TOGETHER_MIN = 8
"""Fewer logs sync for themselves: `syncfs` writes out what other programs have on the same file
system, too."""


def close_logs(directory: LogDirectory, logs: Collection[Log], together_min: int = TOGETHER_MIN) -> None:
    """Close the logs of a disk at a clean stop: last entries, one sync for all, then descriptors.

    Afterwards every recovery point is its log's end. A log that closes by itself syncs each of its
    files, and each sync may cost a flush of the device: 250 logs that had just been written took a
    second of the second that a restart may take. One `syncfs` does the same for all (`BatchFlush`
    has its cost for others). If the kernel does not report failed writes there, each log syncs for
    itself. Raises `StorageFailed`; the logs are closed all the same, and without a clean marker the
    next start recovers them."""
    try:
        if len(logs) >= together_min and file_io.syncfs_tells_errors():
            for log in logs:
                log.write_last_entries()
            directory.sync_file_system()
            for log in logs:
                log.on_file_system_synced()
        for log in logs:
            log.close()
    except StorageFailed:
        for log in logs:
            log.abandon()
        raise
