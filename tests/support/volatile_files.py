"""What a power cut takes: files written through `file_io`, and how much of them would still be there.

While it is entered, every call of `file_io` does to the real files what it always does, so a reader sees what a page cache would show, but no sync
reaches a disk. Beside that it is written down, for each file, what was synced last and every content since; for names, what a synced directory holds
and every creation, rename and removal since. `cut` then leaves one of the states that a power cut may leave:

* of names, a prefix of all steps, at least those that a sync of a directory made durable: journals of ext4 and XFS keep their order;
* of each file by itself, what was synced, the newest content, one in between, or a mixture: blocks of 64 bytes, each from any of them, zeros where a content
  was shorter. So writes are lost, torn, zeroed, stale, and reordered between files.

A sync that fails (tell it by `sync_failed`) takes with it what was to be synced: no later sync of that file makes anything durable, as with Linux' page cache.
Weak spots: a sync of a file does not make its name durable (ext4 would); blocks are smaller than a disk's sectors; whole contents are kept, so files
must be small.
"""

from __future__ import annotations

import os
import random
import shutil
import stat
from collections.abc import Sequence
from types import TracebackType
from typing import Any

from appliance.storage import file_io

BLOCK_BYTES = 64
CONTENTS_MAX = 12
"""Unsynced contents that are kept of a file, the newest."""


class _File:
    """One inode."""

    def __init__(self, durable: bytes) -> None:
        self.durable = durable
        self.unsynced: list[bytes] = []
        self.sync_failed = False

    def change(self, content: bytes) -> None:
        self.unsynced.append(content)
        del self.unsynced[:-CONTENTS_MAX]

    def sync(self) -> None:
        if self.unsynced and not self.sync_failed:
            self.durable = self.unsynced[-1]
            self.unsynced.clear()

    def after_cut(self, chance: random.Random) -> bytes:
        if not self.unsynced:
            return self.durable
        contents = [self.durable, *self.unsynced]
        kind = chance.randrange(5)
        if kind == 0:
            return self.durable
        if kind == 1:
            return self.unsynced[-1]
        if kind == 2:
            return chance.choice(contents)
        size_bytes = len(chance.choice(contents)) if kind == 3 else len(self.unsynced[-1])
        blocks = [chance.choice(contents)[at : at + BLOCK_BYTES].ljust(BLOCK_BYTES, b"\0") for at in range(0, size_bytes, BLOCK_BYTES)]
        return b"".join(blocks)[:size_bytes]


_Names = dict[str, "_File | None"]
"""Paths; None is a directory."""
_PUT, _DROP, _MOVE = "put", "drop", "move"


