"""What the coordinator refuses, and what survives it: requests that no client library makes, and
deaths of every process of a commit or a transaction.
"""

from __future__ import annotations

import itertools
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from functools import partial

import pytest
from confluent_kafka import Producer

from appliance.base.errors import ErrorCode
from appliance.cluster.state_log import partition_of
from lab.load import QUICK_RECONNECT, StreamReader
from lab.raw_coordination import Initialized, Member, RawCoordination
from lab.raw_transactions import transactional_batch
from lab.running_box import RunningBox, eventually
from lab.zookeeper_clients import auth_of, zookeeper_client

pytestmark = [pytest.mark.own_zookeeper, pytest.mark.system, pytest.mark.slow]

TOPIC = "events"


@pytest.fixture
def client(shared_box: RunningBox) -> Iterator[RawCoordination]:
    with closing(RawCoordination(shared_box.kafka)) as client:
        yield client


@pytest.fixture(scope="module", autouse=True)
def topic(shared_box: RunningBox) -> None:
    with closing(RawCoordination(shared_box.kafka)) as client:
        client.create_topic(TOPIC, 1)
        eventually(lambda: client.is_served(TOPIC, 1), "the topic is served")
        eventually(lambda: client.find_coordinators("warm-up") == [0, 0], "the state topics are there")
        eventually(lambda: client.committed("warm-up", TOPIC) == (0, -1), "the group coordinator serves")
        eventually(lambda: client.init_producer("warm-up").error_code == 0, "the transaction coordinator serves")


def _is_read(client: RawCoordination, group: str) -> bool:
    return client.committed(group, TOPIC)[0] == 0


def _zookeeper_of(box: RunningBox) -> str:
    settings = dict(line.split("=", 1) for line in (box.directory / "state/zookeeper/zoo.cfg").read_text().splitlines() if "=" in line)
    return f"127.0.0.1:{settings['clientPort']}"


def _open_transaction(client: RawCoordination, name: str, *values: bytes) -> Initialized:
    """A coordinator that was restarted answers COORDINATOR_LOAD_IN_PROGRESS until it has read its partition."""
    loading = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    producer = eventually(lambda: (found := client.init_producer(name)).error_code != loading and found, "the coordinator has loaded its partition")
    assert producer.error_code == 0
    assert client.add_partition(name, producer, TOPIC) == 0
    assert client.produce_batch(TOPIC, 0, transactional_batch(producer.producer_id, producer.producer_epoch, 0, *values), name)[0] == 0
    return producer


# --- what is refused, and changes nothing


def test_a_member_of_an_old_generation_commits_nothing(client: RawCoordination) -> None:
    member = client.join("old")
    assert client.sync("old", member) == 0
    assert client.commit("old", TOPIC, 5, member) == 0
    again = client.join("old", member.member_id)
    assert again.generation_id == member.generation_id + 1
    assert client.sync("old", again) == 0
    assert client.commit("old", TOPIC, 9, member) == ErrorCode.ILLEGAL_GENERATION
    assert client.heartbeat("old", member) == ErrorCode.ILLEGAL_GENERATION
    assert client.commit("old", TOPIC, 9, Member(0, "a stranger", again.generation_id, "")) == ErrorCode.UNKNOWN_MEMBER_ID
    assert client.committed("old", TOPIC) == (0, 5)


def test_an_offset_of_a_topic_that_is_not_there_is_refused(client: RawCoordination) -> None:
    assert client.commit("nowhere", "no-such-topic", 5) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert client.committed("nowhere", "no-such-topic") == (0, -1)


def test_a_group_name_of_300_characters_is_a_name_like_any_other(client: RawCoordination) -> None:
    assert client.commit("g" * 300, TOPIC, 5) == 0
    assert client.committed("g" * 300, TOPIC) == (0, 5)
    assert client.join("").error_code == ErrorCode.INVALID_GROUP_ID


