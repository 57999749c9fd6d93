"""The first start of a box's processes: one fork server imports their modules and forks them all.

A process that is started by exec imports its modules itself, which is most of the processor time of
a start. So the first incarnations under `millrace run` are forks. The fork server ends when it has
made them; the supervisor is then their parent (PR_SET_CHILD_SUBREAPER) and treats them like those
that it starts by exec: later incarnations, which must import the modules that are installed then,
and those that the fork server did not deliver.

A fork reports itself on the notify socket, where the kernel vouches for its pid. Until it has the
supervisor as its parent it stays in the process group of the fork server, and is killed with it.

Weak: the first incarnations share the layout of addresses and the seed of hashes (DECISIONS.md). A
process that another one abandons while the fork server runs remains a zombie of the supervisor.
"""

from __future__ import annotations

import atexit
import fcntl
import gc
import importlib
import os
import runpy
import signal
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from appliance.runtime.children import Child, ChildState, listen_names
from appliance.runtime.service_main import name_process
from appliance.runtime.spawning import PARENT_VARIABLE, adopt_orphans, die_with_parent
from appliance.runtime.systemd import FIRST_LISTEN_DESCRIPTOR, notify
from services.supervisor.child_start import TRIM_BYTES, TRIM_VARIABLE, module_of, start_program

if TYPE_CHECKING:
    import socket

STARTED = "X_MILLRACE_STARTED"
PATIENCE_MS = 60_000
"""What the fork server has not delivered after this time is started by exec. On a busy machine its
imports may take many seconds."""
FORKS_MS = 1_000
"""The same, after a fork server that failed: its forks report at once."""
PARENT_SECONDS = 30.0
"""How long a fork waits for the end of the fork server."""
WAIT_SECONDS = 0.001
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
"""What each kind imports. Others are started by exec: ZooKeeper is Java, and the tabler has to set
variables before it imports numpy."""
_M_TRIM_THRESHOLD = -1
_ARGUMENTS_START, _ARGUMENTS_END = 48 - 3, 49 - 3
"""Fields of /proc/PID/stat (proc(5) counts from 1), after the name."""


class FirstStart:
    """The supervisor's side: the fork server, and the children that it has not delivered yet."""

    def __init__(self, children: Iterable[Child], runtime_directory: str, notify_path: str, listening: Mapping[str, socket.socket], now_ms: int) -> None:
        """Start the fork server for `children`, whose kinds it knows. Raises OSError if that fails."""
        awaited = {child.name: child for child in children}
        adopt_orphans(True)
        try:
            self.pid = start_program([__name__, *awaited], runtime_directory, notify_path, listening)
        except OSError:
            adopt_orphans(False)
            raise
        with suppress(OSError):  # it does this itself, perhaps later than the first look at its group
            os.setpgid(self.pid, self.pid)
        self._awaited = awaited
        self._group = self.pid
        self._until_ms = now_ms + PATIENCE_MS
        for child in awaited.values():
            child.state = ChildState.STARTING

    @property
    def is_running(self) -> bool:
        return self._group != 0

    def take(self, name: str) -> Child | None:
        """Return the child that has reported itself; None if it is not (or no longer) awaited."""
        return self._awaited.pop(name, None)

    def turn(self, now_ms: int) -> list[Child]:
        """Reap what belongs to the fork server; returns children that have to be started by exec."""
        self._reap(now_ms)
        if not self._awaited or now_ms < self._until_ms:
            return []
        missing = list(self._awaited.values())
        self.close()
        return missing

    def close(self) -> None:
        """Kill the fork server and the forks that have not reported; a report that follows is of a
        process that is not awaited. `turn` reaps them."""
        self._awaited = {}
        if self._group:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._group, signal.SIGKILL)

    def _reap(self, now_ms: int) -> None:
        while self._group:
            try:
                pid, status = os.waitpid(-self._group, os.WNOHANG)
            except ChildProcessError:
                self._group = 0
                return
            if not pid:
                return
            if pid == self.pid:
                self.pid = 0
                adopt_orphans(False)
                if status:
                    self._until_ms = min(self._until_ms, now_ms + FORKS_MS)


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
    _take_sockets(listen_names(kind, opened), opened)
    if kind == "ingest" and TRIM_VARIABLE not in os.environ:
        _set_trim_threshold()
    sys.argv[1:] = [instance] if instance else []
    _show_arguments([sys.executable, "-P", "-m", module, *sys.argv[1:]])
    until = time.monotonic() + PARENT_SECONDS
    while os.getppid() == fork_server and time.monotonic() < until:
        time.sleep(WAIT_SECONDS)
    os.setpgid(0, 0)
    if not die_with_parent(int(os.environ[PARENT_VARIABLE])):
        return 1
    while not notify(f"{STARTED}={name}"):  # its queue is full
        if time.monotonic() > until:
            return 1
        time.sleep(WAIT_SECONDS)
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        if isinstance(end.code, int):
            return end.code
        raise
    return 0


def _take_sockets(names: Sequence[str], opened: Sequence[str]) -> None:
    """Keep the sockets `names` of the fork server's, as LISTEN_FDS requires, and close everything
    else above standard error."""
    above = max(128, FIRST_LISTEN_DESCRIPTOR + len(opened))
    kept = [fcntl.fcntl(FIRST_LISTEN_DESCRIPTOR + opened.index(name), fcntl.F_DUPFD_CLOEXEC, above) for name in names]
    for index, descriptor in enumerate(kept):
        os.dup2(descriptor, FIRST_LISTEN_DESCRIPTOR + index)
    os.closerange(FIRST_LISTEN_DESCRIPTOR + len(kept), max([above, *kept]) + 1)
    os.environ |= {"LISTEN_FDS": str(len(names)), "LISTEN_FDNAMES": ":".join(names), "LISTEN_PID": str(os.getpid())}


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