class VolatileFiles:
    """Of everything below `root`, which is whole and synced when this is entered."""

    def __init__(self, root: str) -> None:
        self.root = os.path.realpath(root)
        self._originals: dict[str, Any] = {}
        self._by_inode: dict[int, _File] = {}
        self._durable: _Names = {}
        self._steps: list[tuple[str, str, Any]] = []

    # -- what a test does

    def __enter__(self) -> VolatileFiles:
        self._take_all()
        for name in ("open_file", "pwrite", "pwritev", "ftruncate", "fsync", "fdatasync", "syncfs", "rename", "unlink", "mkdir", "rmdir", "link"):
            self._originals[name] = getattr(file_io, name)
            setattr(file_io, name, getattr(self, name))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for name, function in self._originals.items():
            setattr(file_io, name, function)

    def cut(self, chance: random.Random) -> None:
        """The power is gone and back: the real files become one of the states that may be left. No file may be open."""
        names = dict(self._durable)
        for step in self._steps[: chance.randint(0, len(self._steps))]:
            _apply(names, step)
        seed = chance.random()  # for each file its own: what one holds (a process id) must not change what becomes of another
        contents = {file: file.after_cut(random.Random(f"{seed} {path[len(self.root) :]}")) for path, file in names.items() if file is not None}
        for entry in os.scandir(self.root):
            shutil.rmtree(entry.path) if entry.is_dir() else os.unlink(entry.path)
        for path, file in sorted(names.items()):
            if file is None:
                os.mkdir(path)
            else:
                with open(path, "wb") as target:
                    target.write(contents[file])
        self._take_all()

    def sync_failed(self, fd: int) -> None:
        """A sync of this descriptor reported an error."""
        file = self._file_of(fd)
        if file is not None:
            file.sync_failed = True

    @property
    def has_failed_syncs(self) -> bool:
        return any(file.sync_failed for file in self._by_inode.values())

    # -- what `file_io` calls

    def open_file(self, path: str, flags: int, *more: Any, **keywords: Any) -> int:
        is_new = bool(flags & os.O_CREAT) and not os.path.exists(path)
        fd: int = self._originals["open_file"](path, flags, *more, **keywords)
        if self._is_ours(path):
            if is_new:
                self._by_inode[os.fstat(fd).st_ino] = file = _File(b"")
                self._steps.append((_PUT, path, file))
            elif flags & os.O_TRUNC and (known := self._file_of(fd)) is not None:
                known.sync_failed = False  # whatever is written now is new
                known.change(b"")
        return fd

    def pwrite(self, fd: int, content: Any, position: int) -> int:
        count: int = self._originals["pwrite"](fd, content, position)
        self._changed(fd)
        return count

    def pwritev(self, fd: int, buffers: Sequence[Any], position: int) -> int:
        count: int = self._originals["pwritev"](fd, buffers, position)
        self._changed(fd)
        return count

    def ftruncate(self, fd: int, size_bytes: int) -> None:
        self._originals["ftruncate"](fd, size_bytes)
        self._changed(fd)

    def fsync(self, fd: int) -> None:
        if stat.S_ISDIR(os.fstat(fd).st_mode):
            self._sync_directory(os.readlink(f"/proc/self/fd/{fd}"))
        elif (file := self._file_of(fd)) is not None:
            file.sync()

    fdatasync = fsync

    def syncfs(self, fd: int) -> None:
        os.fstat(fd)
        for file in self._by_inode.values():
            file.sync()
        self._make_durable(len(self._steps))

    def rename(self, source: str, target: str, *, src_dir_fd: int | None = None, dst_dir_fd: int | None = None) -> None:
        old, new = _path(source, src_dir_fd), _path(target, dst_dir_fd)
        self._originals["rename"](source, target, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)
        if self._is_ours(old):
            self._steps.append((_MOVE, old, new))

    def unlink(self, path: str, *, dir_fd: int | None = None) -> None:
        whole = _path(path, dir_fd)
        self._originals["unlink"](path, dir_fd=dir_fd)
        if self._is_ours(whole):
            self._steps.append((_DROP, whole, None))

    def mkdir(self, path: str, *more: Any) -> None:
        self._originals["mkdir"](path, *more)
        if self._is_ours(path):
            self._steps.append((_PUT, path, None))

    def rmdir(self, path: str) -> None:
        self._originals["rmdir"](path)
        if self._is_ours(path):
            self._steps.append((_DROP, path, None))

    def link(self, source: str, target: str) -> None:
        self._originals["link"](source, target)
        if self._is_ours(target):
            self._steps.append((_PUT, target, self._by_inode[os.stat(source).st_ino]))

    # -- accounting

    def _take_all(self) -> None:
        """What is there is durable."""
        self._by_inode, self._durable, self._steps = {}, {}, []
        for directory, directories, files in os.walk(self.root):
            self._durable |= {f"{directory}/{name}": None for name in directories}
            for name in files:
                path = f"{directory}/{name}"
                with open(path, "rb") as source:
                    file = self._by_inode.setdefault(os.fstat(source.fileno()).st_ino, _File(b""))
                    file.durable = source.read()
                self._durable[path] = file

    def _is_ours(self, path: str) -> bool:
        return path.startswith(self.root + "/")

    def _file_of(self, fd: int) -> _File | None:
        return self._by_inode.get(os.fstat(fd).st_ino)

    def _changed(self, fd: int) -> None:
        file = self._file_of(fd)
        if file is not None:
            file.change(os.pread(fd, os.fstat(fd).st_size, 0))

    def _sync_directory(self, path: str) -> None:
        """Up to the last step in this directory; with an ordered journal all before it are durable, too."""
        count = len(self._steps)
        while count and path not in {os.path.dirname(each) for each in self._steps[count - 1][1:] if isinstance(each, str)}:
            count -= 1
        self._make_durable(count)

    def _make_durable(self, count: int) -> None:
        for step in self._steps[:count]:
            _apply(self._durable, step)
        del self._steps[:count]


def _apply(names: _Names, step: tuple[str, str, Any]) -> None:
    kind, path, other = step
    if kind == _PUT:
        names[path] = other
    elif kind == _DROP:
        names.pop(path, None)
    else:
        for each in [each for each in names if each == path or each.startswith(path + "/")]:
            names[other + each[len(path) :]] = names.pop(each)


def _path(name: str, directory_fd: int | None) -> str:
    return name if directory_fd is None else f"{os.readlink(f'/proc/self/fd/{directory_fd}')}/{name}"
