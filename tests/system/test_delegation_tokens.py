"""A real Kafka 3.9 and a box answer the same program about delegation tokens alike: Apache's client, its errors and its logins.

Both read users from their ZooKeeper, where the test writes them, in our encoding; the tokens in both have one form.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest
from kazoo.client import KazooClient

from appliance.base.settings import load_box
from appliance.cluster.token_image import TOKENS, decode_token, encode_token
from appliance.cluster.user_znodes import user_path
from appliance.cluster.znodes import encode_config
from appliance.security.scram import ScramCredential, ScramMechanism, salted_password
from lab.acl_oracle import compiled
from lab.real_kafka import RealKafka, skip_without_kafka
from lab.real_zookeeper import RealZooKeeper, free_port
from lab.running_box import RunningBox, start_box

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.deep]

AUTHORIZER = "kafka.security.authorizer.AclAuthorizer"
SUPER_USERS = "User:root;User:ANONYMOUS"
PASSWORD = "correct horse"
KEY = "the same key"
USERS = ("root", "alice", "bob", "carol")
SECONDS = 300


def write_users(zookeeper: RealZooKeeper) -> None:
    client = KazooClient(zookeeper.connect)
    client.start()
    salt = b"0123456789abcdef"
    for name in USERS:
        config = {
            mechanism.label: ScramCredential.of_salted_password(mechanism, salt, salted_password(mechanism, PASSWORD, salt, 4096), 4096).encode()
            for mechanism in ScramMechanism
        }
        client.ensure_path("/config/users")
        client.create(user_path(name), encode_config(config))
    client.stop()
    client.close()


class Served(NamedTuple):
    """Bootstrap servers of one broker."""

    sasl: str
    plaintext: str


def start_kafka(directory: Path, zookeeper: RealZooKeeper) -> tuple[RealKafka, Served]:
    plaintext, sasl = (f"127.0.0.1:{free_port()}" for _ in range(2))
    settings = {
        "listeners": f"PLAINTEXT://{plaintext},SASL_PLAINTEXT://{sasl}",
        "sasl.enabled.mechanisms": "SCRAM-SHA-256,SCRAM-SHA-512",
        "authorizer.class.name": AUTHORIZER,
        "super.users": SUPER_USERS,
        "delegation.token.secret.key": KEY,
    }
    for mechanism in ("scram-sha-256", "scram-sha-512"):
        settings[f"listener.name.sasl_plaintext.{mechanism}.sasl.jaas.config"] = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
    kafka = RealKafka(directory / "kafka", directory / "disk", zookeeper.connect, settings=settings)
    kafka.port = int(plaintext.rpartition(":")[2])
    kafka.start()
    return kafka, Served(sasl, plaintext)


def start_a_box(directory: Path, zookeeper: RealZooKeeper) -> tuple[RunningBox, Served]:
    key = directory / "key"
    key.write_text(f"{KEY}\n")
    key.chmod(0o600)
    box = start_box(
        directory / "box",
        disks=1,
        acceptors=1,  # what one has read, all have
        zookeeper=zookeeper.connect,
        settings={
            "listeners": "PLAINTEXT://127.0.0.1:0,CLIENTS://127.0.0.1:0",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CLIENTS:SASL_PLAINTEXT",
            "authorizer.class.name": AUTHORIZER,
            "super.users": SUPER_USERS,
            "zookeeper.auth.required": False,
            "delegation.token.secret.key.file": str(key),
        },
    )
    ports = {listener.name: listener.port for listener in load_box(box.layout).kafka_listeners}
    return box, Served(f"127.0.0.1:{ports['CLIENTS']}", f"127.0.0.1:{ports['PLAINTEXT']}")


def outcome(command: list[str], served: Served) -> list[str]:
    """What the program prints."""
    ended = subprocess.run([*command, *served, PASSWORD], capture_output=True, text=True, timeout=SECONDS, check=False)
    assert ended.returncode == 0, ended.stdout[-4000:] + ended.stderr[-4000:]
    return ended.stdout.splitlines()


def test_a_kafka_and_a_box_answer_the_same_program_alike_and_write_the_same_nodes(tmp_path: Path) -> None:
    skip_without_kafka()
    command = compiled("TokenScenario", tmp_path)
    zookeepers = [RealZooKeeper(tmp_path / name) for name in ("kafka-zookeeper", "box-zookeeper")]
    for zookeeper in zookeepers:
        write_users(zookeeper)
    box, by_box = start_a_box(tmp_path, zookeepers[1])
    kafka, by_kafka = start_kafka(tmp_path, zookeepers[0])
    try:
        of_box, of_kafka = outcome(command, by_box), outcome(command, by_kafka)
        assert of_box == of_kafka and len(of_box) > 50
        for zookeeper in zookeepers:
            client = KazooClient(zookeeper.connect)
            client.start()
            nodes = {path: client.get(path)[0] for path in (f"{TOKENS}/{name}" for name in client.get_children(TOKENS))}
            assert nodes and all(json.loads(encode_token(decode_token(path, data))) == json.loads(data) for path, data in nodes.items())
            client.stop()
            client.close()
    finally:
        kafka.stop()
        box.stop()
        for zookeeper in zookeepers:
            zookeeper.stop()
