"""One POSIX shared-memory object: its header, its creator, and which users may map it.

The creator writes the magic last, so that an object is recognised as unfinished if its creator
died. Memory is allocated at once (`posix_fallocate`): a full /dev/shm is an error here, not a
SIGBUS later. Any user can create any name in /dev/shm, so only objects that no other user could
have written are mapped, listed and removed. Of a box with two users, processes that face the
network may read the others' objects; counters of theirs are mapped where a caller asks for them.
Weak: a name that another user has taken keeps a process from starting; it says so.

What a log-writer maps of a source (arena, rings) has no name: it is a memory file (memfd) that is
sealed against other sizes, and its descriptor is sent. The source can store anything there, but it
cannot truncate it under the log-writer, which would end that (SIGBUS). The kernel frees it with its
last mapping.

The owner of an object holds a lock on it as long as it maps it; the kernel drops the lock when the
process ends, however it ends. So an observer need not see the owner in /proc, which a process in
another user namespace cannot.

64-bit words shared by two processes, and the fence between a store and a load.

Each shared word is 8-byte aligned and native-endian. It is stored by `memoryview.cast("Q")[i] =
value` (one MOV, seen in the disassembly), never by `struct.pack_into`, which clears its destination
first. x86-64 keeps the order of stores and of loads, but may move a store behind a later load of
another word; `fence` prevents that (README.md, "memory order"). Weak: other processors guarantee
none of this, so `runtime/preflight.py` refuses to start there.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import re
import stat
import threading
from struct import Struct
from typing import Any

import posix_ipc

from appliance.base.errors import MillraceError
from appliance.base.layout import boot_id
from appliance.base.trusted_files import box_group, faces_network, may_observe, may_trust, own_users, shared_mode

WORD_BYTES = 8
MAX_WORD = (1 << 64) - 1

_fence_lock = threading.Lock()
_acquire = _fence_lock.acquire
_release = _fence_lock.release


def fence() -> None:
    """A full memory fence: the locked instruction of an uncontended lock (61 ns; verified against
    lost wake-ups)."""
    _acquire()
    _release()


def signed(word: int) -> Any:
    """Return a word as a signed number: offset -1 is stored as 2^64 - 1.

    What kind of number it is, the caller knows.
    """
    return word - (1 << 64) if word >> 63 else word


def unsigned(number: int) -> int:
    """Return a signed number as a word."""
    return number & MAX_WORD


LAYOUT_VERSION = 6
"""Increased with each change of a layout in this package; a mismatch ends the process with exit
code 78."""

# Header of every object: byte, name, meaning.
#
# │     0 │ MAGIC_WORD             │ purpose, 8 ASCII bytes; stored last, so 0 = unfinished
# │     8 │ VERSION_WORD           │ layout version; another one ends the process with code 78
# │    16 │ LENGTH_WORD            │ size of the object in bytes
# │    24 │ INCARNATION_WORD       │ incarnation of the owner
# │    32 │ BOOT_WORD_HIGH         │ the kernel's boot id
# │    40 │ BOOT_WORD_LOW          │
# │    48 │ PID_WORD               │ pid of the owner
# │    64 │ HEADER_BYTES           │ the purpose's own layout begins here

MAGIC_WORD, VERSION_WORD, LENGTH_WORD, INCARNATION_WORD, BOOT_WORD_HIGH, BOOT_WORD_LOW, PID_WORD = range(7)

HEADER_BYTES = 8 * WORD_BYTES

_SHARED_MEMORY_DIRECTORY = "/dev/shm"
_OF_NETWORK = re.compile(r"/millrace\.[^.]+\.(counters\.(acceptor|ingest|console)(@.*)?|quotas\..*)")
"""Names that processes which face the network create; the others are of the other user."""
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
_MFD_NOEXEC_SEAL = 8
CONTAINER_LIMIT = "/sys/fs/cgroup/memory.max"
"""Only the root of a container's control groups has it, not the machine's."""
_OWN: dict[str, int] = {}
"""Inode by name of each object that this process owns, as long as no other program deletes it."""


class LayoutMismatch(MillraceError):
    """An object of another release: one release runs on a box at a time."""


class SharedObjectAbsent(MillraceError):
    """There is no finished object of that name and purpose, or this process may not open it."""


class SharedMemoryFull(MillraceError):
    """/dev/shm has no free space for a new object."""


class SharedObjectTaken(MillraceError):
    """An object of another user has the name; only that user or root can remove it."""


class SharedObject:
    """A mapped object. `words` is the whole object as 64-bit words, `memory` as bytes (read-only if
    attached so)."""

    def __init__(self, name: str, mapped: mmap.mmap, writable: bool, descriptor: int = -1) -> None:
        self.name = name
        self.descriptor = descriptor
        """Of a sealed memory file, to be sent to the process that maps it; -1 for an object with a
        name."""
        self._mapped = mapped
        self.memory = memoryview(mapped)
        self.words = self.memory.cast("Q")
        self.writable = writable
        self._is_own = False

    def own(self) -> None:
        """Register the object as owned by this process (see `lost_objects`)."""
        _OWN[self.name] = inode_of(self.name)
        self._is_own = True

    @classmethod
    def create(cls, name: str, purpose: bytes, size_bytes: int, incarnation: int, allocated_bytes: int | None = None) -> SharedObject:
        """Create an object, replacing one of the same name.

        `purpose`: 8 ASCII bytes. `allocated_bytes`: only so much is allocated now; the caller
        allocates the rest before using it (`allocate`). Raises SharedMemoryFull, SharedObjectTaken.
        """
        unlink(name)
        size_bytes = _whole_pages(size_bytes)
        try:
            shared = posix_ipc.SharedMemory(name, posix_ipc.O_CREX, mode=0o600)
        except posix_ipc.ExistentialError as error:
            raise SharedObjectTaken(_taken(name)) from error
        try:
            try:
                os.fchmod(shared.fd, shared_mode())
                os.ftruncate(shared.fd, size_bytes)
                os.posix_fallocate(shared.fd, 0, size_bytes if allocated_bytes is None else allocated_bytes)
                mapped = mmap.mmap(shared.fd, size_bytes)
            except OSError as error:
                unlink(name)
                raise SharedMemoryFull(
                    f"could not allocate {size_bytes >> 20} MiB of shared memory for {name}: {error.strerror}; make /dev/shm larger or the arenas smaller"
                ) from error
            _hold(shared.fd)
        finally:
            shared.close_fd()
        made = cls(name, mapped, writable=True)
        made.own()
        made.begin(purpose, size_bytes, incarnation)
        return made

    @classmethod
    def create_sealed(cls, name: str, purpose: bytes, size_bytes: int, incarnation: int) -> SharedObject:
        """Create an object for another process that maps it by `descriptor`: no process can change
        its size, and `name` is shown in /proc only. Raises SharedMemoryFull, also for more than
        `sealed_bytes_max`."""
        size_bytes = _whole_pages(size_bytes)
        descriptor = -1
        try:
            if size_bytes > sealed_bytes_max():
                raise OSError(errno.ENOMEM, "more than half of the memory of the machine or container")
            descriptor = _memory_file(name.lstrip("/"))
            os.ftruncate(descriptor, size_bytes)
            os.posix_fallocate(descriptor, 0, size_bytes)
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
            mapped = mmap.mmap(descriptor, size_bytes)
        except OSError as error:
            if descriptor >= 0:
                os.close(descriptor)
            words = f"could not allocate {size_bytes >> 20} MiB of shared memory for {name}: {error.strerror}; make the arenas smaller"
            raise SharedMemoryFull(words) from error
        made = cls(name, mapped, True, descriptor)
        made.begin(purpose, size_bytes, incarnation)
        return made

    def begin(self, purpose: bytes, size_bytes: int, incarnation: int) -> None:
        """Store the header of a new object, the magic last."""
        boot = boot_id()
        words = self.words
        words[VERSION_WORD] = LAYOUT_VERSION
        words[LENGTH_WORD] = size_bytes
        words[INCARNATION_WORD] = incarnation
        words[BOOT_WORD_HIGH] = int.from_bytes(boot[:8], "little")
        words[BOOT_WORD_LOW] = int.from_bytes(boot[8:], "little")
        words[PID_WORD] = os.getpid()
        words[MAGIC_WORD] = int.from_bytes(purpose, "little")

    @classmethod
    def attach_sealed(cls, descriptor: int, purpose: bytes, size_bytes_max: int) -> SharedObject:
        """Map the memory file that a process sent; the caller closes `descriptor`. Raises
        SharedObjectAbsent if its size may change under this process, LayoutMismatch."""
        try:
            seals = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
            size_bytes = os.fstat(descriptor).st_size
            # The pages of a huge one may be missing when they are touched.
            if seals & _SEALS != _SEALS or os.fstatvfs(descriptor).f_bsize != mmap.PAGESIZE:
                raise SharedObjectAbsent("shared memory that was sent is not sealed")
            if not HEADER_BYTES <= size_bytes <= size_bytes_max:
                raise SharedObjectAbsent(f"shared memory that was sent has {size_bytes} bytes")
            mapped = mmap.mmap(descriptor, size_bytes)
        except (OSError, ValueError) as error:
            raise SharedObjectAbsent(f"what was sent is no shared memory: {error}") from error
        attached = cls("", mapped, True)
        attached.check_header(purpose, size_bytes)
        return attached

    @classmethod
    def attach(cls, name: str, purpose: bytes, writable: bool, adopts: bool = False, observes: bool = False) -> SharedObject:
        """Map an existing object. `adopts`: hold it as its owner, for an object that a previous
        incarnation created. `observes`: a process with less rights may have written it. Raises
        SharedObjectAbsent, LayoutMismatch."""
        try:
            shared = posix_ipc.SharedMemory(name, 0, read_only=not writable)
        except (posix_ipc.Error, OSError) as error:
            raise SharedObjectAbsent(f"no shared-memory object {name}: {error}") from error
        try:
            status = os.fstat(shared.fd)
            if not _is_allowed(name, status, writable, observes):
                raise SharedObjectAbsent(f"shared-memory object {name} is not trusted: it is of user {status.st_uid} (mode {stat.S_IMODE(status.st_mode):04o})")
            size_bytes = status.st_size
            if size_bytes < HEADER_BYTES:
                raise SharedObjectAbsent(f"shared-memory object {name} is unfinished")
            access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
            mapped = mmap.mmap(shared.fd, size_bytes, access=access)
            if adopts:
                _hold(shared.fd)
        finally:
            shared.close_fd()
        attached = cls(name, mapped, writable)
        attached.check_header(purpose, size_bytes)
        if adopts:
            attached.own()
        return attached

    def check_header(self, purpose: bytes, size_bytes: int) -> None:
        """Unmap the object and raise SharedObjectAbsent or LayoutMismatch if it is another one."""
        words = self.words
        magic, version, length = words[MAGIC_WORD], words[VERSION_WORD], words[LENGTH_WORD]
        if magic != int.from_bytes(purpose, "little") or length != size_bytes:
            self.close()
            raise SharedObjectAbsent(f"shared-memory object {self.name} is unfinished or of another purpose")
        if version != LAYOUT_VERSION:
            self.close()
            raise LayoutMismatch(f"{self.name or 'an object'} has layout version {version}, this release has {LAYOUT_VERSION}; stop the other release first")

    @property
    def incarnation(self) -> int:
        return self.words[INCARNATION_WORD]

    @property
    def pid(self) -> int:
        return self.words[PID_WORD]

    def allocate(self, position: int, size_bytes: int) -> bool:
        """Allocate memory for a part of an object. False if /dev/shm is full, or the object was
        deleted."""
        try:
            shared = posix_ipc.SharedMemory(self.name, 0)
        except posix_ipc.Error:
            return False  # it was deleted: see `lost_objects`
        try:
            os.posix_fallocate(shared.fd, position, size_bytes)
        except OSError:
            return False
        finally:
            shared.close_fd()
        return True

    def give_back(self, position: int, size_bytes: int) -> None:
        """Free the memory of an unused part; `allocate` it before using it again."""
        self._mapped.madvise(mmap.MADV_REMOVE, position, size_bytes)

    def is_of_this_boot(self) -> bool:
        """Return whether the object was created in this boot of the machine."""
        boot = boot_id()
        words = self.words
        return words[BOOT_WORD_HIGH] == int.from_bytes(boot[:8], "little") and words[BOOT_WORD_LOW] == int.from_bytes(boot[8:], "little")

    def close(self) -> None:
        """Unmap the object. A view that is still in use keeps the mapping."""
        if self._is_own:
            _OWN.pop(self.name, None)
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1
        for let_go in (self.words.release, self.memory.release, self._mapped.close):
            try:
                let_go()
            except BufferError:
                pass  # a derived view outlives this object; the mapping goes with it

    def unlink(self) -> None:
        unlink(self.name)


def unlink(name: str) -> None:
    """Remove a name, if it exists; existing mappings stay usable. Raises SharedObjectTaken."""
    _OWN.pop(name, None)
    try:
        posix_ipc.unlink_shared_memory(name)
    except posix_ipc.ExistentialError:
        pass
    except posix_ipc.PermissionsError as error:
        raise SharedObjectTaken(_taken(name)) from error


# struct flock of x86-64: type, whence, start, length, pid (0 for OFD locks), padding.
_LOCK = Struct("@hhqqi4x")
_LOCK_TYPE = Struct("@h")


def _hold(descriptor: int) -> None:
    """Lock the object for as long as this process maps it.

    The lock belongs to the open file description, which the mapping keeps open (`mmap` duplicates
    the descriptor). It is shared: an incarnation that its disk still holds does not keep the next
    one from being seen. Weak: a forked child holds it, too, until it ends, which a hung disk may delay.
    """
    fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _LOCK.pack(fcntl.F_RDLCK, os.SEEK_SET, 0, 1, 0))


def is_held(name: str) -> bool:
    """Return whether a process that owns the object runs, or has not ended completely."""
    try:
        descriptor = os.open(_SHARED_MEMORY_DIRECTORY + name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        answer = fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, _LOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0))
    finally:
        os.close(descriptor)
    held: bool = _LOCK_TYPE.unpack_from(answer)[0] != fcntl.F_UNLCK
    return held


def _taken(name: str) -> str:
    try:
        owner = f"user {os.stat(_SHARED_MEMORY_DIRECTORY + name, follow_symlinks=False).st_uid}"
    except OSError:
        owner = "another user"
    return f"{_SHARED_MEMORY_DIRECTORY}{name} belongs to {owner}, and this box needs the name; remove it as root: rm {_SHARED_MEMORY_DIRECTORY}{name}"


def _whole_pages(size_bytes: int) -> int:
    return (size_bytes + mmap.PAGESIZE - 1) // mmap.PAGESIZE * mmap.PAGESIZE


def sealed_bytes_max() -> int:
    """Return half of the memory of the machine or container, the size that /dev/shm has by default:
    no file system limits memory files."""
    machine_bytes = os.sysconf("SC_PHYS_PAGES") * mmap.PAGESIZE
    try:
        with open(CONTAINER_LIMIT, encoding="ascii") as file:
            limit = file.read().strip()
    except OSError:
        limit = ""
    return min(machine_bytes, int(limit) if limit.isdecimal() else machine_bytes) // 2


def _memory_file(name: str) -> int:
    """Return a new memory file that is never executed: where vm.memfd_noexec is 2, Linux makes no
    others. Before 6.3 it does not know the flag."""
    flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
    try:
        return os.memfd_create(name, flags | _MFD_NOEXEC_SEAL)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
    return os.memfd_create(name, flags)


def _is_rightful(name: str, status: os.stat_result) -> bool:
    """Return whether the user that made an object is the one whose processes use its name: in a box
    with two users, those that face the network could take names of the others. In a user namespace
    only the own user can be distinguished from others."""
    if (box_group() is None and os.geteuid()) or _OF_NETWORK.fullmatch(name) is not None:
        return True
    return status.st_uid != os.geteuid() if faces_network() else status.st_uid in own_users()


def _is_allowed(name: str, status: os.stat_result, writable: bool, observes: bool) -> bool:
    if not stat.S_ISREG(status.st_mode) or not _is_rightful(name, status):
        return False
    if writable:
        return status.st_uid == os.geteuid() and may_observe(status)
    return may_observe(status) if observes else may_trust(status)


def inode_of(name: str) -> int:
    """Return the inode of an object, which distinguishes it from a later one of the same name; 0 if
    there is none."""
    try:
        return os.stat(_SHARED_MEMORY_DIRECTORY + name).st_ino
    except OSError:
        return 0


def lost_objects(prefix: str) -> list[str]:
    """Return the names of this process's objects with this prefix that another program deleted or
    replaced."""
    return [name for name, inode in _OWN.items() if name.startswith(prefix) and inode_of(name) != inode]


def list_names(prefix: str, observes: bool = False) -> list[str]:
    """Return the names (with leading slash) of objects with this prefix that this process trusts.
    `observes`: also those that a process with less rights may have written."""
    may_map = may_observe if observes else may_trust
    return [name for name, status in _objects(prefix) if (status.st_uid in own_users() or may_map(status)) and _is_rightful(name, status)]


def taken_problems(prefix: str) -> list[str]:
    """Return a problem for each name of a box that another user has taken; this user cannot remove
    it."""
    others = [each for each in _objects(prefix) if each[1].st_uid not in own_users() and os.geteuid()]
    return [_taken(name) for name, status in others if not (may_observe(status) and _is_rightful(name, status))]


def _objects(prefix: str) -> list[tuple[str, os.stat_result]]:
    bare, found = prefix.lstrip("/"), []
    for name in sorted(os.listdir(_SHARED_MEMORY_DIRECTORY)):
        if name.startswith(bare):
            try:
                found.append((f"/{name}", os.stat(f"{_SHARED_MEMORY_DIRECTORY}/{name}", follow_symlinks=False)))
            except FileNotFoundError:
                continue  # its process removed it meanwhile
    return found
