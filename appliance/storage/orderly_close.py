"""Close the logs of a disk at a clean stop: last entries, one sync for all, then descriptors.

A log that closes by itself syncs each of its files, and each sync may cost a flush of the device: 250
logs that had just been written took a second of the second that a restart of their log-writer may
take. One `syncfs` does the same for all (`batch_flush` has its cost for others). If the kernel does
not report failed writes there, each log syncs for itself. After a failure or a crash at any step
there is no clean marker, so the next start recovers.
"""

from __future__ import annotations

from collections.abc import Collection

from appliance.base.errors import StorageFailed
from appliance.storage import file_io
from appliance.storage.log import Log
from appliance.storage.log_directory import LogDirectory

TOGETHER_MIN = 8
"""Fewer logs sync for themselves: `syncfs` writes out what other programs have on the same file system, too."""


def close_logs(directory: LogDirectory, logs: Collection[Log], together_min: int = TOGETHER_MIN) -> None:
    """Afterwards every recovery point is its log's end. Raises `StorageFailed`; the logs are closed all the same."""
    try:
        if len(logs) >= together_min and file_io.syncfs_tells_errors():
            for log in logs:
                log.write_last_entries()
            directory.sync_file_system()
            for log in logs:
                log.on_file_system_synced()
        for log in logs:
            log.close()
    except StorageFailed:
        for log in logs:
            log.abandon()
        raise
