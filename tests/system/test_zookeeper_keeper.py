"""The process that watches ZooKeeper under systemd, with a real Java machine and without systemd:
its notifications arrive at a socket of ours.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from appliance.base.layout import BoxLayout, Disk
from appliance.base.settings import Box
from appliance.base.zookeeper_access import ensure_secret
from appliance.shm.mapping import list_names, unlink
from lab.real_zookeeper import free_port
from lab.running_box import ROOT, environment, eventually
from lab.scratch_layout import scratch_layout

pytestmark = pytest.mark.system

SERVES = b"Zookeeper version: 3.9\nMode: follower\nNode count: 5\n"
LEFT_BEHIND = "cannot rejoin a quorum that is otherwise healthy"


@contextmanager
def pretended_members(count: int) -> Iterator[list[int]]:
    """Ports of members that report serving, and let no member join."""
    servers = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]

    def serve(server: socket.socket) -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            with connection, suppress(OSError):
                connection.recv(4)
                connection.sendall(SERVES)

    threads = [threading.Thread(target=serve, args=(server,)) for server in servers]
    for thread in threads:
        thread.start()
    try:
        yield [server.getsockname()[1] for server in servers]
    finally:
        for server in servers:
            server.shutdown(socket.SHUT_RDWR)
            server.close()
        for thread in threads:
            thread.join()


@contextmanager
def keeper(layout: BoxLayout, box: Box, directory: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The unit's process; what it says goes to DIRECTORY/messages."""
    Path(layout.box_file).write_bytes(box.to_json())
    variables = {
        "MILLRACE_RUNTIME": layout.runtime_directory,
        "MILLRACE_MANAGER": "systemd",
        "NOTIFY_SOCKET": str(directory / "notify.sock"),
        "MILLRACE_PARENT": str(os.getpid()),
    }
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notified, open(directory / "messages", "wb") as messages:
        notified.bind(variables["NOTIFY_SOCKET"])
        process = subprocess.Popen([sys.executable, "-m", "services.zookeeper"], cwd=ROOT, env={**environment(), **variables}, stderr=messages)
        try:
            yield process
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(20)
            finally:
                process.kill()
                for name in list_names(layout.shared_memory_prefix):
                    unlink(name)


def machine_of(process: subprocess.Popen[bytes]) -> int:
    """Pid of its Java machine; 0 while there is none."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return next((int(pid) for pid in children if os.path.basename(os.readlink(f"/proc/{pid}/exe")) == "java"), 0)


def test_a_member_that_is_left_behind_is_restarted_by_its_watcher_which_allows_it_more_time_each_time(tmp_path: Path) -> None:
    with scratch_layout() as layout, pretended_members(2) as ports:
        own = f"1=127.0.0.1:{free_port()}:{free_port()}:{free_port()}"
        members = [own, *(f"{number}=127.0.0.1:{port}:{free_port()}:{free_port()}" for number, port in enumerate(ports, 2))]
        connect = ",".join(":".join(member.partition("=")[2].split(":")[:2]) for member in members)
        ensure_secret(str(tmp_path))
        settings = {"zookeeper.init.limit": 5, "zookeeper.tick.ms": 100}
        box = Box("x", 1, [Disk("d0", "/nonexistent")], str(tmp_path), "127.0.0.1", "127.0.0.1", 1, 1, 1, zookeeper=connect, zookeeper_members=members)
        with keeper(layout, box._replace(settings=settings), tmp_path) as process:
            seen: list[int] = []

            def next_machine() -> bool:
                assert process.poll() is None, (tmp_path / "messages").read_text()
                with suppress(OSError):
                    if (pid := machine_of(process)) and pid not in seen:
                        seen.append(pid)
                return len(seen) >= 3

            eventually(next_machine, "two restarts", 150)
            assert (tmp_path / "messages").read_text().count(LEFT_BEHIND) == 2
