"""Files of segments that left a log: renamed to `.deleted`, later removed in slices.

`Log.advance_log_start_offset` makes them in the log-writer's duty cycle; `rename` and
`DepartingFiles.remove_some` run in a thread. A crash leaves files under either name; when the log
is opened, everything below the log start offset and every `.deleted` is removed. The directory is
held by a descriptor, because a topic of the same name may be created between two steps, and its
first segment has the same file names. Files are shortened from their end, slice by slice, before
they are unlinked: freeing a gigabyte at once stalls a disk, and space is freed even if a reader has
the file open. Weak spot: a reader that sends from such a file for longer than the delay loses its
connection.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping

from appliance.base.model import Offset
from appliance.storage import file_io
from appliance.storage.segment_files import (
    DELETED_SUFFIX,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SEGMENT_SUFFIXES,
    START_SUFFIX,
    TIME_INDEX_SUFFIX,
    offset_of_name,
    segment_name,
)

NEVER = 2**63 - 1


class RemovedSegments:
    """Segments of one log, oldest first, whose files still have their names. Close it when done."""

    def __init__(self, directory: str, directory_fd: int, base_offsets: list[Offset], end_offset: Offset, size_bytes: int) -> None:
        self.directory = directory
        self.base_offsets = base_offsets
        self.end_offset = end_offset
        """The base offset of the first segment that stays."""
        self.size_bytes = size_bytes
        self.names: list[str] = []
        """Further files (snapshots) that go with them, small enough to go at once."""
        self._directory_fd = directory_fd

    @classmethod
    def of(cls, directory: str, base_offsets: list[Offset], end_offset: Offset, sizes: Mapping[Offset, int]) -> RemovedSegments:
        """Pin the directory of segments that left the log.

        `sizes`: bytes by base offset. Raises OSError.
        """
        directory_fd = file_io.open_directory(directory)
        return cls(directory, directory_fd, base_offsets, end_offset, sum(sizes[base] for base in base_offsets))

    def mark_start(self) -> None:
        """Make durable where the log begins, because no checkpoint can be written: an index of the
        last removed segment becomes `N.start`, which needs no space. May be repeated. Raises
        OSError.
        """
        mark = segment_name(self.end_offset, START_SUFFIX)
        for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX):
            if file_io.rename_in(self._directory_fd, segment_name(self.base_offsets[-1], suffix), mark):
                break
        file_io.sync_all(self._directory_fd)
        for name in file_io.listdir(self._directory_fd):
            if offset_of_name(name, START_SUFFIX) is not None and name < mark:
                file_io.unlink_in(self._directory_fd, name)

    def rename(self) -> list[str]:
        """Rename every file to `.deleted`; return the new paths. May be repeated. Raises OSError.

        The order is oldest segment first, and its log before its indexes. So a crash leaves a log
        that starts later, and indexes that the next start removes.
        """
        paths = []
        for base_offset in self.base_offsets:
            for suffix in SEGMENT_SUFFIXES:
                name = segment_name(base_offset, suffix)
                if file_io.rename_in(self._directory_fd, name, name + DELETED_SUFFIX) or suffix == LOG_SUFFIX:
                    paths.append(f"{self.directory}/{name}{DELETED_SUFFIX}")
        for name in self.names:
            file_io.unlink_in(self._directory_fd, name)
        return paths

    def close(self) -> None:
        """Close the directory; a second call does nothing."""
        directory_fd, self._directory_fd = self._directory_fd, -1
        if directory_fd >= 0:
            file_io.close_all((directory_fd,))


def _always() -> bool:
    return True


class DepartingFiles:
    """Paths of removed files, each with the time of its removal.

    A path does not identify its log. After the topic was deleted and created again, a file of the
    same name may wait for its own removal, or be the second name of a segment that is being
    replaced. So `is_here` is called before a file is touched; if it returns False, the file is
    removed with its directory.
    """

    def __init__(self) -> None:
        self._waiting: deque[tuple[int, str, Callable[[], bool]]] = deque()
        self._next_due_ns = NEVER

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, paths: Iterable[str], due_ns: int, is_here: Callable[[], bool] = _always) -> None:
        """Add files that `remove_some` may remove from `due_ns` (monotonic) on."""
        self._waiting.extend((due_ns, path, is_here) for path in paths)
        self._next_due_ns = min(self._next_due_ns, due_ns)

    def hurry(self, due_ns: int) -> None:
        """Let no file wait longer than until `due_ns`, because the disk needs space."""
        self._waiting = deque((min(due, due_ns), path, is_here) for due, path, is_here in self._waiting)
        self._next_due_ns = min(self._next_due_ns, due_ns)

    def is_due(self, now_ns: int) -> bool:
        """Return whether a file may be removed at `now_ns` (monotonic)."""
        return now_ns >= self._next_due_ns

    def remove_some(self, now_ns: int, budget_bytes: int) -> int:
        """Remove at least `budget_bytes`, and less than twice that, of due files; return the bytes
        freed.

        Delays differ by topic, so files are removed by their time and not in the order of `add`.
        Raises OSError, and keeps the file in the list.
        """
        freed = 0
        for _ in range(len(self._waiting)):
            due_ns, path, is_here = self._waiting[0]
            if due_ns > now_ns:
                self._waiting.rotate(-1)
                continue
            size_bytes, is_gone = _shorten(path, budget_bytes) if is_here() else (0, True)
            if is_gone:
                self._waiting.popleft()
            freed += size_bytes
            if freed >= budget_bytes or not is_gone:
                break
        self._next_due_ns = min((due_ns for due_ns, _, _ in self._waiting), default=NEVER)
        return freed


def _shorten(path: str, budget_bytes: int) -> tuple[int, bool]:
    """Take up to `budget_bytes` off the end of a file; (bytes freed, whether that was all and its
    name is gone). The cut is at a multiple of the budget: a page that is on its way to a socket is
    never cleared in its middle.
    """
    try:
        fd = file_io.open_path(path, file_io.READ_WRITE)
    except FileNotFoundError:
        return 0, True  # its topic was deleted, or an earlier incarnation got further
    try:
        size_bytes = file_io.size_of(fd)
        left_bytes = max(0, size_bytes - 1) // budget_bytes * budget_bytes if size_bytes > budget_bytes else 0
        if size_bytes:
            file_io.ftruncate(fd, left_bytes)
    finally:
        file_io.close(fd)
    if left_bytes:
        return size_bytes - left_bytes, False
    file_io.unlink_if_there(path)
    return size_bytes, True
