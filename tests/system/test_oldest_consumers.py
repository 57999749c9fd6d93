"""A group of high-level consumers of Kafka 0.8.2.2, the real ones: they keep the group in the box's
ZooKeeper, and log in there by SASL.
"""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from appliance.command.cluster import consumer as print_jaas
from lab import client_packages
from lab.running_box import RunningBox, eventually
from lab.zookeeper_clients import auth_of, zookeeper_session

pytestmark = [pytest.mark.own_zookeeper, pytest.mark.system, pytest.mark.slow]
PARTITIONS = 4
SETTINGS = """\
group.id=oldest
auto.commit.interval.ms=200
zookeeper.session.timeout.ms=6000
rebalance.backoff.ms=500
rebalance.max.retries=20
"""


@pytest.fixture(autouse=True)
def _needs_kafka08() -> None:
    if why := client_packages.missing_kafka08():
        pytest.skip(why)


class OldConsumer:
    """Kafka 0.8.2.2's console consumer in the group `oldest`; its standard output goes to a file."""

    def __init__(self, directory: Path, name: str, zookeeper: str, jaas: Path | None) -> None:
        (directory / "consumer.properties").write_text(SETTINGS)
        (directory / "log4j.properties").write_text("log4j.rootLogger=OFF\n")
        self.output = directory / f"{name}.out"
        login = [f"-Djava.security.auth.login.config={jaas}"] if jaas is not None else []
        options = [
            "--zookeeper",
            zookeeper,
            "--topic",
            "events",
            "--from-beginning",
            "--consumer.config",
            str(directory / "consumer.properties"),
        ]
        logging = f"-Dlog4j.configuration=file:{directory}/log4j.properties"
        with open(self.output, "wb") as output, open(directory / f"{name}.err", "wb") as errors:
            self.process = subprocess.Popen(
                [
                    "java",
                    "-Xmx128m",
                    *login,
                    logging,
                    "-cp",
                    client_packages.class_path_08(),
                    "kafka.tools.ConsoleConsumer",
                    *options,
                ],
                stdout=output,
                stderr=errors,
            )

    def records(self) -> set[str]:
        return set(self.output.read_text().split())

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


@pytest.fixture
def box(shared_box: RunningBox) -> RunningBox:
    admin = AdminClient({"bootstrap.servers": shared_box.bootstrap})
    if "events" not in admin.list_topics(timeout=30).topics:
        admin.create_topics([NewTopic("events", PARTITIONS)])["events"].result(60)
    return shared_box


@pytest.fixture
def jaas(box: RunningBox, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """What `millrace cluster secret consumer` prints, in a file."""
    print_jaas(box.box.state_directory)
    file = tmp_path / "consumer.jaas"
    file.write_text(capsys.readouterr().out)
    return file


@pytest.fixture
def owner(box: RunningBox) -> Iterator[KazooClient]:
    with zookeeper_session(box.box.zookeeper, auth_of(box.box.state_directory)) as session:
        yield session


def produce(box: RunningBox, first: int, count: int) -> set[str]:
    producer = Producer({"bootstrap.servers": box.bootstrap})
    names = [f"record-{number}" for number in range(first, first + count)]
    for number, name in enumerate(names):
        producer.produce("events", name, partition=number % PARTITIONS)
    assert producer.flush(60) == 0
    return set(names)


def partition_owners(session: KazooClient) -> dict[int, str]:
    try:
        partitions = session.get_children("/consumers/oldest/owners/events")
        return {int(name): session.get(f"/consumers/oldest/owners/events/{name}")[0].decode() for name in partitions}
    except NoNodeError:
        return {}


def committed_offsets(session: KazooClient) -> list[int]:
    found = []
    for partition in range(PARTITIONS):
        with suppress(NoNodeError):
            found.append(int(session.get(f"/consumers/oldest/offsets/events/{partition}")[0]))
    return found


def test_a_group_shares_the_partitions_commits_and_goes_on_when_a_member_dies(box: RunningBox, owner: KazooClient, jaas: Path, tmp_path: Path) -> None:
    members = [OldConsumer(tmp_path, name, box.box.zookeeper, jaas) for name in ("one", "two")]
    try:
        eventually(
            lambda: len(partition_owners(owner)) == PARTITIONS and len(set(partition_owners(owner).values())) == 2,
            "both share",
            60,
        )
        first = produce(box, 0, 400)
        eventually(lambda: members[0].records() | members[1].records() >= first, "everything is read")
        assert members[0].records() and members[1].records()
        eventually(lambda: committed_offsets(owner) == [100] * PARTITIONS, "everything is committed")
        members[0].kill()
        second = produce(box, 400, 400)
        eventually(lambda: members[1].records() >= second, "the other takes over", 60)
    finally:
        for member in members:
            member.kill()


def test_a_consumer_without_a_login_gets_nothing(box: RunningBox, owner: KazooClient, tmp_path: Path) -> None:
    consumer = OldConsumer(tmp_path, "stranger", box.box.zookeeper, None)
    try:
        assert consumer.process.wait(60) is not None
        assert consumer.records() == set()
    finally:
        consumer.kill()
