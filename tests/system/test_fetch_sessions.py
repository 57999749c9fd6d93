"""Fetch sessions (KIP-227) at the acceptor's socket: incremental requests, their responses, and
every error.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator

import pytest

from appliance.cluster.metadata_image import read_image
from appliance.records.builder import BatchBuilder
from lab.running_box import RunningBox, eventually
from lab.session_client import SessionClient, Wanted

pytestmark = [pytest.mark.system, pytest.mark.slow]

NOT_FOUND, WRONG_EPOCH, TOPIC_ID_ERROR = 70, 71, 106


@pytest.fixture
def client(shared_box: RunningBox) -> Iterator[SessionClient]:
    client = SessionClient(shared_box.kafka)
    yield client
    client.close()


def _batch(text: str) -> bytes:
    builder = BatchBuilder()
    builder.append(1_700_000_000_000, None, text.encode())
    return builder.build()


def _all(topic: str, count: int) -> list[Wanted]:
    return [Wanted(topic, partition) for partition in range(count)]


@pytest.mark.parametrize("version", [7, 11, 12, 13, 16])
def test_only_changed_partitions_are_returned(shared_box: RunningBox, client: SessionClient, version: int) -> None:
    topic = f"changes-{version}"
    client.create_topic(topic, 4)
    eventually(lambda: client.is_served(topic, 4), "the topic is served")
    image = read_image(shared_box.layout.image_file)
    assert image is not None
    client.version, client.topic_ids = version, {topic: bytes(image.topics[topic].topic_id)}

    full = client.session_fetch(0, 0, _all(topic, 4))
    assert (full.error_code, full.partitions) == (0, [0, 1, 2, 3])
    session = full.session_id
    assert session > 0
    assert client.session_fetch(session, 1, []).parts == ()
    client.produce(topic, 2, _batch("news"))
    answer = client.session_fetch(session, 2, [])
    assert [(part.partition, part.high_watermark) for part in answer.parts] == [(2, 1)]
    assert b"news" in answer.parts[0].records
    assert client.session_fetch(session, 3, []).partitions == [2], "as long as the client does not go on, it gets the records again"
    assert client.session_fetch(session, 4, [Wanted(topic, 2, 1)]).parts == ()
    assert client.session_fetch(session, 5, [], [Wanted(topic, 2)]).parts == ()
    client.produce(topic, 2, _batch("forgotten"))
    client.produce(topic, 0, _batch("kept"))
    assert client.session_fetch(session, 6, []).partitions == [0]


def test_errors_of_sessions(client: SessionClient) -> None:
    client.create_topic("wrong", 1)
    eventually(lambda: client.is_served("wrong", 1), "the topic is served")
    session = client.session_fetch(0, 0, _all("wrong", 1)).session_id
    assert client.session_fetch(session + 1 & 0x7FFFFFFF, 1, []) == (NOT_FOUND, 0, ())
    assert client.session_fetch(0, 1, []) == (NOT_FOUND, 0, ())
    assert client.session_fetch(session, 2, []) == (WRONG_EPOCH, 0, ())
    client.version = 13
    assert client.session_fetch(session, 1, []) == (TOPIC_ID_ERROR, 0, ())
    client.version = 12
    assert client.session_fetch(session, 1, []) == (0, session, ()), "an error leaves the session as it was"
    assert client.session_fetch(session, -1, _all("wrong", 1)).session_id == 0
    assert client.session_fetch(session, 2, []) == (NOT_FOUND, 0, ())
    replaced = client.session_fetch(0, 0, _all("wrong", 1)).session_id
    fresh = client.session_fetch(replaced, 0, _all("wrong", 1)).session_id
    assert fresh not in (0, replaced)
    assert client.session_fetch(replaced, 1, []).error_code == NOT_FOUND
    assert client.session_fetch(fresh, 1, [], _all("wrong", 1)) == (0, 0, ()), "a session that became empty has ended"
    assert client.session_fetch(fresh, 2, []).error_code == NOT_FOUND


def test_a_parked_incremental_fetch_wakes_when_any_of_its_partitions_moves(shared_box: RunningBox, client: SessionClient) -> None:
    client.create_topic("parked", 100)
    eventually(lambda: client.is_served("parked", 100), "the topic is served")
    session = client.session_fetch(0, 0, _all("parked", 100)).session_id
    other = SessionClient(shared_box.kafka)
    wanted: list[Wanted] = []
    for epoch in range(1, 61):
        partition = epoch * 37 % 100
        parked = shared_box.counters("acceptor@0").values["fetch.parked"]
        client.send_session_fetch(session, epoch, wanted, max_wait_ms=20_000)
        if epoch % 2:  # else the record may come before the fetch does
            eventually(lambda parked=parked: shared_box.counters("acceptor@0").values["fetch.parked"] > parked, "it is parked")  # type: ignore[misc]
        started = time.monotonic()
        other.produce("parked", partition, _batch("x"))
        assert client.receive_session_fetch().partitions == [partition]
        assert time.monotonic() - started < 15, "not at its deadline"
        wanted = [Wanted("parked", partition, 1)]
    other.close()


def test_too_few_bytes_wait_for_more(shared_box: RunningBox, client: SessionClient) -> None:
    client.create_topic("little", 3)
    eventually(lambda: client.is_served("little", 3), "the topic is served")
    session = client.session_fetch(0, 0, _all("little", 3)).session_id
    client.send_session_fetch(session, 1, [], max_wait_ms=20_000, min_bytes=250)
    other = SessionClient(shared_box.kafka)
    for _ in range(4):
        other.produce("little", 1, _batch("x"))
    answer = client.receive_session_fetch()
    assert answer.partitions == [1]
    assert len(answer.parts[0].records) >= 250
    other.close()


def test_a_partition_that_returned_records_moves_to_the_end_so_that_none_starves(client: SessionClient) -> None:
    client.create_topic("turns", 3)
    eventually(lambda: client.is_served("turns", 3), "the topic is served")
    for partition in range(3):
        for _ in range(4):
            client.produce("turns", partition, _batch("x" * 1000))
    session = client.session_fetch(0, 0, _all("turns", 3), max_bytes=1).session_id
    order = [client.session_fetch(session, epoch, [], max_bytes=1).partitions for epoch in range(1, 7)]
    assert order == [[0], [1], [2], [0], [1], [2]]


def test_an_error_and_then_the_recovery_are_returned(shared_box: RunningBox, client: SessionClient) -> None:
    wanted = Wanted("late", 0)
    first = client.session_fetch(0, 0, [wanted])
    assert first.parts[0].error_code == 3
    assert client.session_fetch(first.session_id, 1, []).parts[0].error_code == 3
    client.create_topic("late", 1)
    eventually(lambda: client.is_served("late", 1), "the topic is served")
    answer = client.session_fetch(first.session_id, 2, [])
    assert [(part.error_code, part.high_watermark) for part in answer.parts] == [(0, 0)]
    assert client.session_fetch(first.session_id, 3, []).parts == ()


def test_sessions_survive_the_death_of_a_log_writer_and_tell_of_it(start: Callable[..., RunningBox]) -> None:
    box = start(disks=1)
    client = SessionClient(box.kafka)
    client.create_topic("t", 80)
    eventually(lambda: client.is_served("t", 80), "the topic is served")
    session = client.session_fetch(0, 0, _all("t", 80)).session_id
    client.send_session_fetch(session, 1, [], max_wait_ms=30_000)
    old = box.kill("log-writer@d0")
    told = client.receive_session_fetch()
    assert told.parts and all(part.error_code == 6 for part in told.parts)
    box.await_restart("log-writer@d0", old)
    eventually(lambda: client.is_served("t", 80), "the topic is served again")
    answer = client.session_fetch(session, 2, [])
    assert [part.error_code for part in answer.parts] == [0] * 80
    client.send_session_fetch(session, 3, [], max_wait_ms=30_000)
    other = SessionClient(box.kafka)
    other.produce("t", 17, _batch("x"))
    assert client.receive_session_fetch().partitions == [17]
    for each in (client, other):
        each.close()


def test_another_acceptor_does_not_know_a_session_and_makes_a_new_one(start: Callable[..., RunningBox]) -> None:
    box = start(disks=1, acceptors=2)
    client = SessionClient(box.kafka)
    client.create_topic("t", 1)
    eventually(lambda: client.is_served("t", 1), "the topic is served")
    session = client.session_fetch(0, 0, _all("t", 1)).session_id
    (ours,) = [name for name in ("acceptor@0", "acceptor@1") if box.counters(name).values["fetch.sessions"]]
    box.stop_process(ours)  # so that the other one takes the next connection
    other = SessionClient(box.kafka)
    assert other.session_fetch(session, 1, []) == (NOT_FOUND, 0, ())
    fresh = other.session_fetch(session, 0, _all("t", 1)).session_id
    assert fresh not in (0, session)
    assert other.session_fetch(fresh, 1, []) == (0, fresh, ())
    box.kill(ours, signal.SIGCONT)
    assert client.session_fetch(session, 1, []) == (0, session, ()), "the first one still has its own"
    for each in (client, other):
        each.close()


def test_a_full_cache_turns_new_sessions_away_and_their_clients_go_on_without(start: Callable[..., RunningBox]) -> None:
    box = start(disks=1, settings={"max.incremental.fetch.session.cache.slots": 2})
    client = SessionClient(box.kafka)
    client.create_topic("t", 2)
    eventually(lambda: client.is_served("t", 2), "the topic is served")
    one, two = (client.session_fetch(0, 0, _all("t", 2)).session_id for _ in range(2))
    assert one and two
    assert client.session_fetch(0, 0, _all("t", 2)).session_id == 0
    assert box.counters("acceptor@0").values["fetch.sessions"] == 2
    assert client.session_fetch(one, -1, []).error_code == 0
    assert client.session_fetch(0, 0, _all("t", 2)).session_id not in (0, one, two)
    client.close()
