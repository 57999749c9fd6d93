"""Names of partition directories, and directories held by a descriptor.

A directory is named `TOPIC-PARTITION`, or `TOPIC-PARTITION.UUID-SUFFIX` outside of service. It is
renamed before anything in it is touched: a rename is atomic, so a crash leaves either a partition
or a directory that is not served.
"""

from __future__ import annotations

import os
import re
from typing import NamedTuple

from appliance.base.model import TopicId, TopicPartition, topic_name_problem
from appliance.storage import file_io

DELETE_SUFFIX = "-delete"
STRAY_SUFFIX = "-stray"
FUTURE_SUFFIX = "-future"
_LONGEST_NAME = 255
_LEAVING = re.compile(r"(.+)-([0-9]+)\.[0-9a-f]{32}-(delete|stray|future)\Z")


def parse_partition_name(name: str) -> TopicPartition | None:
    """Return the partition whose plain directory has this name; None for any other name."""
    topic, dash, partition = name.rpartition("-")
    if not dash or not partition.isascii() or not partition.isdigit() or topic_name_problem(topic) is not None:
        return None
    if str(int(partition)) != partition:
        return None
    return TopicPartition(topic, int(partition))


def is_leaving(name: str) -> bool:
    """Return whether `name` is a `-delete`, `-stray` or `-future` directory."""
    return _LEAVING.match(name) is not None


def leaving_name(topic_partition: TopicPartition, unique: str, suffix: str) -> str:
    """Return `TOPIC-P.UNIQUE-SUFFIX`, with the topic cut to 255 characters in all.

    `unique` has 32 hex digits.
    """
    rest = f"-{topic_partition.partition}.{unique}{suffix}"
    return topic_partition.topic[: _LONGEST_NAME - len(rest)] + rest


class PartitionDirectory(NamedTuple):
    """A partition with a plain directory in a log directory."""

    topic_partition: TopicPartition
    path: str
    topic_id: TopicId | None


class PinnedDirectory:
    """A partition directory held by a descriptor: background work touches no other of that name.

    Background tasks are planned in the log-writer's duty cycle and act in a thread or a child
    process. In between the partition may be deleted (its directory is renamed, and removed in
    slices) and a topic of the same name created, with files of the same names. With a path a task
    would get ENOENT, which looks like a failed disk, or act on the new partition. The duty cycle
    pins the directory while the partition is known to be there, so ENOENT at that moment means
    damage. Weak spot: one descriptor for as long as the task takes. Raises OSError."""

    __slots__ = ("fd",)

    def __init__(self, path: str) -> None:
        self.fd = file_io.open_directory(path)

    @property
    def path(self) -> str:
        """A path to the directory under any name, for calls of this process that take paths."""
        return f"/proc/self/fd/{self.fd}"

    def sync_file(self, path: str) -> None:
        """Sync a file of this directory, given by any path; a missing one is ignored.

        Raises `SyncFailed`.
        """
        file_io.sync_in(self.fd, os.path.basename(path))

    def sync(self) -> None:
        """Make the names in it durable; succeeds for a removed directory. Raises `SyncFailed`."""
        file_io.sync_all(self.fd)

    def close(self) -> None:
        """Close the descriptor; a second call does nothing."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            file_io.close_all((fd,))
