"""The process that keeps one machine of a test's cluster: its network namespace, its mount namespace, and the disks mounted there.

Started by `unshare` (`machine.py`), which sends it lines of JSON on standard input; one answer a line. When its input ends (its starter may have been
killed) it thaws what is frozen and ends; with it and the processes of the machine go both namespaces, and with them mounts and loop devices: nothing is left
behind. Mounts of other tests, which a new namespace begins with copies of, are let go of: their file systems would stay in use for as long as we live.
Standard library alone: it starts in a few milliseconds.
"""

from __future__ import annotations

import fcntl
import json
import os
import struct
import subprocess
import sys

FREEZE, THAW, SHUTDOWN = 0xC0045877, 0xC0045878, 0x8004587D
LOSE_UNSYNCED = 2


def run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"{' '.join(command)}: {done.stderr.strip()}")


def let_go_of_other_disks() -> None:
    """Loop devices and FUSE file systems that are mounted somewhere, here alone; not what we run from."""
    needed = os.path.realpath(__file__), sys.executable, os.path.realpath(sys.executable)
    with open("/proc/self/mounts") as file:
        mounts = [line.split()[:3] for line in file]
    for device, path, kind in reversed(mounts):
        is_disk = device.startswith("/dev/loop") or kind.startswith("fuse")
        if is_disk and not any(f"{name}/".startswith(f"{path.rstrip('/')}/") for name in needed):
            subprocess.run(("umount", "--lazy", path.encode().decode("unicode_escape")), capture_output=True, check=False)


class Disks:
    """Loop devices that the kernel gives back by itself when they are unmounted."""

    def __init__(self) -> None:
        self._frozen: set[str] = set()

    def mount(self, image: str, path: str) -> None:
        os.makedirs(path, exist_ok=True)
        run("mount", "-o", "loop", image, path)

    def unmount(self, path: str) -> None:
        run("umount", path)

    def freeze(self, path: str) -> None:
        self._ioctl(path, FREEZE, 0)
        self._frozen.add(path)

    def thaw(self, path: str) -> None:
        if path in self._frozen:
            self._frozen.discard(path)
            self._ioctl(path, THAW, 0)

    def shut_down(self, path: str) -> None:
        """What was not synced is lost, and every call fails from now on."""
        self._ioctl(path, SHUTDOWN, LOSE_UNSYNCED)

    def thaw_all(self) -> None:
        for path in list(self._frozen):
            self.thaw(path)

    def _ioctl(self, path: str, number: int, argument: int) -> None:
        fd = os.open(path, os.O_RDONLY)
        try:
            fcntl.ioctl(fd, number, struct.pack("I", argument))
        finally:
            os.close(fd)


def main() -> None:
    let_go_of_other_disks()
    disks = Disks()
    print(json.dumps(None), flush=True)
    for line in sys.stdin:
        verb, *arguments = json.loads(line)
        try:
            getattr(disks, verb)(*arguments)
            answer = None
        except OSError as error:
            answer = str(error)
        print(json.dumps(answer), flush=True)
    disks.thaw_all()


if __name__ == "__main__":
    main()
