"""The `-future` directories of one disk: copies of logs that are being moved to it.

Owned by the log-writer of the disk. A directory is named `TOPIC-PARTITION.TOPICID-future`: Kafka's
form, with the topic id in hex as the unique part, so that a restart finds it by name. Directories
of that form with other content are not ours and stay. No log is opened here: a start only reads the
records of the copies, and the mover opens them. Weak spot: a promotion renames and syncs in the
log-writer's duty cycle (some ms).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from appliance.base.model import TopicId, TopicPartition
from appliance.storage import file_io
from appliance.storage.directory_identity import encode_partition_metadata, read_topic_id
from appliance.storage.log_directory import LogDirectory
from appliance.storage.move_record import MOVE_RECORD, Complete, MoveRecord, read_move, write_move
from appliance.storage.partition_directory import FUTURE_SUFFIX, PinnedDirectory, leaving_name
from appliance.storage.segment_files import PARTITION_METADATA

_FUTURE = re.compile(r".+-[0-9]+\.([0-9a-f]{32})-future\Z")


class FutureLog(NamedTuple):
    """One copy of a log, with its record."""

    topic_partition: TopicPartition
    topic_id: TopicId
    path: str
    record: MoveRecord

    @property
    def complete(self) -> Complete | None:
        """The end of the copy if it is complete, else None."""
        return self.record.complete


class FutureDirectories:
    """Copies by (topic id, partition).

    Every method that touches the disk raises `StorageFailed` or `DiskFull`.
    """

    def __init__(self, directory: LogDirectory) -> None:
        self._directory = directory
        self.futures: dict[tuple[TopicId, int], FutureLog] = {}

    def load(self) -> None:
        """Read the records of all copies.

        A directory without a record was abandoned during its creation, and is removed.
        """
        path = self._directory.path
        try:
            for name in sorted(file_io.listdir(path)):
                match = _FUTURE.match(name)
                if match is not None:
                    self._describe(name, TopicId(bytes.fromhex(match[1])))
        except OSError as error:
            raise file_io.storage_failure(f"look for copies of logs in {path}", error) from error

    def _describe(self, name: str, named: TopicId) -> None:
        path = f"{self._directory.path}/{name}"
        try:
            topic_id, record = read_topic_id(path), read_move(path)
        except ValueError as problem:
            self._directory.problems.append(f"{path}: {problem}")
            return
        if topic_id == named and record is not None:
            self.futures[topic_id, record.partition] = FutureLog(record.topic_partition, topic_id, path, record)
        elif record is None and (topic_id == named or topic_id is None) and set(file_io.listdir(path)) <= _BEFORE_THE_RECORD:
            self._directory.give_up(name)

    def find(self, topic_id: TopicId, partition: int) -> FutureLog | None:
        """Return the copy of a partition, None if there is none."""
        return self.futures.get((topic_id, partition))

    def make(self, topic_id: TopicId, record: MoveRecord) -> FutureLog:
        """Create the directory of a copy, durable and empty.

        An existing copy is returned with its content.
        """
        topic_partition = record.topic_partition
        known = self.find(topic_id, record.partition)
        if known is not None:
            return known
        path = self._path_of(topic_partition, topic_id)
        try:
            if not file_io.exists(path):
                file_io.mkdir(path)
            file_io.replace_file(f"{path}/{PARTITION_METADATA}", encode_partition_metadata(topic_id))
            write_move(path, record)
            file_io.fsync_directory(self._directory.path)
        except OSError as error:
            raise file_io.storage_failure(f"make a copy of log {topic_partition} in {self._directory.path}", error) from error
        return self._take(FutureLog(topic_partition, topic_id, path, record))

    def complete_empty(self, future: FutureLog, complete: Complete) -> FutureLog:
        """Complete the copy of a log without records: its directory is durable and has nothing else
        to hold."""
        record = future.record._replace(recovery_point=complete.log_end_offset, complete=complete)
        try:
            write_move(future.path, record)
        except OSError as error:
            raise file_io.storage_failure(f"write {future.path}/{MOVE_RECORD}", error) from error
        return self._take(future._replace(record=record))

    def look_again(self, future: FutureLog) -> FutureLog:
        """Read the record again after the mover has written it; return the new state of the copy."""
        try:
            record = read_move(future.path)
        except OSError as error:
            raise file_io.storage_failure(f"read {future.path}/{MOVE_RECORD}", error) from error
        except ValueError as problem:
            self._directory.problems.append(f"{future.path}: {problem}")
            return future
        return future if record is None else self._take(future._replace(record=record))

    def promote(self, future: FutureLog) -> None:
        """Make a complete copy the partition: rename it to the plain name, durable. That name must
        be free.

        The record stays until the checkpoints have its offsets (`settle`).
        """
        path = f"{self._directory.path}/{future.topic_partition}"
        self._directory.checkpoints.forget(future.topic_partition)
        try:
            file_io.rename(future.path, path)
            del self.futures[future.topic_id, future.topic_partition.partition]
            file_io.fsync_directory(self._directory.path)
        except OSError as error:
            raise file_io.storage_failure(f"promote the copy of log {future.topic_partition} in {self._directory.path}", error) from error

    def find_promoted(self, topic_partition: TopicPartition, topic_id: TopicId) -> FutureLog | None:
        """Return a promoted copy whose record is still in the directory, else None."""
        path = f"{self._directory.path}/{topic_partition}"
        try:
            record = read_move(path) if file_io.exists(path) and read_topic_id(path) == topic_id else None
        except ValueError as problem:
            self._directory.problems.append(f"{path}: {problem}")
            return None
        except OSError as error:
            raise file_io.storage_failure(f"read {path}", error) from error
        return None if record is None else FutureLog(topic_partition, topic_id, path, record)

    def remove(self, future: FutureLog) -> None:
        """Rename a copy to `-delete`; `LogDirectory.delete_some` removes it."""
        self.futures.pop((future.topic_id, future.topic_partition.partition), None)
        self._directory.mark_directory_deleted(future.path, future.topic_partition)

    def _take(self, future: FutureLog) -> FutureLog:
        self.futures[future.topic_id, future.topic_partition.partition] = future
        return future

    def _path_of(self, topic_partition: TopicPartition, topic_id: TopicId) -> str:
        return f"{self._directory.path}/{leaving_name(topic_partition, topic_id.hex(), FUTURE_SUFFIX)}"


def settle(path: str, is_here: Callable[[], bool] = lambda: True) -> None:
    """Remove the record of a promoted log, once the checkpoints have its offsets.

    `is_here` is called when the directory is pinned. False: the log was deleted meanwhile, and
    another one may have its name. Raises OSError.
    """
    directory = PinnedDirectory(path)
    try:
        if is_here():
            file_io.unlink_in(directory.fd, MOVE_RECORD)
            directory.sync()
    finally:
        directory.close()


_BEFORE_THE_RECORD = {PARTITION_METADATA, f"{PARTITION_METADATA}.tmp", f"{MOVE_RECORD}.tmp"}
