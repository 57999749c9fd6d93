"""Members of an ensemble with wrong configurations, and an ensemble elsewhere (that of the boxes
themselves: `test_matrix.py`, where a cluster runs).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient
from kazoo.client import KazooClient

from lab.real_zookeeper import RealZooKeeper
from lab.running_box import RunningBox, run_and_wait, run_arguments

pytestmark = [pytest.mark.own_zookeeper, pytest.mark.system, pytest.mark.slow]


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
            AdminClient({"bootstrap.servers": box.bootstrap}).list_topics(timeout=30)
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
