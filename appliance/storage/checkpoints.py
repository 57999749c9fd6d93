"""Kafka's small text checkpoints: version, count, one entry a line.

Functions over text and over one file; who owns a file decides when. A checkpoint is never newer than what it describes: data first, then
the checkpoint. Weak spot: the whole file is written anew each time (10,000 partitions: about 300 KB).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from appliance.base.model import TopicPartition
from appliance.storage import file_io

RECOVERY_POINTS = "recovery-point-offset-checkpoint"
LOG_START_OFFSETS = "log-start-offset-checkpoint"
HIGH_WATERMARKS = "replication-offset-checkpoint"
CLEANED = "cleaner-offset-checkpoint"

_VERSION = "0"


class BrokenCheckpoint(ValueError):
    """The text of a checkpoint file does not hold together."""


def encode_lines(entries: Iterable[str]) -> bytes:
    lines = list(entries)
    return "\n".join([_VERSION, str(len(lines)), *lines, ""]).encode()


def decode_lines(content: bytes) -> list[list[str]]:
    """The words of each entry; an empty file has none. Raises `BrokenCheckpoint`."""
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


def read_offsets(path: str) -> dict[TopicPartition, int]:
    """Offsets by partition; a missing file has none. Raises `BrokenCheckpoint`."""
    try:
        content = file_io.read_file(path)
    except FileNotFoundError:
        return {}
    offsets = {}
    for words in decode_lines(content):
        try:
            topic, partition, offset = words
            offsets[TopicPartition(topic, int(partition))] = int(offset)
        except ValueError:
            raise BrokenCheckpoint(f"the line {' '.join(words)!r} is not 'topic partition offset'") from None
    return offsets


def write_offsets(path: str, offsets: Mapping[TopicPartition, int]) -> None:
    file_io.replace_file(path, encode_lines(f"{name.topic} {name.partition} {offset}" for name, offset in sorted(offsets.items())))
