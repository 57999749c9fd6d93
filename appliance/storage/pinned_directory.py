"""A partition directory held by a descriptor: background work touches no other of that name.

Background tasks are planned in the log-writer's duty cycle and act in a thread or a child process. In
between the partition may be deleted (its directory is renamed, and removed in slices) and a topic of
the same name created, with files of the same names. With a path a task would get ENOENT, which looks
like a failed disk, or act on the new partition. The duty cycle pins the directory while the partition
is known to be there, so ENOENT at that moment means damage. Weak spot: one descriptor for as long as
the task takes.
"""

from __future__ import annotations

import os

from appliance.storage import file_io


class PinnedDirectory:
    """Close it when done. Raises OSError."""

    __slots__ = ("fd",)

    def __init__(self, path: str) -> None:
        self.fd = file_io.open_directory(path)

    @property
    def path(self) -> str:
        """Leads to the directory whatever it is called; for calls that take paths, in this process only."""
        return f"/proc/self/fd/{self.fd}"

    def sync_file(self, path: str) -> None:
        """Make a file of this directory durable, given by any path; one that is gone needs nothing. Raises `SyncFailed`."""
        file_io.sync_in(self.fd, os.path.basename(path))

    def sync(self) -> None:
        """Make the names in it durable; succeeds for a directory that was removed. Raises `SyncFailed`."""
        file_io.sync_all(self.fd)

    def close(self) -> None:
        fd, self.fd = self.fd, -1
        if fd >= 0:
            file_io.close_all((fd,))
