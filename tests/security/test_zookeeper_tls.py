"""TLS between a box and its ZooKeeper, against programs that reach the port of ZooKeeper."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from kazoo.client import KazooClient
from kazoo.exceptions import KazooException
from kazoo.handlers.threading import KazooTimeoutError

from appliance.base.zookeeper_access import ZooKeeperTls
from appliance.cluster.zookeeper_probe import zookeeper_serves
from lab.certificates import Authority, Certificate
from lab.running_box import RunningBox, eventually, start_box
from lab.zookeeper_clients import auth_of, zookeeper_client

pytestmark = [pytest.mark.own_zookeeper, pytest.mark.system, pytest.mark.slow]
SECONDS = 20
REFUSED_SECONDS = 3


class Place:
    """One box whose ZooKeeper takes connections with TLS only, and certificates that it accepts or not."""

    def __init__(self, directory: Path) -> None:
        self.authority, other = Authority(directory), Authority(directory, "other")
        self.own = self.authority.sign("broker-1", "IP:127.0.0.1")
        self.other = other.sign("stranger", "IP:127.0.0.1")
        self.keystore = directory / "box.pem"
        self.install(self.own)
        settings = {
            "zookeeper.server.tls": "required",
            "zookeeper.ssl.client.enable": True,
            "zookeeper.ssl.keystore.location": str(self.keystore),
            "zookeeper.ssl.truststore.location": str(self.authority.certificate),
        }
        self.box = start_box(directory / "box", settings=settings)

    def install(self, made: Certificate) -> None:
        changed = self.keystore.with_suffix(".new")
        changed.write_text(made.private_key.read_text() + made.certificate.read_text())
        changed.rename(self.keystore)

    def tls_options(self, made: Certificate | None) -> dict[str, Any]:
        chosen = {} if made is None else {"certfile": str(made.certificate), "keyfile": str(made.private_key)}
        return {"use_ssl": True, "ca": str(self.authority.certificate), "check_hostname": True, **chosen}

    def serial(self) -> int:
        """The number of the certificate that ZooKeeper shows."""
        host, _, port = self.box.box.zookeeper.rpartition(":")
        context = ZooKeeperTls(str(self.keystore), str(self.authority.certificate)).context()
        with socket.create_connection((host, int(port)), SECONDS) as plain, context.wrap_socket(plain, server_hostname=host) as connected:
            found: Any = connected.getpeercert()
            return int(found["serialNumber"], 16)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    made = Place(tmp_path_factory.mktemp("zookeeper-tls"))
    yield made
    assert made.box.stop() == 0
    assert made.box.leftovers() == []


def create_topic(box: RunningBox, name: str) -> None:
    admin = AdminClient({"bootstrap.servers": box.bootstrap})
    admin.create_topics([NewTopic(name, 2)])[name].result(SECONDS)


def sees_something(session: KazooClient, seconds: float) -> bool:
    """Whether a session is opened and reads the tree."""
    try:
        session.start(seconds)
        return bool(session.get_children("/"))
    except (KazooException, KazooTimeoutError):
        return False
    finally:
        session.stop()
        session.close()


def test_the_box_serves_and_a_new_controller_connects_again(place: Place) -> None:
    create_topic(place.box, "before")
    former = place.box.pids()["controller"]
    os.kill(former, signal.SIGKILL)
    eventually(lambda: place.box.pids().get("controller", former) != former, "the controller is there again")
    create_topic(place.box, "after")


@pytest.mark.parametrize("which", ["clear text", "no certificate", "another authority", "no secret", "the box's own"])
def test_a_stranger_at_the_port_of_zookeeper_sees_nothing(place: Place, which: str) -> None:
    connect, secret = place.box.box.zookeeper, auth_of(place.box.box.state_directory)
    sessions: dict[str, Callable[[], KazooClient]] = {
        "clear text": lambda: zookeeper_client(connect, secret),
        "no certificate": lambda: zookeeper_client(connect, secret, **place.tls_options(None)),
        "another authority": lambda: zookeeper_client(connect, secret, **place.tls_options(place.other)),
        "no secret": lambda: KazooClient(connect, timeout=5, **place.tls_options(place.own)),
        "the box's own": lambda: zookeeper_client(connect, secret, **place.tls_options(place.own)),
    }
    is_own = which == "the box's own"
    assert sees_something(sessions[which](), SECONDS if is_own else REFUSED_SECONDS) == is_own


def test_a_server_of_another_authority_is_not_asked(place: Place, tmp_path: Path) -> None:
    host, _, port = place.box.box.zookeeper.rpartition(":")
    good = ZooKeeperTls(str(place.keystore), str(place.authority.certificate)).context()
    assert zookeeper_serves(host, int(port), SECONDS, good)
    foreign = ZooKeeperTls(str(place.keystore), str(Authority(tmp_path).certificate)).context()
    assert not zookeeper_serves(host, int(port), SECONDS, foreign)


def test_a_renewed_certificate_is_used_without_a_restart(place: Place) -> None:
    former = place.serial()
    place.install(place.authority.sign("renewed", "IP:127.0.0.1"))
    eventually(lambda: place.serial() != former, "ZooKeeper shows the new certificate", 60)
    create_topic(place.box, "with-the-new-one")
