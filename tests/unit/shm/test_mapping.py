from __future__ import annotations

import errno
import mmap
import os
from pathlib import Path

import posix_ipc
import pytest

from appliance.base.layout import BoxLayout
from appliance.shm import mapping
from appliance.shm.mapping import (
    BOOT_WORD_LOW,
    HEADER_BYTES,
    LAYOUT_VERSION,
    LENGTH_WORD,
    MAGIC_WORD,
    VERSION_WORD,
    LayoutMismatch,
    SharedMemoryFull,
    SharedObject,
    SharedObjectAbsent,
    list_names,
    sealed_bytes_max,
)
from lab.scratch_layout import open_descriptors, purposes_left

PURPOSE = b"MLRtests"
SIZE = 3 * mmap.PAGESIZE


@pytest.fixture
def name(layout: BoxLayout) -> str:
    return layout.shared_memory_name("tests", "mapping", 9)


def test_what_one_process_makes_another_maps(name: str) -> None:
    made = SharedObject.create(name, PURPOSE, SIZE - 5, 9)
    made.words[100] = 1234
    attached = SharedObject.attach(name, PURPOSE, writable=True)
    assert (attached.words[100], attached.incarnation, attached.pid, len(attached.memory)) == (1234, 9, os.getpid(), SIZE)
    assert attached.is_of_this_boot() and attached.words[VERSION_WORD] == LAYOUT_VERSION
    attached.close()
    made.close()


def test_a_reader_cannot_write(name: str) -> None:
    made = SharedObject.create(name, PURPOSE, SIZE, 9)
    reader = SharedObject.attach(name, PURPOSE, writable=False)
    with pytest.raises(TypeError):
        reader.words[100] = 1
    reader.close()
    made.close()


def test_nothing_of_that_name_is_absent(name: str) -> None:
    with pytest.raises(SharedObjectAbsent):
        SharedObject.attach(name, PURPOSE, writable=False)


@pytest.mark.parametrize("size", [0, HEADER_BYTES - 1, SIZE])
def test_an_object_whose_creator_died_before_the_magic_is_unfinished(name: str, size: int) -> None:
    shared = posix_ipc.SharedMemory(name, posix_ipc.O_CREX, mode=0o600, size=size)
    shared.close_fd()
    before = open_descriptors()
    with pytest.raises(SharedObjectAbsent):
        SharedObject.attach(name, PURPOSE, writable=False)
    assert open_descriptors() <= before


def test_an_object_of_another_purpose_is_absent(name: str) -> None:
    made = SharedObject.create(name, b"MLRother", SIZE, 9)
    with pytest.raises(SharedObjectAbsent):
        SharedObject.attach(name, PURPOSE, writable=False)
    made.close()


def test_an_object_of_another_length_than_it_says_is_absent(name: str) -> None:
    made = SharedObject.create(name, PURPOSE, SIZE, 9)
    made.words[LENGTH_WORD] += 4096
    with pytest.raises(SharedObjectAbsent):
        SharedObject.attach(name, PURPOSE, writable=False)
    made.close()


def test_another_layout_version_is_not_reported_as_absence(name: str) -> None:
    made = SharedObject.create(name, PURPOSE, SIZE, 9)
    made.words[VERSION_WORD] = LAYOUT_VERSION + 1
    with pytest.raises(LayoutMismatch, match="stop the other release first"):
        SharedObject.attach(name, PURPOSE, writable=False)
    made.close()


def test_the_magic_is_the_last_word_that_a_creator_writes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def die() -> bytes:
        raise KeyboardInterrupt

    monkeypatch.setattr(mapping, "boot_id", die)
    with pytest.raises(KeyboardInterrupt):
        SharedObject.create(name, PURPOSE, SIZE, 9)
    with pytest.raises(SharedObjectAbsent, match="unfinished"):
        SharedObject.attach(name, PURPOSE, writable=False)


def test_an_object_of_another_boot_is_recognised(name: str) -> None:
    made = SharedObject.create(name, PURPOSE, SIZE, 9)
    made.words[BOOT_WORD_LOW] ^= 1
    assert not made.is_of_this_boot()
    made.close()


