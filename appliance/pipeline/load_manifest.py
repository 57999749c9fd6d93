"""The metadata of a load as values: what is to be loaded (plan), what was loaded into which files (manifest). No file access.

The last manifest alone states the progress of a load: it has the position of every partition. Weak spot: a manifest grows
with the number of partitions, some 30 bytes each, and all manifests are kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from appliance.base.model import TopicPartition
from appliance.pipeline.offset_range import OffsetRange
from appliance.pipeline.problems import DamagedTable
from appliance.pipeline.table_kind import decode_document, encode_document

Positions = Mapping[TopicPartition, int]
"""The first offset of each partition that is not loaded yet."""


class StagedFile(NamedTuple):
    """A file of a task: its name in the staging directory, and its place in the table."""

    staged: str
    path: str
    rows: int
    size_bytes: int


class SkippedRange(NamedTuple):
    """Offsets that were skipped with the user's consent, and why: `lost` (deleted before they were loaded) or `corrupt`."""

    topic: str
    partition: int
    start: int
    end: int
    reason: str

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition} offsets {self.start} to {self.end - 1} ({self.reason})"


class Plan(NamedTuple):
    """The planned contents of commit `number`."""

    number: int
    ranges: tuple[OffsetRange, ...]

    def encode(self) -> bytes:
        return encode_document({"number": self.number, "ranges": [list(each) for each in self.ranges]})


class Manifest(NamedTuple):
    """The contents of commit `number`. The staging directory is named after the number and the incarnation that wrote it."""

    number: int
    life: str
    published_ms: int
    positions: Positions
    ranges: tuple[OffsetRange, ...] = ()
    files: tuple[StagedFile, ...] = ()
    bad_files: tuple[StagedFile, ...] = ()
    skipped: tuple[SkippedRange, ...] = ()

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)

    @property
    def bad_rows(self) -> int:
        return sum(file.rows for file in self.bad_files)

    def encode(self) -> bytes:
        positions: dict[str, dict[str, int]] = {}
        for (topic, partition), offset in sorted(self.positions.items()):
            positions.setdefault(topic, {})[str(partition)] = offset
        document = {
            "number": self.number,
            "life": self.life,
            "published_ms": self.published_ms,
            "rows": self.rows,
            "bad_rows": self.bad_rows,
            "positions": positions,
            "ranges": [list(each) for each in self.ranges],
            "files": [file._asdict() for file in self.files],
            "bad_files": [file._asdict() for file in self.bad_files],
            "skipped": [each._asdict() for each in self.skipped],
        }
        return encode_document(document)


class CommitDone(NamedTuple):
    """The counts of a commit: `offsets` requested, `record_bytes` of keys and values read."""

    number: int
    rows: int
    bad_rows: int
    record_bytes: int
    offsets: int
    skipped: tuple[SkippedRange, ...] = ()


def decode_plan(content: bytes, path: str) -> Plan:
    document = decode_document(content, path)
    try:
        return Plan(document["number"], _ranges(document["ranges"]))
    except (KeyError, TypeError, ValueError) as error:
        raise DamagedTable(f"{path} is no plan of a load: {error!r}") from error


def decode_manifest(content: bytes, path: str) -> Manifest:
    document = decode_document(content, path)
    try:
        return Manifest(
            document["number"],
            document["life"],
            document["published_ms"],
            {TopicPartition(topic, int(number)): offset for topic, offsets in document["positions"].items() for number, offset in offsets.items()},
            _ranges(document["ranges"]),
            tuple(StagedFile(**each) for each in document["files"]),
            tuple(StagedFile(**each) for each in document["bad_files"]),
            tuple(SkippedRange(**each) for each in document["skipped"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise DamagedTable(f"{path} is no manifest of a load: {error!r}") from error


def _ranges(documents: Iterable[list[Any]]) -> tuple[OffsetRange, ...]:
    return tuple(OffsetRange(*each) for each in documents)


def positions_after(positions: Positions, ranges: Iterable[OffsetRange]) -> dict[TopicPartition, int]:
    """Return the positions after `ranges` are loaded."""
    after = dict(positions)
    for each in ranges:
        partition = TopicPartition(each.topic, each.partition)
        after[partition] = max(after.get(partition, 0), each.end)
    return after
