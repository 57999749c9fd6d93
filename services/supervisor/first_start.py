"""The first start of a box's processes: one fork server imports their modules and forks them all.

A process that is started by exec imports its modules itself, which is most of the processor time of
a start. So the first incarnations under `millrace run` are forks. The fork server ends when it has
made them; the supervisor is then their parent (PR_SET_CHILD_SUBREAPER) and treats them like those
that it starts by exec: later incarnations, which must import the modules that are installed then,
and those that the fork server did not deliver.

Each fork has one end of a socket pair. When the supervisor is its parent, it sends a byte, with
which the kernel passes its pid, and waits for a byte before it runs; the end of the connection on
either side means that it never will. So no process runs twice. Until then it is in the process
group of the fork server, which the supervisor kills and reaps as a whole.

Weak: the first incarnations share the layout of addresses and the seed of hashes, and the modules
of all kinds: the last one that has not restarted has 45 MB of them alone (DECISIONS.md). A process
that another one abandons while the fork server runs remains a zombie of the supervisor.
"""

from __future__ import annotations

import atexit
import fcntl
import gc
import importlib
import os
import runpy
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial

from appliance.runtime.children import Child, ChildState, listen_names
from appliance.runtime.poller import READABLE, Poller
from appliance.runtime.service_main import name_process
from appliance.runtime.spawning import PARENT_VARIABLE, adopt_orphans, die_with_parent
from appliance.runtime.systemd import FIRST_LISTEN_DESCRIPTOR
from services.supervisor.child_start import TRIM_BYTES, TRIM_VARIABLE, module_of, sender_of

PATIENCE_MS = 60_000
"""What the fork server has not delivered after this time is started by exec. On a busy machine its
imports may take many seconds."""
PARENT_SECONDS = 30.0
"""How long a fork waits for the end of the fork server."""
WAIT_SECONDS = 0.001
START_SOCKET = "start-"
"""Prefix of the names under which the fork server finds its ends of the socket pairs."""
AGENTS = {
    "controller": "services.controller.agent",
    "coordinator": "services.coordinator.agent",
    "replica-fetcher": "services.replica_fetcher.agent",
    "log-writer": "services.log_writer.offline_log_writer",
    "log-reader": "services.log_reader.agent",
    "acceptor": "services.acceptor.agent",
    "ingest": "services.ingest.agent",
    "console": "services.console.agent",
}
"""What the `__main__` of each kind imports: the one place where a service imports others, in a
process that then becomes one of them. Other kinds are started by exec: ZooKeeper is Java, and the
tabler has to set variables before it imports numpy."""
_M_TRIM_THRESHOLD = -1
_ARGUMENTS_START, _ARGUMENTS_END = 48 - 3, 49 - 3
"""Fields of /proc/PID/stat (proc(5) counts from 1), after the name."""


class FirstStart:
    """The supervisor's side: the fork server, and the children that it has not delivered yet."""

    def __init__(
        self, children: Iterable[Child], begin: Callable[[Mapping[str, socket.socket]], int], poller: Poller, on_forked: Callable[[Child, int], None]
    ) -> None:
        """`begin` starts the fork server with further sockets and returns its pid; `on_forked` is
        called with each delivered child and its pid. Raises OSError if it cannot be started."""
        self._poller = poller
        self._on_forked = on_forked
        self._missing: list[Child] = []
        pairs = [(child, *socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)) for child in children]
        self._awaited = {child: ours for child, ours, _ in pairs}
        for ours in self._awaited.values():
            ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
            ours.setblocking(False)
        adopt_orphans(True)
        try:
            self.pid = begin({START_SOCKET + child.name: theirs for child, _, theirs in pairs})
        except OSError:
            self.pid = self._group = 0
            self.close()
            adopt_orphans(False)
            raise
        finally:
            for _, _, theirs in pairs:
                theirs.close()
        self._group = self.pid
        with suppress(OSError):  # it does this itself, perhaps later than the first look at its group
            os.setpgid(self.pid, self.pid)
        for child, ours in self._awaited.items():
            poller.register(ours.fileno(), READABLE, partial(self._on_word, child))
            child.state = ChildState.STARTING

    @property
    def is_running(self) -> bool:
        """Whether a process of the fork server's group has not been reaped."""
        return self._group != 0

    def turn(self, since_ms: int) -> list[Child]:
        """Reap what belongs to the fork server; returns children that have to be started by exec.
        `since_ms`: for how long the fork server has been running."""
        self._reap()
        if self._awaited and since_ms >= PATIENCE_MS:
            self._missing += self._awaited
            self.close()
        missing, self._missing = self._missing, []
        return missing

    def close(self) -> None:
        """Kill the fork server and what it has not delivered; `turn` reaps them."""
        for child in list(self._awaited):
            self._forget(child)
        if self._group:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._group, signal.SIGKILL)

    def _on_word(self, child: Child, _events: int) -> None:
        """A fork is ready to run as `child`, or will never be."""
        ours = self._awaited[child]
        word, pid = b"", 0
        try:
            word, pid = sender_of(ours)
            if word:
                os.setpgid(pid, pid)  # it does this itself, too
                ours.send(b"\0")
        except BlockingIOError:
            return
        except OSError:
            word = b""  # it has ended since
        self._forget(child)
        if word:
            self._on_forked(child, pid)
        else:
            self._missing.append(child)

    def _forget(self, child: Child) -> None:
        ours = self._awaited.pop(child)
        self._poller.unregister(ours.fileno())
        ours.close()

    def _reap(self) -> None:
        while self._group:
            try:
                pid, _status = os.waitpid(-self._group, os.WNOHANG)
            except ChildProcessError:
                self._group = 0
                return
            if not pid:
                return
            if pid == self.pid:
                self.pid = 0
                adopt_orphans(False)