def test_a_second_producer_with_the_same_transactional_id_fences_the_first(client: RawCoordination) -> None:
    first = _open_transaction(client, "twins", b"of the first")
    second = eventually(lambda: (found := client.init_producer("twins")).error_code == 0 and found, "the transaction of the first is aborted")
    assert (second.producer_id, second.producer_epoch > first.producer_epoch) == (first.producer_id, True)
    late = transactional_batch(first.producer_id, first.producer_epoch, 1, b"too late")
    end_offset = client.list_offset(TOPIC, 0, -1)
    assert client.produce_batch(TOPIC, 0, late, "twins")[0] == ErrorCode.INVALID_PRODUCER_EPOCH
    assert client.end_transaction("twins", first, True) == ErrorCode.PRODUCER_FENCED
    assert client.list_offset(TOPIC, 0, -1) == end_offset


def test_a_sequence_that_is_not_due_is_refused(client: RawCoordination) -> None:
    producer = client.init_producer(None)
    end_offset = client.list_offset(TOPIC, 0, -1)

    def batch(sequence: int) -> bytes:
        return transactional_batch(producer.producer_id, producer.producer_epoch, sequence, b"counted", is_transactional=False)

    assert client.produce_batch(TOPIC, 0, batch(0), None) == (0, end_offset)
    assert client.produce_batch(TOPIC, 0, batch(2), None)[0] == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert client.produce_batch(TOPIC, 0, batch(0), None) == (0, end_offset)
    assert client.list_offset(TOPIC, 0, -1) == end_offset + 1


def test_a_batch_of_a_transaction_that_was_not_begun_is_refused(client: RawCoordination) -> None:
    producer = client.init_producer("not-begun")
    end_offset = client.list_offset(TOPIC, 0, -1)
    batch = transactional_batch(producer.producer_id, producer.producer_epoch, 0, b"never")
    assert client.produce_batch(TOPIC, 0, batch, "not-begun", version=10)[0] == ErrorCode.INVALID_TXN_STATE
    assert client.produce_batch(TOPIC, 0, batch, "not-begun", version=11)[0] == ErrorCode.TRANSACTION_ABORTABLE
    assert client.list_offset(TOPIC, 0, -1) == end_offset


# --- what others see in ZooKeeper


def test_offsets_of_the_oldest_consumers_and_blocks_of_producer_ids_are_in_zookeeper(shared_box: RunningBox, client: RawCoordination) -> None:
    assert client.commit_in_zookeeper("oldest", TOPIC, 42) == 0
    assert client.committed_in_zookeeper("oldest", TOPIC) == (0, 42)
    assert client.committed("oldest", TOPIC) == (0, -1)
    assert client.commit_in_zookeeper("oldest", "no-such-topic", 42) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    given = [client.init_producer(None).producer_id for _ in range(3)]
    tree = zookeeper_client(_zookeeper_of(shared_box), auth_of(shared_box.box.state_directory))
    tree.start()
    try:
        assert tree.get(f"/consumers/oldest/offsets/{TOPIC}/0")[0] == b"42"
        first_life = tree.get("/latest_producer_id_block")[0]
        old_pid = shared_box.kill("coordinator")
        shared_box.await_restart("coordinator", old_pid)
        eventually(lambda: client.init_producer(None).error_code == 0, "the next incarnation has ids")
        given += [client.init_producer(None).producer_id for _ in range(3)]
        assert tree.get("/latest_producer_id_block")[0] != first_life
    finally:
        tree.stop()
        tree.close()
    assert len(set(given)) == 6
    assert min(given) > 0


# --- deaths


def test_no_commit_that_was_acknowledged_is_lost_when_the_coordinator_is_killed(shared_box: RunningBox, client: RawCoordination) -> None:
    for life in range(3):
        acknowledged = [f"kept-{life}-{number}" for number in range(40)]
        for group in acknowledged:
            eventually(partial(_is_read, client, group), "its partition is read")  # the last incarnation was killed a moment ago
            assert client.commit(group, TOPIC, 7) == 0
        for number in range(10):
            client.send_commit(f"perhaps-{life}-{number}", TOPIC, 8)
        old_pid = shared_box.kill("coordinator")
        told = [client.receive_commit() for _ in range(10)]
        acknowledged += [f"perhaps-{life}-{number}" for number, code in enumerate(told) if code == 0]
        shared_box.await_restart("coordinator", old_pid)
        for group in acknowledged:
            eventually(partial(_is_read, client, group), "its partition is read")
            assert client.committed(group, TOPIC) == (0, 8 if group.startswith("perhaps") else 7), group


