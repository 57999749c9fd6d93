"""Moves of partitions between disks, as commands show them."""

from __future__ import annotations

from appliance.command.output import NOTHING, Column, bytes_text, count_text
from appliance.ipc.disk_reports import MoveProgress

MOVE_COLUMNS = (
    Column("moving"),
    Column("from"),
    Column("to"),
    Column("state"),
    Column("copied", is_number=True),
    Column("left", is_number=True),
    Column("speed", is_number=True),
    Column("lag", is_number=True),
    Column("trouble"),
)


def move_row(move: MoveProgress) -> list[str]:
    return [
        f"{move.topic}-{move.partition}",
        move.source_disk,
        move.target_disk,
        move.state,
        _known(move.size_bytes),
        _known(move.lag_bytes),
        f"{bytes_text(move.bytes_per_second)}/s" if move.bytes_per_second else NOTHING,
        count_text(move.offset_lag) if move.source_log_end_offset >= 0 else NOTHING,
        move.reason,
    ]


def _known(size_bytes: int) -> str:
    return bytes_text(size_bytes) if size_bytes >= 0 else NOTHING
