"""A throw-away machine with a real systemd as process 1: namespaces over an overlay of this machine's root, its own disks, its own network with loopback only.

`SystemdBox.start` boots one in about a second, and it is as if Debian had just been set up on it: nothing of ours is installed, no service of the host
runs, what it writes goes nowhere. Its disks are real file systems (or tmpfs) at /srv/d0, /srv/d1 and so on, by /etc/fstab. `run` executes in it; a thread
that is `inside` its network opens sockets there. It ends with the process that started it, even if that is killed. Weak spots: the kernel is the host's, so
sysctl outside of net.* is read-only and there is no udev; limits of memory and processor are not enforced where the host's groups have no controllers to
give.

By hand: `python -m lab.systemd_box start NAME [--disks KIND,KIND] [--mib N] [--mount HOST:BOX]…`, `exec NAME COMMAND…`, `reboot NAME`, `stop NAME`
and `list`.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

from lab.systemd_boot import ROOT, SYSTEMD, BoxPlan, write_plan
from lab.systemd_keeper import CUT, NAMESPACES, ORDERLY, PIPE_VARIABLE, SWITCH

PLACE = Path("/tmp/millrace-systemd-boxes")
"""Where boxes started by hand have their directories."""

BOOT_SECONDS, STOP_SECONDS = 60.0, 60.0
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
ENVIRONMENT = [f"PATH={PATH}", "HOME=/root", "LC_ALL=C.UTF-8", "TERM=dumb", "COLUMNS=200", "SYSTEMD_PAGER=", "SYSTEMD_COLORS=0"]
CLONE_NEWNET = 0x40000000
ATTEMPT_GROUP = "millrace-attempt-"
ATTEMPT = f"mount -t cgroup2 none /sys/fs/cgroup && mkdir -p /sys/fs/cgroup/{{0}} && (rmdir /sys/fs/cgroup/{ATTEMPT_GROUP}* 2>/dev/null || true)"
"""Creates a control group, which may be a leftover, and removes it with those that killed attempts have left."""


@cache
def why_not() -> str:
    """Why this machine cannot have such a box, or an empty text."""
    if os.geteuid() != 0:
        return "a systemd in namespaces needs root"
    for command in (SYSTEMD, "systemctl", "unshare", "nsenter", "mkfs.ext4", "losetup"):
        if shutil.which(command) is None:
            return f"{command} is not installed"
    attempt = subprocess.run(
        ["unshare", *NAMESPACES, "--fork", "sh", "-c", ATTEMPT.format(f"{ATTEMPT_GROUP}{os.getpid()}")], capture_output=True, text=True, check=False
    )
    return f"namespaces are not allowed here: {attempt.stderr.strip()}" if attempt.returncode else ""


class SystemdBox:
    """A box that runs. `directory` is the host's: console.log, pid."""

    def __init__(self, directory: Path, keeper: subprocess.Popen[bytes] | None) -> None:
        self.directory = directory
        self._keeper = keeper

    @classmethod
    def start(
        cls,
        directory: Path,
        disks: Sequence[str] = (),
        disk_mib: int = 512,
        mounts: Sequence[tuple[Path | str, str]] = (),
        name: str = "",
        outlives_us: bool = False,
    ) -> SystemdBox:
        """Boot a box whose directory is `directory`; returns when its boot is over. `name` is its host name."""
        directory.mkdir(parents=True, exist_ok=True)
        plan = BoxPlan(name or directory.name, list(disks), disk_mib, [(str(source), place) for source, place in mounts])
        before = cls.find(directory)
        assert before.await_end(10), f"a box runs in {directory}"
        write_plan(directory, plan)
        for leftover in ("pid", SWITCH):
            (directory / leftover).unlink(missing_ok=True)
        with open(directory / "keeper.log", "wb") as log:
            keeper = subprocess.Popen(
                [sys.executable, "-P", "-m", "lab.systemd_keeper", str(directory)],
                env={**os.environ, "PYTHONPATH": str(ROOT), PIPE_VARIABLE: "" if outlives_us else "1"},
                stdin=subprocess.DEVNULL if outlives_us else subprocess.PIPE,  # closed when we end, however that happens
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        (directory / "keeper").write_text(str(keeper.pid))
        box = cls(directory, keeper)
        try:
            box.await_boot()
        except BaseException:
            box.destroy()
            raise
        return box

    @classmethod
    def find(cls, directory: Path) -> SystemdBox:
        """The box that another process started there."""
        return cls(directory, None)

    # --- starting and stopping ---

    @property
    def pid(self) -> int:
        """Host's pid of process 1; 0 while there is none."""
        try:
            return int((self.directory / "pid").read_text())
        except OSError:
            return 0

    def await_boot(self, unlike: int = 0, seconds: float = BOOT_SECONDS) -> None:
        """Until process 1 (another one than `unlike`) has nothing more to start."""

        self.await_process_1(unlike, seconds)
        self.run("systemctl is-system-running --wait", check=False, seconds=seconds)

    def await_process_1(self, unlike: int = 0, seconds: float = BOOT_SECONDS) -> None:
        """Until process 1 (another one than `unlike`) takes orders; it may have much to start yet."""

        def has_socket() -> bool:
            return self.pid not in (0, unlike) and os.path.exists(f"/proc/{self.pid}/root/run/systemd/private")

        deadline = time.monotonic() + seconds
        while not has_socket():
            assert time.monotonic() < deadline and self._is_kept(), f"the box does not boot\n{self.console()}"
            time.sleep(0.02)

    def _is_kept(self) -> bool:
        if self._keeper is not None:
            return self._keeper.poll() is None
        with suppress(OSError, ValueError):
            return b"systemd_keeper" in Path(f"/proc/{int((self.directory / 'keeper').read_text())}/cmdline").read_bytes()
        return False

    def reboot(self, seconds: float = BOOT_SECONDS) -> None:
        """Down in an orderly way, and up again with what was written."""
        before = self.pid
        self.run("systemctl reboot", check=False)
        self.await_boot(unlike=before, seconds=seconds)

    def power_off(self) -> None:
        """Begin to power off in an orderly way; `await_off` sees its end. It stays off until `power_on`."""
        (self.directory / SWITCH).write_text(ORDERLY)
        self.run("systemctl poweroff", check=False)

    def cut_power(self) -> None:
        """Everything ends at once, and its disks lose what was not synced. Returns when it is off, and stays so until `power_on`."""
        (self.directory / SWITCH).write_text(CUT)
        os.kill(self.pid, signal.SIGKILL)  # the namespace dies with its process 1, a moment later
        self.await_off()

    def await_off(self, seconds: float = STOP_SECONDS) -> None:
        deadline = time.monotonic() + seconds
        while self.pid:
            assert time.monotonic() < deadline, f"the box is not off within {seconds:g} s\n{self.console()}"
            time.sleep(0.02)

    def power_on(self) -> None:
        """Boot again, with what was written; returns when process 1 takes orders."""
        self.await_off()
        (self.directory / SWITCH).unlink()
        self.await_process_1()

    def stop(self, seconds: float = STOP_SECONDS) -> None:
        """Power off in an orderly way; nothing is left, not even of one that hangs."""
        if self._is_kept():
            self.run("systemctl poweroff", check=False)
        if not self.await_end(seconds):
            self.destroy()
            raise AssertionError(f"the box does not power off in {seconds:g} s\n{self.console()}")
        self._close()

    def destroy(self) -> None:
        """Gone at once, as if the plug had been pulled."""
        if self._is_kept():
            os.kill(int((self.directory / "keeper").read_text()), signal.SIGTERM)
        assert self.await_end(STOP_SECONDS), f"the keeper does not end\n{self.console()}"
        self._close()

    def await_end(self, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while self._is_kept():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.02)
        return True

    def _close(self) -> None:
        if self._keeper is not None and self._keeper.stdin is not None:
            self._keeper.stdin.close()

    def console(self) -> str:
        """What process 1 and the keeper have said."""
        return "".join((self.directory / name).read_text(errors="replace") for name in ("keeper.log", "console.log") if (self.directory / name).exists())

    # --- in it ---

    def entry_command(self) -> list[str]:
        enter = ["nsenter", "--target", str(self.pid), "--mount", "--uts", "--ipc", "--net", "--pid", "--cgroup", "--root", "--wd", "--"]
        return [*enter, "env", "-i", *ENVIRONMENT]

    def run(self, command: str | Sequence[str], check: bool = True, seconds: float = 120.0) -> subprocess.CompletedProcess[str]:
        """Execute in the box, as root: a line of shell, or words."""
        words = [*self.entry_command(), *(["sh", "-c", command] if isinstance(command, str) else command)]
        done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=seconds, check=False)
        assert not check or done.returncode == 0, f"{command}: {done.returncode}\n{done.stdout}{done.stderr}"
        return done

    def output(self, command: str | Sequence[str], seconds: float = 120.0) -> str:
        return self.run(command, seconds=seconds).stdout.strip()

    def unit(self, name: str, *properties: str) -> dict[str, str]:
        """Properties of a unit, by default those that tell how it is."""
        wanted = properties or ("ActiveState", "SubState", "Result", "MainPID", "NRestarts", "StatusText")
        lines = self.output(["systemctl", "show", name, *(f"--property={name}" for name in wanted)]).splitlines()
        return dict(line.split("=", 1) for line in lines)

    def journal(self, *arguments: str) -> str:
        """`journalctl ARGUMENTS`, without a pager, one line an entry unless asked otherwise."""
        return self.output(["journalctl", "--no-pager", "-o", "short-iso-precise", *arguments])

    def path(self, path: str) -> Path:
        """A path of the box as the host may open it."""
        return Path(f"/proc/{self.pid}/root{path}")

    @contextmanager
    def inside(self) -> Iterator[None]:
        """This thread, and those it starts, have the box's network: sockets that they open are there. So are clients that begin their threads here."""
        with open("/proc/thread-self/ns/net") as outside, open(f"/proc/{self.pid}/ns/net") as within:
            set_network(within.fileno())
            try:
                yield
            finally:
                set_network(outside.fileno())


