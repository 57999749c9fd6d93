"""The start offset of each leader epoch, and where a follower truncates a log that diverges.

Owned by its log. An assignment is written to `leader-epoch-checkpoint` at once, and synced by the
next flush round before the recovery point passes it. That suffices: after a power cut everything
above the recovery point is scanned, and the batches contain their epochs. A sync for each would
make a box that becomes leader of 500 partitions wait for seconds. Source: Kafka's
LeaderEpochFileCache.

A follower truncates by leader epoch, never by high watermark: it learns the high watermark one
fetch late, and after a leader change two logs can differ below it (KIP-101). The functions for that
are pure; the acceptor decides with them whether a fetch diverges. Several rounds may be needed:
each removes at least one epoch that the leader does not have, until the last common one ends at the
same offset in both (KIP-279, KIP-595's fetch). Weak spot: a log without known epochs cannot
diverge, so a log that holds records must hold an epoch for them.

Assign a leader epoch:

* Steps: `.tmp` → rename (synced by the next flush round). Repair: open adds epochs from the scan
  and removes those at or behind the log end; a torn file is rebuilt from all batch headers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import NamedTuple

from appliance.base.model import NO_LEADER_EPOCH, NO_OFFSET, LeaderEpoch, Offset
from appliance.storage import file_io
from appliance.storage.checkpoints import BrokenCheckpoint, decode_lines, encode_lines
from appliance.storage.segment_files import LEADER_EPOCH_CHECKPOINT

UNDEFINED_EPOCH = NO_LEADER_EPOCH
UNDEFINED_OFFSET = NO_OFFSET


class EpochStart(NamedTuple):
    """A leader epoch and the offset of its first record."""

    leader_epoch: LeaderEpoch
    start_offset: Offset


class LeaderEpochCache:
    """The leader epochs of a log, ascending strictly in epoch and in offset.

    Methods that change it raise OSError, and then nothing has changed.
    """

    def __init__(self, directory: str) -> None:
        self._path = f"{directory}/{LEADER_EPOCH_CHECKPOINT}"
        self._entries: list[EpochStart] = []
        self.latest = UNDEFINED_EPOCH
        self.is_synced = True

    def load(self) -> bool:
        """Read the checkpoint; a missing one is empty.

        Return False if it is damaged, and load nothing. Raises OSError.
        """
        self._set([])
        try:
            content = file_io.read_file(self._path)
            if not content:
                return False  # renamed before a power cut took its bytes: an empty file is never written
            entries = [EpochStart(LeaderEpoch(int(epoch)), Offset(int(offset))) for epoch, offset in decode_lines(content)]
        except FileNotFoundError:
            return True
        except (BrokenCheckpoint, ValueError):
            return False
        if any(not _ascends(one, other) for one, other in pairwise(entries)):
            return False
        self._set(entries)
        return True

    @property
    def entries(self) -> tuple[EpochStart, ...]:
        """All entries, ascending."""
        return tuple(self._entries)

    def assign(self, leader_epoch: LeaderEpoch, start_offset: Offset) -> None:
        """Start `leader_epoch` at `start_offset`.

        If it is the latest epoch and started earlier, nothing changes.
        """
        self.assign_all([(leader_epoch, start_offset)])

    def assign_all(self, starts: Iterable[tuple[LeaderEpoch, Offset]]) -> None:
        """Make several assignments with one write."""
        entries = self._entries
        for leader_epoch, start_offset in starts:
            if entries and leader_epoch == entries[-1].leader_epoch and start_offset >= entries[-1].start_offset:
                continue
            kept = [entry for entry in entries if entry.leader_epoch < leader_epoch and entry.start_offset < start_offset]
            entries = [*kept, EpochStart(leader_epoch, start_offset)]
        self._replace(entries)

    def take_over(self, entries: Iterable[tuple[LeaderEpoch, Offset]]) -> None:
        """Replace the entries by those of another log."""
        self._replace([EpochStart(*entry) for entry in entries])

    def truncate_from_end(self, end_offset: Offset) -> None:
        """Remove epochs that started at or behind `end_offset`."""
        self._replace([entry for entry in self._entries if entry.start_offset < end_offset])

    def truncate_from_start(self, start_offset: Offset) -> None:
        """Let the log start at `start_offset`: of the epochs that started at or before it, the last
        one stays and starts there.
        """
        before = [entry for entry in self._entries if entry.start_offset <= start_offset]
        if before:
            first = EpochStart(before[-1].leader_epoch, start_offset)
            self._replace([first, *self._entries[len(before) :]])

    def clear(self) -> None:
        """Remove all entries."""
        self._replace([])

    def end_offset_for(self, leader_epoch: LeaderEpoch, log_end_offset: Offset) -> tuple[LeaderEpoch, Offset]:
        """Return (largest known epoch ≤ `leader_epoch`, its end offset), (-1, -1) if unknown.

        Source: KIP-320.
        """
        if leader_epoch == UNDEFINED_EPOCH or leader_epoch > self.latest:
            return UNDEFINED_EPOCH, UNDEFINED_OFFSET
        if leader_epoch == self.latest:
            return leader_epoch, log_end_offset
        known = leader_epoch
        for index, entry in enumerate(self._entries):
            if entry.leader_epoch > leader_epoch:
                known = self._entries[index - 1].leader_epoch if index else leader_epoch
                return known, entry.start_offset
        return UNDEFINED_EPOCH, UNDEFINED_OFFSET

    def epoch_at(self, offset: Offset) -> LeaderEpoch:
        """Return the leader epoch of the record at `offset`, -1 if unknown."""
        for entry in reversed(self._entries):
            if entry.start_offset <= offset:
                return entry.leader_epoch
        return UNDEFINED_EPOCH

    def _replace(self, entries: list[EpochStart]) -> None:
        """File first, memory second: if the file cannot be written, nothing has changed."""
        if entries == self._entries:
            return
        file_io.replace_file(self._path, encode_lines(f"{epoch} {offset}" for epoch, offset in entries), durable=False)
        self.is_synced = False
        self._set(entries)

    @property
    def path(self) -> str:
        """The path of the checkpoint file, for a flush round."""
        return self._path

    def _set(self, entries: list[EpochStart]) -> None:
        self._entries = entries
        self.latest = entries[-1].leader_epoch if entries else UNDEFINED_EPOCH


def _ascends(one: EpochStart, other: EpochStart) -> bool:
    return one.leader_epoch < other.leader_epoch and one.start_offset < other.start_offset


EndOffsetFor = Callable[[LeaderEpoch, Offset], tuple[LeaderEpoch, Offset]]
"""(leader epoch, log end offset) → (largest known epoch ≤ it, where that ends), (-1, -1) when
nothing can be said: `LeaderEpochCache.end_offset_for`."""

UNDEFINED = -1


def truncation_offset(diverging_epoch: LeaderEpoch, diverging_end_offset: Offset, end_offset_for: EndOffsetFor, log_end_offset: Offset) -> Offset:
    """Return the offset (≤ `log_end_offset`) to truncate to after a leader has reported a
    divergence.

    The leader's largest epoch up to the one under which our log ends is `diverging_epoch`, and ends
    at `diverging_end_offset`. Our epochs that start at or behind it are removed too, even without
    records: otherwise the next fetch would diverge in the same way. Source: KIP-279, KIP-595.
    """
    if diverging_epoch == UNDEFINED_EPOCH or diverging_end_offset == UNDEFINED:
        return log_end_offset  # a leader that knows nothing of our epoch says so by OFFSET_OUT_OF_RANGE
    own_epoch, own_end_offset = end_offset_for(diverging_epoch, log_end_offset)
    if own_epoch == UNDEFINED:
        return min(diverging_end_offset, log_end_offset)
    if own_epoch != diverging_epoch:
        return min(own_end_offset, log_end_offset)
    return min(own_end_offset, diverging_end_offset, log_end_offset)


def is_diverging(last_fetched_epoch: LeaderEpoch, fetch_offset: Offset, known_epoch: LeaderEpoch, end_offset: Offset) -> bool:
    """Return whether a log that ends at `fetch_offset` under `last_fetched_epoch` diverges from the
    leader's.

    `known_epoch` is the leader's largest epoch up to `last_fetched_epoch`, and ends at
    `end_offset`.
    """
    return known_epoch < last_fetched_epoch or end_offset < fetch_offset
