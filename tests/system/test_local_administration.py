"""Administration through the Unix socket of a box whose only network listener needs TLS and a login."""

from __future__ import annotations

import json
import os
import shutil
import socket
import struct
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from appliance.command import acl, group, user
from appliance.command import topic as topic_command
from appliance.command.kafka import open_cluster
from lab.certificates import Authority
from lab.other_users import STRANGER, as_user, needs_root, new_directory, run_python
from lab.running_box import COMMAND, RunningBox, environment, eventually, start_box
from services.acceptor.listening_socket import LOCAL_PER_USER_MAX

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka import KafkaConsumer, KafkaProducer

pytestmark = pytest.mark.system
PASSWORD = "correct horse battery staple"
AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
API_VERSIONS = struct.pack(">ihhih", 10, 18, 0, 7, -1)
CONNECTS = """
import socket, sys
held = []
for _ in range(int(sys.argv[2])):
    sock = socket.socket(socket.AF_UNIX)
    sock.settimeout(20)
    sock.connect(sys.argv[1])
    held.append(sock)
for sock in held:
    try:
        sock.sendall(bytes.fromhex(sys.argv[3]))
        print(len(sock.recv(4)))
    except (ConnectionResetError, BrokenPipeError):
        print(0)
"""


class Place:
    """A box alone: SASL_SSL, an authorizer, and no super users but those of the socket."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.authority = Authority(directory)
        made = self.authority.sign("localhost", "DNS:localhost", "IP:127.0.0.1")
        keystore = directory / "keystore.pem"
        keystore.write_text(made.private_key.read_text() + made.certificate.read_text())
        settings = {
            "listeners": "CLIENTS://127.0.0.1:0",
            "listener.security.protocol.map": "CLIENTS:SASL_SSL",
            "ssl.keystore.location": str(keystore),
            "authorizer.class.name": AUTHORIZER,
            "auto.create.topics.enable": False,
        }
        self.box: RunningBox = start_box(directory / "box", disks=1, settings=settings)
        self.data = str(directory / "box" / "d0")
        self.socket = self.box.layout.kafka_socket

    def add(self, name: str) -> None:
        path = self.directory / "password"
        path.write_text(f"{PASSWORD}\n")
        user.add(name, password_file=str(path), data=self.data)
        path.unlink()

    def client(self, name: str) -> dict[str, object]:
        """Options of kafka-python."""
        return {
            "bootstrap_servers": f"127.0.0.1:{self.box.kafka.port}",
            "security_protocol": "SASL_SSL",
            "ssl_cafile": str(self.authority.certificate),
            "sasl_mechanism": "SCRAM-SHA-512",
            "sasl_plain_username": name,
            "sasl_plain_password": PASSWORD,
        }

    def closed(self, reason: str) -> int:
        return int(self.box.counters("acceptor@0").values[f'acceptor.closed{{reason="{reason}"}}'])


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    directory = new_directory(os.geteuid(), 0o755)
    try:
        made = Place(directory)
        yield made
        assert made.box.stop() == 0
        assert made.box.leftovers() == []
    finally:
        shutil.rmtree(directory)


@pytest.fixture
def opened(place: Place) -> Place:
    """Every user reaches its sockets."""
    network = Path(place.box.layout.network_directory)
    for path in (network, *network.parents):
        if not path.stat().st_mode & 0o001:
            path.chmod(0o711)
    Path(place.socket).chmod(0o666)
    return place


def of_stranger(place: Place, *words: str) -> subprocess.CompletedProcess[str]:
    """A command of another user of the machine, through the socket."""
    command = [*as_user(STRANGER), *COMMAND[:-1], *words, "--bootstrap", f"unix:{place.socket}"]
    return subprocess.run(command, env=environment(), cwd="/", capture_output=True, text=True, timeout=60, check=False)


def test_the_first_user_is_made_without_a_password_and_works_beside_the_socket(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    place.add("alice")
    topic_command.create("logs", partitions=2, data=place.data)
    acl.add("User:alice", ["Read", "Write"], topic="logs", data=place.data)
    acl.add("User:alice", ["Read"], group="readers", data=place.data)
    producer = KafkaProducer(**place.client("alice"))
    assert producer.send("logs", b"by TLS").get(20).offset == 0
    producer.close()
    consumer = KafkaConsumer("logs", group_id="readers", auto_offset_reset="earliest", consumer_timeout_ms=20_000, **place.client("alice"))
    assert next(consumer).value == b"by TLS"
    consumer.commit()
    consumer.close()
    capsys.readouterr()
    group.list_all(as_json=True, data=place.data)
    assert "readers" in capsys.readouterr().out
    user.list_all(as_json=True, data=place.data)
    assert {each["user"] for each in json.loads(capsys.readouterr().out)} == {"alice"}


def test_metadata_leads_back_to_the_socket(place: Place) -> None:
    with open_cluster(None, place.data, None) as cluster:
        assert [str(address) for address in cluster.metadata([]).brokers.values()] == [f"unix:{place.socket}"]


def test_bytes_that_are_no_request_end_the_connection_and_passed_descriptors_are_dropped(place: Place) -> None:
    before = len(os.listdir(f"/proc/{place.box.pid('acceptor@0')}/fd"))
    with socket.socket(socket.AF_UNIX) as client, socket.socket(socket.AF_UNIX) as other:
        for each in (client, other):
            each.settimeout(20)
            each.connect(place.socket)
        socket.send_fds(client, [API_VERSIONS], [sys.stderr.fileno()] * 8)
        assert client.recv(4) != b""
        assert len(os.listdir(f"/proc/{place.box.pid('acceptor@0')}/fd")) <= before + 2
        other.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert other.recv(100) == b""


def test_commands_wait_for_an_acceptor_that_starts_again(place: Place) -> None:
    killed = place.box.kill("acceptor@0")
    with open_cluster(None, place.data, None) as cluster:
        assert cluster.metadata([]).brokers
    place.box.await_restart("acceptor@0", killed)


@needs_root
def test_another_user_does_what_access_control_entries_allow_to_it(opened: Place) -> None:
    topic_command.create("seen", partitions=1, data=opened.data)
    assert "seen" not in of_stranger(opened, "topic", "list").stdout
    refused = of_stranger(opened, "topic", "create", "of-stranger")
    assert refused.returncode == 1 and "AUTHORIZATION_FAILED" in refused.stderr.upper().replace(" ", "_"), refused
    acl.add(f"User:local:{STRANGER}", ["Describe"], topic="seen", data=opened.data)
    eventually(lambda: "seen" in of_stranger(opened, "topic", "list").stdout, "the entry is in effect")
    assert of_stranger(opened, "user", "list").returncode == 1


@needs_root
def test_another_user_keeps_no_administrator_out(opened: Place) -> None:
    answers = run_python(STRANGER, CONNECTS, opened.socket, str(LOCAL_PER_USER_MAX + 2), API_VERSIONS.hex()).split()
    assert sorted(answers) == ["0", "0", *["4"] * LOCAL_PER_USER_MAX]
    assert opened.closed("connection-limit-of-address") == 2
    with open_cluster(None, opened.data, None) as cluster:
        assert cluster.metadata([]).brokers
