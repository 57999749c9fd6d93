"""What stands behind a `SystemdBox`: the keeper, a process that owns namespaces, disks and control group of one box.

It has a mount namespace of its own. In it lie the box's disks and the memory that takes what the box writes over the host's root, so that all of it is gone
with the keeper, and the box can be booted again from what it wrote. It ends the box and itself when its starter closes the pipe on its standard input, even
by dying; with a frozen disk thawed first, because a process that writes to one cannot be killed. Weak spot: a keeper that is itself killed leaves an empty
control group and its directory behind; the next box of that directory takes them away.

A machine that is switched off (`SystemdBox.power_off`, `cut_power`) keeps its disks and what it wrote, until it is switched on again. Where its power was
cut, its ext4 disks lose what was not synced; what lies on its root (the state directory) does not, for that is memory.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import select
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
import zlib
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from appliance.runtime.spawning import die_with_parent
from lab.systemd_boot import DISKS, OVERLAY, ROOT, read_plan, run

NAMESPACES = ["--mount", "--uts", "--ipc", "--net", "--cgroup", "--pid", "--propagation", "private"]
CLONE_NEWNS, MS_REC_PRIVATE, MS_REC_SLAVE, MNT_DETACH = 0x20000, 0x44000, 0x84000, 2
THAW, SHUTDOWN, LOSE_UNSYNCED = 0xC0045878, 0x8004587D, 2
CONTROL_GROUPS = "cgroup"
PIPE_VARIABLE = "MILLRACE_BOX_PIPE"
"""Set where the box ends with the process that started it: the keeper's standard input is a pipe that closes then."""
SWITCH, ORDERLY, CUT = "off", "orderly", "cut"
"""A file that is there while the machine shall be off, and how it came to be."""


def control_group(directory: Path) -> str:
    """Name of the group that all processes of a box are in, as the host sees it."""
    return f"millrace-{zlib.crc32(str(directory).encode()):08x}"


