"""TLS on the Kafka path: a real box, real clients, real certificates."""

from __future__ import annotations

import shutil
import socket
import ssl
import subprocess
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, Producer
from confluent_kafka.admin import AclBinding, AclOperation, AclPermissionType, AdminClient, NewTopic, ResourcePatternType, ResourceType

from appliance.base.settings import load_box
from lab.certificates import Authority, Certificate
from lab.real_kafka import class_path, java, skip_without_kafka
from lab.running_box import RunningBox, eventually, run_and_wait, run_arguments

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka import KafkaProducer

pytestmark = [pytest.mark.system, pytest.mark.slow]
SECONDS = 20
RECORD = bytes(range(256)) * 40


class Place:
    """A box with a plaintext listener, one with TLS and one with client certificates."""

    def __init__(self, directory: Path, start: Callable[..., RunningBox], **further: object) -> None:
        self.directory = directory
        self.authority = Authority(directory)
        self.keystore = directory / "server-keystore.pem"
        self.install(self.authority.sign("localhost", "DNS:localhost", "IP:127.0.0.1"))
        self.client = self.authority.sign("Alice")
        settings: dict[str, object] = {
            "listeners": "PLAINTEXT://127.0.0.1:0,SSL://127.0.0.1:0,MUTUAL://127.0.0.1:0",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SSL:SSL,MUTUAL:SSL",
            "ssl.keystore.location": str(self.keystore),
            "ssl.truststore.location": str(self.authority.certificate),
            "listener.name.mutual.ssl.client.auth": "required",
            "listener.name.mutual.ssl.principal.mapping.rules": "RULE:^CN=(A.*)$/$1/L",
        }
        settings |= {name.replace("_", "."): value for name, value in further.items()}
        self.box = start(directory / "box", disks=1, settings=settings)
        self.ports = {listener.name: listener.port for listener in load_box(self.box.layout).kafka_listeners}

    def install(self, made: Certificate) -> None:
        new = self.directory / "new.pem"
        made.write_keystore(new)
        new.rename(self.keystore)

    def settings_of(self, listener: str = "SSL", certificate: Certificate | None = None) -> dict[str, Any]:
        """Settings of librdkafka for a listener."""
        chosen: dict[str, Any] = {
            "bootstrap.servers": f"127.0.0.1:{self.ports[listener]}",
            "security.protocol": "ssl",
            "ssl.ca.location": str(self.authority.certificate),
            "log_level": 0,
        }
        if certificate is not None:
            chosen |= {"ssl.certificate.location": str(certificate.certificate), "ssl.key.location": str(certificate.private_key)}
        return chosen

    def closed(self, reason: str) -> int:
        return self.box.counters("acceptor@0").values.get(f'acceptor.closed{{reason="{reason}"}}', 0)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, start_shared: Callable[..., RunningBox]) -> Iterator[Place]:
    made = Place(tmp_path_factory.mktemp("tls"), start_shared)
    yield made
    assert made.box.stop() == 0