def set_network(fd: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(fd, CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "setns")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m lab.systemd_box")
    actions = parser.add_subparsers(dest="action", required=True)
    for action in ("start", "exec", "reboot", "stop", "list"):
        actions.add_parser(action)
        if action != "list":
            actions.choices[action].add_argument("name")
    start = actions.choices["start"]
    start.add_argument("--disks", default="tmpfs,tmpfs", help="kinds, one per disk: ext4, xfs, tmpfs")
    start.add_argument("--mib", type=int, default=512)
    start.add_argument("--mount", action="append", default=[], metavar="HOST:BOX")
    actions.choices["exec"].add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    if options.action == "list":
        print("\n".join(path.parent.name for path in PLACE.glob("*/pid")))
        return 0
    directory = PLACE / options.name
    if options.action == "start":
        if reason := why_not():
            sys.exit(reason)
        mounts = [tuple(pair.split(":", 1)) for pair in options.mount]
        box = SystemdBox.start(directory, [kind for kind in options.disks.split(",") if kind], options.mib, mounts, outlives_us=True)
        print(box.output("systemctl is-system-running; systemctl --failed --no-legend; true"))
        return 0
    box = SystemdBox.find(directory)
    if options.action == "exec":
        words = options.command or ["bash"]
        command = [*box.entry_command(), *(["sh", "-c", words[0]] if len(words) == 1 and len(shlex.split(words[0])) > 1 else words)]
        os.execvp(command[0], command)
    getattr(box, options.action)()
    if options.action == "stop":
        shutil.rmtree(directory, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
