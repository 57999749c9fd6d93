"""The only module that makes system calls on files of a log directory.

All calls go through the names in `CALLS`, looked up in this module each time, so that a test can
make the n-th one fail. Files are never mapped: a page fault on a hung disk would freeze the
process. Weak spot: every call here can block as long as the disk does; only log-writer and
log-reader may use it on a log directory.
"""

from __future__ import annotations

import errno
import fcntl as _fcntl
import os
import stat as _stat
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from appliance.base.errors import DiskFull, OutOfDescriptors, StorageFailed

Buffers = Sequence[bytes | bytearray | memoryview]

open_file = os.open
close = os.close
pread = os.pread
preadv = os.preadv
pwrite = os.pwrite
pwritev = os.pwritev
ftruncate = os.ftruncate
fsync = os.fsync
fdatasync = os.fdatasync
rename = os.rename
unlink = os.unlink
mkdir = os.mkdir
rmdir = os.rmdir
listdir = os.listdir
stat = os.stat
fstat = os.fstat
statvfs = os.statvfs
duplicate = os.dup
link = os.link
set_times = os.utime
advise = os.posix_fadvise


def syncfs(fd: int) -> None:
    """Call syncfs(2), which Python does not offer; the interpreter lock is released meanwhile.
    ctypes is imported at the first use.
    """
    import ctypes

    if ctypes.CDLL(None, use_errno=True).syncfs(fd):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


CALLS = (
    "open_file",
    "close",
    "pread",
    "preadv",
    "pwrite",
    "pwritev",
    "ftruncate",
    "fsync",
    "fdatasync",
    "rename",
    "unlink",
    "mkdir",
    "rmdir",
    "listdir",
    "stat",
    "fstat",
    "statvfs",
    "duplicate",
    "syncfs",
    "link",
    "set_times",
    "advise",
)

READ_ONLY = os.O_RDONLY
NOT_NEEDED = os.POSIX_FADV_DONTNEED
RANDOM = os.POSIX_FADV_RANDOM
WANTED = os.POSIX_FADV_WILLNEED
CREATE_EMPTY = os.O_RDWR | os.O_CREAT | os.O_TRUNC
READ_WRITE = os.O_RDWR
READ_WRITE_CREATE = os.O_RDWR | os.O_CREAT
_FILE_MODE = 0o640
"""Segments are records: they are not for every user of the machine."""
_MOST_BUFFERS = 1024
"""IOV_MAX on Linux."""

_FULL = (errno.ENOSPC, errno.EDQUOT)
_OUT_OF_DESCRIPTORS = (errno.EMFILE, errno.ENFILE)


class SyncFailed(OSError):
    """A sync of log data failed.

    The kernel may have marked the pages as clean, so a second sync would succeed without having
    written them: it is never retried.
    """


def storage_failure(action: str, error: OSError) -> StorageFailed:
    """Return the exception for a failed file call: `DiskFull`, `OutOfDescriptors` or
    `StorageFailed`. `action` completes "could not …".
    """
    kind = StorageFailed
    if not isinstance(error, SyncFailed):
        kind = DiskFull if error.errno in _FULL else OutOfDescriptors if error.errno in _OUT_OF_DESCRIPTORS else StorageFailed
    return kind(f"could not {action}: {(error.strerror or str(error)).lower()}")


def sync_data(fd: int) -> None:
    """Call fdatasync for data that may be synced only once. Raises `SyncFailed`."""
    try:
        fdatasync(fd)
    except OSError as error:
        raise SyncFailed(error.errno, error.strerror) from error


def sync_all(fd: int) -> None:
    """Call fsync for data that may be synced only once. Raises `SyncFailed`."""
    try:
        fsync(fd)
    except OSError as error:
        raise SyncFailed(error.errno, error.strerror) from error


def sync_file_system(fd: int) -> None:
    """Call syncfs on the file system of `fd`.

    A failure is reported to this descriptor once (see `syncfs_tells_errors`). Raises `SyncFailed`.
    """
    try:
        syncfs(fd)
    except OSError as error:
        raise SyncFailed(error.errno, error.strerror) from error


