"""How a `SystemdBox` comes to be: what it is made of, and the way of its process 1 from the host's root, in new namespaces, to systemd on its own.

The keeper (`systemd_keeper.py`) runs this in those namespaces: `python -m lab.systemd_boot DIRECTORY`; DIRECTORY/plan.json says what is wanted. Weak
spot: what of the host must not be seen in the box is a list (`forget_the_host`); another distribution may start more than that.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import socket
import struct
import subprocess
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path

ROOT = Path(__file__).parent.parent
SYSTEMD = "/lib/systemd/systemd"
OVERLAY, DISKS = "overlay", "disks"
LOOPBACK_UP = struct.pack("16sh22x", b"lo", 0x41)  # IFF_UP | IFF_RUNNING
SET_INTERFACE_FLAGS = 0x8914
DEVICES = ["null", "zero", "full", "random", "urandom", "tty"]
MASKED = """
    systemd-timesyncd.service systemd-networkd-wait-online.service systemd-resolved.service systemd-logind.service e2scrub_reap.service
    getty.target console-getty.service
    systemd-modules-load.service systemd-udevd.service systemd-udev-trigger.service systemd-random-seed.service proc-sys-fs-binfmt_misc.automount
    sys-kernel-debug.mount sys-kernel-tracing.mount sys-kernel-config.mount sys-fs-fuse-connections.mount dev-hugepages.mount
""".split()
"""What would find a network, a console or a kernel that is not the box's, or wait for what it does not have."""


@dataclass(frozen=True)
class BoxPlan:
    """What a box is made of."""

    name: str
    disks: list[str] = field(default_factory=list)
    """Kind of each: ext4, xfs or tmpfs. Number N is mounted at /srv/dN, by the box's /etc/fstab."""
    disk_mib: int = 512
    mounts: list[tuple[str, str]] = field(default_factory=list)
    """Directories of the host, and where the box sees them, read-only."""


def write_plan(directory: Path, plan: BoxPlan) -> None:
    (directory / "plan.json").write_text(json.dumps(asdict(plan)))


def read_plan(directory: Path) -> BoxPlan:
    return BoxPlan(**json.loads((directory / "plan.json").read_text()))


def run(*command: str | Path) -> None:
    subprocess.run([str(word) for word in command], check=True, stdin=subprocess.DEVNULL)


def boot(directory: Path) -> None:
    """Runs as process 1 of the new namespaces, still on the host's root; ends as systemd on the box's."""
    plan = read_plan(directory)
    root = directory / OVERLAY / "root"
    host_pid = os.readlink("/proc/self")  # this is still the host's /proc
    layers = ",".join(f"{name}={path}" for name, path in (("lowerdir", "/"), ("upperdir", root.with_name("upper")), ("workdir", root.with_name("work"))))
    run("mount", "-t", "overlay", "overlay", "-o", layers, root)
    mount_kernel_file_systems(root)
    for source, place in [(str(ROOT), str(ROOT)), *plan.mounts]:
        (root / place.lstrip("/")).mkdir(parents=True, exist_ok=True)
        run("mount", "--bind", source, root / place.lstrip("/"))
        run("mount", "-o", "remount,bind,ro", root / place.lstrip("/"))
    hand_over_disks(directory, root, len(plan.disks))
    if not (root / "etc/millrace-box").exists():
        forget_the_host(root, plan)
    socket.sethostname(plan.name)
    with socket.socket() as any_socket:
        fcntl.ioctl(any_socket, SET_INTERFACE_FLAGS, LOOPBACK_UP)
    (directory / "pid.new").write_text(host_pid)
    (directory / "pid.new").rename(directory / "pid")
    os.chdir(root)
    (root / ".old").mkdir(exist_ok=True)
    run("pivot_root", ".", ".old")
    os.chdir("/")
    run("umount", "-l", "/.old")
    os.rmdir("/.old")
    os.closerange(3, 64)
    path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    os.execve(SYSTEMD, [SYSTEMD, "--system", "--unit=multi-user.target", "--show-status=yes"], {"container": "unshare", "PATH": path, "TERM": "dumb"})


def mount_kernel_file_systems(root: Path) -> None:
    run("mount", "-t", "proc", "proc", root / "proc")
    run("mount", "-t", "sysfs", "-o", "ro", "sysfs", root / "sys")
    run("mount", "-t", "cgroup2", "cgroup2", root / "sys/fs/cgroup")
    run("mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", root / "run")
    run("mount", "-t", "tmpfs", "-o", "mode=1777", "tmpfs", root / "tmp")
    run("mount", "--bind", root / "proc/sys", root / "proc/sys")  # these are the host's, except for those of the network
    run("mount", "-o", "remount,bind,ro", root / "proc/sys")
    run("mount", "--bind", "/proc/sys/net", root / "proc/sys/net")
    device = root / "dev"
    run("mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", device)
    for name in DEVICES:
        (device / name).touch()
        run("mount", "--bind", f"/dev/{name}", device / name)
    for name, options in (("shm", "mode=1777"), ("pts", "newinstance,mode=620,ptmxmode=666,gid=5")):
        (device / name).mkdir()
        run("mount", "-t", "tmpfs" if name == "shm" else "devpts", "-o", options, "none", device / name)
    for name, target in (("ptmx", "pts/ptmx"), ("fd", "/proc/self/fd"), ("stdin", "fd/0"), ("stdout", "fd/1"), ("stderr", "fd/2")):
        (device / name).symlink_to(target)


def hand_over_disks(directory: Path, root: Path, count: int) -> None:
    """The box has them below /.disks; its fstab puts them where they are used, as that of a real machine does with devices."""
    for number in range(count):
        place = root / ".disks" / f"d{number}"
        place.mkdir(parents=True, exist_ok=True)
        (root / "srv" / f"d{number}").mkdir(exist_ok=True)
        run("mount", "--bind", directory / DISKS / f"d{number}", place)


def forget_the_host(root: Path, plan: BoxPlan) -> None:
    """A machine that has just been set up: none of the host's services, mounts and names."""
    for name in ["systemd/system", *(f"rc{level}.d" for level in "0123456S")]:
        shutil.rmtree(root / "etc" / name, ignore_errors=True)
        (root / "etc" / name).mkdir()
    for name in ("opt/millrace", "etc/millrace", "var/lib/millrace"):
        shutil.rmtree(root / name, ignore_errors=True)
    (root / "usr/local/bin/millrace").unlink(missing_ok=True)
    for name in MASKED:
        (root / "etc/systemd/system" / name).symlink_to("/dev/null")
    fstab = "".join(f"/.disks/d{number} /srv/d{number} none bind,nofail 0 0\n" for number in range(len(plan.disks)))
    for name, text in (("fstab", fstab), ("hostname", f"{plan.name}\n"), ("machine-id", f"{os.urandom(16).hex()}\n"), ("millrace-box", "")):
        (root / "etc" / name).unlink(missing_ok=True)
        (root / "etc" / name).write_text(text)
    (root / "etc/hosts").write_text(f"127.0.0.1 localhost\n127.0.1.1 {plan.name}\n")
    shutil.rmtree(root / "var/log/journal", ignore_errors=True)


if __name__ == "__main__":
    boot(Path(sys.argv[1]))
