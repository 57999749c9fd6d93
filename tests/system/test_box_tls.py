"""TLS between boxes, on real boxes: a listener on which boxes show certificates, and the change of a cluster to it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from appliance.base.errors import ErrorCode, RequestRefused
from appliance.base.settings import AUTHORIZERS, load_box
from appliance.client.address import Address
from appliance.client.admin import create_topic
from appliance.client.cluster import ClusterClient
from appliance.client.connection import ClientConnection
from appliance.client.errors import BrokerUnreachable
from appliance.client.messages import WRITE_TXN_MARKERS
from appliance.client.security import ClientSecurity
from appliance.command import user
from appliance.protocol.topic_partitions import TopicPartitions
from appliance.protocol.transaction_apis import TxnMarker, WriteTxnMarkersRequest
from appliance.security.principals import ActingFor
from lab.certificates import Authority, Certificate
from lab.running_box import RunningBox, environment, eventually
from lab.three_boxes import ThreeBoxes

pytestmark = [pytest.mark.system, pytest.mark.slow]
SECONDS = 20


def write_keystore(path: Path, made: Certificate) -> str:
    made.write_keystore(path)
    return str(path)


def listener_settings(keystore: str, authority: Path, *, switched: bool) -> dict[str, object]:
    """Of a box with both listeners, that connects to others by one of them."""
    return {
        "listeners": "PLAINTEXT://127.0.0.1:0,BOXES://127.0.0.1:0",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,BOXES:SSL",
        "inter.broker.listener.name": "BOXES" if switched else "PLAINTEXT",
        "listener.name.boxes.ssl.keystore.location": keystore,
        "listener.name.boxes.ssl.truststore.location": str(authority),
        "listener.name.boxes.ssl.client.auth": "required",
    }


def login_settings(password_file: str, mechanism: str) -> dict[str, object]:
    """Of boxes that log in to each other, on a SASL_SSL listener."""
    return {
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,BOXES:SASL_SSL",
        "inter.broker.user": "boxes",
        "inter.broker.password.file": password_file,
        "sasl.mechanism.inter.broker.protocol": mechanism,
        "listener.name.boxes.sasl.enabled.mechanisms": mechanism,
        "authorizer.class.name": AUTHORIZERS[1],
    }


def ports(box: RunningBox) -> dict[str, int]:
    return {listener.name: listener.port for listener in load_box(box.layout).kafka_listeners}


class Place:
    """One box whose inter-broker listener has TLS, and certificates that it accepts or not."""

    def __init__(self, directory: Path, start: Callable[..., RunningBox]) -> None:
        self.directory = directory
        self.authority, other = Authority(directory), Authority(directory, "other")
        own = self.authority.sign("broker-1", "IP:127.0.0.1", "DNS:localhost")
        self.keystore = write_keystore(directory / "box.pem", own)
        self.certificates = {
            "box": own,
            "client": self.authority.sign("alice", "DNS:alice"),
            "expired": self.authority.sign("expired", "IP:127.0.0.1", days=-1),
            "stranger": other.sign("stranger", "IP:127.0.0.1"),
        }
        settings = {**listener_settings(self.keystore, self.authority.certificate, switched=True), "host.figures.interval.ms": 1000}
        settings["http.role.viewer"] = "User:anna"
        self.box = start(directory / "box", disks=1, settings=settings)
        self.ports = ports(self.box)

    def settings(self, certificate: str) -> dict[str, Any]:
        """Of librdkafka."""
        chosen: dict[str, Any] = {"bootstrap.servers": f"127.0.0.1:{self.ports['BOXES']}", "security.protocol": "ssl", "log_level": 0}
        chosen["ssl.ca.location"] = str(self.authority.certificate)
        if certificate:
            made = self.certificates[certificate]
            chosen |= {"ssl.certificate.location": str(made.certificate), "ssl.key.location": str(made.private_key)}
        return chosen

    def marker_code(self, listener: str, certificate: str = "") -> int:
        """How a request is answered that only boxes may send."""
        security = None
        if certificate:
            keystore = write_keystore(self.directory / f"{certificate}.both.pem", self.certificates[certificate])
            security = ClientSecurity("SSL", authorities=str(self.authority.certificate), keystore=keystore)
        connection = ClientConnection(Address("127.0.0.1", self.ports[listener]), security=security)
        try:
            marker = TxnMarker(4_711, 0, False, (TopicPartitions("there-is-none", (0,)),), 0)
            answer = connection.request(WRITE_TXN_MARKERS, WriteTxnMarkersRequest((marker,)))
            return int(answer.markers[0].topics[0].partitions[0].error_code)
        finally:
            connection.close()

    def refused(self, reason: str) -> int:
        return self.box.counters("acceptor@0").values[f'acceptor.inter_broker_refused{{reason="{reason}"}}']


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, start_shared: Callable[..., RunningBox]) -> Iterator[Place]:
    made = Place(tmp_path_factory.mktemp("tls"), start_shared)
    yield made
    assert made.box.stop() == 0
    assert made.box.leftovers() == []


def test_librdkafka_with_a_certificate_of_the_cluster_is_served(place: Place) -> None:
    producer = Producer(place.settings("client"))
    producer.produce("syslog", b"over the listener of boxes")
    assert producer.flush(SECONDS) == 0
    consumer = Consumer({**place.settings("client"), "group.id": "g", "auto.offset.reset": "earliest"})
    consumer.subscribe(["syslog"])
    message = consumer.poll(SECONDS)
    assert message is not None and message.error() is None and message.value() == b"over the listener of boxes"
    consumer.close()


@pytest.mark.parametrize("certificate", ["", "stranger", "expired"])
def test_librdkafka_without_a_good_certificate_is_refused(place: Place, certificate: str) -> None:
    refused = 'acceptor.closed{reason="%s"}'
    reasons = [refused % reason for reason in ("tls-certificate", "tls-handshake")]

    def count() -> int:
        values = place.box.counters("acceptor@0").values
        return sum(values.get(reason, 0) for reason in reasons)

    before = count()
    producer = Producer({**place.settings(certificate), "message.timeout.ms": 100})
    failures: list[Any] = []
    producer.produce("syslog", b"x", on_delivery=lambda error, _message: failures.append(error))
    eventually(lambda: producer.poll(0.05) >= 0 and failures and count() > before, "it is refused and counted")
    assert failures[0] is not None


def test_openssl_sees_tls_1_3_and_the_certificate_of_the_box(place: Place) -> None:
    made = place.certificates["client"]
    command = ["openssl", "s_client", "-connect", f"127.0.0.1:{place.ports['BOXES']}", "-CAfile", str(place.authority.certificate), "-verify_return_error"]
    options = ["-cert", str(made.certificate), "-key", str(made.private_key), "-verify_ip", "127.0.0.1"]
    shown = subprocess.run([*command, *options], input=b"", capture_output=True, timeout=SECONDS, check=True).stdout.decode()
    left = place.box.counters("acceptor@0").values['acceptor.certificate_seconds_left{listener="BOXES"}']
    assert 29 * 86_400 < left <= 30 * 86_400
    assert "TLSv1.3" in shown and "Verify return code: 0 (ok)" in shown and "CN = test authority" in shown


def test_requests_of_boxes_need_the_certificate_of_a_box_and_their_address_does_not_count(place: Place) -> None:
    allowed = place.marker_code("BOXES", "box")
    before = place.refused("certificate")
    assert place.marker_code("BOXES", "client") == ErrorCode.CLUSTER_AUTHORIZATION_FAILED != allowed
    assert place.refused("certificate") == before + 1
    assert place.marker_code("PLAINTEXT") == allowed  # by address, as before


def test_the_command_and_the_console_connect_with_the_certificate_of_the_box(place: Place) -> None:
    command = [sys.executable, "-P", "-m", "appliance.command.main", "topic", "list", "--data", str(place.directory / "box" / "d0")]
    shown = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=60, check=False)
    assert shown.returncode == 0 and "syslog" in shown.stdout, shown
    eventually(lambda: place.box.counters("console").values["host_figures.records"], "the console writes the figures of the machine")
    assert place.box.get_local("/api/topic?topic=syslog")[0] == 200


def test_another_box_acts_for_a_user_of_its_console_and_no_other_client_does(place: Place) -> None:
    """What the console of a box does whose partition lies elsewhere."""

    def security(certificate: str) -> ClientSecurity:
        keystore = write_keystore(place.directory / f"{certificate}.acts.pem", place.certificates[certificate])
        authorities = str(place.authority.certificate)
        return ClientSecurity("SSL", authorities=authorities, keystore=keystore, acting=ActingFor("anna", "192.0.2.7"))

    address = Address("127.0.0.1", place.ports["BOXES"])
    with ClusterClient([address], security=security("box")) as cluster:
        create_topic(cluster, "of-anna", partitions=1)
    words = "audit.topic.created: User:anna from 192.0.2.7 (listener console)"
    eventually(lambda: words in place.box.messages, words)
    with pytest.raises(BrokerUnreachable, match="lets the console act for no user"):
        ClientConnection(address, security=security("client"))
    with pytest.raises(RequestRefused, match="boxes connect in clear text"):
        ClientConnection(Address("127.0.0.1", place.ports["PLAINTEXT"]), security=security("box")._replace(protocol="PLAINTEXT"))


class ChangingBoxes(ThreeBoxes):
    """Three boxes, each with its own certificate, that change to TLS one by one. `switched`: those whose next start is on TLS.

    With SASL_SSL they log in to each other, and the client logs in as one of their users.
    """

    def __init__(self, directory: Path, protocol: str) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.authority, self.protocol = Authority(directory), protocol
        self.password = directory / "password"
        self.password.touch(0o600)
        self.password.write_text("a password of boxes\n")
        self._keystores = {
            number: write_keystore(directory / f"box{number}.pem", self.authority.sign(f"broker-{number}", "IP:127.0.0.1")) for number in (1, 2, 3)
        }
        self.switched: set[int] = set()
        self._listener_ports: dict[int, dict[str, int]] = {}
        super().__init__(directory)
        if protocol == "SASL_SSL":
            for name in ("boxes", "client"):
                user.add(name, password_file=str(self.password), bootstrap=f"127.0.0.1:{ports(self.boxes[1])['PLAINTEXT']}")

    def settings_of(self, broker_id: int) -> Mapping[str, object]:
        own = listener_settings(self._keystores[broker_id], self.authority.certificate, switched=broker_id in self.switched)
        if self.protocol == "SASL_SSL":
            own |= login_settings(str(self.password), "SCRAM-SHA-512")
            own |= {"listener.name.boxes.ssl.client.auth": "none", "super.users": "User:boxes;User:client"}
            if len(self.switched) <= 3:  # in clear text a box is known by its address alone
                own["super.users"] = "User:boxes;User:client;User:ANONYMOUS"
        where = self._listener_ports.get(broker_id, {"PLAINTEXT": 0, "BOXES": 0})
        names = list(where) if len(self.switched) <= 3 else ["BOXES"]  # the last round: the one in clear text is gone
        own |= {"listeners": ",".join(f"{name}://127.0.0.1:{where[name]}" for name in names)}
        return {**super().settings_of(broker_id), **own, "default.replication.factor": 3, "min.insync.replicas": 2, "num.partitions": 6}

    def restart(self, broker_id: int) -> None:
        box = self.boxes.pop(broker_id)
        self._listener_ports[broker_id] = ports(box)  # where clients found it they find it again
        assert box.stop() == 0
        self._ports.pop(broker_id)
        self.begin(broker_id)
        self.await_all()

    def client_settings(self) -> dict[str, object]:
        wanted = {
            "bootstrap.servers": ",".join(f"127.0.0.1:{ports(box)['BOXES']}" for box in self.boxes.values()),
            "security.protocol": self.protocol.lower(),
            "ssl.ca.location": str(self.authority.certificate),
        }
        if self.protocol == "SASL_SSL":
            return {**wanted, "sasl.mechanism": "SCRAM-SHA-512", "sasl.username": "client", "sasl.password": "a password of boxes"}
        made = self.authority.sign("client", "DNS:client")
        return {**wanted, "ssl.certificate.location": str(made.certificate), "ssl.key.location": str(made.private_key)}


class BoxesThatLogIn(ThreeBoxes):
    """Three boxes that log in to each other by `mechanism`; clients are in clear text."""

    def __init__(self, directory: Path, mechanism: str) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.authority, self.mechanism = Authority(directory), mechanism
        self.keystore = write_keystore(directory / "box.pem", self.authority.sign("box", "IP:127.0.0.1"))
        self.password = directory / "password"
        self.password.touch(0o600)
        self.password.write_text("a password of boxes\n")
        super().__init__(directory)

    def settings_of(self, broker_id: int) -> Mapping[str, object]:
        own = {
            "listeners": "PLAINTEXT://127.0.0.1:0,BOXES://127.0.0.1:0",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,BOXES:SASL_SSL",
            "inter.broker.listener.name": "BOXES",
            **login_settings(str(self.password), self.mechanism),
            "listener.name.boxes.ssl.keystore.location": self.keystore,
            "listener.name.boxes.ssl.truststore.location": str(self.authority.certificate),
            "super.users": "User:boxes;User:ANONYMOUS",
            "host.figures.interval.ms": 1000,
            "default.replication.factor": 3,
            "min.insync.replicas": 3,
            "offsets.topic.replication.factor": 3,
            "transaction.state.log.replication.factor": 3,
        }
        return {**super().settings_of(broker_id), **own}

    @property
    def clients(self) -> str:
        return ",".join(f"127.0.0.1:{ports(box)['PLAINTEXT']}" for box in self.boxes.values())

    def add(self, name: str, password_file: Path) -> None:
        user.add(name, password_file=str(password_file), bootstrap=self.clients.partition(",")[0])

    def marker_code(self, name: str, password: str) -> int:
        """How a request is answered that only boxes may send, on the listener of boxes."""
        security = ClientSecurity("SASL_SSL", self.mechanism, name, password, str(self.authority.certificate))
        with closing(ClientConnection(Address("127.0.0.1", ports(self.boxes[1])["BOXES"]), security=security)) as connection:
            marker = TxnMarker(4_711, 0, False, (TopicPartitions("there-is-none", (0,)),), 0)
            return int(connection.request(WRITE_TXN_MARKERS, WriteTxnMarkersRequest((marker,))).markers[0].topics[0].partitions[0].error_code)


@pytest.mark.deep
@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-512", "PLAIN"])
def test_boxes_log_in_to_each_other_and_other_users_are_no_boxes(tmp_path: Path, mechanism: str) -> None:
    """Replication, transaction markers, commits of groups and forwarded requests of all three, over connections that have logged in."""
    boxes = BoxesThatLogIn(tmp_path / "boxes", mechanism)
    try:
        admin = AdminClient({"bootstrap.servers": boxes.clients, "log_level": 0})
        boxes.add("boxes", boxes.password)
        other = tmp_path / "other"
        other.write_text("another password\n")
        boxes.add("alice", other)
        admin.create_topics([NewTopic("t", 6, 3)])["t"].result(SECONDS)

        def in_sync() -> bool:
            found = admin.list_topics("t", timeout=SECONDS).topics["t"].partitions.values()
            return {each.leader for each in found} == {1, 2, 3} and all(len(each.isrs) == 3 for each in found)

        eventually(in_sync, "all boxes lead, and all replicas are in sync", 120)
        producer = Producer({"bootstrap.servers": boxes.clients, "transactional.id": "t", "acks": "all"})
        producer.init_transactions(120)
        consumer = Consumer({"bootstrap.servers": boxes.clients, "group.id": "g", "auto.offset.reset": "earliest", "isolation.level": "read_committed"})
        consumer.subscribe(["t"])
        producer.begin_transaction()
        for number in range(60):
            producer.produce("t", b"%d" % number, partition=number % 6)
        producer.commit_transaction(120)
        found: set[bytes] = set()
        while len(found) < 60:
            message = consumer.poll(4 * SECONDS)
            assert message is not None and message.error() is None
            found.add(message.value())
        consumer.commit(asynchronous=False)
        consumer.close()
        for number, box in boxes.boxes.items():
            one = AdminClient({"bootstrap.servers": f"127.0.0.1:{ports(box)['PLAINTEXT']}", "log_level": 0})
            one.create_topics([NewTopic(f"by-{number}", 1, 3)], operation_timeout=SECONDS)[f"by-{number}"].result(4 * SECONDS)
            logins = box.counters("acceptor@0").values["acceptor.authentications"]
            assert logins > 0, "each box takes logins of the others"
            assert f"User:boxes from 127.0.0.1 (listener BOXES): {mechanism}" in box.messages
        for box in boxes.boxes.values():
            eventually(lambda box=box: box.counters("console").values["host_figures.records"], "two consoles write to the partition of another box", 120)
            status, document = box.get_local("/api/boxes")
            assert status == 200 and [each["answers"] for each in document["boxes"]] == [True] * 3, "its console asks the others as the box"
        assert boxes.marker_code("boxes", "a password of boxes") != ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        assert boxes.marker_code("alice", "another password") == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        assert boxes.boxes[1].counters("acceptor@0").values['acceptor.inter_broker_refused{reason="user"}'] == 1
        assert "a password of boxes" not in boxes.messages
    finally:
        boxes.close()


@pytest.mark.deep
@pytest.mark.parametrize("protocol", ["SSL", "SASL_SSL"])
def test_a_cluster_changes_to_tls_box_by_box_and_nothing_acknowledged_is_lost(tmp_path: Path, protocol: str) -> None:
    boxes = ChangingBoxes(tmp_path / "boxes", protocol)
    try:
        _change(boxes)
    finally:
        boxes.close()


def _change(boxes: ChangingBoxes) -> None:
    settings = boxes.client_settings()
    admin = AdminClient(settings)
    admin.create_topics([NewTopic("t", 6, 3)])["t"].result(SECONDS)
    producer = Producer({**settings, "acks": "all", "enable.idempotence": True, "delivery.timeout.ms": 240_000, "linger.ms": 5})
    acknowledged: set[bytes] = set()
    sent = 0

    def on_delivery(error: Any, message: Any) -> None:
        assert error is None, error
        acknowledged.add(message.value())

    def produce(count: int) -> None:
        nonlocal sent
        for _ in range(count):
            producer.produce("t", b"%d" % sent, on_delivery=on_delivery)
            sent += 1
            producer.poll(0)

    def in_sync() -> bool:
        produce(20)
        found = admin.list_topics("t", timeout=SECONDS).topics["t"].partitions.values()
        return len(found) == 6 and all(len(each.isrs) == 3 for each in found)

    def round_of_restarts() -> None:
        for number in (1, 2, 3):
            produce(500)
            boxes.restart(number)
            eventually(in_sync, f"all replicas are in sync after the restart of box {number}", 120)

    eventually(in_sync, "all replicas are in sync", 60)
    for number in (1, 2, 3):
        boxes.switched.add(number)
        produce(500)
        boxes.restart(number)
        eventually(in_sync, f"all replicas are in sync after the restart of box {number}", 120)
    boxes.switched.add(4)
    round_of_restarts()  # without the listener in clear text
    produce(500)
    assert producer.flush(120) == 0 and len(acknowledged) == sent
    for box in boxes.boxes.values():
        assert set(ports(box)) == {"BOXES"}
        status, document = box.get_local("/api/boxes")
        assert status == 200 and [each["answers"] for each in document["boxes"]] == [True] * 3
        assert box.get("/api/boxes")[0] == 403, "without a certificate nothing is read"
    consumer = Consumer({**boxes.client_settings(), "group.id": "all", "auto.offset.reset": "earliest", "isolation.level": "read_committed"})
    consumer.subscribe(["t"])
    found: list[bytes] = []
    while len(found) < sent:
        message = consumer.poll(SECONDS)
        assert message is not None and message.error() is None, f"{len(found)} of {sent}"
        found.append(message.value())
    consumer.close()
    assert len(found) == len(set(found)) and set(found) == acknowledged
