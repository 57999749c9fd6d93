"""The `.snapshot` files of a partition: find them, write the next, load the newest.

Owned by its log. One rule keeps starts quick: *no snapshot file means that no batch with a producer
id was ever written*. So an empty snapshot precedes the first such batch. Later ones follow every
`SNAPSHOT_INTERVAL_BYTES`, at each roll and at close, and a start replays batch headers from the
newest one only. The snapshot of a roll is of the offset where the new segment begins, and stays as
long as that segment: when older segments are removed, it alone holds what they said of producers.
The flush round syncs the files before the recovery point passes them.

Weak spots: each file is written whole, so tens of thousands of live producers on one partition make
rolls slow; a file that a flush round is about to sync counts as synced.

Snapshot:

* Steps: `.tmp` → rename → those older than the newest synced one unlinked (unless a segment begins
  there).
* Repair: open takes the newest good one at or below the log end. Newer and damaged ones are
  deleted, durably, when a good one is there and synced. If all are lost: replay from the first
  producer batch that the scan found.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from itertools import pairwise

from appliance.base.model import NO_OFFSET, Offset
from appliance.records.batch import read_batch_header
from appliance.records.control_batch import read_end_transaction_marker
from appliance.storage import file_io
from appliance.storage.append_plan import SegmentPart
from appliance.storage.producer_state import BrokenSnapshot, ProducerState
from appliance.storage.segment_files import SNAPSHOT_SUFFIX, offset_of_name, segment_name, segment_path

SNAPSHOT_INTERVAL_BYTES = 64 * 1024 * 1024


class ProducerSnapshots:
    """The snapshots of one log, known by their offsets in ascending order.

    Methods that touch files raise OSError.
    """

    def __init__(self, directory: str, names: list[str]) -> None:
        self._directory = directory
        self._offsets = sorted(offset for name in names if (offset := offset_of_name(name, SNAPSHOT_SUFFIX)) is not None)
        self._unsynced: set[Offset] = set()
        self._rejected: list[Offset] = []
        self._due: dict[Offset, bytes] = {}
        """Of rolls whose snapshot could not be written: they are tried again."""

    @property
    def latest(self) -> Offset | None:
        """The offset of the newest snapshot, None without any."""
        return self._offsets[-1] if self._offsets else None

    def write(self, offset: Offset, state: ProducerState, segment_bases: Container[Offset]) -> None:
        """Write `state` as the snapshot of everything below `offset`.

        Snapshots older than a synced one are removed, unless a segment begins there.
        """
        self._write(offset, state.encode(), segment_bases)

    def write_rolled(self, rolled: Sequence[tuple[Offset, bytes]], segment_bases: Container[Offset]) -> None:
        """Write the snapshots of `snapshots_at_rolls`.

        After OSError the rest is written with the next ones.
        """
        self._due.update(each for each in rolled if each[0] not in self._offsets)  # one that is durable must not be torn by writing it again
        for offset in sorted(self._due):
            self._write(offset, self._due[offset], segment_bases)
            del self._due[offset]

    def fill_in(self, base_offset: Offset, state: ProducerState) -> None:
        """Write the state of a replay at the start of a segment without a snapshot, durably: the
        recovery point may be above it.
        """
        if base_offset not in self._offsets and len(state):
            self.overwrite(base_offset, state)

    def overwrite(self, offset: Offset, state: ProducerState) -> None:
        """Write `state` as the snapshot of everything below `offset`, durably, and remove no other."""
        file_io.replace_file(self._path(offset), state.encode())
        self._offsets = sorted({*self._offsets, offset})
        self._unsynced.discard(offset)

    def _write(self, offset: Offset, content: bytes, segment_bases: Container[Offset]) -> None:
        file_io.replace_file(self._path(offset), content, durable=False)
        self._unsynced.add(offset)
        if offset not in self._offsets:
            self._offsets = sorted((*self._offsets, offset))
        durable = max((known for known in self._offsets if known not in self._unsynced), default=NO_OFFSET)
        for known in [known for known in self._offsets if known < durable and known not in segment_bases]:
            self._remove(known)

    def load(self, state: ProducerState, end_offset: Offset) -> Offset | None:
        """Fill `state` from the newest good snapshot at or below `end_offset`; return its offset,
        None if there is none.

        Newer and broken ones are forgotten, and deleted by `remove_rejected`.
        """
        state.clear()
        while self._offsets:
            offset = self._offsets[-1]
            if offset <= end_offset:
                try:
                    state.decode(file_io.read_file(self._path(offset)))
                except (BrokenSnapshot, FileNotFoundError):
                    pass
                else:
                    return offset
            self._rejected.append(self._offsets.pop())
            self._unsynced.discard(offset)
        return None

    def remove_rejected(self) -> None:
        """Delete the snapshots that `load` rejected, once a better one exists: without any snapshot
        a start assumes that there are no producers. Durably: after a power cut none may be back
        when the log has grown past it.
        """
        rejected, self._rejected = [offset for offset in self._rejected if offset not in self._offsets], []
        if not rejected:
            return
        latest = self.latest
        if latest is not None and latest in self._unsynced:
            file_io.sync_path(self._path(latest))
            self._unsynced.discard(latest)
        for offset in rejected:
            file_io.unlink_if_there(self._path(offset))
        file_io.fsync_directory(self._directory)

    def load_older(self, state: ProducerState, offset: Offset) -> Offset | None:
        """Fill `state` from the newest good snapshot at or below `offset`; return its offset, None
        if there is none. Nothing is forgotten.
        """
        for known in reversed(self._offsets):
            if known <= offset:
                try:
                    state.decode(file_io.read_file(self._path(known)))
                except (BrokenSnapshot, FileNotFoundError):
                    continue
                return known
        return None

    def outlive(self, base_offset: Offset, state_at: Callable[[Offset], ProducerState]) -> None:
        """Make the snapshot at `base_offset` durable, before everything below that segment is
        removed.

        A younger snapshot does not suffice, because the log may be truncated below it. Usually the
        roll wrote it and a flush round synced it; if it is missing, `state_at` returns the state.
        Raises OSError.
        """
        if self.latest is None:
            return
        if base_offset not in self._offsets:
            self._write(base_offset, self._due.get(base_offset) or state_at(base_offset).encode(), (base_offset, *self._offsets))
            self._due.pop(base_offset, None)
        if base_offset in self._unsynced:
            self.make_durable(base_offset)

    def make_durable(self, offset: Offset) -> None:
        """Write a snapshot again instead of syncing it: this may be repeated after a failure."""
        file_io.replace_file(self._path(offset), file_io.read_file(self._path(offset)))
        self._unsynced.discard(offset)

    def let_go(self, offsets: Container[Offset]) -> list[str]:
        """Forget the snapshots of removed segments, but never the newest; return the paths to
        unlink.
        """
        gone = [offset for offset in self._offsets[:-1] if offset in offsets]
        self._offsets = [offset for offset in self._offsets if offset not in gone]
        self._unsynced.difference_update(gone)
        self._due = {offset: content for offset, content in self._due.items() if offset not in offsets}
        return [self._path(offset) for offset in gone]

    def remove_all(self) -> None:
        """Remove all snapshot files, also those that retention forgot and that wait for their
        removal.
        """
        self._due.clear()
        self._unsynced.clear()
        self._offsets.clear()
        for name in file_io.listdir(self._directory):
            if name.endswith(SNAPSHOT_SUFFIX):
                file_io.unlink_if_there(f"{self._directory}/{name}")

    def forget_below(self, offset: Offset) -> list[str]:
        """Forget snapshots below the new start of the log; return their file names, which the
        caller removes.

        The newest snapshot stays wherever it is: no snapshot would mean no producer.
        """
        forgotten = [known for known in self._offsets[:-1] if known < offset]
        self._offsets = self._offsets[len(forgotten) :]
        self._unsynced.difference_update(forgotten)
        self._due = {known: content for known, content in self._due.items() if known >= offset}
        return [segment_name(known, SNAPSHOT_SUFFIX) for known in forgotten]

    def distrust_from(self, recovery_point: Offset) -> None:
        """Count the files as unsynced: whether an earlier incarnation synced them is not known."""
        self._unsynced.update(offset for offset in self._offsets if offset >= recovery_point)

    def take_unsynced(self) -> list[str]:
        """Return the paths that the next flush round must sync."""
        paths = [self._path(offset) for offset in sorted(self._unsynced)]
        self._unsynced.clear()
        return paths

    def put_back_unsynced(self, paths: list[str]) -> None:
        """Mark these paths of `take_unsynced` as unsynced again."""
        known = {self._path(offset): offset for offset in self._offsets}
        self._unsynced.update(known[path] for path in paths if path in known)

    def _remove(self, offset: Offset) -> None:
        file_io.unlink_if_there(self._path(offset))
        self._unsynced.discard(offset)
        self._offsets.remove(offset)

    def _path(self, offset: Offset) -> str:
        return segment_path(self._directory, offset, SNAPSHOT_SUFFIX)


def snapshots_at_rolls(producers: ProducerState, parts: Sequence[SegmentPart]) -> list[tuple[Offset, bytes]]:
    """Return (base offset, snapshot) of each segment that an append of `parts` begins; `producers`
    is the state before it.
    """
    state = producers.copy()
    rolled = []
    for part, following in pairwise(parts):
        for batch in part.buffers:
            header = read_batch_header(batch)
            state.replay(header, read_end_transaction_marker(batch) if header.is_control else None)
        rolled.append((following.tail.base_offset, state.encode()))
    return rolled
