"""A cluster whose ZooKeeper spoke clear text changes to TLS, box by box, and goes on serving meanwhile."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from appliance.base.zookeeper_access import ZooKeeperTls
from appliance.base.zookeeper_member import ELECTION_PORT, PEER_PORT
from appliance.cluster.zookeeper_probe import zookeeper_serves
from lab.certificates import Authority
from lab.cluster import ZOOKEEPER_PORT, Cluster, running_cluster
from lab.machine import address_of, why_not
from lab.running_box import eventually

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.deep]
STEPS = ({"zookeeper.server.tls": "accepted"}, {"zookeeper.ssl.client.enable": True}, {"zookeeper.server.tls": "required"})
SECONDS = 60


def shows_certificate(host: str, port: int, context: ssl.SSLContext) -> bool:
    """Whether TLS with a certificate for this host is what the port takes."""
    try:
        with socket.create_connection((host, port), 5) as connection, context.wrap_socket(connection, server_hostname=host):
            return True
    except OSError:
        return False


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    if why := why_not():
        pytest.skip(why)
    with running_cluster(tmp_path, settings={"min.insync.replicas": 2}) as cluster, cluster.clients():
        yield cluster
        assert cluster.stop() == []


def test_a_cluster_changes_to_tls_with_zookeeper_box_by_box(cluster: Cluster, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    settings: dict[int, dict[str, object]] = {}
    for number, box in cluster.boxes.items():
        made = authority.sign(f"broker-{number}", f"IP:{address_of(number)}")
        keystore = box.directory / "box.pem"
        keystore.write_text(made.private_key.read_text() + made.certificate.read_text())
        settings[number] = {"zookeeper.ssl.keystore.location": str(keystore), "zookeeper.ssl.truststore.location": str(authority.certificate)}
    plain = {number: (box.directory / "millrace.toml").read_text() for number, box in cluster.boxes.items()}
    tls = ZooKeeperTls(str(settings[1]["zookeeper.ssl.keystore.location"]), str(authority.certificate))
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    admin.create_topics([NewTopic("events", 3, 3)])["events"].result(30)
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all", "enable.idempotence": True, "delivery.timeout.ms": 240_000})
    sent, failures = 0, []

    def produce(count: int) -> None:
        nonlocal sent
        for _ in range(count):
            producer.produce("events", b"%d" % sent, on_delivery=lambda error, _: failures.append(error) if error else None)
            sent += 1
            producer.poll(0)

    def in_sync() -> bool:
        produce(20)
        found = admin.list_topics("events", timeout=SECONDS).topics["events"].partitions.values()
        return all(len(each.isrs) == 3 for each in found)

    for step in STEPS:
        for number, box in cluster.boxes.items():
            settings[number] |= step
            lines = "".join(f'"{name}" = {str(value).lower() if isinstance(value, bool) else repr(value)}\n' for name, value in settings[number].items())
            (box.directory / "millrace.toml").write_text(lines + plain[number])
            produce(200)
            box.stop()
            box.begin()
            box.await_ready()
            eventually(in_sync, f"all replicas are in sync after the restart of box {number}", 120)
            if step is not STEPS[-1]:
                cluster.await_ensemble()
        cluster.await_ensemble(tls=tls)
    assert producer.flush(SECONDS) == 0 and failures == []
    for number in cluster.boxes:
        assert not zookeeper_serves(address_of(number), ZOOKEEPER_PORT), "in clear text"
        assert shows_certificate(address_of(number), ELECTION_PORT, tls.context()), "members, too"
    assert any(shows_certificate(address_of(number), PEER_PORT, tls.context()) for number in cluster.boxes), "where the leader listens"
    admin.create_topics([NewTopic("after", 3, 3)])["after"].result(30)
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "all", "auto.offset.reset": "earliest"})
    consumer.subscribe(["events"])
    found: set[bytes] = set()
    while len(found) < sent:
        message = consumer.poll(SECONDS)
        assert message is not None and message.error() is None, f"{len(found)} of {sent}"
        found.add(message.value())
    consumer.close()
