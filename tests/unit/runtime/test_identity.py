"""Which broker of which cluster a box is."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from appliance.base.errors import ConfigurationProblems
from appliance.runtime.directories import read_meta_properties
from appliance.runtime.identity import (
    Identity,
    choose_zookeeper_port,
    lock_state,
    new_cluster_id,
    plan_identity,
    read_identity,
    write_identity,
    write_joined_cluster,
)


@pytest.fixture
def state(tmp_path: Path) -> str:
    (tmp_path / "state").mkdir()
    return str(tmp_path / "state")


def disk_of(tmp_path: Path, name: str, cluster_id: str, broker_id: int) -> str:
    (tmp_path / name).mkdir()
    (tmp_path / name / "meta.properties").write_text(f"version=0\nbroker.id={broker_id}\ncluster.id={cluster_id}\n")
    return str(tmp_path / name)


def owners(paths: list[str]) -> dict[str, dict[str, str]]:
    return {path: read_meta_properties(path) or {} for path in paths}


def test_a_new_box_gets_a_cluster_of_its_own_and_changes_nothing_by_planning(tmp_path: Path, state: str) -> None:
    identity, problems = plan_identity(state, {}, None, embedded=True)
    assert problems == [] and identity.broker_id == 1 and len(identity.cluster_id) == 22
    assert read_identity(state) is None


def test_an_identity_is_kept(state: str) -> None:
    write_identity(state, Identity(3, "cluster", 2181))
    assert read_identity(state) == Identity(3, "cluster", 2181)
    assert plan_identity(state, {}, None, embedded=True) == (Identity(3, "cluster", 2181), [])
    assert sorted(os.listdir(state)) == ["identity.json"]


def test_its_own_disks_are_fine(tmp_path: Path, state: str) -> None:
    write_identity(state, Identity(1, "ours"))
    assert plan_identity(state, owners([disk_of(tmp_path, "d0", "ours", 1)]), None, embedded=True)[1] == []


def test_disks_of_another_cluster_or_broker_are_refused(tmp_path: Path, state: str) -> None:
    write_identity(state, Identity(1, "ours"))
    data = [disk_of(tmp_path, "d0", "theirs", 1), disk_of(tmp_path, "d1", "ours", 2)]
    _, problems = plan_identity(state, owners(data), None, embedded=True)
    assert len(problems) == 2 and "says cluster theirs" in problems[0] and "says broker 2" in problems[1]


def test_old_disks_with_a_new_state_directory_are_refused_because_their_topics_are_unknown(tmp_path: Path, state: str) -> None:
    _, problems = plan_identity(state, owners([disk_of(tmp_path, "d0", "old", 1)]), None, embedded=True)
    assert len(problems) == 1 and "with --state" in problems[0]


def test_with_a_zookeeper_elsewhere_the_disks_say_the_cluster(tmp_path: Path, state: str) -> None:
    identity, problems = plan_identity(state, owners([disk_of(tmp_path, "d0", "old", 5)]), 5, embedded=False)
    assert problems == [] and identity == Identity(5, "old")
    assert plan_identity(state, {}, None, embedded=False) == (Identity(1, ""), [])


def test_the_cluster_that_a_box_has_joined_is_its_cluster_from_then_on(tmp_path: Path, state: str) -> None:
    write_identity(state, Identity(5))
    write_joined_cluster(state, "joined")
    assert plan_identity(state, owners([disk_of(tmp_path, "d0", "joined", 5)]), 5, embedded=False) == (Identity(5, "joined"), [])
    _, problems = plan_identity(state, owners([disk_of(tmp_path, "d1", "another", 5)]), 5, embedded=False)
    assert len(problems) == 1 and "says cluster another, this box is of cluster joined" in problems[0]


def test_a_broker_does_not_change_its_id(state: str) -> None:
    write_identity(state, Identity(1, "ours"))
    assert "is of broker 1" in plan_identity(state, {}, 2, embedded=True)[1][0]


def test_a_broken_identity_is_a_problem_and_no_new_cluster(state: str) -> None:
    Path(state, "identity.json").write_text("{")
    assert "cannot read identity.json" in plan_identity(state, {}, None, embedded=True)[1][0]


def test_a_state_directory_has_one_owner(state: str) -> None:
    descriptor = lock_state(state)
    assert Path(state, ".lock").read_text() == f"{os.getpid()}\n"
    with pytest.raises(ConfigurationProblems, match=f"locked by process {os.getpid()}"):
        lock_state(state)
    os.close(descriptor)
    os.close(lock_state(state))


def test_cluster_ids_have_kafkas_form() -> None:
    ids = {new_cluster_id() for _ in range(200)}
    assert len(ids) == 200 and all(len(text) == 22 and not text.startswith("-") for text in ids)


def test_zookeepers_port_is_kept_while_it_is_free() -> None:
    import socket

    port = choose_zookeeper_port(0)
    assert choose_zookeeper_port(port) == port
    with socket.socket() as busy:
        busy.bind(("127.0.0.1", port))
        busy.listen()
        assert choose_zookeeper_port(port) not in (0, port)
