"""The progress of a starting log-writer in bytes, and how long the rest takes.

After an unclean boot a log's share is what is above its recovery point, estimated from the sizes of
its files before any is opened; otherwise next to nothing is read. Each share includes the cost of
opening a log. Published in the table (RECOVERY_DONE, RECOVERY_TOTAL), sent to the supervisor a few
times a second, shown by `millrace status`. Weak spot: it is an estimate. A log whose indexes do not
match is read whole, which is noticed only then; its share never counts for more than it was given.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from appliance.base.clock import Clock
from appliance.base.model import Offset, TopicPartition
from appliance.shm.partition_table import PartitionTableWriter
from appliance.storage import file_io
from appliance.storage.segment_files import LOG_SUFFIX, offset_of_name, segment_path

OPEN_BYTES = 256 * 1024
"""Opening a log takes about as long as reading and checking so much."""
TELL_NS = 200_000_000


class RecoveryProgress:
    """One start. `tell` gets words for people."""

    def __init__(self, shares: Mapping[TopicPartition, int], table: PartitionTableWriter, clock: Clock, tell: Callable[[str], None]) -> None:
        self._shares = shares
        self._table = table
        self._clock = clock
        self._tell = tell
        self._total = sum(shares.values())
        self._done = 0
        self._left_in_share = 0
        self._started_ns = clock.monotonic_ns()
        self._told_ns = 0
        self._publish()

    def begin(self, name: TopicPartition) -> None:
        """This log is opened now."""
        self._left_in_share = self._shares[name]

    def on_scanned(self, size_bytes: int) -> None:
        step = min(size_bytes, self._left_in_share)
        self._left_in_share -= step
        self._advance(step)

    def end(self) -> None:
        """The log is open, or stays closed in this incarnation."""
        step, self._left_in_share = self._left_in_share, 0
        self._advance(step)

    def put_off(self, name: TopicPartition) -> None:
        """It will be opened later: what was done for it was for nothing."""
        self._advance(self._left_in_share - self._shares[name])
        self._left_in_share = 0

    def skip(self, name: TopicPartition) -> None:
        """Count a log that stays closed in this incarnation as done."""
        self.begin(name)
        self.end()

    def _advance(self, step: int) -> None:
        self._done += step
        self._publish()
        if self._clock.monotonic_ns() - self._told_ns > TELL_NS:
            self._told_ns = self._clock.monotonic_ns()
            self._tell(str(self))

    def _publish(self) -> None:
        self._table.set_recovery_progress(self._done, self._total)

    def __str__(self) -> str:
        """As in "63 %, 4 s left"."""
        if not self._done:
            return "0 %"
        elapsed_s = (self._clock.monotonic_ns() - self._started_ns) / 1e9
        left_s = elapsed_s / self._done * (self._total - self._done)
        return f"{self._done * 100 // self._total} %, {left_s:.0f} s left"


def share_of(directory: str, recovery_point: Offset, first_bytes_max: int) -> int:
    """What recovering this log after an unclean boot will read, about.

    Of the segment that holds the recovery point at most `first_bytes_max`: rounds begin before more
    is unflushed.
    """
    try:
        bases = sorted(base for name in file_io.listdir(directory) if (base := offset_of_name(name, LOG_SUFFIX)) is not None)
        first = max((base for base in bases if base <= recovery_point), default=0)
        sizes = {base: file_io.stat(segment_path(directory, base, LOG_SUFFIX)).st_size for base in bases if base >= first}
    except OSError:
        return OPEN_BYTES  # opening it reports what is wrong
    return OPEN_BYTES + sum(min(size, first_bytes_max) if base == first and recovery_point > base else size for base, size in sizes.items())
