"""Read the cold part of a segment in large aligned pieces, and leave the page cache as it was.

Three ways, tried in an order that fits the segment; the next one if file system or kernel refuses:

* `DIRECT` (O_DIRECT): no copy, and no page in flight that an acceptor could wait for.
* `DROPPING` (RWF_DONTCACHE, Linux >= 6.14).
* `ADVISED`: a plain read, then DONTNEED of what was not resident before.

For a segment that still grows DROPPING comes first: a direct read takes the file's lock shared, and
the log-writer's append would wait for it. Owned by a log-reader; its threads call `read_into`, one
call for one view at a time. Weak spot: ADVISED works in steps of 64 KiB and leaves a step alone that
was partly resident.
"""

from __future__ import annotations

import errno
import mmap
import os

from appliance.storage import file_io, page_cache

DIRECT, DROPPING, ADVISED = "direct", "dropping", "advised"
SEALED_WAYS = (DIRECT, DROPPING, ADVISED)
ACTIVE_WAYS = (DROPPING, ADVISED)

_RWF_DONTCACHE = 0x80
_STEP_BYTES = 64 << 10
_NOT_SUPPORTED = (errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS)


class ColdFile:
    """One open segment.

    `inode` identifies it while it is open, also if it is renamed or removed. Raises OSError.
    """

    def __init__(self, path: str, ways: tuple[str, ...]) -> None:
        self._ways = ways
        self._chosen = 0
        self._direct = -1
        self._plain = file_io.open_path(path, file_io.READ_ONLY)
        try:
            file_io.advise(self._plain, 0, 0, file_io.RANDOM)  # what we want to have ahead we read ahead
            self.inode = file_io.fstat(self._plain).st_ino
            if self.way == DIRECT:
                self._open_direct(path)
        except OSError:
            self.close()
            raise

    def _open_direct(self, path: str) -> None:
        """Open it anew for direct reads; the name may belong to another file by now."""
        try:
            self._direct = file_io.open_path(path, file_io.READ_ONLY | os.O_DIRECT)
        except OSError as error:
            if error.errno not in (*_NOT_SUPPORTED, errno.ENOENT):
                raise
        if self._direct < 0 or file_io.fstat(self._direct).st_ino != self.inode:
            self._chosen = 1

    @property
    def way(self) -> str:
        """The way of reading in use: DIRECT, DROPPING or ADVISED."""
        return self._ways[self._chosen]

    def read_into(self, view: memoryview, position: int) -> int:
        """Fill `view` (page-aligned, whole pages) from `position` (page-aligned).

        Returns the bytes read, fewer only at the end of the file. Raises OSError.
        """
        while True:
            chosen = self._chosen
            way = self._ways[chosen]
            try:
                if way == DIRECT:
                    return _read(self._direct, view, position, 0)
                if way == DROPPING:
                    return _read(self._plain, view, position, _RWF_DONTCACHE)
            except OSError as error:
                if error.errno not in _NOT_SUPPORTED:
                    raise
                self._chosen = chosen + 1  # the other thread may have seen it, too
                continue
            return self._read_advised(view, position)

    def _read_advised(self, view: memoryview, position: int) -> int:
        steps = [(at, min(_STEP_BYTES, position + len(view) - at)) for at in range(position, position + len(view), _STEP_BYTES)]
        cold = [step for step in steps if not self._is_resident_in_part(*step)]
        count = _read(self._plain, view, position, 0)
        for at, size_bytes in cold:
            file_io.advise(self._plain, at, size_bytes, file_io.NOT_NEEDED)
        return count

    def size_bytes(self) -> int:
        """Return the present size of the file."""
        return file_io.size_of(self._plain)

    def is_resident(self, position: int, size_bytes: int) -> bool:
        """Return whether a whole range is in the page cache; False if the kernel cannot report it."""
        return page_cache.Cachestat().pages(self._plain, position, size_bytes) == page_cache.pages_of(position, size_bytes)

    def is_deleted(self) -> bool:
        """Return whether the file has no name any more.

        Its space is freed when the last descriptor is closed.
        """
        return file_io.fstat(self._plain).st_nlink == 0

    def _is_resident_in_part(self, position: int, size_bytes: int) -> bool:
        pages = page_cache.Cachestat().pages(self._plain, position, size_bytes)
        if pages < 0:
            pages = page_cache.FileMap(self._plain).resident_pages(position, size_bytes)
        return pages > 0

    def close(self) -> None:
        """Close the descriptors; a second call does nothing."""
        file_io.close_all(descriptor for descriptor in (self._plain, self._direct) if descriptor >= 0)
        self._plain = self._direct = -1


class ColdFileReader:
    """Reads any range through aligned reads, as `SegmentScan` needs them. For one thread."""

    def __init__(self, cold: ColdFile) -> None:
        self._cold = cold
        self._memory = mmap.mmap(-1, 2 * page_cache.PAGE_BYTES)

    def read(self, _descriptor: int, position: int, size_bytes: int) -> bytes:
        """Return `size_bytes` from `position`, fewer only at the end of the file.

        Raises OSError.
        """
        before = position % page_cache.PAGE_BYTES
        whole = -(-(before + size_bytes) // page_cache.PAGE_BYTES) * page_cache.PAGE_BYTES
        if whole > len(self._memory):
            self._memory = mmap.mmap(-1, whole)
        with memoryview(self._memory) as memory:
            count = self._cold.read_into(memory[:whole], position - before)
            return bytes(memory[before : min(count, before + size_bytes)])


def _read(descriptor: int, view: memoryview, position: int, flags: int) -> int:
    count = 0
    while count < len(view):
        some = file_io.preadv(descriptor, [view[count:]], position + count, flags)
        count += some
        if not some or some % page_cache.PAGE_BYTES:
            break  # the end of the file: a direct read could not go on from here either
    return count
