"""Messages between a log-writer and its mover: one job, then orders and reports; packets of JSON.

They pass through a socket pair. Both sides import this, so it stays light. A packet that does not fit
the socket's buffer is not sent: the next progress report replaces a lost one, an order is repeated.
Weak spot: a job must fit into one packet, some 200 KB.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import orjson

from appliance.storage.move_record import Complete

FINISH, THROTTLE = "finish", "throttle"
PROGRESS, COMPLETE, FAILED = "progress", "complete", "failed"
PACKET_BYTES_MAX = 1 << 18
NO_THROTTLE = 2**63 - 1


class MoveJob(NamedTuple):
    """Copy the log in `source_path`, a partition of the disk `source_disk`, to `path`, a future on `disk`. With `finish` only to there."""

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
        return orjson.dumps(self._asdict() | {"finish": self.finish and self.finish._asdict()})

    @classmethod
    def decode(cls, packet: bytes) -> MoveJob:
        fields: dict[str, Any] = orjson.loads(packet)
        return cls(**fields | {"finish": _complete(fields["finish"])})


class MoveCommand(NamedTuple):
    """FINISH: copy to exactly there, complete, end; without offsets go on as before. THROTTLE: from now on."""

    kind: str
    finish: Complete | None = None
    bytes_per_second: int = NO_THROTTLE

    def encode(self) -> bytes:
        return orjson.dumps(self._asdict() | {"finish": self.finish and self.finish._asdict()})

    @classmethod
    def decode(cls, packet: bytes) -> MoveCommand:
        fields: dict[str, Any] = orjson.loads(packet)
        return cls(**fields | {"finish": _complete(fields["finish"])})


class MoveSaid(NamedTuple):
    """PROGRESS with figures (-1: not known); FAILED is a last word; PROGRESS after COMPLETE: that was taken back."""

    kind: str
    is_caught_up: bool = False
    log_end_offset: int = -1
    size_bytes: int = -1
    source_log_end_offset: int = -1
    lag_bytes: int = -1
    bytes_per_second: int = 0
    reason: str = ""

    def encode(self) -> bytes:
        return orjson.dumps(self._asdict())

    @classmethod
    def decode(cls, packet: bytes) -> MoveSaid:
        return cls(**orjson.loads(packet))


def _complete(fields: dict[str, int] | None) -> Complete | None:
    return Complete(**fields) if fields else None