def test_a_member_that_waits_for_others_hears_of_the_death_of_coordinator_or_acceptor(shared_box: RunningBox, client: RawCoordination) -> None:
    leader = client.join("waiting", session_ms=60_000)  # a start of an acceptor may take more than ten seconds on a busy machine
    assert client.sync("waiting", leader) == 0
    with closing(RawCoordination(shared_box.kafka)) as second:
        second.send_join("waiting")
        given = second.receive_join()
        second.send_join("waiting", given.member_id)
        assert client.heartbeat("waiting", leader) in (0, ErrorCode.REBALANCE_IN_PROGRESS)
        eventually(lambda: client.heartbeat("waiting", leader) == ErrorCode.REBALANCE_IN_PROGRESS, "the second member's join has come")
        old_pid = shared_box.kill("coordinator")
        assert second.receive_join().error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
        shared_box.await_restart("coordinator", old_pid)
        eventually(lambda: client.committed("waiting", TOPIC)[0] == 0, "the group is read")
        again = RawCoordination(shared_box.kafka)
        again.send_join("waiting")
        again.send_join("waiting", again.receive_join().member_id)
        eventually(lambda: client.heartbeat("waiting", leader) == ErrorCode.REBALANCE_IN_PROGRESS, "the next incarnation knows the members")
        old_pid = shared_box.kill("acceptor@0")
        with pytest.raises((AssertionError, ConnectionError)):
            again.receive_join()
        again.close()
    shared_box.await_restart("acceptor@0", old_pid)
    with closing(RawCoordination(shared_box.kafka)) as back:
        joined = back.join("waiting", leader.member_id, rebalance_ms=1_000)
        assert joined.error_code == 0
        assert joined.generation_id > leader.generation_id


@pytest.mark.parametrize("is_commit", [True, False])
def test_the_next_incarnation_carries_out_a_decided_transaction(shared_box: RunningBox, client: RawCoordination, is_commit: bool) -> None:
    """The log-writer of the data stands still: the decision is in the state log on the other disk, the marker is not in the data."""
    data_disk = next(path for path in shared_box.disks if (path / f"{TOPIC}-0").exists())
    names = (f"decided-{is_commit}-{number}" for number in itertools.count())
    name = next(name for name in names if not (data_disk / f"__transaction_state-{partition_of(name, 50)}").exists())
    producer = _open_transaction(client, name, b"decided")
    end_offset = client.list_offset(TOPIC, 0, -1)
    stopped = shared_box.stop_process(f"log-writer@{data_disk.name}")
    try:
        assert client.end_transaction(name, producer, is_commit) == 0
        old_pid = shared_box.kill("coordinator")
    finally:
        os.kill(stopped, signal.SIGCONT)
    shared_box.await_restart("coordinator", old_pid)
    eventually(lambda: client.stable_end(TOPIC, 0) == client.list_offset(TOPIC, 0, -1) > end_offset, "the transaction is ended")
    fetched = client.committed_fetch(TOPIC, 0, end_offset - 1)
    assert [producer_id for producer_id, _first_offset in fetched.aborted if producer_id == producer.producer_id] == (
        [] if is_commit else [producer.producer_id]
    )


def test_an_idempotent_client_leaves_no_duplicate_when_log_writers_are_killed(shared_box: RunningBox) -> None:
    with closing(RawCoordination(shared_box.kafka)) as client:
        client.create_topic("once", 2)
        eventually(lambda: client.is_served("once", 2), "the topic is served")
    producer = Producer({"bootstrap.servers": shared_box.bootstrap, "enable.idempotence": True, "linger.ms": 1, "batch.num.messages": 20, **QUICK_RECONNECT})
    failures: list[object] = []
    for number in range(6_000):
        producer.produce("once", b"%d" % number, partition=number % 2, on_delivery=lambda error, _message: failures.append(error) if error else None)
        if number % 2_000 == 1_000:
            producer.poll(0.05)
            for disk in shared_box.disks:
                shared_box.kill(f"log-writer@{disk.name}")
    assert producer.flush(30) == 0
    assert failures == []
    reader = StreamReader(shared_box.bootstrap, "once", 2)
    reader.start()
    eventually(lambda: all(len(reader.numbers[partition]) == 3_000 for partition in range(2)), "all are read")
    reader.stop()
    assert [len(reader.offsets[partition]) for partition in range(2)] == [3_000, 3_000], "no record came twice"


