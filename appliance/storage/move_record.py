"""`move.json`: the state of a copy of a log on another disk, and the proof that it is complete.

The mover writes it while it copies; the log-writer of the target disk reads it. The file lies in the
`-future` directory and stays in it through the rename that makes it a partition, so `complete` stands
in for the checkpoints of the directory until those say the same. Weak spot: the format is ours; Kafka
would find it in a partition directory only for the moment between promotion and settling.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import orjson

from appliance.base.model import TopicPartition
from appliance.storage import file_io
from appliance.storage.checkpoints import HIGH_WATERMARKS, LOG_START_OFFSETS, RECOVERY_POINTS
from appliance.storage.producer_state import RecentBatches

MOVE_RECORD = "move.json"


class Complete(NamedTuple):
    """The copy ends where the source ended, everything in it is durable, and its log was closed."""

    log_end_offset: int
    high_watermark: int
    log_start_offset: int

    def checkpoint_lines(self) -> dict[str, int]:
        """What each checkpoint of the target disk will say of the log."""
        return {RECOVERY_POINTS: self.log_end_offset, HIGH_WATERMARKS: self.high_watermark, LOG_START_OFFSETS: self.log_start_offset}


class MoveRecord(NamedTuple):
    """Everything below `recovery_point` was copied and synced; `source_cleaned_offset` is where the source's compaction stood when the copy began."""

    topic: str
    partition: int
    source_disk: str
    source_directory_id: str
    source_cleaned_offset: int = 0
    recovery_point: int = 0
    complete: Complete | None = None
    recent_batches: Sequence[RecentBatches] = ()
    """With `complete`: what the producer snapshot does not tell. A client that lost its connection over the move may send its last five batches again."""

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    def encode(self) -> bytes:
        return orjson.dumps(self._asdict() | {"complete": self.complete and self.complete._asdict()})

    @classmethod
    def decode(cls, content: bytes) -> MoveRecord:
        """Raises `ValueError` for what is none."""
        try:
            fields = orjson.loads(content)
            complete = fields["complete"]
            return cls(**fields | {"complete": complete and Complete(**complete)})
        except (TypeError, KeyError) as problem:
            raise ValueError(f"it is not the record of a move: {problem}") from None


def read_move(directory: str) -> MoveRecord | None:
    """None if there is none. Raises `ValueError` for a broken one (it is replaced whole, so only damage makes one)."""
    try:
        return MoveRecord.decode(file_io.read_file(f"{directory}/{MOVE_RECORD}"))
    except FileNotFoundError:
        return None


def write_move(directory: str, record: MoveRecord) -> None:
    """Durable when it returns."""
    file_io.replace_file(f"{directory}/{MOVE_RECORD}", record.encode())
