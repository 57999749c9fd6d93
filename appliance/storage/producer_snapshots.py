"""The `.snapshot` files of a partition: which exist, writing the next, loading the newest.

Owned by its log. The rule that keeps starts quick: *no snapshot file means that no batch with a producer id was ever written*. So the
first such batch is preceded by an (empty) snapshot, later ones follow every `SNAPSHOT_INTERVAL_BYTES`, at each roll and at close, and a start
replays batch headers from the newest one only. Files are synced by the flush round, before the recovery point passes them.
Weak spot: each is written whole, so tens of thousands of live producers on one partition make rolls slow.
"""

from __future__ import annotations

from collections.abc import Container

from appliance.storage import file_io
from appliance.storage.producer_state import BrokenSnapshot, ProducerState
from appliance.storage.segment_files import SNAPSHOT_SUFFIX, offset_of_name, segment_name, segment_path

SNAPSHOT_INTERVAL_BYTES = 64 * 1024 * 1024


class ProducerSnapshots:
    """Snapshot offsets in ascending order."""

    def __init__(self, directory: str, names: list[str]) -> None:
        self._directory = directory
        self._offsets = sorted(offset for name in names if (offset := offset_of_name(name, SNAPSHOT_SUFFIX)) is not None)
        self._unsynced: set[int] = set()
        self._rejected: list[int] = []

    @property
    def latest(self) -> int | None:
        return self._offsets[-1] if self._offsets else None

    def write(self, offset: int, state: ProducerState, segment_bases: Container[int]) -> None:
        """Keep `state` as that of everything below `offset`. The previous snapshot goes unless a segment begins there."""
        file_io.replace_file(self._path(offset), state.encode(), durable=False)
        self._unsynced.add(offset)
        previous = self.latest
        if offset not in self._offsets:
            self._offsets.append(offset)
            self._offsets.sort()
        if previous is not None and previous < offset and previous not in segment_bases:
            self._remove(previous)

    def load(self, state: ProducerState, end_offset: int) -> int | None:
        """Fill `state` from the newest good snapshot at or below `end_offset` and return its offset; None if there is none.
        Newer and broken ones are forgotten, and deleted by `remove_rejected`."""
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
        """Delete what `load` would not take, once a better one is there: with none, nobody would know of producers. Durably: a power cut must not bring
        one back when the log has grown past it."""
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

    def outlive(self, offset: int, end_offset: int, state: ProducerState, segment_bases: Container[int]) -> None:
        """Everything below `offset` is about to go: what it says of producers must stand in a snapshot that survives a power cut. As a rule one does; it is
        written and synced here where the last roll could not write its own, or when even young segments go. Raises OSError."""
        latest = self.latest
        if latest is None or any(known >= offset and known not in self._unsynced for known in self._offsets):
            return
        if latest < offset:
            self.write(end_offset, state, segment_bases)
            latest = end_offset
        file_io.sync_path(self._path(latest))
        file_io.fsync_directory(self._directory)
        self._unsynced.discard(latest)

    def let_go(self, offsets: Container[int]) -> list[str]:
        """Of segments that are gone: forget their snapshots (never the newest); the paths to unlink."""
        gone = [offset for offset in self._offsets[:-1] if offset in offsets]
        self._offsets = [offset for offset in self._offsets if offset not in gone]
        self._unsynced.difference_update(gone)
        return [self._path(offset) for offset in gone]

    def remove_all(self) -> None:
        for offset in list(self._offsets):
            self._remove(offset)

    def forget_below(self, offset: int) -> list[str]:
        """The log begins at `offset` now: names of the files of older snapshots, no longer known here, for the caller to remove. The newest
        snapshot stays, wherever it is: no snapshot would mean no producer."""
        forgotten = [known for known in self._offsets[:-1] if known < offset]
        self._offsets = self._offsets[len(forgotten) :]
        self._unsynced.difference_update(forgotten)
        return [segment_name(known, SNAPSHOT_SUFFIX) for known in forgotten]

    def distrust_latest(self) -> None:
        """Nobody knows whether a former life synced it."""
        self._unsynced.update(self._offsets[-1:])

    def take_unsynced(self) -> list[str]:
        """Paths that the next flush round must sync."""
        paths = [self._path(offset) for offset in sorted(self._unsynced)]
        self._unsynced.clear()
        return paths

    def put_back_unsynced(self, paths: list[str]) -> None:
        """What `take_unsynced` gave was not synced after all."""
        known = {self._path(offset): offset for offset in self._offsets}
        self._unsynced.update(known[path] for path in paths if path in known)

    def _remove(self, offset: int) -> None:
        file_io.unlink_if_there(self._path(offset))
        self._unsynced.discard(offset)
        self._offsets.remove(offset)

    def _path(self, offset: int) -> str:
        return segment_path(self._directory, offset, SNAPSHOT_SUFFIX)
