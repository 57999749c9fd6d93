"""Machines of a test's cluster: network and mount namespaces of their own on one switch, which has a namespace, too. The host's network is not touched.

A machine has an address 10.77.0.N, disks on loop devices, and a network that can be cut (all of it, one way, between two machines) or made slow. `run_in`
starts a process there; a thread that is `inside` opens its sockets there, and so do threads that it starts. When the test ends, or is killed, everything
goes. Cuts are silent, as those of a network are: packets vanish and neither end gets an error. Weak spots: the kernel has no netem, so a slow network is a
narrow one (packets queue), not a long one; what is sent to a machine that is cut off one way is lost as it leaves the sender (its neighbour's address is a
wrong one).
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import cache, partial
from pathlib import Path

from appliance.runtime.spawning import die_with_parent
from lab.loop_disks import FOLLOWING
from lab.running_box import ROOT

CLONE_NEWNET = 0x40000000
NETWORK = "10.77.0"
NOWHERE = "02:00:00:00:00:fe"
"""An Ethernet address that no machine has."""


@cache
def why_not() -> str:
    """Why this machine cannot have others in it, or an empty text."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    for command in ("ip", "tc", "unshare", "nsenter", "mount", "mkfs.ext4"):
        if shutil.which(command) is None:
            return f"{command} is not installed"
    attempt = subprocess.run(["unshare", "--net", "--mount", "ip", "link", "add", "br0", "type", "bridge"], capture_output=True, text=True, check=False)
    return f"namespaces are not allowed here: {attempt.stderr.strip()}" if attempt.returncode else ""


def address_of(number: int) -> str:
    return f"{NETWORK}.{number}"


