"""A disk of the tests' own: one file, served through the kernel's FUSE protocol, that can be slow, hang, fail, or lose what was not flushed.

`python -m lab.block_file IMAGE MOUNTPOINT CONTROL` mounts a file system that has one file, `disk`, and serves it; a loop device on that
is a block device like any other, and what is made on it is a real ext4 or XFS. CONTROL is a text file that is read again before each call:

    ok                go on
    slow SECONDS      every read, write and flush takes so much longer
    hang              nothing is answered until it says something else
    eio_write         writes and flushes fail
    eio_read          reads fail
    volatile          what was not flushed is kept in memory only
    cut               it is lost, and everything fails from now on

No library: libfuse is not everywhere. Only what the loop driver asks is answered. Weak spot: one call at a time, as on a drive without a queue.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import sys
import time

SECTOR = 512
LOOKUP, FORGET, GETATTR, SETATTR, OPEN, READ, WRITE, STATFS, RELEASE, FSYNC, FLUSH, INIT, OPENDIR, READDIR, RELEASEDIR = (
    1, 2, 3, 4, 14, 15, 16, 17, 18, 20, 25, 26, 27, 28, 29,
)  # fmt: skip
INTERRUPT, DESTROY, FALLOCATE, BATCH_FORGET = 36, 38, 43, 42
ROOT_NODE, DISK_NODE = 1, 2
HEADER = struct.Struct("<IIQQIIII")
WRITE_MAX = 1 << 17


class BlockFile:
    """The image behind `disk`, and what is wrong with it."""

    def __init__(self, image: str, control: str) -> None:
        self._fd = os.open(image, os.O_RDWR)
        self.size = os.fstat(self._fd).st_size
        self._control = control
        self._seen = -1
        self._mode = ["ok"]
        self._unflushed: dict[int, bytes] = {}
        self._is_cut = False

    def _look(self) -> str:
        try:
            changed = os.stat(self._control).st_mtime_ns
            if changed != self._seen:
                with open(self._control) as file:
                    self._mode = file.read().split() or ["ok"]
                self._seen = changed
        except OSError:
            self._mode = ["ok"]
        return self._mode[0]

    def admit(self, kind: int) -> int:
        """Wait as the control file says; returns an error number or 0."""
        while (mode := self._look()) == "hang":
            time.sleep(0.02)
        if mode == "cut" and not self._is_cut:
            self._is_cut = True
            self._unflushed.clear()
        if self._is_cut or (mode == "eio_write" and kind != READ) or (mode == "eio_read" and kind == READ):
            return errno.EIO
        if mode == "slow":
            time.sleep(float(self._mode[1]))
        return 0

    def read(self, position: int, size: int) -> bytes:
        data = bytearray(os.pread(self._fd, size, position))
        if self._unflushed:
            for sector in range(position // SECTOR, (position + len(data) + SECTOR - 1) // SECTOR):
                kept = self._unflushed.get(sector)
                if kept is not None:
                    start = sector * SECTOR - position
                    data[start : start + SECTOR] = kept
        return bytes(data)

    def write(self, position: int, data: bytes) -> None:
        if self._mode[0] == "volatile":
            for start in range(0, len(data), SECTOR):
                self._unflushed[(position + start) // SECTOR] = data[start : start + SECTOR]
            return
        self.flush()
        os.pwrite(self._fd, data, position)

    def flush(self) -> None:
        unflushed, self._unflushed = self._unflushed, {}
        for sector, data in unflushed.items():
            os.pwrite(self._fd, data, sector * SECTOR)


def _attributes(node: int, size: int) -> bytes:
    mode, links = (0o40755, 2) if node == ROOT_NODE else (0o100600, 1)
    return struct.pack("<QQQQQQIIIIIIIIII", node, size, size // SECTOR, 0, 0, 0, 0, 0, 0, mode, links, 0, 0, 0, 4096, 0)


def serve(device: int, disk: BlockFile) -> None:
    """Answer the kernel until the file system is unmounted."""
    while True:
        try:
            request = os.read(device, WRITE_MAX + 4096 + 65536)
        except OSError as error:
            if error.errno == errno.ENODEV:
                return
            if error.errno in (errno.EINTR, errno.EAGAIN, errno.ENOENT):
                continue
            raise
        _, opcode, unique, node, _, _, _, _ = HEADER.unpack_from(request)
        if opcode in (FORGET, BATCH_FORGET, INTERRUPT):
            continue
        code, answer = _answer(opcode, node, request[HEADER.size :], disk)
        try:
            os.write(device, struct.pack("<IiQ", 16 + len(answer), -code, unique) + answer)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENODEV):
                raise


def _answer(opcode: int, node: int, body: bytes, disk: BlockFile) -> tuple[int, bytes]:
    if opcode == INIT:
        _, minor, read_ahead, _ = struct.unpack_from("<IIII", body)
        return 0, struct.pack("<IIIIHHIIHHI7I", 7, min(minor, 31), read_ahead, 1 << 5, 16, 12, WRITE_MAX, 1, 32, 0, *([0] * 8))
    if opcode == LOOKUP:
        if body.rstrip(b"\0") != b"disk":
            return errno.ENOENT, b""
        return 0, struct.pack("<QQQQII", DISK_NODE, 0, 3600, 3600, 0, 0) + _attributes(DISK_NODE, disk.size)
    if opcode in (GETATTR, SETATTR):
        return 0, struct.pack("<QII", 3600, 0, 0) + _attributes(node, disk.size if node == DISK_NODE else 0)
    if opcode in (OPEN, OPENDIR):
        return 0, struct.pack("<QII", 1, 1 if opcode == OPEN else 0, 0)  # direct I/O: the page cache above the loop device is enough
    if opcode == STATFS:
        return 0, struct.pack("<QQQQQIII6I4x", disk.size // 4096, 0, 0, 2, 0, 4096, 255, 4096, *([0] * 6))
    if opcode == READDIR:
        return 0, b""
    if opcode == READ:
        _, position, size = struct.unpack_from("<QQI", body)
        code = disk.admit(READ)
        return code, b"" if code else disk.read(position, size)
    if opcode == WRITE:
        _, position, size = struct.unpack_from("<QQI", body)
        code = disk.admit(WRITE)
        if not code:
            disk.write(position, body[40 : 40 + size])
        return code, b"" if code else struct.pack("<II", size, 0)
    if opcode == FSYNC:
        code = disk.admit(FSYNC)
        if not code:
            disk.flush()
        return code, b""
    if opcode in (FLUSH, RELEASE, RELEASEDIR, DESTROY):
        return 0, b""
    return errno.ENOSYS, b""


def main() -> None:
    image, mountpoint, control = sys.argv[1:4]
    device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0,max_read={WRITE_MAX}"
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"millrace-test", mountpoint.encode(), b"fuse", 6, options.encode()):  # MS_NOSUID | MS_NODEV
        raise OSError(ctypes.get_errno(), f"mount: {os.strerror(ctypes.get_errno())}")
    serve(device, BlockFile(image, control))


if __name__ == "__main__":
    main()
