"""What a partition's segments hold on disk, batch by batch, read with our own scanner after the fact."""

from __future__ import annotations

from pathlib import Path

from appliance.records.batch import BatchHeader, read_batch_header
from lab.running_box import RunningBox


def stored_batches(box: RunningBox, topic: str, partition: int) -> list[BatchHeader]:
    """Headers of all batches of a partition, in order."""
    headers = []
    for disk in box.disks:
        for segment in sorted((disk / f"{topic}-{partition}").glob("*.log")):
            content = Path(segment).read_bytes()
            position = 0
            while position < len(content):
                header = read_batch_header(content, position)
                headers.append(header)
                position += header.size_bytes
    return headers
