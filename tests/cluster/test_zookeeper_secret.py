"""A cluster that had no secret gets one, box by box, and goes on serving meanwhile; an ensemble
without the secret does not start.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from kazoo.client import KazooClient
from kazoo.exceptions import KazooException

from appliance.base.zookeeper_access import replace_secret
from lab.cluster import ZOOKEEPER_PORT, Cluster, ClusterBox, running_cluster
from lab.machine import address_of, why_not
from lab.running_box import eventually, run_and_wait, run_arguments
from lab.zookeeper_clients import Credentials, auth_of, zookeeper_session

pytestmark = [pytest.mark.system, pytest.mark.slow]
OPEN_SETTING = '"zookeeper.auth.required" = false\n'


@pytest.fixture
def open_cluster(tmp_path: Path) -> Iterator[Cluster]:
    """Three boxes as release 0.1 ran them."""
    if why := why_not():
        pytest.skip(why)
    with (
        running_cluster(tmp_path, settings={"zookeeper.auth.required": False}, has_secret=False) as cluster,
        cluster.clients(),
    ):
        yield cluster
        assert cluster.stop() == []


def restart(box: ClusterBox, cluster: Cluster) -> None:
    box.stop()
    box.begin()
    box.await_ready()
    cluster.await_ensemble()


def produce(cluster: Cluster, count: int) -> None:
    """acks=all; fails if a record is not acknowledged."""
    failures: list[object] = []
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all", "message.timeout.ms": 30_000})
    for number in range(count):
        producer.produce("events", b"%d" % number, on_delivery=lambda error, _: failures.append(error) if error else None)
    assert producer.flush(40) == 0 and failures == []


def create_topic(cluster: Cluster, name: str) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    admin.create_topics([NewTopic(name, 3, 3)])[name].result(30)


def tree_of(session: KazooClient) -> list[str]:
    found = ["/"]
    for path in found:
        with suppress(KazooException):  # it went meanwhile
            found += [f"{path.rstrip('/')}/{name}" for name in session.get_children(path)]
    return found


def open_nodes(cluster: Cluster, auth: Credentials) -> list[str]:
    found = []
    with zookeeper_session(cluster.zookeeper, auth) as session:
        for path in tree_of(session):
            with suppress(KazooException):
                acl = session.get_acls(path)[0]
                found += [path] if any(entry.id.scheme == "world" and entry.perms & ~1 for entry in acl) else []
    return found


def stranger_is_refused(address: str) -> bool:
    with zookeeper_session(address, []) as session:
        try:
            session.get_children("/")
        except KazooException:
            return True
    return False


def test_a_cluster_without_a_secret_gets_one_box_by_box(open_cluster: Cluster) -> None:
    cluster = open_cluster
    create_topic(cluster, "events")
    produce(cluster, 100)
    assert "/config/topics/events" in open_nodes(cluster, [])
    for box in cluster.boxes.values():
        replace_secret(str(box.directory / "state"), cluster.secret)
        restart(box, cluster)
        produce(cluster, 100)
    create_topic(cluster, "between")
    for number, box in cluster.boxes.items():
        settings = box.directory / "millrace.toml"
        settings.write_text(settings.read_text().replace(OPEN_SETTING, ""))
        restart(box, cluster)
        produce(cluster, 100)
        create_topic(cluster, f"after-{number}")
    auth = auth_of(cluster.boxes[1].box.box.state_directory)
    eventually(lambda: open_nodes(cluster, auth) == [], "every node has an ACL")
    assert all(stranger_is_refused(f"{address_of(number)}:{ZOOKEEPER_PORT}") for number in cluster.boxes)


def test_a_member_without_the_secret_says_what_to_do_and_does_not_start(tmp_path: Path) -> None:
    members = "1=127.0.0.1:21811:21812:21813,2=198.51.100.2,3=198.51.100.3"
    ended = run_and_wait(run_arguments(tmp_path / "box", zookeeper_members=members, broker_id=1))
    assert ended.returncode == 2
    assert f"there is no {tmp_path}/box/state/zookeeper.secret" in ended.stderr
    assert "millrace cluster secret new" in ended.stderr and "millrace cluster secret set" in ended.stderr