def leave_mounts_of_host(needed: Sequence[str]) -> None:
    """Whatever is mounted from here on is seen by this process and its children only. Mounts of other tests are let go of: their disks are busy while
    any process has them mounted. `needed` are paths that stay reachable."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNS) or libc.mount(b"none", b"/", None, MS_REC_SLAVE, None):  # until ours is let go of, an unmount there reaches it
        raise OSError(ctypes.get_errno(), "a mount namespace of its own")
    temporary = f"{os.environ.get('PYTEST_DEBUG_TEMPROOT') or tempfile.gettempdir()}/"  # where directories of other runs are, too
    for line in reversed(Path("/proc/self/mountinfo").read_text().splitlines()):
        place = line.split()[4]
        if place.startswith(temporary) and not any(f"{path}/".startswith(f"{place}/") for path in needed):
            libc.umount2(place.encode(), MNT_DETACH)
    if libc.mount(b"none", b"/", None, MS_REC_PRIVATE, None):
        raise OSError(ctypes.get_errno(), "mounts that no other namespace changes")


class Keeper:
    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._plan = read_plan(directory)
        self._group = directory / CONTROL_GROUPS / control_group(directory)
        self._pipe = [0] if os.environ.get(PIPE_VARIABLE) else []
        self._asked_to_end = threading.Event()

    def prepare(self) -> None:
        leave_mounts_of_host([str(self._directory), str(ROOT), *(source for source, _ in self._plan.mounts)])
        shutil.rmtree(self._directory / DISKS, ignore_errors=True)  # of a keeper that was killed
        for name in (OVERLAY, DISKS, CONTROL_GROUPS):
            (self._directory / name).mkdir(exist_ok=True)
        run("mount", "-t", "cgroup2", "cgroup2", self._directory / CONTROL_GROUPS)
        self._remove_groups()
        self._group.mkdir()
        run("mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", self._directory / OVERLAY)
        for name in ("upper", "work", "root"):
            (self._directory / OVERLAY / name).mkdir()
        for number, kind in enumerate(self._plan.disks):
            self._make_disk(self._directory / DISKS / f"d{number}", kind)

    def _make_disk(self, place: Path, kind: str) -> None:
        place.mkdir()
        if kind == "tmpfs":
            run("mount", "-t", "tmpfs", "-o", f"mode=755,size={self._plan.disk_mib}m", "tmpfs", place)
            return
        image = place.with_suffix(".image")
        with open(image, "wb") as file:
            file.truncate(self._plan.disk_mib << 20)
        run(*(["mkfs.xfs", "-qfK"] if kind == "xfs" else ["mkfs.ext4", "-qF", "-m", "0"]), image)
        run("mount", "-o", "loop", image, place)  # the loop device goes when this does

    def keep(self) -> None:
        """Boots the box, again when it asks for it or is switched on again, until it is powered off for good or its starter has gone."""
        signal.signal(signal.SIGTERM, self._on_end)
        switch = self._directory / SWITCH
        while not self._asked_to_end.is_set():
            box = self._boot()
            while box.poll() is None and not self._asked_to_end.is_set():
                self._wait()
            if self._asked_to_end.is_set():
                self._end(box)
            elif switch.exists():
                if switch.read_text() == CUT:
                    self._lose_unsynced()
                (self._directory / "pid").unlink()  # it is off from now on
                while switch.exists() and not self._asked_to_end.is_set():
                    self._wait()
            elif box.returncode != -signal.SIGHUP:  # that is how a reboot ends in a namespace
                return

    def _wait(self) -> None:
        closed, _, _ = select.select(self._pipe, [], [], 0.1)
        if closed:
            self._asked_to_end.set()

    def _lose_unsynced(self) -> None:
        """As a power cut leaves the disks: what was written and not synced is gone."""
        for number, kind in enumerate(self._plan.disks):
            if kind == "tmpfs":
                continue
            place = self._directory / DISKS / f"d{number}"
            fd = os.open(place, os.O_RDONLY)
            fcntl.ioctl(fd, SHUTDOWN, struct.pack("I", LOSE_UNSYNCED))
            os.close(fd)
            deadline = time.monotonic() + 10
            while subprocess.run(["umount", place], capture_output=True, check=False).returncode:  # the last of the dead processes go
                assert time.monotonic() < deadline, f"{place} cannot be unmounted"
                time.sleep(0.01)
            run("mount", "-o", "loop", place.with_suffix(".image"), place)

    def _on_end(self, *_: object) -> None:
        self._asked_to_end.set()

    def _boot(self) -> subprocess.Popen[bytes]:
        with open(self._directory / "console.log", "ab") as console:
            return subprocess.Popen(
                ["unshare", *NAMESPACES, "--kill-child", "--fork", sys.executable, "-P", "-m", "lab.systemd_boot", str(self._directory)],
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=console,
                preexec_fn=partial(self._join_group, os.getpid()),
            )

    def _join_group(self, keeper: int) -> None:
        (self._group / "cgroup.procs").write_text("0")
        die_with_parent(keeper)

    def _end(self, box: subprocess.Popen[bytes]) -> None:
        self._thaw()
        with suppress(OSError, ValueError, subprocess.TimeoutExpired):
            os.kill(int((self._directory / "pid").read_text()), signal.SIGKILL)  # the namespace dies with its process 1
            box.wait(10)
        box.kill()  # if it was not that far yet: process 1 dies with it
        box.wait()

    def _thaw(self) -> None:
        for place in (self._directory / DISKS).glob("d?"):
            with suppress(OSError):
                fd = os.open(place, os.O_RDONLY)
                fcntl.ioctl(fd, THAW, struct.pack("I", 0))
                os.close(fd)

    def _remove_groups(self) -> None:
        """Groups of a box; a group is busy until its last process is quite gone."""
        deadline = time.monotonic() + 10
        while self._group.exists():
            for path, _, _ in os.walk(self._group, topdown=False):
                with suppress(OSError):
                    os.rmdir(path)
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self._group} still has processes")
            time.sleep(0.01)

    def clean_up(self) -> None:
        self._remove_groups()
        shutil.rmtree(self._directory / DISKS, ignore_errors=True)
        for name in ("pid", "keeper"):
            (self._directory / name).unlink(missing_ok=True)


def main() -> None:
    keeper = Keeper(Path(sys.argv[1]))
    try:
        keeper.prepare()
        keeper.keep()
    finally:
        keeper.clean_up()


if __name__ == "__main__":
    main()
