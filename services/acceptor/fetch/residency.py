"""Sends of a segment only what is in the page cache, so that no fetch makes the event loop wait for a disk.

Two ways, chosen by the setting `fetch.residency`. `cachestat`, if the kernel has it (Linux >= 6.5): cachestat
says whether the range is resident, preadv2(RWF_NOWAIT) reads it, send sends it. `mincore` otherwise: mincore
checks, sendfile sends. For a range that is NOT_RESIDENT the caller asks the log-reader.

cachestat with sendfile would copy once less. But cachestat counts pages that are still being read from the
disk, and sendfile would wait for them (measured, with a hung disk); RWF_NOWAIT never does. It comes second,
because a miss of it starts a read-ahead of a whole MiB. The copy costs nothing by itself: over loopback 0.17
to 0.20 s of CPU for a GiB, as sendfile alone; 12 µs for 64 KiB (sendfile 11), 4 µs for 4 KiB (sendfile 2).
Beside a consumer at full speed on the same two cores it costs 0.1 to 0.15 s per GB of 0.75 in total. It stays,
because sendfile may wait for a page that was evicted since the check, on a hung disk for ever. mincore counts
only whole pages, so sendfile after it waits for none; it costs 19 µs for 1 MiB, cachestat 1.

Both ways need a file that this process owns or may write. Of another user's file the kernel refuses cachestat,
and mincore calls every page resident, so such files are served by the way `nowait`: preadv2(RWF_NOWAIT) of one
byte in 64 KiB says whether the range is resident, preadv2 and send serve it as above. It costs 12 µs for 1 MiB
instead of 1, and a miss reads one page from the disk.

Owned by one acceptor. Weak spots: between mincore and sendfile a page may be evicted. mincore calls a large
folio absent that is not whole yet (the end of a growing file); it is then read by the log-reader, without a
disk read. RWF_NOWAIT itself may wait if the queue of a hung disk is full, or a file's extents are not loaded.
A file system without RWF_NOWAIT (tmpfs) uses sendfile. A client that reads little at a time costs more than
one copy.
"""

from __future__ import annotations

import errno
import os

from appliance.base.model import Position
from appliance.security.transport import NOT_RESIDENT, ClientTransport
from appliance.storage.page_cache import REFUSED, Cachestat, FileMap, has_cachestat, is_mincore_honest, pages_of
from services.acceptor.fetch.record_ranges import SEND_BYTES_A_TURN, FileRange, Residency, ServedSegment

AUTO, CACHESTAT, MINCORE = "auto", "cachestat", "mincore"
CHECK_BYTES = 1 << 20
"""What is looked at before a response is built: what lies behind is looked at when its turn to be sent comes."""

SAMPLE_BYTES = 64 << 10
"""One byte of so many is read: the page cache holds large files in larger units than pages, and evicts them whole."""


class NowaitResidency:
    """preadv2(RWF_NOWAIT), send: for files of another user."""

    def __init__(self) -> None:
        self._copy = memoryview(bytearray(SEND_BYTES_A_TURN))
        self._sample = [bytearray(1)]

    def is_resident(self, file: ServedSegment, position: Position, size_bytes: int) -> bool:
        """Check the first and the last byte, and one of each `SAMPLE_BYTES` between them. What lies between samples
        and is absent, `send` detects. False for a file system without RWF_NOWAIT: the log-reader reads it."""
        last = position + size_bytes - 1
        try:
            for sampled in range(position, last, SAMPLE_BYTES):
                os.preadv(file.descriptor, self._sample, sampled, os.RWF_NOWAIT)
            os.preadv(file.descriptor, self._sample, last, os.RWF_NOWAIT)
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno != errno.EOPNOTSUPP:
                raise
            return False
        return True

    def send(self, transport: ClientTransport, piece: FileRange, more: bool) -> int:
        file, position, size_bytes, is_checked = piece
        if size_bytes > SEND_BYTES_A_TURN:
            size_bytes, more = SEND_BYTES_A_TURN, True
        if not is_checked and not self.is_resident(file, position, size_bytes):
            return NOT_RESIDENT
        copy = self._copy[:size_bytes]
        try:
            count = os.preadv(file.descriptor, [copy], position, os.RWF_NOWAIT)
        except BlockingIOError:
            return NOT_RESIDENT
        except OSError as error:
            if error.errno != errno.EOPNOTSUPP:
                raise
            return transport.send_file(file.descriptor, position, size_bytes)
        return transport.send(copy[:count], more) if count else 0


class CachestatResidency(NowaitResidency):
    """cachestat, preadv2(RWF_NOWAIT), send."""

    def __init__(self) -> None:
        super().__init__()
        self._cachestat = Cachestat()

    def is_resident(self, file: ServedSegment, position: Position, size_bytes: int) -> bool:
        """Asked twice before it is no: of pages that are written to the disk meanwhile the kernel misses one now and then (seen on Linux 6.18: one answer in
        ten thousand, and the next was right)."""
        wanted = pages_of(position, size_bytes)
        found = self._cachestat.pages(file.descriptor, position, size_bytes)
        if found == wanted:
            return True
        if found == REFUSED:
            return super().is_resident(file, position, size_bytes)
        return self._cachestat.pages(file.descriptor, position, size_bytes) == wanted


class MincoreResidency:
    """mincore, sendfile."""

    def __init__(self) -> None:
        self._of_others = NowaitResidency()

    def is_resident(self, file: ServedSegment, position: Position, size_bytes: int) -> bool:
        if file.map is None:
            if not is_mincore_honest(file.descriptor):
                file.residency = self._of_others
                return file.residency.is_resident(file, position, size_bytes)
            file.map = FileMap(file.descriptor)
        return file.map.resident_pages(position, size_bytes) == pages_of(position, size_bytes)

    def send(self, transport: ClientTransport, piece: FileRange, more: bool) -> int:
        file, position, size_bytes, is_checked = piece
        size_bytes = min(size_bytes, SEND_BYTES_A_TURN)
        if not is_checked and not self.is_resident(file, position, size_bytes):
            return NOT_RESIDENT
        if file.residency is not self:
            return file.residency.send(transport, piece, more)
        return transport.send_file(file.descriptor, position, size_bytes)


def choose_residency(wanted: str) -> Residency:
    """The way that the setting names; `auto`: the better one that this kernel has."""
    if wanted == CACHESTAT or (wanted == AUTO and has_cachestat()):
        return CachestatResidency()
    return MincoreResidency()
