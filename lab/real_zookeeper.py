"""A real ZooKeeper server for tests: the embedded one, started as `millrace run` starts it, and open, as an ensemble elsewhere may be."""

from __future__ import annotations

import itertools
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from appliance.base.layout import Disk
from appliance.base.settings import Box
from appliance.cluster.zookeeper_probe import zookeeper_serves

ROOT = Path(__file__).parent.parent
START_SECONDS = 60.0


_PORTS = range(15_000, 32_000)
"""Below the ports that the kernel gives to connections (`ip_local_port_range`), so that none of them takes a port before its server does."""
_next_ports = itertools.count(os.getpid() * 97)


def free_port() -> int:
    """A port that no process listens at; each call returns another one."""
    for number in _next_ports:
        port = _PORTS[number % len(_PORTS)]
        with socket.socket() as listening, suppress(OSError):
            listening.bind(("127.0.0.1", port))
            return port
    raise AssertionError("unreachable")


class RealZooKeeper:
    """One server. `kill` and `start` again to see how its clients bear it."""

    def __init__(self, directory: Path, state: str = "", **variables: str) -> None:
        self.port = free_port()
        self._runtime = directory / "runtime-zookeeper"
        self._runtime.mkdir(parents=True)
        box = Box("zk", 1, [Disk("d0", "/nonexistent")], state or str(directory / "state"), "127.0.0.1", "127.0.0.1", 1, 1, 1, zookeeper=self.connect)
        box = box._replace(settings={"zookeeper.auth.required": False})
        (self._runtime / "box.json").write_bytes(box.to_json())
        self.process: subprocess.Popen[bytes] | None = None
        self.start(**variables)

    @property
    def connect(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self, **variables: str) -> None:
        """`variables` of its environment."""
        environment = {**os.environ, **variables, "MILLRACE_RUNTIME": str(self._runtime), "MILLRACE_PARENT": str(os.getpid())}
        self.process = subprocess.Popen([sys.executable, "-m", "services.zookeeper"], cwd=ROOT, env=environment)
        deadline = time.monotonic() + START_SECONDS
        while not zookeeper_serves("127.0.0.1", self.port):
            assert self.process.poll() is None and time.monotonic() < deadline, "ZooKeeper does not serve"
            time.sleep(0.01)

    def kill(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            self.process.wait()