def test_a_new_object_replaces_a_leftover_of_its_name(name: str) -> None:
    leftover = SharedObject.create(name, PURPOSE, SIZE, 9)
    leftover.words[100] = 1
    made = SharedObject.create(name, PURPOSE, SIZE, 10)
    assert (made.words[100], leftover.words[100], leftover.incarnation) == (0, 1, 9)
    leftover.close()
    made.close()


def test_a_full_dev_shm_is_an_error_with_advice_and_leaves_no_name(layout: BoxLayout, name: str) -> None:
    """A size that no /dev/shm has; the kernel must take nothing before it refuses."""
    with pytest.raises(SharedMemoryFull, match="make /dev/shm larger or the arenas smaller"):
        SharedObject.create(name, PURPOSE, 1 << 50, 9)
    assert purposes_left(layout) == []


def test_close_unmaps_and_may_be_called_twice(name: str) -> None:
    before = open_descriptors()
    made = SharedObject.create(name, PURPOSE, SIZE, 9)
    made.close()
    made.close()
    assert open_descriptors() <= before
    with pytest.raises(ValueError, match="released"):
        made.words[0]


def test_a_view_survives_the_close_of_its_mapping(name: str) -> None:
    made = SharedObject.create(name, PURPOSE, SIZE, 9)
    made.memory[200:204] = b"view"
    part = made.memory[200:204]
    over_all = memoryview(made.memory)
    made.close()
    assert bytes(part) == b"view" and over_all[200] == ord("v")


def test_names_are_listed_by_prefix_with_their_slash(layout: BoxLayout) -> None:
    made = [SharedObject.create(layout.shared_memory_name("tests", owner, 1), PURPOSE, SIZE, 1) for owner in ("a@0", "a@01", "b@0")]
    assert list_names(layout.shared_memory_name("tests", "a@0") + ".") == [made[0].name]
    assert list_names(layout.shared_memory_prefix) == sorted(shared.name for shared in made)
    for shared in made:
        shared.close()
        shared.unlink()
    assert list_names(layout.shared_memory_prefix) == []


def test_the_header_is_magic_version_length_incarnation_boot_and_pid(name: str) -> None:
    made = SharedObject.create(name, PURPOSE, SIZE, 9)
    assert made.words[MAGIC_WORD].to_bytes(8, "little") == PURPOSE
    assert list(made.words[VERSION_WORD : LENGTH_WORD + 2]) == [LAYOUT_VERSION, SIZE, 9]
    made.close()


def test_sealed_memory_may_have_half_of_the_container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limit = tmp_path / "memory.max"
    monkeypatch.setattr(mapping, "CONTAINER_LIMIT", str(limit))
    of_machine = sealed_bytes_max()
    assert of_machine == os.sysconf("SC_PHYS_PAGES") * mmap.PAGESIZE // 2
    for text, wanted in (("max\n", of_machine), ("1048576\n", 1 << 19), (f"{1 << 60}\n", of_machine)):
        limit.write_text(text)
        assert sealed_bytes_max() == wanted
    limit.write_text("1048576\n")
    with pytest.raises(SharedMemoryFull, match="half of the memory of the machine or container"):
        SharedObject.create_sealed("large", PURPOSE, 1 << 20, 9)


@pytest.mark.parametrize(("number", "is_made"), [(errno.EINVAL, True), (errno.EACCES, False), (errno.EMFILE, False)])
def test_a_memory_file_that_the_kernel_refuses_is_full_memory(number: int, is_made: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Linux before 6.3 does not know MFD_NOEXEC_SEAL; other reasons are no bare OSError, which ended the process."""
    made = os.memfd_create

    def refuse(name: str, flags: int) -> int:
        if flags & 8:
            raise OSError(number, os.strerror(number))
        return made(name, flags)

    monkeypatch.setattr(os, "memfd_create", refuse)
    before = open_descriptors()
    if is_made:
        SharedObject.create_sealed("old", PURPOSE, SIZE, 9).close()
    else:
        with pytest.raises(SharedMemoryFull):
            SharedObject.create_sealed("refused", PURPOSE, SIZE, 9)
    assert open_descriptors() == before