def syncfs_tells_errors() -> bool:
    """Return whether syncfs reports each failed write since its descriptor was opened: since Linux
    5.8.
    """
    major, minor = os.uname().release.split(".")[:2]
    return (int(major), int("".join(digit for digit in minor if digit.isdigit()) or 0)) >= (5, 8)


def open_path(path: str, flags: int) -> int:
    """Open a file with O_CLOEXEC and mode 0644 if it is created; return the descriptor.

    Raises OSError.
    """
    return open_file(path, flags | os.O_CLOEXEC, _FILE_MODE)


def open_directory(path: str) -> int:
    """Return a descriptor of a directory, which stays valid if the directory is renamed.

    Raises OSError.
    """
    return open_path(path, READ_ONLY | os.O_DIRECTORY)


def close_all(descriptors: Iterable[int]) -> None:
    """Close every one.

    A failing close is ignored: Linux has released the descriptor all the same, and the next sync
    reports what was not written.
    """
    for fd in descriptors:
        try:
            close(fd)
        except OSError:
            continue


def write_all(fd: int, buffers: Buffers, position: int, size_bytes: int) -> None:
    """Write `buffers`, together `size_bytes`, at `position`.

    One system call, unless the kernel writes less or there are over 1024 buffers. Raises OSError,
    possibly after a part was written.
    """
    if len(buffers) <= _MOST_BUFFERS:
        written = pwritev(fd, buffers, position)
        if written == size_bytes:
            return
        _write_rest(fd, buffers, position, written)
        return
    for start in range(0, len(buffers), _MOST_BUFFERS):
        some = buffers[start : start + _MOST_BUFFERS]
        some_bytes = sum(map(len, some))
        write_all(fd, some, position, some_bytes)
        position += some_bytes


def _write_rest(fd: int, buffers: Buffers, position: int, written: int) -> None:
    """A short write means "full" or "interrupted"; the next call returns which."""
    rest = memoryview(b"".join(buffers))[written:]
    position += written
    while rest:
        written = pwrite(fd, rest, position)
        if written == 0:
            raise OSError(errno.EIO, "a write wrote nothing")
        rest = rest[written:]
        position += written


def size_of(fd: int) -> int:
    """Return the size of an open file in bytes. Raises OSError."""
    return fstat(fd).st_size


def read_file(path: str) -> bytes:
    """Return the whole content of a small file. Raises OSError."""
    fd = open_path(path, READ_ONLY)
    try:
        return pread_all(fd, 0, size_of(fd))
    finally:
        close(fd)


def pread_all(fd: int, position: int, size_bytes: int) -> bytes:
    """Return `size_bytes` from `position`, fewer only at the end of the file. Raises OSError."""
    data = pread(fd, size_bytes, position)
    while len(data) < size_bytes:
        more = pread(fd, size_bytes - len(data), position + len(data))
        if not more:
            break
        data += more
    return data


def pread_wanted(fd: int, position: int, size_bytes: int) -> bytes:
    """Read a large piece that is probably not in the page cache, like `pread_all`.

    The kernel is first advised of the whole piece. Without read-ahead, as on the log disks of an
    installation, it would be read page by page at a tenth of the speed.
    """
    try:
        advise(fd, position, size_bytes, WANTED)
    except OSError:
        pass  # the read says what is wrong
    return pread_all(fd, position, size_bytes)


def fsync_directory(path: str) -> None:
    """Make the names in a directory durable. Raises `SyncFailed`, OSError."""
    fd = open_directory(path)
    try:
        sync_all(fd)
    finally:
        close(fd)


def replace_file(path: str, content: bytes, durable: bool = True) -> None:
    """Write `NAME.tmp` and rename it over `path`: a reader sees either the old content or the new.

    `durable` syncs the file before and the directory after; otherwise a power cut may leave the old
    file, the new one or an empty one. It may be repeated after any failure, also of a sync, because
    each call writes a new file. Raises OSError.
    """
    temporary = path + ".tmp"
    fd = open_path(temporary, CREATE_EMPTY)
    try:
        write_all(fd, (content,), 0, len(content))
        if durable:
            fsync(fd)
    except OSError:
        _give_space_back(temporary)
        raise
    finally:
        close(fd)
    rename(temporary, path)
    if durable:
        fsync_directory(os.path.dirname(path))


