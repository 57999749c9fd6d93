"""Probe one directory's file system in a process of its own: a hung disk blocks that process, not its caller (`python -m … PATH`, JSON out).

Writes 64 KiB into a file without a name, which goes with its descriptor. Weak spot: where the file system has no such files (O_TMPFILE) a named one is made and
removed at once; a kill in between leaves it behind.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import sys
from typing import Any

PROBE_BYTES = 64 << 10
_CACHESTAT = 451  # asm/unistd_64.h; since Linux 6.5
_RWF_DONTCACHE = 0x80  # linux/fs.h; since Linux 6.14
_PAGES = PROBE_BYTES // mmap.PAGESIZE

Answer = dict[str, Any]


def probe(path: str) -> Answer:
    """Everything about the place where `path` is, or would be made; `error` where nothing can be written."""
    place = path
    while not os.path.lexists(place):
        place = os.path.dirname(place)
    status, space = os.stat(place), os.statvfs(place)
    device = f"{os.major(status.st_dev)}:{os.minor(status.st_dev)}"
    answer: Answer = {
        "exists": place == path,
        "device": device,
        "type": filesystem_type(device),
        "free_bytes": space.f_bavail * space.f_frsize,
        "total_bytes": space.f_blocks * space.f_frsize,
        "read_ahead_kb": read_ahead_kb(device),
        "error": "",
        "residency": {},
    }
    try:
        descriptor = nameless_file(place)
    except OSError as error:
        answer["error"] = error.strerror or str(error)
        return answer
    try:
        answer["residency"] = residency_answers(descriptor)
    except OSError as error:
        answer["error"] = error.strerror or str(error)
    finally:
        os.close(descriptor)
    return answer


def nameless_file(directory: str) -> int:
    """Written through (O_DSYNC), so that its pages can be dropped."""
    flags = os.O_RDWR | os.O_DSYNC | os.O_CLOEXEC
    try:
        return os.open(directory, flags | os.O_TMPFILE, 0o600)
    except (IsADirectoryError, OSError) as error:
        if isinstance(error, PermissionError) or error.errno in (28, 30):  # ENOSPC, EROFS
            raise
    name = f"{directory}/.millrace-doctor-{os.getpid()}"
    descriptor = os.open(name, flags | os.O_CREAT | os.O_EXCL, 0o600)
    os.unlink(name)
    return descriptor


def filesystem_type(device: str) -> str:
    """As mountinfo names it; '' where it does not say."""
    with open("/proc/self/mountinfo", errors="replace") as file:
        for line in file:
            mount, _, rest = line.partition(" - ")
            if mount.split()[2] == device:
                return rest.split()[0]
    return ""


def read_ahead_kb(device: str) -> int | None:
    try:
        with open(f"/sys/class/bdi/{device}/read_ahead_kb") as file:
            return int(file.read())
    except (OSError, ValueError):
        pass
    # A partition's read-ahead is its disk's.
    for place in ("queue", "../queue"):
        try:
            with open(f"/sys/dev/block/{device}/{place}/read_ahead_kb") as file:
                return int(file.read())
        except (OSError, ValueError):
            continue
    return None


def residency_answers(descriptor: int) -> dict[str, str]:
    """For each way to ask whether pages are in the page cache: `right`, `always` (says so of dropped pages, too), `never` or `absent`."""
    os.write(descriptor, b"\xa5" * PROBE_BYTES)
    ways = {"cachestat": _cachestat, "mincore": _mincore, "RWF_NOWAIT": _read_nowait}
    warm = {name: ask(descriptor) for name, ask in ways.items()}
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    cold = {name: ask(descriptor) for name, ask in ways.items()}
    answers = {name: verdict(warm[name], cold[name]) for name in ways}
    answers["RWF_DONTCACHE"] = "right" if _reads_with(descriptor, _RWF_DONTCACHE) else "absent"
    return answers


def verdict(warm: bool | None, cold: bool | None) -> str:
    """From what was said of pages that are there, and of pages that were dropped (None: it cannot be asked)."""
    if warm is None or cold is None:
        return "absent"
    if warm:
        return "always" if cold else "right"
    return "never"


def _cachestat(descriptor: int) -> bool | None:
    library = ctypes.CDLL(None, use_errno=True)
    extent = (ctypes.c_uint64 * 2)(0, PROBE_BYTES)
    counts = (ctypes.c_uint64 * 5)()
    if library.syscall(_CACHESTAT, descriptor, ctypes.byref(extent), ctypes.byref(counts), 0) != 0:
        return None
    return int(counts[0]) == _PAGES


def _mincore(descriptor: int) -> bool | None:
    library = ctypes.CDLL(None, use_errno=True)
    with mmap.mmap(descriptor, PROBE_BYTES) as mapped:
        base = ctypes.c_char.from_buffer(mapped)
        pages = (ctypes.c_ubyte * _PAGES)()
        failed = library.mincore(ctypes.c_void_p(ctypes.addressof(base)), ctypes.c_size_t(PROBE_BYTES), pages)
        del base  # or the map could not be closed
        return None if failed else all(page & 1 for page in pages)


def _read_nowait(descriptor: int) -> bool | None:
    """A read that would have to wait says EAGAIN."""
    try:
        return os.preadv(descriptor, [bytearray(mmap.PAGESIZE)], PROBE_BYTES // 2, os.RWF_NOWAIT) > 0
    except BlockingIOError:
        return False
    except OSError:
        return None


def _reads_with(descriptor: int, flag: int) -> bool:
    try:
        return os.preadv(descriptor, [bytearray(mmap.PAGESIZE)], 0, flag) > 0
    except OSError:
        return False


def main() -> None:
    try:
        answer = probe(sys.argv[1])
    except OSError as error:
        answer = {"error": error.strerror or str(error)}
    sys.stdout.write(json.dumps(answer))


if __name__ == "__main__":
    main()
