"""What a box that runs exposes: the sockets and shared memory that docs/security.md lists and no others, closed to other users of the machine.

The modes of directories and sockets protect them, and the user id of the peer: with modes wide open, that alone still does.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from appliance.ipc.frames import HEADER
from appliance.runtime.request_server import STATUS
from appliance.shm.mapping import list_names
from lab.other_users import STRANGER, needs_root, new_directory, run_python
from lab.running_box import ROOT, RunningBox, processes_of, start_box

pytestmark = [pytest.mark.own_zookeeper, pytest.mark.system, needs_root]

TABLE = ROOT / "docs/security.md"
LISTENING, UNCONNECTED_UDP, LISTENING_UNIX, DATAGRAMS = "0A", "07", "00010000", "0002"
OTHERS = {"/dev/shm/millrace.BOX.lease.*", "/dev/shm/millrace.BOX.quotas.*"}
"""Of a box in a cluster, and of acceptors while there are client quotas."""
OTHERWISE = ("notify", "console")
"""The kernel names the sender of a notification; the console answers by this socket what it answers on its port."""
CONNECTS = """
import socket, sys
for kind in (socket.SOCK_STREAM, socket.SOCK_SEQPACKET):
    with socket.socket(socket.AF_UNIX, kind) as sock:
        sock.settimeout(5)
        try:
            sock.connect(sys.argv[1])
            sock.send(bytes.fromhex(sys.argv[2]))
            print(sock.recv(100))
        except (ConnectionResetError, BrokenPipeError):
            print(b"")
        except TimeoutError:
            print("kept open")
        except OSError:
            continue  # it is of the other kind
"""
HANDS_OVER = """
import array, json, socket, sys
client, passed = socket.socketpair()
message = json.dumps(("http", "192.0.2.1", 514)).encode()
with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
    sock.connect(sys.argv[1])
    sock.sendmsg([message], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [passed.fileno()]))])
passed.close()
client.settimeout(5)
try:
    print(client.recv(1))
except TimeoutError:
    print("served")
"""


@pytest.fixture(scope="module")
def box() -> Iterator[RunningBox]:
    directory = new_directory(0, 0o755)
    try:
        box = start_box(directory, disks=1, ingests=2)
        yield box
        assert box.stop() == 0
    finally:
        shutil.rmtree(directory)


@pytest.fixture(scope="module")
def opened(box: RunningBox) -> RunningBox:
    """The same box; every user reaches its Unix sockets."""
    runtime = Path(box.layout.runtime_directory)
    for path in (Path(box.layout.network_directory), runtime, *runtime.parents):
        if not path.stat().st_mode & 0o001:
            path.chmod(0o711)
    for path in runtime.rglob("*.sock"):
        path.chmod(0o666)
    return box


def documented(heading: str) -> set[str]:
    """The first column of the table below a heading of docs/security.md."""
    section = TABLE.read_text().partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    return set(re.findall(r"^\| `([^`]+)` \|", section, re.MULTILINE))


def socket_inodes(box: RunningBox) -> set[str]:
    found = set()
    for pid in (box.process.pid, *processes_of(box.layout)):
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            target = os.readlink(descriptor)
            if target.startswith("socket:["):
                found.add(target.removeprefix("socket:[").removesuffix("]"))
    return found


def lines_of(table: str) -> list[list[str]]:
    return [line.split() for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]]


def network_sockets(box: RunningBox) -> dict[tuple[str, int], str]:
    """(tcp or udp, port) → address in hexadecimal, of all sockets of the box that a peer can reach without being asked."""
    own = socket_inodes(box)
    found = {}
    for table in ("tcp", "tcp6", "udp", "udp6"):
        for fields in lines_of(table):
            if fields[9] in own and fields[3] == (LISTENING if table.startswith("tcp") else UNCONNECTED_UDP):
                address, port = fields[1].split(":")
                found[table[:3], int(port, 16)] = address
    return found


def unix_sockets(box: RunningBox) -> set[str]:
    own = socket_inodes(box)
    named = [fields for fields in lines_of("unix") if fields[6] in own and len(fields) > 7]
    # Sockets of frames are renamed after bind; the kernel keeps the first name, which ends with the pid.
    return {re.sub(r"(?<=[.]sock)[.]\d+$", "", fields[7]) for fields in named if fields[3] == LISTENING_UNIX or fields[4] == DATAGRAMS}


def generic(name: str) -> str:
    """`log-writer@DISK.sock` for `log-writer@d0.sock`."""
    return re.sub(r"(?<=senders@)\d+|(?<=tap@)\d+", "K", re.sub(r"(?<=log-writer@|log-reader@)\w+", "DISK", name))


def test_a_box_listens_on_the_documented_network_sockets_alone_and_run_on_loopback(box: RunningBox) -> None:
    names = {
        ("tcp", box.kafka.port): "kafka",
        ("tcp", box.syslog.port): "syslog-tcp",
        ("udp", box.syslog.port): "syslog-udp",
        ("tcp", box.http.port): "http",
        ("tcp", box.ingest.port): "ingest-http",
        ("tcp", int(box.box.zookeeper.rpartition(":")[2])): "zookeeper",
    }
    found = network_sockets(box)
    assert {names.get(socket, str(socket)) for socket in found} == documented("Network sockets")
    assert {address[-8:] for address in found.values()} == {"0100007F"}, "127.0.0.1, also within version six"


def test_local_sockets_and_shared_memory_are_the_documented_ones_and_of_the_user_alone(box: RunningBox) -> None:
    runtime = Path(box.layout.runtime_directory)
    sockets = unix_sockets(box)
    assert {os.path.dirname(path) for path in sockets} == {str(runtime), box.layout.network_directory}
    objects = {f"/dev/shm{name}" for name in list_names(box.layout.shared_memory_prefix)}
    purposes = {f"/dev/shm/millrace.BOX.{path.split('.')[2]}.*" for path in objects}
    assert {generic(os.path.relpath(path, runtime)) for path in sockets} | purposes == documented("Local sockets and shared memory") - OTHERS
    assert {oct(stat.S_IMODE(os.stat(path).st_mode)) for path in sockets | objects} == {"0o600"}
    assert [stat.S_IMODE(os.stat(path).st_mode) for path in (runtime, box.layout.network_directory)] == [0o700, 0o700]


def test_no_process_answers_another_user_that_reaches_its_socket(opened: RunningBox) -> None:
    paths = [str(path) for path in Path(opened.layout.runtime_directory).glob("*.sock") if path.name.partition(".")[0] not in OTHERWISE]
    assert len(paths) == 5
    taps = [str(path) for path in Path(opened.layout.network_directory).glob("tap@*.sock")]
    assert len(taps) == 2
    paths += [*taps, opened.layout.kafka_socket]
    status = HEADER.pack(HEADER.size - 4, STATUS, 0).hex()
    assert {path: run_python(STRANGER, CONNECTS, path, status).split() for path in paths} == {path: ["b''"] for path in paths}
    assert opened.status(), "root is answered"


def test_ingest_serves_no_connection_that_another_user_hands_over(opened: RunningBox) -> None:
    paths = list(Path(opened.layout.network_directory).glob("senders@*.sock"))
    assert paths
    for path in paths:
        assert run_python(STRANGER, HANDS_OVER, str(path)).strip() == "b''"
