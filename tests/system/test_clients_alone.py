"""Each client by itself against a box: what it writes it reads, looks up, and is refused as Kafka would refuse it.

kafkajs reads in groups only, so librdkafka reads what it wrote.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from lab.foreign_clients import CLIENTS, CONSUMERS, Client, JsonClient, Refused, Sent, open_client
from lab.running_box import RunningBox, eventually

pytestmark = [
    pytest.mark.system,
    pytest.mark.slow,
    # kafka-python reads its schemas in a way that Python 3.11 and 3.12 call deprecated.
    pytest.mark.filterwarnings("ignore:(read_text|open_text) is deprecated:DeprecationWarning"),
]

OFFSET_OUT_OF_RANGE, UNKNOWN_TOPIC, TOO_LARGE, TOPIC_EXISTS = 1, 3, 10, 36
FIRST = 1_700_000_000_000
MEBIBYTE = 1 << 20


def _has_null_header(record: Sent) -> bool:
    return any(content is None for _, content in record.headers)


def _is_all_null(record: Sent) -> bool:
    return record.key is None and record.value is None


CANNOT_SEND: dict[str, tuple[Callable[[Sent], bool], ...]] = {
    "aiokafka": (_is_all_null,),
    "kafka-python": (_is_all_null, _has_null_header),
    "kafkajs": (_has_null_header,),
}
"""What clients refuse to send, by their own making; the broker is not asked."""


@pytest.fixture(scope="module")
def opened(shared_box: RunningBox) -> Iterator[Callable[[str], Client]]:
    clients: dict[str, Client] = {}

    def client(name: str) -> Client:
        if name not in clients:
            clients[name] = open_client(name, shared_box.bootstrap)
        return clients[name]

    yield client
    for one in clients.values():
        one.close()


@pytest.fixture(params=CLIENTS)
def client(request: pytest.FixtureRequest, opened: Callable[[str], Client]) -> Client:
    return opened(request.param)


@pytest.fixture
def reader(client: Client, opened: Callable[[str], Client]) -> Client:
    return client if client.name in CONSUMERS else opened("librdkafka")


def test_null_and_empty_keys_values_and_headers_come_back_as_they_were_sent(client: Client, reader: Client) -> None:
    topic = f"shapes-{client.name}"
    client.create(topic)
    sent = [
        Sent(b"value", b"key", (("source", b"10.0.0.1"), ("empty", b""))),
        Sent(b"value", b"key", (("source", b"10.0.0.1"), ("null", None))),
        Sent(b"twice", b"key", (("source", b"first"), ("source", b"second"))),
        Sent(b"no key"),
        Sent(None, b"tombstone"),
        Sent(None, None),
        Sent(b"", b""),
        Sent("wärt".encode(), "schlüssel".encode(), (("naïve", "ü".encode()),)),
    ]
    sent = [record for record in sent if not any(cannot_send(record) for cannot_send in CANNOT_SEND.get(client.name, ()))]
    client.produce(topic, sent)
    assert [(record.value, record.key, record.headers) for record in reader.fetch(topic, len(sent))] == [record[:3] for record in sent]


def test_records_of_one_mebibyte_go_through_and_larger_batches_are_refused(client: Client, reader: Client) -> None:
    topic = f"large-{client.name}"
    client.create(topic, max_message_bytes=str(2 * MEBIBYTE))
    value = bytes(range(256)) * (MEBIBYTE // 256)
    for number in range(3):
        client.produce(topic, [Sent(value, str(number).encode())])
    assert [(record.key, record.value == value) for record in reader.fetch(topic, 3)] == [(b"0", True), (b"1", True), (b"2", True)]
    with pytest.raises(Refused) as refused:
        client.produce(topic, [Sent(value * 3)])
    assert refused.value.code == TOO_LARGE


def test_the_time_of_a_record_is_the_senders_or_the_boxs_as_the_topic_says(client: Client, reader: Client) -> None:
    client.create(f"times-{client.name}")
    client.create(f"arrivals-{client.name}", message_timestamp_type="LogAppendTime")
    for topic in (f"times-{client.name}", f"arrivals-{client.name}"):
        client.produce(topic, [Sent(b"%d" % number, timestamp=FIRST + 1000 * number) for number in range(10)])
    records = reader.fetch(f"times-{client.name}", 10)
    assert [(record.timestamp, record.timestamp_type) for record in records] == [(FIRST + 1000 * number, 0) for number in range(10)]
    arrivals = reader.fetch(f"arrivals-{client.name}", 10)
    assert {record.timestamp_type for record in arrivals} == {1}
    assert all(abs(record.timestamp - time.time() * 1000) < 60_000 for record in arrivals)


def test_offsets_are_found_at_both_ends_and_by_time(client: Client) -> None:
    topic = f"offsets-{client.name}"
    client.create(topic)
    assert (client.offset(topic, "earliest"), client.offset(topic, "latest")) == (0, 0)
    for number in range(20):
        client.produce(topic, [Sent(b"%d" % number, timestamp=FIRST + 1000 * number)])
    assert (client.offset(topic, "earliest"), client.offset(topic, "latest")) == (0, 20)
    assert [client.offset(topic, FIRST + at) for at in (-5, 0, 1, 12_000, 18_001)] == [0, 0, 1, 12, 19]
    # After the last record there is nothing to find; each client has its own word for that.
    assert client.offset(topic, FIRST + 60_000) in {None, -1, 20}


def test_a_reader_begins_in_the_middle_of_a_batch(client: Client, reader: Client) -> None:
    topic = f"middle-{client.name}"
    client.create(topic)
    client.produce(topic, [Sent(b"%d" % number) for number in range(100)], "gzip")
    records = reader.fetch(topic, 50, offset=50)
    assert [(record.offset, record.value) for record in records] == [(number, b"%d" % number) for number in range(50, 100)]


@pytest.mark.parametrize("name", ["kafka-python", "kafka-clients"])
def test_a_reader_with_a_fetch_session_receives_only_changes(opened: Callable[[str], Client], shared_box: RunningBox, name: str) -> None:
    topic = f"session-{name}"
    client, writer = opened(name), opened("librdkafka")
    client.create(topic)
    before = shared_box.counters("acceptor@0").values["fetch.incremental"]
    with ThreadPoolExecutor(1) as pool:
        read = pool.submit(client.fetch, topic, 5)
        for number in range(5):
            parked = shared_box.counters("acceptor@0").values["fetch.parked"]
            eventually(lambda parked=parked: shared_box.counters("acceptor@0").values["fetch.parked"] > parked, "it waits")  # type: ignore[misc]
            writer.produce(topic, [Sent(b"%d" % number)])
        assert [record.value for record in read.result(60)] == [b"%d" % number for number in range(5)]
    values = shared_box.counters("acceptor@0").values
    assert values["fetch.incremental"] - before >= 4, "all but the first, which is a full one"
    assert values["fetch.session_errors"] == 0


def test_javas_admin_client_deletes_records(opened: Callable[[str], Client]) -> None:
    client = opened("kafka-clients")
    assert isinstance(client, JsonClient)
    client.create("trimmed")
    client.produce("trimmed", [Sent(b"%d" % number) for number in range(20)])
    assert client.delete_records("trimmed", 7) == 7
    assert client.offset("trimmed", "earliest") == 7
    assert [record.offset for record in client.fetch("trimmed", 13, offset=7)] == list(range(7, 20))
    with pytest.raises(Refused) as refused:
        client.delete_records("trimmed", 21)
    assert refused.value.code == OFFSET_OUT_OF_RANGE
    assert client.delete_records("trimmed", -1) == 20


def test_topics_that_are_there_or_are_not_are_refused_by_name(client: Client) -> None:
    topic = f"made-{client.name}"
    client.create(topic)
    with pytest.raises(Refused) as refused:
        client.create(topic)
    assert refused.value.code == TOPIC_EXISTS
    client.delete(topic)
    with pytest.raises(Refused) as refused:
        client.delete(f"never-{client.name}")
    assert refused.value.code == UNKNOWN_TOPIC