_COPY_BYTES = 1 << 20


def copy_file(fd: int, path: str) -> None:
    """Copy the file `fd` to `path`, durably, by way of `NAME.tmp`. Raises OSError."""
    temporary = path + ".tmp"
    target = open_path(temporary, CREATE_EMPTY)
    try:
        position = 0
        while piece := pread_wanted(fd, position, _COPY_BYTES):
            write_all(target, (piece,), position, len(piece))
            position += len(piece)
        fsync(target)
    except OSError:
        _give_space_back(temporary)
        raise
    finally:
        close(target)
    rename(temporary, path)
    fsync_directory(os.path.dirname(path))


def _give_space_back(path: str) -> None:
    """Half a file would sit on the last blocks of a full disk."""
    try:
        unlink(path)
    except OSError:
        pass  # the next start sweeps it


def sync_path(path: str) -> None:
    """Sync a file that was written before; a missing one is ignored.

    Raises `SyncFailed`, OSError.
    """
    try:
        fd = open_path(path, READ_ONLY)
    except FileNotFoundError:
        return
    try:
        sync_all(fd)
    finally:
        close(fd)


def sync_in(directory_fd: int, name: str) -> None:
    """Sync a file of a directory that was written before; a missing one is ignored.

    Raises `SyncFailed`, OSError.
    """
    try:
        fd = open_file(name, READ_ONLY | os.O_CLOEXEC, dir_fd=directory_fd)
    except FileNotFoundError:
        return
    try:
        sync_all(fd)
    finally:
        close(fd)


def exists(path: str) -> bool:
    """Return whether a path exists. Raises OSError if the disk cannot answer."""
    try:
        stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def is_directory(path: str) -> bool:
    """Return whether a path is a directory. Raises OSError, also if it is missing."""
    return _stat.S_ISDIR(stat(path).st_mode)


def make_directories(path: str) -> None:
    """Create `path` and its missing parents; each new name is durable. Raises OSError."""
    if exists(path):
        return
    parent = os.path.dirname(os.path.abspath(path))
    make_directories(parent)
    mkdir(path)
    fsync_directory(parent)


def unlink_if_there(path: str) -> None:
    """Remove a file; a missing one is ignored. Raises OSError."""
    try:
        unlink(path)
    except FileNotFoundError:
        pass


def rename_in(directory_fd: int, name: str, new_name: str) -> bool:
    """Rename a file within a directory; return False if it is missing. Raises OSError."""
    try:
        rename(name, new_name, src_dir_fd=directory_fd, dst_dir_fd=directory_fd)
    except FileNotFoundError:
        return False
    return True


def unlink_in(directory_fd: int, name: str) -> None:
    """Remove a file of a directory; a missing one is ignored. Raises OSError."""
    try:
        unlink(name, dir_fd=directory_fd)
    except FileNotFoundError:
        pass


def forget_pages(path: str) -> None:
    """Drop the clean pages of a file from the page cache, so that the next read asks the disk.

    Raises OSError.
    """
    fd = open_path(path, READ_ONLY)
    try:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        close(fd)


class Space(NamedTuple):
    """The size of a file system in bytes, and the free bytes for users without privileges."""

    total_bytes: int
    free_bytes: int


def space(path: str) -> Space:
    """Return the size and the free space of the file system of `path`. Raises OSError."""
    figures = statvfs(path)
    return Space(figures.f_blocks * figures.f_frsize, figures.f_bavail * figures.f_frsize)


def lock_exclusively(fd: int) -> bool:
    """Lock a file; return False if another process holds it.

    Takes both kinds of lock, because Kafka takes the POSIX kind.
    """
    try:
        _fcntl.flock(fd, _fcntl.LOCK_EX | _fcntl.LOCK_NB)
        _fcntl.lockf(fd, _fcntl.LOCK_EX | _fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    return True


def process_id() -> int:
    """Return the id of this process."""
    return os.getpid()
