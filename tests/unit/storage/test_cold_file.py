"""Cold reads of real files: every way gives the same bytes and leaves the page cache as it was."""

from __future__ import annotations

import errno
import mmap
import os
from pathlib import Path

import pytest

from appliance.storage import file_io
from appliance.storage.cold_file import ADVISED, DIRECT, DROPPING, SEALED_WAYS, ColdFile
from appliance.storage.page_cache import PAGE_BYTES, Cachestat, FileMap, has_cachestat, pages_of
from tests.support.cold_segments import make_cold, resident_bytes

PIECE = 1 << 20
SIZE = 2 * PIECE + 12_345


@pytest.fixture
def segment(tmp_path: Path) -> Path:
    path = tmp_path / "00000000000000000000.log"
    path.write_bytes(os.urandom(SIZE))
    return path


def read_whole(cold: ColdFile) -> bytes:
    memory = memoryview(mmap.mmap(-1, PIECE))
    content = b""
    for position in range(0, SIZE, PIECE):
        pages = min(PIECE, (SIZE - position + PAGE_BYTES - 1) // PAGE_BYTES * PAGE_BYTES)
        count = cold.read_into(memory[:pages], position)
        content += memory[:count]
    return content


@pytest.mark.parametrize("way", SEALED_WAYS)
def test_every_way_reads_all_and_leaves_nothing_in_the_page_cache(segment: Path, way: str) -> None:
    content = segment.read_bytes()
    make_cold(segment)
    cold = ColdFile(str(segment), (way, ADVISED))
    if cold.way != way:
        pytest.skip(f"the file system has no {way} reads")
    assert read_whole(cold) == content
    if cold.way != way:
        pytest.skip(f"the kernel has no {way} reads")
    assert resident_bytes(segment) == 0
    cold.close()


@pytest.mark.parametrize("way", SEALED_WAYS)
def test_what_was_in_the_page_cache_stays_there(segment: Path, way: str) -> None:
    make_cold(segment)
    descriptor = os.open(segment, os.O_RDONLY)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
    os.pread(descriptor, 256 << 10, PIECE)
    os.close(descriptor)
    before = resident_bytes(segment)
    assert before >= 256 << 10
    cold = ColdFile(str(segment), (way, ADVISED))
    read_whole(cold)
    assert resident_bytes(segment) == before
    cold.close()


def test_a_way_that_is_refused_is_followed_by_the_next(segment: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(descriptor: int, buffers: list[memoryview], position: int, flags: int) -> int:
        if flags:
            raise OSError(errno.EOPNOTSUPP, "not supported")
        return os.preadv(descriptor, buffers, position)

    monkeypatch.setattr(file_io, "preadv", refuse)
    cold = ColdFile(str(segment), (DROPPING, ADVISED))
    assert read_whole(cold) == segment.read_bytes() and cold.way == ADVISED
    cold.close()


def test_a_failing_disk_is_an_error_and_no_end_of_file(segment: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> int:
        raise OSError(errno.EIO, "input/output error")

    monkeypatch.setattr(file_io, "preadv", fail)
    for way in (DIRECT, DROPPING, ADVISED):
        cold = ColdFile(str(segment), (way, ADVISED))
        with pytest.raises(OSError, match="input/output"):
            read_whole(cold)
        cold.close()


def test_a_deleted_file_is_known_as_such(segment: Path) -> None:
    cold = ColdFile(str(segment), SEALED_WAYS)
    assert not cold.is_deleted()
    segment.unlink()
    assert cold.is_deleted() and len(read_whole(cold)) == SIZE
    cold.close()


def test_both_ways_to_ask_see_what_is_resident(segment: Path) -> None:
    descriptor = os.open(segment, os.O_RDONLY)
    mapped = FileMap(descriptor)
    asked = [mapped.resident_pages]
    if has_cachestat():
        asked.append(lambda position, size_bytes: Cachestat().pages(descriptor, position, size_bytes))
    for resident_pages in asked:
        assert resident_pages(0, SIZE) == pages_of(0, SIZE) == 516
        assert resident_pages(4095, 2) == 2
    make_cold(segment)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
    os.pread(descriptor, 8192, PIECE)
    for resident_pages in asked:
        assert resident_pages(0, SIZE) == resident_pages(PIECE, 8192) == 2
        assert resident_pages(0, PIECE) == 0
    os.close(descriptor)


def test_a_file_that_grows_is_mapped_anew(tmp_path: Path) -> None:
    path = tmp_path / "grows"
    path.write_bytes(b"x" * 4096)
    descriptor = os.open(path, os.O_RDWR)
    mapped = FileMap(descriptor)
    assert mapped.resident_pages(0, 4096) == 1
    os.pwrite(descriptor, b"y" * 4096, 70 << 20)
    assert mapped.resident_pages(70 << 20, 4096) == 1 and mapped.resident_pages(60 << 20, 4096) == 0
    os.close(descriptor)
