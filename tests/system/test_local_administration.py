"""Administration through the Unix socket of a box whose only network listener needs TLS and a login."""

from __future__ import annotations

import json
import os
import socket
import struct
import subprocess
import sys
import urllib.request
import warnings
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, Producer

from appliance.base.errors import ErrorCode
from appliance.base.model import AUDIT_TOPIC
from appliance.client.address import Address
from appliance.client.cluster import ClusterClient
from appliance.client.connection import ClientConnection
from appliance.client.messages import INCREMENTAL_ALTER_CONFIGS, ClientApi
from appliance.client.security import AuthenticationFailed, ClientSecurity
from appliance.command import acl, group, user
from appliance.command import topic as topic_command
from appliance.command.kafka import open_cluster
from appliance.protocol.config_apis import ConfigToAlter, IncrementalAlterConfigsRequest, ResourceToAlter, ResourceType
from appliance.protocol.quota_apis import (
    ALTER_CLIENT_QUOTAS_REQUEST,
    ALTER_CLIENT_QUOTAS_RESPONSE,
    AlterClientQuotasRequest,
    QuotaEntityPart,
    QuotaOperation,
    QuotasToAlter,
)
from lab.certificates import Authority
from lab.other_users import STRANGER, as_user, needs_root, run_python
from lab.running_box import COMMAND, RunningBox, environment, eventually, start_box
from services.acceptor.listening_socket import LOCAL_PER_USER_MAX

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
    from kafka.errors import KafkaError as KafkaPythonError

