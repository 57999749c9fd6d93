"""Which segment files a log directory had at its last clean stop, with size and time of change.

`LogDirectory` writes `segments-checkpoint` before the clean marker, which names its checksum: if
Kafka has used the directory since, or another release, the list does not speak for it. Sealed
segments do not change, so after an unclean boot an entry that agrees still says that its file is as
it was. Weak spot: a file that was changed and given its old size and time is left to the scrubber.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from appliance.base.model import Offset, TopicPartition
from appliance.storage import file_io
from appliance.storage.checkpoints import BrokenCheckpoint, decode_lines, encode_lines
from appliance.storage.segment_files import LOG_SUFFIX, segment_path

SEGMENTS = "segments-checkpoint"


class SegmentFile(NamedTuple):
    """Size and time of the last change of a segment's log file."""

    size_bytes: int
    modified_ns: int


KnownSegments = Mapping[Offset, SegmentFile]
NONE_KNOWN: KnownSegments = {}


def look_at_segment(directory: str, base_offset: Offset) -> SegmentFile:
    """Return what a segment's log file is now. Raises OSError."""
    figures = file_io.stat(segment_path(directory, base_offset, LOG_SUFFIX))
    return SegmentFile(figures.st_size, figures.st_mtime_ns)


GONE = SegmentFile(0, 0)
"""A segment whose file was removed beside the log-writer: listed, so that the next start misses it."""


def look_at_segments(directory: str, base_offsets: Iterable[Offset]) -> KnownSegments:
    """Return what these segments are now. Raises OSError."""
    found: dict[Offset, SegmentFile] = {}
    for base in base_offsets:
        try:
            found[base] = look_at_segment(directory, base)
        except FileNotFoundError:
            found[base] = GONE
    return found


def encode_segments(logs: Mapping[TopicPartition, KnownSegments]) -> bytes:
    """Return the text of the list."""
    return encode_lines(f"{name.topic} {name.partition} {base} {size} {modified}" for name in sorted(logs) for base, (size, modified) in logs[name].items())


def decode_segments(content: bytes) -> dict[TopicPartition, dict[Offset, SegmentFile]]:
    """Return the segments of each log, ascending. Raises `BrokenCheckpoint`."""
    logs: dict[TopicPartition, dict[Offset, SegmentFile]] = {}
    for words in decode_lines(content):
        try:
            topic, partition, base, size, modified = words
            logs.setdefault(TopicPartition(topic, int(partition)), {})[Offset(int(base))] = SegmentFile(int(size), int(modified))
        except ValueError:
            raise BrokenCheckpoint(f"the line {' '.join(words)!r} is not 'topic partition offset size time'") from None
    return logs
