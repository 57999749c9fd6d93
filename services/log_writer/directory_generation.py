"""Recognise a log directory or a state directory that is older than the other one remembers.

Both keep a *generation*, a number and a random token, which each start of a log-writer replaces
(not one in the same boot: what a dead process left is no copy). The state directory first gets the
old and the next one, then the directory the next one, then the state directory that alone; so a
crash in between leaves a pair that agrees. A directory that was restored from a copy, a snapshot of
a disk, or a disk that was used elsewhere or given up has another one. At a clean stop the state directory also
gets the log end offsets, so that offsets that an older directory lacks are not given again. Weak
spots: if both directories are restored together (a snapshot of a whole machine), nothing here shows
it, but the cluster remembers the box's generation (`BoxRecord`); after a stop that was not
clean the remembered ends are those of the clean stop before it.
"""

from __future__ import annotations

import os
from enum import Enum

from appliance.base.model import Offset, TopicId, TopicPartition
from appliance.runtime.known_disks import KnownDisk, read_known_disk, read_known_ends, write_known_disk, write_known_ends
from appliance.storage import file_io
from appliance.storage.directory_identity import GENERATION
from services.log_writer.replicas.replicas_of_disk import Replicas


class Age(Enum):
    """What the two generations say."""

    CURRENT = 0
    OLD_DIRECTORY = 1
    OLD_STATE = 2


def _number_of(generation: str) -> int:
    number = generation.partition(":")[0]
    return int(number) if number.isascii() and number.isdigit() else 0


class DirectoryGeneration:
    """Of one disk. Raises OSError for the log directory; the state directory is written if it can be."""

    def __init__(self, state_directory: str, path: str, directory_id: str) -> None:
        self._state_directory = state_directory
        self._path = path
        self._directory_id = directory_id
        self._file = f"{path}/{GENERATION}"
        known = read_known_disk(state_directory, path)
        self._known = known if known.directory_id == directory_id else KnownDisk(path, directory_id, known.replaces)
        try:
            self._here = file_io.read_file(self._file).decode("ascii", "replace").strip()
        except FileNotFoundError:
            self._here = ""
        self.age = self._compare()
        self.words = f"generation {self._here or 'none'}, the state directory remembers {self._known.generation or 'none'}"

    def _compare(self) -> Age:
        known, here = self._known, self._here
        if not known.generation and self._directory_id in known.replaces:
            return Age.OLD_DIRECTORY  # it was given up, and is back
        if not known.generation or here in (known.generation, known.next_generation):
            return Age.CURRENT
        return Age.OLD_STATE if _number_of(here) > _number_of(known.generation) else Age.OLD_DIRECTORY

    def known_ends(self) -> dict[tuple[TopicPartition, TopicId], Offset]:
        """Return log end offsets at the last clean stop that the state directory remembers."""
        lines = read_known_ends(self._state_directory, self._path)
        return {(TopicPartition(topic, partition), TopicId.from_text(topic_id)): Offset(end) for topic, partition, topic_id, end in lines}

    def advance(self) -> None:
        """Begin the next generation."""
        number = max(_number_of(self._here), _number_of(self._known.generation)) + 1
        generation = f"{number}:{os.urandom(8).hex()}"
        state = self._state_directory
        write_known_disk(state, self._known._replace(generation=self._here, next_generation=generation))
        file_io.replace_file(self._file, generation.encode() + b"\n")
        write_known_disk(state, self._known._replace(generation=generation, next_generation=""))

    def remember_ends(self, partitions: Replicas) -> None:
        """At a clean stop. Raises OSError."""
        replicas = partitions.by_row.values()
        lines = [(*replica.topic_partition, str(replica.topic_id), int(replica.log.log_end_offset)) for replica in replicas]
        write_known_ends(self._state_directory, self._path, lines)
