"""What must be synced before a log's recovery point may advance, handed to a flush thread.

The log makes it in the log-writer's duty cycle; any thread syncs it, once. The descriptors are
duplicates, so the log may roll, truncate or close meanwhile; the directory is pinned, so the
partition may be deleted. A round that could not even begin to sync (no descriptor for a small file)
goes back to its log with `Log.take_back`. Weak spot: many logs are synced one by one; for one
`syncfs` instead, call `release` and use `end_offset`.
"""

from __future__ import annotations

from typing import NamedTuple

from appliance.storage import file_io
from appliance.storage.pinned_directory import PinnedDirectory


class FlushRound(NamedTuple):
    """Everything below `end_offset` is durable once `sync` has returned; then `Log.advance_recovery_point(end_offset)`."""

    end_offset: int
    files: list[int]
    """Duplicated descriptors: logs and indexes."""
    paths: list[str]
    """Small files that were replaced: leader epochs, producer snapshots."""
    pinned: PinnedDirectory | None
    """The partition directory, if names in it changed; there is one if there are `paths`."""
    is_whole: bool = True
    """False: there was more than one round may take; ask the log again when this one is done."""

    def sync(self) -> None:
        """Sync all of it and release the descriptors. `SyncFailed` means: never try again, this log directory goes offline."""
        try:
            for fd in self.files:
                file_io.sync_data(fd)
            if self.pinned is not None:
                for path in self.paths:
                    self.pinned.sync_file(path)
                self.pinned.sync()
        finally:
            self.release()

    def release(self) -> None:
        files = list(self.files)
        self.files.clear()
        file_io.close_all(files)
        if self.pinned is not None:
            self.pinned.close()
