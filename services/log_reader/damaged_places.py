"""Check at once the places where a reader found a damaged batch, also in a growing segment.

The scrubber uses it in its thread. Damage is confirmed by a second read, because compaction changes
files meanwhile. If the disk has the batch intact, the damage is in the page cache only: those pages are
dropped, and the next reader gets what is on the disk. Weak spot: pages that are dirty, or mapped, stay.
"""

from __future__ import annotations

from typing import NamedTuple

from appliance.base.layout import Disk
from appliance.base.model import FILE_START, Offset, TopicPartition
from appliance.storage import file_io
from appliance.storage.cold_file import ACTIVE_WAYS, SEALED_WAYS
from appliance.storage.scrub import UNREADABLE, Damage, PlaceScrub
from appliance.storage.segment_files import INDEX_SUFFIX, LOG_SUFFIX, TIME_INDEX_SUFFIX, offset_of_name, segment_path

OFFSET_MAX = Offset(2**63 - 1)


class PlaceCheck(NamedTuple):
    """The result of a check. `is_sound`: the location was found and is intact."""

    damages: tuple[Damage, ...] = ()
    is_sound: bool = False
    read_bytes: int = 0


class DamagedPlaces:
    """Checks reported locations on one disk."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk

    def look(self, topic_partition: TopicPartition, offset: Offset) -> PlaceCheck:
        """Check the batch that contains `offset`, and those just before it.

        Blocks as long as the disk does.
        """
        directory = f"{self._disk.path}/{topic_partition}"
        found: tuple[Damage, ...] = ()
        read_bytes = 0
        while True:
            bases = bases_in(directory)
            base_offset = max((base for base in bases if base <= offset), default=None)
            if base_offset is None:
                return PlaceCheck()
            files = inodes_of(directory, base_offset)
            end_offset = min((base for base in bases if base > base_offset), default=OFFSET_MAX)
            scrub = PlaceScrub(directory, base_offset, end_offset, offset, ACTIVE_WAYS if end_offset == OFFSET_MAX else SEALED_WAYS)
            try:
                scrub.look()
                damages = tuple(scrub.damages)
            except FileNotFoundError:
                return PlaceCheck()
            except OSError as error:
                damages = (unreadable(base_offset, error),)
            begin, end = scrub.span
            read_bytes += end - begin
            if not damages:
                _let_go_of_cache(segment_path(directory, base_offset, LOG_SUFFIX), begin, end)
                return PlaceCheck((), True, read_bytes)
            if inodes_of(directory, base_offset) != files:
                found = ()  # compaction put another one under the name
            elif not found:
                found = damages
            else:
                return PlaceCheck(tuple(damage for damage in damages if damage in found), False, read_bytes)


def _let_go_of_cache(path: str, begin: int, end: int) -> None:
    try:
        descriptor = file_io.open_path(path, file_io.READ_ONLY)
    except OSError:
        return
    try:
        file_io.advise(descriptor, begin, end - begin, file_io.NOT_NEEDED)
    finally:
        file_io.close_all([descriptor])


def bases_in(directory: str) -> list[Offset]:
    """Return the base offsets of a log's segments, ascending; none if the directory cannot be read."""
    try:
        names = file_io.listdir(directory)
    except OSError:
        return []
    return sorted(base for base in (offset_of_name(file, LOG_SUFFIX) for file in names) if base is not None)


def inodes_of(directory: str, base_offset: Offset) -> list[int]:
    """Return the inodes of a segment's files, 0 for a missing one. Raises OSError."""
    found = []
    for suffix in (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX):
        try:
            found.append(file_io.stat(segment_path(directory, base_offset, suffix)).st_ino)
        except FileNotFoundError:
            found.append(0)
    return found


def unreadable(base_offset: Offset, error: OSError) -> Damage:
    """Return the damage of a segment that the disk cannot read."""
    name = segment_path("", base_offset, LOG_SUFFIX).lstrip("/")
    return Damage(UNREADABLE, name, base_offset, base_offset, FILE_START, f"the disk cannot read it: {(error.strerror or str(error)).lower()}")
