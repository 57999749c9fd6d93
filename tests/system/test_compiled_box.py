"""A box on the compiled modules, if they are there: produce, fetch, transactions, and `kill -9` of the processes that use them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from appliance.base.compiled import COMPILED_GAUGE, PURE_VARIABLE, directory_of, fits
from lab.load import AckedProducer, StreamReader
from lab.running_box import RunningBox, eventually

pytestmark = [pytest.mark.system, pytest.mark.slow]
PARTITIONS = 2


@pytest.fixture(scope="module")
def compiled_box(tmp_path_factory: pytest.TempPathFactory, start_shared: Callable[..., RunningBox]) -> Iterator[RunningBox]:
    if not fits(directory_of(sys.prefix)):
        pytest.skip("the compiled modules are not there")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(PURE_VARIABLE, "0")
        box = start_shared(tmp_path_factory.mktemp("compiled") / "box")
    yield box
    box.stop()
    assert box.leftovers() == []


def _make_topic(box: RunningBox, name: str) -> None:
    admin = AdminClient({"bootstrap.servers": box.bootstrap})
    admin.create_topics([NewTopic(name, PARTITIONS, 1)])[name].result(60)


def _read_committed(box: RunningBox, topic: str, count: int) -> list[bytes | None]:
    consumer = Consumer({"bootstrap.servers": box.bootstrap, "group.id": "readers", "auto.offset.reset": "earliest", "isolation.level": "read_committed"})
    consumer.subscribe([topic])
    found: list[bytes | None] = []
    try:
        while len(found) < count:
            message = consumer.poll(30)
            assert message is not None and message.error() is None, f"{len(found)} of {count} records, then {message and message.error()}"
            found.append(message.value())
    finally:
        consumer.close()
    return found


def test_every_python_process_of_the_box_uses_them(compiled_box: RunningBox) -> None:
    names = [name for name in compiled_box.pids() if name not in ("zookeeper", "supervisor")]
    assert {name: compiled_box.counters(name).values.get(COMPILED_GAUGE) for name in names} == dict.fromkeys(names, 1)


def test_committed_records_are_read_in_their_order_and_aborted_ones_are_not(compiled_box: RunningBox) -> None:
    _make_topic(compiled_box, "payments")
    producer = Producer({"bootstrap.servers": compiled_box.bootstrap, "transactional.id": "till", "linger.ms": 0})
    producer.init_transactions(30)
    for number in range(6):
        producer.begin_transaction()
        for record in range(20):
            producer.produce("payments", f"{number} {record}".encode(), partition=0)
            producer.produce("payments", b"other", partition=1)
        if number % 2:
            producer.abort_transaction(30)
        else:
            producer.commit_transaction(30)
    found = _read_committed(compiled_box, "payments", 3 * 40)
    assert [value for value in found if value != b"other"] == [f"{number} {record}".encode() for number in (0, 2, 4) for record in range(20)]


def test_no_acknowledged_record_is_lost_when_acceptor_and_log_writers_are_killed(compiled_box: RunningBox) -> None:
    box = compiled_box
    _make_topic(box, "deaths")
    producer, reader = AckedProducer(box.bootstrap, "deaths", PARTITIONS), StreamReader(box.bootstrap, "deaths", PARTITIONS)
    for client in (producer, reader):
        client.start()
    for victim in ("acceptor@0", "log-writer@d0", "log-writer@d1"):
        before = sum(map(len, producer.acknowledged.values()))
        eventually(lambda before=before: sum(map(len, producer.acknowledged.values())) > before + 100, "records are acknowledged")  # type: ignore[misc]
        box.await_restart(victim, box.kill(victim), 30)
    producer.stop()
    assert producer.failures == []
    acknowledged = producer.acknowledged
    eventually(lambda: all(acknowledged[partition] <= reader.numbers[partition] for partition in range(PARTITIONS)), "everything is read")
    reader.stop()
    assert reader.errors == []
    reader.check_every_offset_once()
