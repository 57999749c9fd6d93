"""A leader's partitions for tests of what followers and lagging consumers are answered: 50 records each, of which 20 are below the high watermark."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from appliance.base.model import Offset
from lab.scratch_layout import scratch_layout
from services.acceptor.connection import Connection
from tests.support.cold_segments import write_segment
from tests.support.stepped_fetches import TOPIC, Followed, SteppedFetches

BATCHES, END = 5, 50
Make = Callable[..., SteppedFetches]


def make_sides(tmp_path: Path) -> Iterator[Make]:
    """Partitions of 50 records, of which 20 are below the high watermark; boxes 1 (we) and 2 have replicas."""
    made: list[SteppedFetches] = []
    with scratch_layout() as layout:

        def maker(partitions: int = 1, high_watermark: int = 20, **more: Any) -> SteppedFetches:
            path = tmp_path / "segment.log"
            size_bytes = len(write_segment(path, BATCHES, 10, 10))
            side = SteppedFetches(layout, path, size_bytes // BATCHES, partitions, **more)
            made.append(side)
            side.assign((1, 2))
            position = high_watermark // 10 * side.batch_bytes
            for partition in range(partitions):
                side.change_row(
                    partition, high_watermark=high_watermark, last_stable_offset=high_watermark, watermark_position=position, isr_size=2, min_insync_replicas=2
                )
            return side

        yield maker
        for side in made:
            side.close()


def ask(side: SteppedFetches, *wanted: Followed, **more: Any) -> Any:
    """What one partition, the only or the first one, answers to a follower."""
    client = side.follow(side.connect(), wanted or [Followed(0)], **more)
    side.serve()
    return side.followed(client)[1][0]


def appended(side: SteppedFetches, partition: int, high_watermark: int | None = None) -> None:
    """One record more at the log end; the high watermark stays, or is there now."""
    row = side.placements[TOPIC, partition].table.read(partition)
    moved = row._replace(log_end_offset=row.log_end_offset + 1, active_position=row.active_position + 10)
    if high_watermark is not None:
        moved = moved._replace(high_watermark=Offset(high_watermark), last_stable_offset=Offset(high_watermark), watermark_position=moved.active_position)
    side.writer.store(partition, moved)


def in_session(side: SteppedFetches, client: Connection, *wanted: Followed) -> int:
    side.follow(client, wanted, (0, 0))
    side.serve()
    session_id, _ = side.followed(client)
    assert session_id
    side.progress()
    return session_id
