"""Read the files of a spool that previous incarnations left: the waiting batches and the positions
of their data.

Owned by `IngestSpool`, at its start. Only headers and descriptions are read. A damaged record ends
its file.

Weak: a spool of many small batches takes time to read (10 µs each), and ingest does nothing else
meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from appliance.storage import file_io
from services.ingest.replay.spool_records import HEADER, SpoolEntry, read_description, read_header

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
