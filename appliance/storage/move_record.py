"""`move.json`, the state of a copy of a log; and the messages between log-writer and mover.

The mover writes the file while it copies; the log-writer of the target disk reads it. It lies in
the `-future` directory and stays in it through the rename that makes it a partition, so `complete`
stands in for the checkpoints of the directory until those say the same. Weak spot: the format is
ours; Kafka would find it in a partition directory only for the moment between promotion and
settling.

The messages are one job, then orders and reports: packets of JSON on a socket pair. A packet that
does not fit the socket's buffer is not sent: the next progress report replaces a lost one, an order
is repeated. Weak spot: a job must fit into one packet, some 200 KB.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import orjson

from appliance.base.model import FIRST_OFFSET, NO_OFFSET, Offset, TopicPartition
from appliance.storage import file_io
from appliance.storage.checkpoints import HIGH_WATERMARKS, LOG_START_OFFSETS, RECOVERY_POINTS
from appliance.storage.producer_state import RecentBatches

MOVE_RECORD = "move.json"


class Complete(NamedTuple):
    """The end of a complete copy: it equals the source, everything in it is durable, and its log is
    closed.
    """

    log_end_offset: Offset
    high_watermark: Offset
    log_start_offset: Offset

    def checkpoint_lines(self) -> dict[str, Offset]:
        """Return the offset of the log in each checkpoint of the target disk."""
        return {RECOVERY_POINTS: self.log_end_offset, HIGH_WATERMARKS: self.high_watermark, LOG_START_OFFSETS: self.log_start_offset}


class MoveRecord(NamedTuple):
    """The state of a copy.

    Everything below `recovery_point` was copied and synced. `source_cleaned_offset`: the source's
    first dirty offset when the copy began.
    """

    topic: str
    partition: int
    source_disk: str
    source_directory_id: str
    source_cleaned_offset: Offset = FIRST_OFFSET
    recovery_point: Offset = FIRST_OFFSET
    complete: Complete | None = None
    recent_batches: Sequence[RecentBatches] = ()
    """With `complete`: what the producer snapshot does not tell. A client that lost its connection
    over the move may send its last five batches again."""

    @property
    def topic_partition(self) -> TopicPartition:
        """The partition that is moved."""
        return TopicPartition(self.topic, self.partition)

    def encode(self) -> bytes:
        """Return the content of `move.json`."""
        return orjson.dumps(self._asdict() | {"complete": self.complete and self.complete._asdict()})

    @classmethod
    def decode(cls, content: bytes) -> MoveRecord:
        """Parse the content of `move.json`. Raises `ValueError` if it is not a move record."""
        try:
            fields = orjson.loads(content)
            complete = fields["complete"]
            return cls(**fields | {"complete": complete and Complete(**complete)})
        except (TypeError, KeyError) as problem:
            raise ValueError(f"it is not the record of a move: {problem}") from None


def read_move(directory: str) -> MoveRecord | None:
    """Return the record in a directory, None if there is none.

    Raises `ValueError` if it is damaged, OSError.
    """
    try:
        return MoveRecord.decode(file_io.read_file(f"{directory}/{MOVE_RECORD}"))
    except FileNotFoundError:
        return None


def write_move(directory: str, record: MoveRecord) -> None:
    """Write the record durably. Raises OSError."""
    file_io.replace_file(f"{directory}/{MOVE_RECORD}", record.encode())


FINISH, THROTTLE = "finish", "throttle"
PROGRESS, COMPLETE, FAILED = "progress", "complete", "failed"
PACKET_BYTES_MAX = 1 << 18
NO_THROTTLE = 2**63 - 1


class MoveJob(NamedTuple):
    """The mover's job: copy the log in `source_path`, a partition of the disk `source_disk`, to
    `path`, a `-future` directory on `disk`.

    With `finish` the copy ends exactly there.
    """

    disk: str
    runtime_directory: str
    path: str
    source_disk: str
    source_path: str
    topic_id: str
    partition: int
    config: dict[str, str]
    bytes_per_second: int
    reserve_bytes: int
    reserve_percent: int
    finish: Complete | None = None

    def encode(self) -> bytes:
        """Return the job as a packet."""
        return orjson.dumps(self._asdict() | {"finish": self.finish and self.finish._asdict()})

    @classmethod
    def decode(cls, packet: bytes) -> MoveJob:
        """Parse a packet of `encode`."""
        fields: dict[str, Any] = orjson.loads(packet)
        return cls(**fields | {"finish": _complete(fields["finish"])})


class MoveCommand(NamedTuple):
    """FINISH: copy to exactly `finish`, complete and rest; without `finish` continue.

    THROTTLE: use a new rate from now on.
    """

    kind: str
    finish: Complete | None = None
    bytes_per_second: int = NO_THROTTLE

    def encode(self) -> bytes:
        """Return the order as a packet."""
        return orjson.dumps(self._asdict() | {"finish": self.finish and self.finish._asdict()})

    @classmethod
    def decode(cls, packet: bytes) -> MoveCommand:
        """Parse a packet of `encode`."""
        fields: dict[str, Any] = orjson.loads(packet)
        return cls(**fields | {"finish": _complete(fields["finish"])})


class MoveSaid(NamedTuple):
    """A report of the mover.

    PROGRESS has figures (-1: unknown); FAILED is the last report; PROGRESS after COMPLETE withdraws
    the completion.
    """

    kind: str
    is_caught_up: bool = False
    log_end_offset: Offset = NO_OFFSET
    size_bytes: int = -1
    source_log_end_offset: Offset = NO_OFFSET
    lag_bytes: int = -1
    bytes_per_second: int = 0
    reason: str = ""

    def encode(self) -> bytes:
        """Return the report as a packet."""
        return orjson.dumps(self._asdict())

    @classmethod
    def decode(cls, packet: bytes) -> MoveSaid:
        """Parse a packet of `encode`."""
        return cls(**orjson.loads(packet))


def _complete(fields: dict[str, Offset] | None) -> Complete | None:
    return Complete(**fields) if fields else None
