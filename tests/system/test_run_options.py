"""Options of `millrace run` that change the shape of a box: several acceptors, an external
ZooKeeper, topics that are not made by the way.
"""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from appliance.records.builder import BatchBuilder
from lab.raw_client import RawClient
from lab.real_zookeeper import RealZooKeeper
from lab.running_box import COMMAND, RunningBox, environment, eventually, start_box

pytestmark = [pytest.mark.own_zookeeper, pytest.mark.system, pytest.mark.slow]

Start = Callable[..., RunningBox]
MILLRACE = COMMAND[:-1]


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBox]:
    """One acceptor, and topics are not made by the way."""
    box = start_box(tmp_path_factory.mktemp("strict") / "box", by_command=True, settings={"auto.create.topics.enable": False})
    yield box
    box.stop()
    assert box.leftovers() == []


def _batch() -> bytes:
    builder = BatchBuilder()
    builder.append(1_700_000_000_000, b"key", b"value")
    return builder.build()


def _connections(box: RunningBox, acceptor: str) -> int:
    return box.counters(acceptor).values.get("acceptor.connections", 0)


def test_several_acceptors_share_one_port_and_die_alone(start: Start) -> None:
    box = start(by_command=True, acceptors=2)
    names = ["acceptor@0", "acceptor@1"]
    clients: list[RawClient] = []
    counts: list[list[int]] = []

    def in_turns() -> bool:
        """Another connection. One acceptor may be without a processor for a while: some forty behind each other tell."""
        clients.append(RawClient(box.kafka))
        clients[-1].api_versions()
        counts.append([_connections(box, name) for name in names])
        before = counts[-41] if len(counts) > 40 else [0, 0]
        return len(counts) >= 40 and min(after - former for after, former in zip(counts[-1], before, strict=True)) >= 10

    eventually(in_turns, "of forty connections each acceptor takes ten")
    clients[0].create_topic("shared", 2)
    for client in clients:
        assert client.produce("shared", 0, _batch()).error_code == 0
    survivors = _connections(box, "acceptor@1")
    box.kill("acceptor@0")
    alive = 0
    for client in clients:
        try:
            alive += client.produce("shared", 1, _batch()).error_code == 0
        except (AssertionError, ConnectionError):
            continue  # it was the dead one's
    assert alive == survivors
    for client in clients:
        client.close()


def _creation(client: RawClient, topic: str) -> str:
    """What the box answers, empty when the topic was created."""
    try:
        client.create_topic(topic, 1)
    except AssertionError as refused:
        assert "unreachable" in str(refused)
        return str(refused)
    return ""


def test_a_box_uses_an_external_zookeeper_under_a_chroot(start: Start, tmp_path: Path) -> None:
    zookeeper = RealZooKeeper(tmp_path / "zookeeper")
    try:
        box = start(by_command=True, zookeeper=f"{zookeeper.connect}/logs")
        assert "zookeeper" not in box.pids()
        client = RawClient(box.kafka)
        client.create_topic("there", 1)
        zookeeper.kill()
        assert client.produce("there", 0, _batch()).error_code == 0
        assert len(client.fetch("there", 0, 0).records) > 0
        listed = subprocess.run(
            [*MILLRACE, "box", "list", "--bootstrap", box.bootstrap], env=environment(), capture_output=True, text=True, timeout=60, check=False
        )
        assert (listed.returncode, listed.stderr) == (0, "") and str(box.kafka) in listed.stdout, "the members are queried in that minute"
        zookeeper.start()
        eventually(lambda: "unreachable" not in _creation(client, "after"), "the box has found ZooKeeper again")
        client.close()
        box.stop()
    finally:
        zookeeper.stop()


def test_topics_are_not_made_by_the_way_where_that_is_switched_off(strict: RunningBox) -> None:
    metadata = AdminClient({"bootstrap.servers": strict.bootstrap, "allow.auto.create.topics": True}).list_topics("nobody-made-this", timeout=10)
    assert metadata.topics["nobody-made-this"].error.name() == "UNKNOWN_TOPIC_OR_PART"
    assert "nobody-made-this" not in AdminClient({"bootstrap.servers": strict.bootstrap}).list_topics(timeout=30).topics


def test_no_connection_is_refused_while_an_acceptor_restarts(strict: RunningBox) -> None:
    old_pid = strict.kill("acceptor@0")
    waiting = [socket.create_connection(strict.kafka, timeout=10) for _ in range(50)]
    strict.await_restart("acceptor@0", old_pid)
    eventually(lambda: _connections(strict, "acceptor@0") == 50, "those who waited are served")
    for sock in waiting:
        sock.close()