@pytest.mark.alone  # within how many seconds it answers
def test_a_coordinator_that_does_not_run_keeps_no_client_waiting(client: RawCoordination, shared_box: RunningBox) -> None:
    """The watchdog replaces it after 30 s; until then each request is answered with a retriable error."""
    name = "suspended"
    member = client.join(name)
    assert client.sync(name, member) == 0
    producer = _open_transaction(client, name, b"x")
    requests = {
        "Heartbeat": lambda asking: asking.heartbeat(name, member),
        "OffsetCommit": lambda asking: asking.commit(name, TOPIC, 1, member),
        "OffsetFetch": lambda asking: asking.committed(name, TOPIC)[0],
        "TxnOffsetCommit": lambda asking: asking.commit_transactional(name, TOPIC, 1, name, producer),
        "JoinGroup": lambda asking: asking.join(f"{name} too").error_code,
        "AddPartitionsToTxn": lambda asking: asking.add_partition(name, producer, TOPIC),
        "AddOffsetsToTxn": lambda asking: asking.add_offsets(name, producer, name),
        "EndTxn": lambda asking: asking.end_transaction(name, producer, True),
        "InitProducerId": lambda asking: asking.init_producer("another").error_code,
    }
    answers: dict[str, tuple[int, float]] = {}

    def ask(what: str) -> None:
        with closing(RawCoordination(shared_box.kafka)) as asking:
            began = time.monotonic()
            answers[what] = requests[what](asking), time.monotonic() - began

    threads = [threading.Thread(target=ask, args=(what,)) for what in requests]
    pid = shared_box.stop_process("coordinator")
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(25)
    finally:
        os.kill(pid, signal.SIGCONT)
    assert answers.keys() == requests.keys()
    retriable = {ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR}
    assert {what: answer for what, answer in answers.items() if answer[0] not in retriable or answer[1] > 10} == {}
    eventually(lambda: client.end_transaction(name, producer, True) == 0, "the transaction ends when the coordinator runs again")


@pytest.mark.alone
def test_a_transaction_with_offsets_ends_without_a_long_wait_through_deaths_of_coordinator_and_log_writers(
    shared_box: RunningBox, client: RawCoordination
) -> None:
    """What `send_offsets_to_transaction` and `commit_transaction` of a client send, each into the death of all that answers it."""
    name = "killed beneath"
    producer = _open_transaction(client, name, b"y")
    requests = {
        "AddOffsetsToTxn": lambda: client.add_offsets(name, producer, name),
        "TxnOffsetCommit": lambda: client.commit_transactional(name, TOPIC, 7, name, producer),
        "EndTxn": lambda: client.end_transaction(name, producer, True),
    }
    again = {ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.CONCURRENT_TRANSACTIONS}
    waits: list[tuple[str, int, float]] = []

    def is_done(what: str) -> bool:
        began = time.monotonic()
        code = requests[what]()
        waits.append((what, code, time.monotonic() - began))
        assert code == 0 or code in again, waits
        return code == 0

    for what in requests:
        old_pids = {victim: shared_box.kill(victim) for victim in ("coordinator", *(f"log-writer@{disk.name}" for disk in shared_box.box.disks))}
        eventually(partial(is_done, what), f"{what} is carried out; {waits}", 60)
        for victim, pid in old_pids.items():
            shared_box.await_restart(victim, pid, 30)
    assert max(seconds for _, _, seconds in waits) < 10, waits
    eventually(lambda: client.committed(name, TOPIC, require_stable=True) == (0, 7), "the offsets are committed")
