"""Moves of partitions between disks, as commands show them: what is ordered (image) and how far it is (reports of the target disks).

No log disk is touched. Weak spot: a report is written about once a second.
"""

from __future__ import annotations

from collections.abc import Iterable

from appliance.base.layout import BoxLayout
from appliance.cluster.metadata_image import MetadataImage
from appliance.command.output import NOTHING, Column, bytes_text, count_text
from appliance.ipc.disk_reports import WAITING, MoveProgress, moves_file, read_moves


def standing_moves(layout: BoxLayout, image: MetadataImage, disk_names: Iterable[str]) -> tuple[MoveProgress, ...]:
    """Every move that is ordered; one that no report names yet is waiting."""
    reports = {(move.target_disk, move.topic, move.partition): move for disk in disk_names for move in read_moves(moves_file(layout, disk))}
    moves = []
    for topic in image.topics.values():
        for number, partition in enumerate(topic.partitions):
            if partition.moving_to is None or partition.disk is None:
                continue
            reported = reports.get((partition.moving_to, topic.name, number))
            if reported is None or reported.topic_id != str(topic.topic_id):
                reported = MoveProgress(topic.name, number, str(topic.topic_id), partition.disk, partition.moving_to, WAITING)
            moves.append(reported)
    return tuple(sorted(moves, key=lambda move: (move.source_disk, move.target_disk, move.topic, move.partition)))


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