def consume(settings: dict[str, Any], topic: str, count: int, group: str = "readers") -> list[bytes]:
    consumer = Consumer({**settings, "group.id": group, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    values: list[bytes] = []
    while len(values) < count:
        message = consumer.poll(SECONDS)
        assert message is not None and message.error() is None
        values.append(message.value())
    consumer.close()
    return values


def test_librdkafka_produces_and_consumes_large_amounts_over_tls(place: Place) -> None:
    producer = Producer({**place.settings_of(), "linger.ms": 20, "batch.size": 900_000})
    sent = [number.to_bytes(4, "big") + RECORD[number % 256 :] for number in range(3000)]
    for value in sent:
        producer.produce("large", value)
        producer.poll(0)
    assert producer.flush(SECONDS) == 0
    assert consume(place.settings_of(), "large", len(sent)) == sent


def test_a_slow_reader_of_large_answers_gets_every_byte(place: Place) -> None:
    values = consume({**place.settings_of(), "socket.receive.buffer.bytes": 4096}, "large", 3000, "slow")
    assert [int.from_bytes(value[:4], "big") for value in values] == list(range(3000))


def test_kafka_python_and_kcat_produce_over_tls(place: Place) -> None:
    python = KafkaProducer(bootstrap_servers=f"127.0.0.1:{place.ports['SSL']}", security_protocol="SSL", ssl_cafile=str(place.authority.certificate))
    python.send("others", b"python").get(SECONDS)
    python.close()
    kcat = shutil.which("kcat")
    if kcat is not None:
        options = ["-X", "security.protocol=ssl", "-X", f"ssl.ca.location={place.authority.certificate}"]
        command = [kcat, "-b", f"127.0.0.1:{place.ports['SSL']}", "-t", "others", "-P", *options]
        subprocess.run(command, input=b"kcat\n", check=True, timeout=SECONDS, capture_output=True)
    assert consume(place.settings_of(), "others", 1 + (kcat is not None))[0] == b"python"


def test_java_shows_its_certificate_and_is_served(place: Place) -> None:
    skip_without_kafka()
    keystore = place.client.write_keystore(place.directory / "alice-keystore.pem")
    properties = place.directory / "java.properties"
    properties.write_text(
        f"security.protocol=SSL\nssl.truststore.type=PEM\nssl.truststore.location={place.authority.certificate}\n"
        f"ssl.keystore.type=PEM\nssl.keystore.location={keystore}\n"
    )
    tool = [java(), "-cp", class_path(), "kafka.admin.BrokerApiVersionsCommand"]
    options = ["--bootstrap-server", f"localhost:{place.ports['MUTUAL']}", "--command-config", str(properties)]

    def shown() -> str:
        """The tool itself waits no longer than 5 s for an answer."""
        return subprocess.run([*tool, *options], capture_output=True, text=True, timeout=120, check=False).stdout

    answer = eventually(shown, "the tool is answered", 120.0)
    assert f"127.0.0.1:{place.ports['MUTUAL']} (id: 1" in answer and "Produce(0)" in answer, answer


def test_clients_of_a_tls_listener_receive_its_endpoint(place: Place) -> None:
    (broker,) = AdminClient(place.settings_of()).list_topics(timeout=SECONDS).brokers.values()
    assert (broker.host, broker.port) == ("127.0.0.1", place.ports["SSL"])


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_both_versions_of_tls_are_served_and_requests_in_one_record_are_all_answered(place: Place, version: ssl.TLSVersion) -> None:
    context = ssl.create_default_context(cafile=str(place.authority.certificate))
    context.minimum_version = context.maximum_version = version
    with socket.create_connection(("127.0.0.1", place.ports["SSL"]), SECONDS) as plain, context.wrap_socket(plain, server_hostname="localhost") as tls:
        tls.sendall(b"".join(b"\x00\x00\x00\x0a\x00\x12\x00\x00" + number.to_bytes(4, "big") + b"\xff\xff" for number in range(1200)))
        for number in range(1200):
            size_bytes = int.from_bytes(exactly(tls, 4), "big")
            assert int.from_bytes(exactly(tls, size_bytes)[:4], "big") == number


def exactly(tls: ssl.SSLSocket, size_bytes: int) -> bytes:
    received = b""
    while len(received) < size_bytes:
        piece = tls.recv(size_bytes - len(received))
        assert piece
        received += piece
    return received


def test_a_client_certificate_is_required_and_mapped(place: Place) -> None:
    assert AdminClient(place.settings_of("MUTUAL", place.client)).list_topics(timeout=SECONDS).brokers
    other = place.authority.sign("Bob")
    for wrong in (None, other, Authority(place.directory, "stranger").sign("Alice2")):
        before = place.closed("tls-certificate") + place.closed("tls-handshake")
        context = ssl.create_default_context(cafile=str(place.authority.certificate))
        if wrong is not None:
            context.load_cert_chain(wrong.certificate, wrong.private_key)
        with socket.create_connection(("127.0.0.1", place.ports["MUTUAL"]), SECONDS) as plain:
            try:
                with context.wrap_socket(plain, server_hostname="localhost") as tls:
                    assert tls.recv(1) == b""
            except OSError:
                pass
        eventually(lambda before=before: place.closed("tls-certificate") + place.closed("tls-handshake") > before, "it is refused", SECONDS)  # type: ignore[misc]


def test_the_rights_of_a_client_are_those_of_its_certificate(tmp_path: Path, start_shared: Callable[..., RunningBox]) -> None:
    authorizer = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
    closed = Place(tmp_path, start_shared, authorizer_class_name=authorizer, super_users="User:ANONYMOUS")  # the PLAINTEXT listener is on loopback
    try:
        admin = AdminClient({"bootstrap.servers": f"127.0.0.1:{closed.ports['PLAINTEXT']}"})
        for topic in ("hers", "others"):
            admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(SECONDS)
        entry = (ResourceType.TOPIC, "hers", ResourcePatternType.LITERAL, "User:alice", "*", AclOperation.WRITE, AclPermissionType.ALLOW)
        for created in admin.create_acls([AclBinding(*entry)]).values():
            created.result(SECONDS)
        outcomes: dict[str, object] = {}
        producer = Producer({**closed.settings_of("MUTUAL", closed.client), "enable.idempotence": False})
        for topic in ("hers", "others"):
            producer.produce(topic, b"x", on_delivery=lambda error, message: outcomes.update({message.topic(): error and error.code()}))
        producer.flush(SECONDS)
        assert outcomes == {"hers": None, "others": KafkaError.TOPIC_AUTHORIZATION_FAILED}
    finally:
        closed.box.stop()


def test_plaintext_on_a_tls_listener_is_closed_and_counted(place: Place) -> None:
    before = place.closed("tls-handshake")
    with socket.create_connection(("127.0.0.1", place.ports["SSL"]), SECONDS) as plain:
        plain.sendall(b"\x00\x00\x00\x0a\x00\x12\x00\x00\x00\x00\x00\x01\xff\xff")
        try:
            while plain.recv(100):
                pass
        except ConnectionResetError:
            pass
    eventually(lambda: place.closed("tls-handshake") > before, "it is counted", SECONDS)


def test_a_replaced_certificate_is_used_without_a_restart_and_open_connections_stay(place: Place) -> None:
    context = ssl.create_default_context(cafile=str(place.authority.certificate))

    def connect() -> ssl.SSLSocket:
        return context.wrap_socket(socket.create_connection(("127.0.0.1", place.ports["SSL"]), SECONDS), server_hostname="localhost")

    with connect() as open_before:
        former = open_before.getpeercert(binary_form=True)
        place.install(place.authority.sign("localhost", "DNS:localhost", "IP:127.0.0.1"))

        def shows_another() -> bool:
            with connect() as tls:
                return tls.getpeercert(binary_form=True) != former

        eventually(shows_another, "new connections see the new certificate", SECONDS)
        open_before.sendall(b"\x00\x00\x00\x0a\x00\x12\x00\x00\x00\x00\x00\x01\xff\xff")
        assert open_before.recv(4)


def test_unusable_tls_settings_are_reported_before_the_start(tmp_path: Path) -> None:
    wrong = {
        "listeners": "PLAINTEXT://127.0.0.1:0,SSL://127.0.0.1:0,MUTUAL://127.0.0.1:0",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SSL:SSL,MUTUAL:SSL",
        "listener.name.mutual.ssl.keystore.location": str(tmp_path / "missing.pem"),
    }
    ended = run_and_wait(run_arguments(tmp_path / "box", disks=1, settings=wrong))
    assert ended.returncode == 2
    for words in ("listener SSL: ssl.keystore.location is not set", "missing.pem cannot be used: No such file or directory"):
        assert words in ended.stdout + ended.stderr
