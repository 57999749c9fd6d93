"""Holds replicas of a partition against each other, byte for byte, below the smallest high watermark that their boxes wrote down (or a given offset).

Reads segment files as they lie on disk, so no process may write meanwhile. Segments of two replicas need not begin at the same offsets: their
batches are compared one after the other. Weak spot: above the high watermark nothing is compared, for there replicas may differ.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

BATCH_OVERHEAD = 12
LAST_OFFSET_DELTA_AT = 23


class StoredBatch(NamedTuple):
    base_offset: int
    last_offset: int
    content: bytes


def batches_of(directory: Path) -> Iterator[StoredBatch]:
    """Every whole batch of a partition's directory, in order."""
    for segment in sorted(directory.glob("*.log")):
        content = segment.read_bytes()
        position = 0
        while position + LAST_OFFSET_DELTA_AT + 4 <= len(content):
            base_offset = int.from_bytes(content[position : position + 8], "big")
            size = BATCH_OVERHEAD + int.from_bytes(content[position + 8 : position + 12], "big")
            if position + size > len(content) or size == BATCH_OVERHEAD:
                break
            delta = int.from_bytes(content[position + LAST_OFFSET_DELTA_AT : position + LAST_OFFSET_DELTA_AT + 4], "big")
            yield StoredBatch(base_offset, base_offset + delta, content[position : position + size])
            position += size


def replica_directories(log_directories: Mapping[int, Sequence[Path]], topic: str, partition: int) -> dict[int, Path]:
    """Box → its directory of the partition, of those that have one."""
    found = {}
    for box, directories in log_directories.items():
        for directory in directories:
            if (place := directory / f"{topic}-{partition}").is_dir():
                found[box] = place
    return found


def differences(replicas: Mapping[int, Path], below_offset: int) -> list[str]:
    """What is not the same below `below_offset`: offsets, bytes, or that a replica lacks them."""
    stored = {box: [batch for batch in batches_of(place) if batch.base_offset < below_offset] for box, place in replicas.items()}
    first = {box: batches[0].base_offset if batches else below_offset for box, batches in stored.items()}
    begin = max(first.values(), default=0)
    kept = {box: [batch for batch in batches if batch.last_offset >= begin] for box, batches in stored.items()}
    found = []
    for box, batches in kept.items():
        end = batches[-1].last_offset + 1 if batches else begin
        if end < below_offset:
            found.append(f"{replicas[box]} of box {box} ends at {end}, below the high watermark {below_offset}")
    (reference, expected), *others = kept.items()
    for box, batches in others:
        for ours, theirs in zip(expected, batches, strict=False):
            if ours.content != theirs.content:
                found.append(f"{replicas[box].name}: box {box} has another batch at {theirs.base_offset} than box {reference} at {ours.base_offset}")
                break
    return found
