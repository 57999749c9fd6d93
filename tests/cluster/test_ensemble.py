"""The ZooKeeper ensemble that boxes run together, and one elsewhere: what boxes make of it, and what they say."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient
from kazoo.client import KazooClient

from appliance.metadata.zookeeper_probe import zookeeper_serves
from tests.support.cluster import Cluster, all_serve
from tests.support.machine import address_of
from tests.support.real_zookeeper import RealZooKeeper
from tests.support.running_box import RunningBox, eventually, run_and_wait, run_arguments

pytestmark = [pytest.mark.system, pytest.mark.slow]


def brokers_known_to(address: str) -> dict[int, str]:
    told = AdminClient({"bootstrap.servers": address, "log_level": 0}).list_topics(timeout=5).brokers
    return {number: f"{broker.host}:{broker.port}" for number, broker in told.items()}


def test_three_boxes_find_each_other_by_their_settings_alone(cluster: Cluster) -> None:
    everybody = {number: box.address for number, box in cluster.boxes.items()}
    for box in cluster.boxes.values():
        eventually(lambda box=box: brokers_known_to(box.address) == everybody, f"box {box.number} knows all boxes")  # type: ignore[misc]
    client = KazooClient(cluster.zookeeper, timeout=5)
    client.start(10)
    racks = [client.get(f"/brokers/ids/{number}")[0].decode() for number in cluster.boxes]
    client.stop()
    client.close()
    assert [f'"rack{number}"' in rack for number, rack in zip(cluster.boxes, racks, strict=True)] == [True] * 3


def test_a_member_that_is_killed_is_back_and_one_that_waits_says_for_whom(cluster: Cluster) -> None:
    box = cluster.boxes[1].box
    old = box.kill("zookeeper")
    box.await_restart("zookeeper", old, 20)
    stopped = [cluster.boxes[number].box.stop_process("zookeeper") for number in (2, 3)]
    try:
        words = "waits for members 2 and 3 of the ZooKeeper ensemble; one of them is enough"
        eventually(lambda: box.status()["zookeeper"].get("status") == words, "the member says that it waits", 20)
        assert not zookeeper_serves(address_of(1), 2181)
        assert box.status()["zookeeper"]["pid"] != old and all_serve(box)
    finally:
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)
    eventually(lambda: zookeeper_serves(address_of(1), 2181) and "status" not in box.status()["zookeeper"], "the ensemble serves again", 20)
    cluster.mend()


def test_a_box_under_a_number_that_is_not_its_own_says_which_address_is_wrong(tmp_path: Path) -> None:
    arguments = run_arguments(tmp_path / "box", zookeeper_members="1=127.0.0.1:1:2:3,2=198.51.100.2,3=198.51.100.3", broker_id=2)
    ended = run_and_wait(arguments)
    assert ended.returncode == 2
    assert "this box, 2, is 198.51.100.2, which is no address of this machine; correct it, or --broker-id" in ended.stderr


def test_an_ensemble_elsewhere_may_be_shared_by_its_chroot(tmp_path: Path, start: Callable[..., RunningBox]) -> None:
    server = RealZooKeeper(tmp_path)
    try:
        boxes = [start(name=name, zookeeper=f"{server.connect}/logs/{name}") for name in ("one", "other")]
        for box in boxes:
            AdminClient({"bootstrap.servers": box.bootstrap}).list_topics(timeout=5)
        client = KazooClient(server.connect, timeout=5)
        client.start(10)
        assert sorted(client.get_children("/logs")) == ["one", "other"]
        assert [client.get_children(f"/logs/{name}/brokers/ids") for name in ("one", "other")] == [["1"], ["1"]]
        assert "brokers" not in client.get_children("/")
        client.stop()
        client.close()
        for box in boxes:
            assert box.stop() == 0
    finally:
        server.stop()