class Namespace:
    """Namespaces that live as long as their keeper."""

    def __init__(self) -> None:
        self._keeper = subprocess.Popen(
            ["unshare", "--net", "--mount", *FOLLOWING, sys.executable, "-S", str(ROOT / "lab/namespace_keeper.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        self.pid = self._keeper.pid
        self._answer()

    def ask(self, verb: str, *arguments: str) -> None:
        """Have the keeper do something to a disk; OSError with its words if it cannot."""
        assert self._keeper.stdin is not None
        self._keeper.stdin.write(json.dumps([verb, *arguments]).encode() + b"\n")
        self._keeper.stdin.flush()
        self._answer()

    def _answer(self) -> None:
        assert self._keeper.stdout is not None
        line = self._keeper.stdout.readline()
        words = json.loads(line) if line else "the keeper of a namespace has ended"
        if words is not None:
            raise OSError(words)

    def ip(self, *commands: str) -> None:
        """Commands of `ip`, all in one go."""
        done = subprocess.run([*self.entering, "ip", "-batch", "-"], input="\n".join(commands), capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"ip {commands}: {done.stderr}"

    def tc(self, command: str, may_fail: bool = False) -> None:
        subprocess.run([*self.entering, "tc", *command.split()], check=not may_fail, capture_output=True)

    @property
    def entering(self) -> list[str]:
        return ["nsenter", "-t", str(self.pid), "--net", "--mount"]

    @contextmanager
    def inside(self) -> Iterator[None]:
        """This thread, and those that it starts, open their sockets in this namespace."""
        libc = ctypes.CDLL(None, use_errno=True)
        with open(f"/proc/{threading.get_native_id()}/ns/net") as home, open(f"/proc/{self.pid}/ns/net") as there:
            assert libc.setns(there.fileno(), CLONE_NEWNET) == 0, os.strerror(ctypes.get_errno())
            try:
                yield
            finally:
                libc.setns(home.fileno(), CLONE_NEWNET)

    def run_in(self, command: Sequence[str], **options: object) -> subprocess.Popen[bytes]:
        """A process in these namespaces; it ends with the test. To be called from the main thread, whose end is what it follows."""
        assert threading.current_thread() is threading.main_thread()
        return subprocess.Popen([*self.entering, *command], preexec_fn=partial(die_with_parent, os.getpid()), **options)  # type: ignore[call-overload,no-any-return]

    def end(self) -> None:
        assert self._keeper.stdin is not None and self._keeper.stdout is not None
        with suppress(OSError):
            self._keeper.stdin.close()
        try:
            self._keeper.wait(10)
        except subprocess.TimeoutExpired:
            self._keeper.kill()
            self._keeper.wait()
        self._keeper.stdout.close()


class Disk:
    """A file system on a loop device, mounted in its machine alone."""

    def __init__(self, machine: Namespace, image: Path, path: Path, mib: int) -> None:
        self._machine = machine
        self._image, self.path = image, path
        with open(image, "wb") as file:
            file.truncate(mib << 20)
        subprocess.run(["mkfs.ext4", "-qF", "-E", "nodiscard", str(image)], check=True, capture_output=True)
        self.mount()

    @property
    def log(self) -> Path:
        """The log directory on it, as the machine's processes name it."""
        return self.path / "log"

    @property
    def seen_from_here(self) -> Path:
        """The same as seen by processes outside the machine."""
        return Path(f"/proc/{self._machine.pid}/root{self.log}")

    def mount(self) -> None:
        self._machine.ask("mount", str(self._image), str(self.path))

    def unmount(self) -> None:
        """Fails while any process has a file open on it."""
        self._machine.ask("unmount", str(self.path))

    def try_unmount(self) -> bool:
        try:
            self.unmount()
        except OSError:
            return False
        return True

    def freeze(self) -> None:
        """A process that writes stops in the kernel and cannot be killed, until `thaw`."""
        self._machine.ask("freeze", str(self.path))

    def thaw(self) -> None:
        self._machine.ask("thaw", str(self.path))

    def fill(self) -> None:
        """Take all of its free space, until `empty`."""
        with open(self._ballast, "wb") as file:
            size = 1 << 40
            while size >= 1024:
                try:
                    os.posix_fallocate(file.fileno(), os.fstat(file.fileno()).st_size, size)
                except OSError as error:
                    if error.errno not in (errno.ENOSPC, errno.EFBIG):
                        raise
                    size //= 2

    def empty(self) -> None:
        """Give the space of `fill` back."""
        self._ballast.unlink(missing_ok=True)

    @property
    def _ballast(self) -> Path:
        return Path(f"/proc/{self._machine.pid}/root{self.path}/ballast")

    def shut_down(self) -> None:
        self._machine.ask("shut_down", str(self.path))


class Network:
    """A switch with machines, known by their numbers; 10 is that of the clients."""

    CLIENTS = 10

    def __init__(self, numbers: Sequence[int]) -> None:
        self._switch = Namespace()
        self.machines = {number: Namespace() for number in (*numbers, self.CLIENTS)}
        self._wrong: set[tuple[int, int]] = set()
        self._off: set[int] = set()
        self._narrow: set[int] = set()
        self._flapping: list[tuple[threading.Event, Future[None]]] = []
        self._flappers = ThreadPoolExecutor(len(numbers))
        plugs = [
            command
            for number, machine in self.machines.items()
            for command in (f"link add p{number} type veth peer name eth0 netns {machine.pid}", f"link set p{number} master br0 up")
        ]
        self._switch.ip("link add br0 type bridge", "link set br0 up", *plugs)
        for number, machine in self.machines.items():
            machine.ip(f"addr add {address_of(number)}/24 dev eth0", "link set eth0 up", "link set lo up")

    @property
    def clients(self) -> Namespace:
        return self.machines[self.CLIENTS]

    def plug(self, number: int, pid: int) -> None:
        """A line (eth0) for a machine that another process keeps, into the network namespace of this process; the machine gives itself its address. To be done
        again when it has booted: a line goes with the namespace that it leads to, a moment after it."""
        subprocess.run([*self._switch.entering, "ip", "link", "delete", f"p{number}"], capture_output=True, check=False)
        self._switch.ip(f"link add p{number} type veth peer name eth0 netns {pid}", f"link set p{number} master br0 up")

    def cut(self, number: int) -> None:
        """Everything that a machine sends, and that is sent to it, vanishes."""
        self._switch.ip(f"link set p{number} nomaster")
        self._off.add(number)

    def flap(self, number: int, seconds: float) -> None:
        """Cut a machine off and bring it back, each for `seconds`, again and again."""
        is_over = threading.Event()

        def run() -> None:
            while not is_over.is_set():
                self.cut(number)
                is_over.wait(seconds)
                self._switch.ip(f"link set p{number} master br0")
                is_over.wait(seconds)

        self._flapping.append((is_over, self._flappers.submit(run)))

    def cut_one_way(self, source: int, target: int) -> None:
        """What `source` sends to `target` vanishes; the other way is open."""
        self.machines[source].ip(f"neigh replace {address_of(target)} lladdr {NOWHERE} nud permanent dev eth0")
        self._wrong.add((source, target))

    def cut_pair(self, one: int, other: int) -> None:
        self.cut_one_way(one, other)
        self.cut_one_way(other, one)

    def cut_outgoing(self, number: int) -> None:
        """A machine hears all others, and none hears it."""
        for other in self.machines:
            if other != number:
                self.cut_one_way(number, other)

    def slow_down(self, number: int, rate: str = "2mbit", queue_ms: int = 200) -> None:
        """A machine's line is narrow, both ways; what waits longer than `queue_ms` is dropped."""
        line = f"root tbf rate {rate} burst 16kb latency {queue_ms}ms"
        self.machines[number].tc(f"qdisc replace dev eth0 {line}")
        self._switch.tc(f"qdisc replace dev p{number} {line}")
        self._narrow.add(number)

    def heal(self) -> None:
        """Everything is as it was."""
        for is_over, _ in self._flapping:
            is_over.set()
        for _, flapping in self._flapping:
            flapping.result()  # raises what ended it before its time
        self._flapping.clear()
        for number in self._off:
            self._switch.ip(f"link set p{number} master br0")
        for source, target in self._wrong:
            self.machines[source].ip(f"neigh del {address_of(target)} dev eth0")
        for number in self._narrow:
            self.machines[number].tc("qdisc del dev eth0 root", may_fail=True)
            self._switch.tc(f"qdisc del dev p{number} root", may_fail=True)
        self._off.clear()
        self._wrong.clear()
        self._narrow.clear()

    def end(self) -> None:
        for is_over, _ in self._flapping:
            is_over.set()
        self._flappers.shutdown()
        for namespace in (*self.machines.values(), self._switch):
            namespace.end()