class Leave:
    """Ends a fork without the teardown of its interpreter, which would copy each shared page (60 ms
    of a processor).

    Registered before the others, so that it runs after threads have ended and the other exit
    handlers have run. It does nothing before `code` is set.
    """

    def __init__(self) -> None:
        self.code: int | None = None
        atexit.register(self._leave)

    def _leave(self) -> None:
        if self.code is not None:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(self.code)


def main() -> int:
    """The fork server; its arguments are the names of the processes. Returns in the forks only."""
    leave = Leave()
    gc.disable()  # imports leave hardly any garbage; run_service enables it
    name_process("millrace-start")
    names = sys.argv[1:]
    opened = list(filter(None, os.environ.get("LISTEN_FDNAMES", "").split(":")))
    for name in names:
        importlib.import_module(AGENTS[name.partition("@")[0]])
    if len(os.listdir("/proc/self/task")) != 1:
        raise RuntimeError("an import has started a thread, and a fork would lack it")
    gc.freeze()
    fork_server = os.getpid()
    for name in names:
        if not os.fork():
            leave.code = _serve(name, opened, fork_server)
            return leave.code
    os._exit(0)  # without the end of an interpreter: it has nothing to close


def _serve(name: str, opened: Sequence[str], fork_server: int) -> int:
    """Become the process `name`; returns if it need not run."""
    kind, _, instance = name.partition("@")
    module = module_of(kind)
    start = _take_sockets(listen_names(kind, opened), START_SOCKET + name, opened)
    if kind == "ingest" and TRIM_VARIABLE not in os.environ:
        _set_trim_threshold()
    sys.argv[1:] = [instance] if instance else []
    _show_arguments([sys.executable, "-P", "-m", module, *sys.argv[1:]])
    until = time.monotonic() + PARENT_SECONDS
    while os.getppid() == fork_server and time.monotonic() < until:
        time.sleep(WAIT_SECONDS)
    if not die_with_parent(int(os.environ[PARENT_VARIABLE])):
        return 1
    with start:
        start.send(b"\0")
        if not start.recv(1):
            return 1
    with suppress(OSError):  # the supervisor has done this
        os.setpgid(0, 0)
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        if isinstance(end.code, int):
            return end.code
        raise
    return 0


def _take_sockets(names: Sequence[str], start: str, opened: Sequence[str]) -> socket.socket:
    """Keep the sockets `names` of the fork server's, as LISTEN_FDS requires, and close everything
    else above standard error but `start`, which is returned."""
    above = max(128, FIRST_LISTEN_DESCRIPTOR + len(opened))
    kept = [fcntl.fcntl(FIRST_LISTEN_DESCRIPTOR + opened.index(name), fcntl.F_DUPFD_CLOEXEC, above) for name in (*names, start)]
    for index, descriptor in enumerate(kept):
        os.dup2(descriptor, FIRST_LISTEN_DESCRIPTOR + index)
    os.closerange(FIRST_LISTEN_DESCRIPTOR + len(kept), max(kept) + 1)
    for variable in ("LISTEN_FDS", "LISTEN_FDNAMES", "LISTEN_PID"):
        os.environ.pop(variable, None)
    if names:
        os.environ |= {"LISTEN_FDS": str(len(names)), "LISTEN_FDNAMES": ":".join(names), "LISTEN_PID": str(os.getpid())}
    return socket.socket(fileno=FIRST_LISTEN_DESCRIPTOR + len(names))


def _set_trim_threshold() -> None:
    """Set what glibc reads from the environment only at the start of a program."""
    import ctypes

    os.environ[TRIM_VARIABLE] = str(TRIM_BYTES)
    ctypes.CDLL(None).mallopt(_M_TRIM_THRESHOLD, TRIM_BYTES)


def _show_arguments(arguments: Sequence[str]) -> None:
    """Show `arguments` as this process's in `ps`, instead of those of the fork server, which are
    longer."""
    import ctypes

    with open("/proc/self/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    start, end = int(fields[_ARGUMENTS_START]), int(fields[_ARGUMENTS_END])
    text = "\0".join([*arguments, ""]).encode()
    if start and len(text) <= end - start:
        ctypes.memmove(start, text.ljust(end - start, b"\0"), end - start)


if __name__ == "__main__":
    raise SystemExit(main())