pytestmark = pytest.mark.system
PASSWORD = "correct horse battery staple"
AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
ALTER_QUOTAS = ClientApi(ALTER_CLIENT_QUOTAS_REQUEST, ALTER_CLIENT_QUOTAS_RESPONSE, 1, 1)
API_VERSIONS = struct.pack(">ihhih", 10, 18, 0, 7, -1)
ACTS = struct.pack(">ihhihh", 19, 17, 1, 7, -1, 7) + b"CONSOLE"
"""SaslHandshake: to act for a user."""
ASKS = """
import socket, sys
with socket.socket(socket.AF_UNIX) as sock:
    sock.settimeout(20)
    sock.connect(sys.argv[1])
    sock.sendall(bytes.fromhex(sys.argv[2]))
    print(int.from_bytes(sock.recv(100)[8:10], "big"))
"""
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
        keystore = made.write_keystore(directory / "keystore.pem")
        settings = {
            "listeners": "CLIENTS://127.0.0.1:0",
            "listener.security.protocol.map": "CLIENTS:SASL_SSL",
            "ssl.keystore.location": str(keystore),
            "authorizer.class.name": AUTHORIZER,
            "auto.create.topics.enable": False,
            "sasl.enabled.mechanisms": "SCRAM-SHA-512,PLAIN",
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

    def await_audit(self) -> None:
        """Until all events are in the topic. An acceptor that dies loses some."""

        def is_written() -> bool:
            values = [self.box.counters(f"acceptor@{number}").values for number in range(self.box.box.acceptors)]
            return all(each["acceptor.audit_events"] == each["acceptor.audit_written"] for each in values) and values[0]["acceptor.audit_events"] > 0

        eventually(is_written, "the audit is written")

    def closed(self, reason: str) -> int:
        return int(self.box.counters("acceptor@0").values[f'acceptor.closed{{reason="{reason}"}}'])


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    made = Place(tmp_path_factory.mktemp("local"))
    yield made
    assert made.box.stop() == 0
    assert made.box.leftovers() == []


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


def test_the_console_asks_through_the_socket_and_answers_to_its_own(place: Place) -> None:
    status, document = place.box.get_local("/api/boxes")
    assert (status, [box["answers"] for box in document.get("boxes", [])]) == (200, [True])
    assert place.box.get("/api/boxes")[0] == 403


def test_bytes_that_are_no_request_end_the_connection_and_passed_descriptors_are_dropped(place: Place) -> None:
    before, passed = len(os.listdir(f"/proc/{place.box.pid('acceptor@0')}/fd")), 200
    with socket.socket(socket.AF_UNIX) as client, socket.socket(socket.AF_UNIX) as other:
        for each in (client, other):
            each.settimeout(20)
            each.connect(place.socket)
        socket.send_fds(client, [API_VERSIONS], [sys.stderr.fileno()] * passed)
        assert client.recv(4) != b""
        assert len(os.listdir(f"/proc/{place.box.pid('acceptor@0')}/fd")) < before + passed // 2
        other.sendall(b"GET / HTTP/1.1\r\n\r\n")
        with suppress(ConnectionResetError):
            assert other.recv(100) == b""


@needs_root
def test_another_user_does_what_access_control_entries_allow_to_it(opened: Place) -> None:
    topic_command.create("seen", partitions=1, data=opened.data)
    assert "seen" not in of_stranger(opened, "topic", "list").stdout
    refused = of_stranger(opened, "topic", "create", "of-stranger")
    assert refused.returncode == 1 and "AUTHORIZATION_FAILED" in refused.stderr.upper().replace(" ", "_"), refused
    acl.add(f"User:local:{STRANGER}", ["Describe"], topic="seen", data=opened.data)
    eventually(lambda: "seen" in of_stranger(opened, "topic", "list").stdout, "the entry is in effect")


@needs_root
def test_another_user_keeps_no_administrator_out(opened: Place) -> None:
    answers = run_python(STRANGER, CONNECTS, opened.socket, str(LOCAL_PER_USER_MAX + 2), API_VERSIONS.hex()).split()
    assert 0 < answers.count("4") <= LOCAL_PER_USER_MAX and answers.count("0") >= 2
    eventually(lambda: opened.closed("connection-limit-of-address") >= 2, "they are counted")
    with open_cluster(None, opened.data, None) as cluster:
        assert cluster.metadata([]).brokers


@needs_root
def test_another_user_acts_for_no_one(opened: Place) -> None:
    assert int(run_python(STRANGER, ASKS, opened.socket, ACTS.hex())) == ErrorCode.ILLEGAL_SASL_STATE
    assert int(run_python(os.geteuid(), ASKS, opened.socket, ACTS.hex())) == ErrorCode.NONE, "as the box may"


def records(place: Place, user_name: str) -> list[dict[str, Any]]:
    """All of `__millrace_audit`, read by a user with that right."""
    consumer = KafkaConsumer(auto_offset_reset="earliest", enable_auto_commit=False, **place.client(user_name))
    try:
        partitions = [TopicPartition(AUDIT_TOPIC, number) for number in consumer.partitions_for_topic(AUDIT_TOPIC)]
        consumer.assign(partitions)
        ends = consumer.end_offsets(partitions)
        found: list[dict[str, Any]] = []
        while any(consumer.position(each) < ends[each] for each in partitions):
            found += [json.loads(each.value) for batch in consumer.poll(1_000).values() for each in batch]
        return found
    finally:
        consumer.close()


def test_the_audit_has_logins_denials_and_changes_and_no_secret(place: Place) -> None:
    wrong, authorities = "wrong horse battery staple", str(place.authority.certificate)
    for name in ("auditor", "mallory"):
        place.add(name)
    for name in (AUDIT_TOPIC, "given"):
        acl.add("User:auditor", ["Read"], topic=name, data=place.data)
    topic_command.create("given", partitions=1, data=place.data)
    with open_cluster(None, place.data, None) as cluster:
        entity = (QuotaEntityPart("user", "mallory"),)
        cluster.ask_controller(ALTER_QUOTAS, AlterClientQuotasRequest((QuotasToAlter(entity, (QuotaOperation("producer_byte_rate", 1e6),)),)))
        tls = ResourceToAlter(ResourceType.BROKER, "", (ConfigToAlter("ssl.keystore.password", 0, "secret of the keystore"),))
        cluster.ask_controller(INCREMENTAL_ALTER_CONFIGS, IncrementalAlterConfigsRequest((tls,)))
    admin = KafkaAdminClient(**place.client("mallory"))
    with pytest.raises(KafkaPythonError):
        admin.create_topics({"of-mallory": {"num_partitions": 1, "replication_factor": 1}})
    with pytest.raises(KafkaPythonError):
        admin.delete_topics(["given"])
    admin.close()
    with pytest.raises(AuthenticationFailed):
        ClientConnection(Address("127.0.0.1", place.box.kafka.port), security=ClientSecurity("SASL_SSL", "PLAIN", "mallory", wrong, authorities))
    wanted = {"audit.login", "audit.login.failed", "audit.denied", "audit.user.altered", "audit.acl.created", "audit.topic.created", "audit.quota.altered"}
    place.await_audit()
    found = records(place, "auditor")
    shown = place.box.get_local("/api/audit?event=audit.topic.created&contains=given")[1]
    assert {(each["event"], each["resource"], each["outcome"]) for each in shown["events"]} == {("audit.topic.created", "topic given", "done")}
    assert wanted <= set(shown["kinds"]) and place.box.get_local("/api/audit?contains=no-such-text")[1]["count"] == 0
    assert place.box.get("/api/audit")[0] == 403
    assert wanted <= {each["event"] for each in found}
    made = next(each for each in found if each["event"] == "audit.topic.created" and each["resource"] == "topic given")
    assert (
        made["principal"] == f"User:local:{os.geteuid()}" and made["listener"] == "local" and made["outcome"] == "done" and made["details"]["partitions"] == 1
    )
    assert any(each["principal"] == "User:mallory" and each["resource"] == "delete topic given" for each in found if each["event"] == "audit.denied")
    assert any(each["event"] == "audit.login.failed" and each["principal"] == "User:mallory" for each in found)
    status = subprocess.run(
        [*COMMAND[:-1], "status", "--json", "--data", place.data], env=environment(), capture_output=True, text=True, timeout=60, check=False
    ).stdout
    with urllib.request.urlopen(f"http://{place.box.http}/metrics", timeout=30) as answer:
        metrics = answer.read()
    assert b"millrace_acceptor_audit_written_total" in metrics
    images = b"".join(path.read_bytes() for path in Path(place.box.layout.runtime_directory).iterdir() if path.name.endswith("image"))
    logs = b"".join(path.read_bytes() for path in Path(place.data).rglob("*.log"))
    places = {
        "log": place.box.messages.encode(),
        "status": status.encode(),
        "metrics": metrics,
        "images": images,
        "logs": logs,
        "topic": json.dumps(found).encode(),
    }
    for secret in (PASSWORD, wrong, "secret of the keystore"):
        assert [name for name, content in places.items() if secret.encode() in content] == []
    assert "audit.topic.created: User:local:" in place.box.messages


def test_no_client_writes_changes_or_deletes_the_audit(place: Place) -> None:
    place.add("chief")
    for what in ({"topic": "*"}, {"cluster": True}):
        acl.add("User:chief", ["All"], data=place.data, **what)
    place.await_audit()
    admin = KafkaAdminClient(**place.client("chief"))
    with pytest.raises(KafkaPythonError, match="written by the box alone"):
        admin.delete_topics([AUDIT_TOPIC])
    admin.close()
    refused: list[KafkaError | None] = []
    options = {"security.protocol": "SASL_SSL", "sasl.mechanism": "SCRAM-SHA-512", "sasl.username": "chief", "sasl.password": PASSWORD}
    producer = Producer(
        {**options, "bootstrap.servers": place.box.bootstrap, "ssl.ca.location": str(place.authority.certificate), "client.id": "__admin_client"}
    )
    producer.produce(AUDIT_TOPIC, b"forged", partition=0, on_delivery=lambda error, _message: refused.append(error))
    assert producer.flush(60) == 0
    assert refused[0] is not None and refused[0].code() == KafkaError.TOPIC_EXCEPTION


def test_commands_wait_for_an_acceptor_that_starts_again(place: Place) -> None:
    killed = place.box.kill("acceptor@0")
    with ClusterClient([Address(place.socket, 0)], connect_timeout_ms=60_000) as cluster:
        assert cluster.metadata([]).brokers
    place.box.await_restart("acceptor@0", killed)
