"""Real file systems on loop devices that tests may hurt: full, frozen, shut down, swapped; with a faulty drive below where that is wanted.

A `LoopDisk` is made, hurt and taken away by one test (`loop_disks` cleans up whatever happened; a frozen file system is thawed first, since what is
frozen cannot be unmounted and a process that touches it never comes back). Root, loop devices and, for a faulty drive, /dev/fuse are needed; `why_not`
says what is missing. Weak spot: XFS is tried only where mkfs.xfs is installed.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from pathlib import Path

from lab.running_box import ROOT

FREEZE, THAW, SHUTDOWN = 0xC0045877, 0xC0045878, 0x8004587D
FOLLOWING = ("--propagation", "slave")
"""Options of `unshare` for a mount namespace that must not keep disks of other tests."""
LOSE_UNSYNCED = 2
"""What a shutdown does with the journal: nothing, as a power cut."""


def _run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@cache
def why_not(needs_fuse: bool = False, kind: str = "ext4") -> str:
    """Why this machine cannot have such disks, or an empty text."""
    if os.geteuid() != 0:
        return "mounting a file system needs root"
    if needs_fuse and not os.path.exists("/dev/fuse"):
        return "a faulty drive needs /dev/fuse"
    for command in ("losetup", f"mkfs.{kind}", "mount", "umount"):
        if shutil.which(command) is None:
            return f"{command} is not installed"
    attempt = subprocess.run(["losetup", "-f"], capture_output=True, text=True, check=False)
    return f"there are no loop devices: {attempt.stderr.strip()}" if attempt.returncode else ""


class LoopDisk:
    """One file system below `place`. `path` is where it is mounted; log directories go into `path / "log"`."""

    def __init__(self, place: Path, mib: int = 64, kind: str = "ext4", is_faulty: bool = False) -> None:
        place.mkdir(parents=True)
        # A mount namespace of another test may hold a copy of what is mounted here, and a file system exists while anything has it mounted: after a power
        # cut it would come back shut down. From a shared mount, an unmount reaches copies that are slaves (`FOLLOWING`); `unmount` waits for other copies.
        _run("mount", "--bind", str(place), str(place))
        _run("mount", "--make-shared", str(place))
        self.place = place
        self.kind = kind
        self.path = place / "mnt"
        self.path.mkdir()
        self._image = place / "image"
        self._control = place / "control"
        self._drive = place / "drive"
        self._is_faulty = is_faulty
        self._process: subprocess.Popen[bytes] | None = None
        self._device = ""
        self._is_frozen = False
        with open(self._image, "wb") as file:
            file.truncate(mib << 20)
        self._plug()
        self._make_file_system()
        self.mount()

    def _plug(self) -> None:
        backing = self._image
        if self._is_faulty:
            self._drive.mkdir(exist_ok=True)
            self.drive("ok")
            self._process = subprocess.Popen(
                [sys.executable, "-m", "lab.block_file", str(self._image), str(self._drive), str(self._control)], cwd=ROOT, start_new_session=True
            )
            backing = self._drive / "disk"
            _wait(backing.exists, "the drive is there")
        self._device = _run("losetup", "-f", "--show", str(backing))

    def _unplug(self) -> None:
        if self._device:
            _run("losetup", "-d", self._device)
            self._device = ""
        if self._process is not None:
            self.drive("ok")
            _wait(lambda: subprocess.run(["umount", str(self._drive)], capture_output=True, check=False).returncode == 0, "the drive is taken away")
            self._process.wait(10)
            self._process = None

    def _make_file_system(self) -> None:
        if self.kind == "xfs":
            _run("mkfs.xfs", "-qfK", self._device)
        else:
            _run("mkfs.ext4", "-qF", "-E", "nodiscard", self._device)

    @property
    def log(self) -> Path:
        """The log directory on it."""
        return self.path / "log"

    def mount(self) -> None:
        _run("mount", self._device, str(self.path))

    def unmount(self) -> None:
        """Fails while any process has a file open on it, or a mount namespace of another test keeps a copy of the mount."""
        _wait(lambda: subprocess.run(["umount", str(self.path)], capture_output=True, check=False).returncode == 0, f"{self.path} can be unmounted", 20)
        in_use = Path("/sys/fs", self.kind, Path(self._device).name)
        _wait(lambda: not in_use.exists(), f"no mount namespace has {self._device} mounted", 20)

    # -- what can be done to it

    def drive(self, mode: str) -> None:
        """Tell the drive below how to behave (lab/block_file.py)."""
        new = self._control.with_suffix(".new")
        new.write_text(mode)
        new.rename(self._control)

    def freeze(self) -> None:
        """A process that writes stops in the kernel and cannot be killed, until `thaw`."""
        self._ioctl(FREEZE, 0)
        self._is_frozen = True

    def thaw(self) -> None:
        if self._is_frozen:
            self._is_frozen = False
            self._ioctl(THAW, 0)

    def shut_down(self) -> None:
        """What was not synced is lost, and every call fails from now on."""
        self._ioctl(SHUTDOWN, LOSE_UNSYNCED)

    def _ioctl(self, number: int, argument: int) -> None:
        fd = os.open(self.path, os.O_RDONLY)
        try:
            fcntl.ioctl(fd, number, struct.pack("I", argument))
        finally:
            os.close(fd)

    def fill(self) -> Path:
        """A stranger's file that takes all there is."""
        ballast = self.path / "ballast"
        with open(ballast, "wb", buffering=0) as file:
            for size in (1 << 20, 4096):
                with suppress(OSError):
                    while True:
                        file.write(bytes(size))
        return ballast

    def power_cycle(self) -> None:
        """Off and on again: the journal is replayed. No process may have a file open on it."""
        self.unmount()
        if self._is_faulty:
            self._unplug()
            self._plug()
        self.mount()

    def swap(self) -> None:
        """Another disk, new and empty, at the same place."""
        self.unmount()
        self._make_file_system()
        self.mount()

    def take_away(self) -> None:
        """Everything, in whatever state it is."""
        if self._is_faulty:
            self.drive("ok")
        self.thaw()
        subprocess.run(["umount", "-l", str(self.path)], capture_output=True, check=False)
        self._unplug()
        subprocess.run(["umount", "-l", str(self.place)], capture_output=True, check=False)


@contextmanager
def loop_disks(directory: Path) -> Iterator[Callable[..., LoopDisk]]:
    """Makes disks, and takes them away at the end."""
    with ExitStack() as made:  # one that cannot be taken away keeps none of the others

        def make(name: str = "loop", **options: object) -> LoopDisk:
            disk = LoopDisk(directory / name, **options)  # type: ignore[arg-type]
            made.callback(disk.take_away)
            return disk

        yield make


def _wait(condition: Callable[[], bool], what: str, seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds:g} s: {what}"
        time.sleep(0.02)
