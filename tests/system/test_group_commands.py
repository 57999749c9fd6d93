"""`millrace group` and `millrace transaction` against a real box: groups and offsets as a user sees and sets them, transactions that hang."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer

from appliance.base.clock import SystemClock
from appliance.base.errors import ErrorCode
from lab.raw_coordination import Initialized, RawCoordination
from lab.raw_transactions import transactional_batch
from lab.running_box import RunningBox, environment, eventually

pytestmark = [pytest.mark.system, pytest.mark.slow]

COMMAND = [sys.executable, "-P", "-m", "appliance.command.main"]
TOPIC = "orders"


def _millrace(box: RunningBox, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *arguments, "--bootstrap", box.bootstrap], env=environment(), capture_output=True, text=True, timeout=60, check=False)


def _told(box: RunningBox, *arguments: str) -> Any:
    answer = _millrace(box, *arguments, "--json")
    assert answer.returncode == 0, answer.stderr
    return json.loads(answer.stdout)


def _done(box: RunningBox, *arguments: str) -> str:
    answer = _millrace(box, *arguments)
    assert answer.returncode == 0, answer.stderr
    return answer.stdout


@pytest.fixture(scope="module")
def keeper(tmp_path_factory: pytest.TempPathFactory, start_shared: Callable[..., RunningBox]) -> Any:
    """Answers first batches of transactions without asking a coordinator, so that one can be left that no coordinator knows."""

    box = start_shared(
        tmp_path_factory.mktemp("keeper") / "box", settings={"transaction.partition.verification.enable": False, "group.initial.rebalance.delay.ms": 0}
    )
    producer = Producer({"bootstrap.servers": box.bootstrap})
    with closing(RawCoordination(box.kafka)) as client:
        client.create_topic(TOPIC, 1)
    for number in range(10):
        producer.produce(TOPIC, b"%d" % number)
    assert producer.flush(60) == 0
    yield box
    box.stop()
    assert box.leftovers() == []


def test_settings_of_a_group_are_set_shown_and_taken_back(keeper: RunningBox) -> None:
    told = _done(keeper, "group", "alter", "workers", "--set", "share.auto.offset.reset=earliest", "--set", "consumer.session.timeout.ms=46000")
    assert told == "altered group workers: share.auto.offset.reset=earliest, consumer.session.timeout.ms=46000\n"
    _done(keeper, "group", "reset-offsets", "workers", "--topic", TOPIC, "--to-earliest", "--yes")
    eventually(
        lambda: _told(keeper, "group", "describe", "workers")["settings"] == {"consumer.session.timeout.ms": "46000", "share.auto.offset.reset": "earliest"},
        "the image has the settings",
    )
    assert "set: share.auto.offset.reset=earliest\n" in _done(keeper, "group", "describe", "workers")
    wrong = _millrace(keeper, "group", "alter", "workers", "--unset", "share.auto.offset.rest")
    assert wrong.returncode == 2 and "groups have no setting share.auto.offset.rest; there are" in wrong.stderr
    refused = _millrace(keeper, "group", "alter", "workers", "--set", "share.auto.offset.reset=soon")
    assert refused.returncode == 2 and "could not alter group 'workers'" in refused.stderr
    _done(keeper, "group", "alter", "workers", "--unset", "share.auto.offset.reset", "--unset", "consumer.session.timeout.ms")
    _done(keeper, "group", "delete", "workers", "--yes")


def test_a_group_is_listed_described_moved_and_deleted(keeper: RunningBox) -> None:
    consumer = Consumer(
        {"bootstrap.servers": keeper.bootstrap, "group.id": "readers", "client.id": "r1", "auto.offset.reset": "earliest", "enable.auto.commit": False}
    )
    consumer.subscribe([TOPIC])
    first = eventually(lambda: consumer.poll(0.1), "the first record")
    assert first.error() is None
    consumer.commit(message=first, asynchronous=False)
    assert [(group["group_id"], group["state"]) for group in _told(keeper, "group", "list")] == [("readers", "Stable")]
    described = _told(keeper, "group", "describe", "readers")
    assert [member["client_id"] for member in described["members"]] == ["r1"]
    assert [(row["topic"], row["committed_offset"], row["end_offset"], row["lag"]) for row in described["partitions"]] == [(TOPIC, 1, 10, 9)]

    refused = _millrace(keeper, "group", "reset-offsets", "readers", "--to-latest", "--execute")
    assert refused.returncode != 0
    assert "member" in refused.stderr
    consumer.close()
    eventually(lambda: _told(keeper, "group", "describe", "readers")["state"] == "Empty", "the member has left")

    _done(keeper, "group", "reset-offsets", "readers", "--to-offset", "7", "--dry-run")
    asked = _millrace(keeper, "group", "reset-offsets", "readers", "--to-offset", "7")
    assert (asked.returncode, "no terminal to ask" in asked.stderr) == (2, True)
    assert _told(keeper, "group", "lag", "readers")[0]["committed_offset"] == 1, "neither changes anything"
    _done(keeper, "group", "reset-offsets", "readers", "--shift-by", "4", "--execute")
    assert _told(keeper, "group", "lag", "readers")[0]["committed_offset"] == 5
    assert _millrace(keeper, "group", "delete", "readers").returncode == 2
    assert "deleted" in _done(keeper, "group", "delete", "--yes", "readers")
    assert _told(keeper, "group", "list") == []
    assert _millrace(keeper, "group", "describe", "readers").returncode != 0


def test_an_open_transaction_is_listed_described_and_aborted(keeper: RunningBox) -> None:
    with closing(RawCoordination(keeper.kafka)) as client:
        eventually(lambda: client.find_coordinators("loader") == [0, 0], "the state topics are there")
        producer = eventually(lambda: (found := client.init_producer("loader")).error_code == 0 and found, "a producer id")
        assert client.add_partition("loader", producer, TOPIC) == 0
        assert client.produce_batch(TOPIC, 0, transactional_batch(producer.producer_id, producer.producer_epoch, 0, b"open"), "loader")[0] == 0
        listed = {each["transactional_id"]: each["state"] for each in _told(keeper, "transaction", "list")}
        assert listed["loader"] == "Ongoing"
        described = _told(keeper, "transaction", "describe", "loader")
        assert (described["state"], described["producer_id"], described["partitions"]) == ("Ongoing", producer.producer_id, [f"{TOPIC}-0"])
        assert _told(keeper, "transaction", "list", "--hanging", "--minutes", "0") == [], "its coordinator knows it"
        assert "aborted" in _done(keeper, "transaction", "abort", "--yes", "loader")
        eventually(lambda: client.stable_end(TOPIC, 0) == client.list_offset(TOPIC, 0, -1), "nothing is open")
        assert client.end_transaction("loader", producer, True) != 0, "its producer is fenced"


def test_a_transaction_that_no_coordinator_knows_is_found_and_aborted(keeper: RunningBox) -> None:
    with closing(RawCoordination(keeper.kafka)) as client:
        held = client.list_offset(TOPIC, 0, -1)
        assert client.produce_batch(TOPIC, 0, transactional_batch(987_654, 0, 0, b"hanging", timestamp_ms=SystemClock.wall_ms()), "nobody")[0] == 0
        assert client.stable_end(TOPIC, 0) == held
        assert [(each["partition"], each["producer_id"]) for each in _told(keeper, "transaction", "list", "--hanging", "--minutes", "0")] == [
            (f"{TOPIC}-0", 987_654)
        ]
        assert _told(keeper, "transaction", "list", "--hanging", "--minutes", "60") == []
        assert "987654" in _done(keeper, "transaction", "abort", "--yes", "--hanging", TOPIC, "--minutes", "0")
        assert client.stable_end(TOPIC, 0) == client.list_offset(TOPIC, 0, -1)
        assert _told(keeper, "transaction", "list", "--hanging", "--minutes", "0") == []


def test_offsets_of_a_transaction_that_no_coordinator_knows_are_open_until_it_is_aborted(keeper: RunningBox) -> None:
    with closing(RawCoordination(keeper.kafka)) as client:
        eventually(lambda: client.find_coordinators("copier") == [0, 0], "the state topics are there")
        eventually(lambda: client.commit("copied", TOPIC, 3) == 0, "the group's partition is loaded")
        assert client.commit_transactional("copied", TOPIC, 8, "nobody", Initialized(0, 876_543, 0)) == 0
        assert client.committed("copied", TOPIC, require_stable=True) == (ErrorCode.UNSTABLE_OFFSET_COMMIT, -1)
        assert "876543" in _done(keeper, "transaction", "abort", "--yes", "--hanging", "__consumer_offsets", "--minutes", "0")
        assert client.committed("copied", TOPIC, require_stable=True) == (0, 3), "the group's coordinator heard of it before the answer"
