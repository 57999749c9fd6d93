"""Starts a child of `millrace run` with its program, environment and listening sockets.

Weak: the systemd unit files repeat the same settings.

The receiving end of sd_notify. The kernel vouches for the pid of the sender (SCM_CREDENTIALS).

Weak: messages of a child that dies before they are read match no child and are dropped.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from struct import Struct

from appliance.base.layout import RUNTIME_VARIABLE
from appliance.runtime.children import Child, listen_names
from appliance.runtime.run_options import python_arguments
from appliance.runtime.spawning import spawn

TRIM_BYTES = 16 << 20
TRIM_VARIABLE = "MALLOC_TRIM_THRESHOLD_"


def module_of(kind: str) -> str:
    """Return the module that is the program of a kind of process."""
    return f"services.{kind.replace('-', '_')}"


def start_child(child: Child, runtime_directory: str, notify_path: str, listening: Mapping[str, socket.socket]) -> int:
    """Start the process of `child`; returns its pid. Raises OSError if the fork fails."""
    sockets = {name: listening[name] for name in listen_names(child.kind, listening)}
    program = [module_of(child.kind), *filter(None, [child.instance])]
    # Otherwise glibc returns the memory of each request to the kernel, and the next request pays
    # for its page faults (10 % of the time of OTLP).
    further = {TRIM_VARIABLE: str(TRIM_BYTES)} if child.kind == "ingest" else {}
    return start_program(program, runtime_directory, notify_path, sockets, further)


def start_program(
    program: Sequence[str], runtime_directory: str, notify_path: str, listening: Mapping[str, socket.socket], further: Mapping[str, str] | None = None
) -> int:
    """Start a module with its arguments, all of the sockets and `further` variables, unless the environment
    has them; returns its pid. Raises OSError if the fork fails."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("LISTEN_")}
    environment[RUNTIME_VARIABLE] = runtime_directory
    environment["NOTIFY_SOCKET"] = notify_path
    # otherwise glibc allocates an arena per thread
    environment = {"MALLOC_ARENA_MAX": "2", **(further or {}), **environment}
    if listening:
        environment["LISTEN_FDS"] = str(len(listening))
        environment["LISTEN_FDNAMES"] = ":".join(listening)
    arguments = [sys.executable, *python_arguments(program[0], environment), *program[1:]]
    return spawn(arguments, environment, [sock.fileno() for sock in listening.values()])


_CREDENTIALS = Struct("=iII")
_MESSAGE_BYTES = 4096


def sender_of(channel: socket.socket) -> tuple[bytes, int]:
    """Receive a message on a socket with SO_PASSCRED; returns it and the pid of its sender. Raises
    OSError."""
    data, ancillary, _, _ = channel.recvmsg(_MESSAGE_BYTES, socket.CMSG_SPACE(_CREDENTIALS.size))
    pid = 0
    for level, kind, content in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_CREDENTIALS:
            pid = _CREDENTIALS.unpack_from(content)[0]
    return data, pid


class NotifySocket:
    """A datagram socket at `path`, which children find in NOTIFY_SOCKET."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        try:
            os.unlink(path)
        except FileNotFoundError:
            pass
        self._socket.bind(path)
        os.chmod(path, 0o600)

    def fileno(self) -> int:
        return self._socket.fileno()

    def receive(self) -> Iterator[tuple[int, str, str]]:
        """Yield each received assignment as (pid, name, value)."""
        while True:
            try:
                data, pid = sender_of(self._socket)
            except (BlockingIOError, InterruptedError):
                return
            for line in data.decode("utf-8", "replace").splitlines():
                name, _, value = line.partition("=")
                yield pid, name, value

    def close(self) -> None:
        self._socket.close()
