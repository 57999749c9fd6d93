"""A window of a segment file as memory: mapped out of the page cache where it is all there, else read beside it, so that a backfill drives nothing out.

Owned by one reader. Pages are brought in by MADV_POPULATE_READ, which reports a failing disk as an error; to touch them alone would end the process with
SIGBUS. Weak spots: a kernel before 5.14 cannot do that; pages may be evicted between the look and the map, and are then read one by one.
"""

from __future__ import annotations

import errno
import mmap
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

from appliance.storage import file_io
from appliance.storage.cold_file import ACTIVE_WAYS, SEALED_WAYS, ColdFile
from appliance.storage.page_cache import PAGE_BYTES, Cachestat, FileMap, pages_of

MADV_POPULATE_READ = 22


class Window(NamedTuple):
    """`memory[n]` is the byte at `start` + n of the file."""

    memory: memoryview
    start: int


class SegmentFile:
    """One open segment. `descriptor` is taken over, and closed with the rest."""

    def __init__(self, descriptor: int, path: str, is_active: bool) -> None:
        self._descriptor = descriptor
        self._path = path
        self._ways = ACTIVE_WAYS if is_active else SEALED_WAYS
        self._cold: ColdFile | None = None
        self._figures = file_io.fstat(descriptor)

    @property
    def inode(self) -> int:
        return self._figures.st_ino

    @property
    def size_bytes(self) -> int:
        """When it was opened."""
        return self._figures.st_size

    def close(self) -> None:
        file_io.close(self._descriptor)
        if self._cold is not None:
            self._cold.close()

    @contextmanager
    def window(self, position: int, end: int) -> Iterator[Window]:
        """The bytes from `position` (or a little before) to `end`. Raises OSError when the disk fails."""
        start = position // PAGE_BYTES * PAGE_BYTES
        content = self._mapped(start, end) if self._is_resident(start, end - start) else self._read(start, end)
        memory = memoryview(content)
        try:
            yield Window(memory, start)
        finally:
            with suppress(BufferError):  # somebody looks at it still; it goes with the last view
                memory.release()
                content.close()

    def _is_resident(self, position: int, size_bytes: int) -> bool:
        pages = Cachestat().pages(self._descriptor, position, size_bytes)
        if pages < 0:
            pages = FileMap(self._descriptor).resident_pages(position, size_bytes)
        return pages == pages_of(position, size_bytes)

    def _mapped(self, start: int, end: int) -> mmap.mmap:
        mapped = mmap.mmap(self._descriptor, end - start, access=mmap.ACCESS_READ, offset=start)
        try:
            mapped.madvise(MADV_POPULATE_READ)
        except OSError as error:
            if error.errno != errno.EINVAL:
                mapped.close()
                raise
        return mapped

    def _read(self, start: int, end: int) -> mmap.mmap:
        if self._cold is None:
            cold = ColdFile(self._path, self._ways)
            if cold.inode != self.inode:
                cold.close()
                return self._mapped(start, end)  # the name is another file's by now, and this one will not come back
            self._cold = cold
        room = mmap.mmap(-1, -(-(end - start) // PAGE_BYTES) * PAGE_BYTES)
        with memoryview(room) as view:
            count = self._cold.read_into(view, start)
        if count < end - start:
            raise OSError(errno.EIO, f"{self._path} ends at byte {start + count}, before byte {end}")
        return room
