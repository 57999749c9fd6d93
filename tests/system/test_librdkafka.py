"""librdkafka (confluent-kafka) and kcat as users have them: every codec, keys, nulls, headers, sizes, timestamps."""

from __future__ import annotations

import shutil
import subprocess
import time
from typing import Any

import pytest
from confluent_kafka import OFFSET_BEGINNING, TIMESTAMP_CREATE_TIME, Consumer, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from appliance.records.compression import Codec
from lab.running_box import RunningBox, eventually
from tests.support.stored_batches import stored_batches

pytestmark = [pytest.mark.system, pytest.mark.slow]

CODECS = {"none": Codec.NONE, "gzip": Codec.GZIP, "snappy": Codec.SNAPPY, "lz4": Codec.LZ4, "zstd": Codec.ZSTD}


def _producer(box: RunningBox, **options: Any) -> Producer:
    return Producer({"bootstrap.servers": box.bootstrap, "acks": "all", **{name.replace("_", "."): value for name, value in options.items()}})


def _create(box: RunningBox, name: str, partitions: int = 1, **config: str) -> None:
    admin = AdminClient({"bootstrap.servers": box.bootstrap})
    admin.create_topics([NewTopic(name, partitions, 1, config={key.replace("_", "."): value for key, value in config.items()})])[name].result(60)


def _read(box: RunningBox, topic: str, count: int, partition: int = 0, offset: int = OFFSET_BEGINNING) -> list[Message]:
    consumer = Consumer({"bootstrap.servers": box.bootstrap, "group.id": "test", "enable.auto.commit": False, "fetch.message.max.bytes": 4 << 20})
    consumer.assign([TopicPartition(topic, partition, offset)])
    messages: list[Message] = []
    deadline = time.monotonic() + 60
    while len(messages) < count and time.monotonic() < deadline:
        messages += [message for message in consumer.consume(count - len(messages), 0.5) if _sound(message)]
    consumer.close()
    assert len(messages) == count, f"{len(messages)} of {count} records of {topic} came"
    return messages


def _sound(message: Message) -> bool:
    error = message.error()
    assert error is None, error
    return True


@pytest.mark.parametrize("codec", CODECS)
def test_batches_are_stored_in_the_codec_in_which_they_were_sent(shared_box: RunningBox, codec: str) -> None:
    topic = f"codec-{codec}"
    _create(shared_box, topic)
    producer = _producer(shared_box, compression_type=codec, linger_ms=50)
    values = [f"{codec} line {number} {'x' * 200}".encode() for number in range(2000)]
    for value in values:
        producer.produce(topic, value)
    assert producer.flush(60) == 0
    assert [message.value() for message in _read(shared_box, topic, len(values))] == values
    assert {header.codec for header in stored_batches(shared_box, topic, 0)} == {CODECS[codec]}


def test_keys_nulls_headers_and_empty_values_come_back_as_they_were_sent(shared_box: RunningBox) -> None:
    _create(shared_box, "shapes")
    producer = _producer(shared_box)
    shapes: list[tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]] | None]] = [
        (b"key", b"value", [("source", b"10.0.0.1"), ("empty", b""), ("null", None), ("source", b"twice")]),
        (None, b"no key", None),
        (b"tombstone", None, None),
        (None, None, None),
        (b"", b"", None),
        ("schlüssel".encode(), "wärt".encode(), [("naïve", "ü".encode())]),
    ]
    for key, value, headers in shapes:
        producer.produce("shapes", value, key, headers=headers)  # type: ignore[arg-type]
    assert producer.flush(60) == 0
    assert [(message.key(), message.value(), message.headers()) for message in _read(shared_box, "shapes", len(shapes))] == shapes


def test_records_of_one_mebibyte_go_through_and_larger_ones_are_refused_by_name(shared_box: RunningBox) -> None:
    _create(shared_box, "large", max_message_bytes=str(2 << 20))
    _create(shared_box, "small")
    value = bytes(range(256)) * 4096
    producer = _producer(shared_box, message_max_bytes=4 << 20)
    reports: list[Any] = []
    for _ in range(5):
        producer.produce("large", value)
    producer.produce("small", value + value, on_delivery=lambda error, _message: reports.append(error))
    assert producer.flush(60) == 0
    assert [message.value() for message in _read(shared_box, "large", 5)] == [value] * 5
    assert [error.name() for error in reports] == ["MSG_SIZE_TOO_LARGE"]


def test_timestamps_of_both_kinds_and_look_ups_by_time(shared_box: RunningBox) -> None:
    _create(shared_box, "times")
    _create(shared_box, "arrivals", message_timestamp_type="LogAppendTime")
    producer = _producer(shared_box)
    first = 1_700_000_000_000
    for number in range(100):
        producer.produce("times", str(number), timestamp=first + 1000 * number)
        producer.produce("arrivals", str(number), timestamp=first)
        producer.flush(20)
    messages = _read(shared_box, "times", 100)
    assert [message.timestamp() for message in messages] == [(TIMESTAMP_CREATE_TIME, first + 1000 * number) for number in range(100)]
    arrival = _read(shared_box, "arrivals", 1)[0].timestamp()
    assert arrival[0] == 2 and abs(arrival[1] - time.time() * 1000) < 60_000
    consumer = Consumer({"bootstrap.servers": shared_box.bootstrap, "group.id": "test"})
    found = consumer.offsets_for_times([TopicPartition("times", 0, first + 41_500)], 10)
    assert found[0].offset == 42
    assert consumer.get_watermark_offsets(TopicPartition("times", 0), 10) == (0, 100)
    consumer.close()


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_every_kind_of_acks_stores_the_record(shared_box: RunningBox, acks: str) -> None:
    topic = f"acks-{acks}"
    _create(shared_box, topic)
    producer = Producer({"bootstrap.servers": shared_box.bootstrap, "acks": acks})
    for number in range(10):
        producer.produce(topic, str(number))
    assert producer.flush(60) == 0
    assert [message.value() for message in _read(shared_box, topic, 10)] == [str(number).encode() for number in range(10)]


def test_a_topic_that_a_producer_names_is_made_and_a_bad_name_is_refused(shared_box: RunningBox) -> None:
    reports: list[Any] = []
    producer = _producer(shared_box, message_timeout_ms=8000)
    producer.produce("made-on-the-way", b"1", on_delivery=lambda error, _message: reports.append(error))
    producer.produce("not a name", b"1", on_delivery=lambda error, _message: reports.append(error))
    producer.flush(20)
    assert [error.name() if error else None for error in reports].count(None) == 1
    assert {error.name() for error in reports if error} <= {"TOPIC_EXCEPTION", "_UNKNOWN_TOPIC"}


def test_creating_and_deleting_topics_answers_as_kafka_does(shared_box: RunningBox) -> None:
    admin = AdminClient({"bootstrap.servers": shared_box.bootstrap})
    _create(shared_box, "there", 3)
    wrong = {
        "there": NewTopic("there", 1, 1),
        "a/b": NewTopic("a/b", 1, 1),
        "none": NewTopic("none", 0, 1),
        "many": NewTopic("many", 1, 3),
        "odd": NewTopic("odd", 1, 1, config={"retention.ms": "soon"}),
    }
    names = {}
    for name, future in admin.create_topics(list(wrong.values())).items():
        with pytest.raises(KafkaException) as raised:
            future.result(60)
        names[name] = raised.value.args[0].name()
    assert names == {
        "there": "TOPIC_ALREADY_EXISTS",
        "a/b": "TOPIC_EXCEPTION",
        "none": "INVALID_PARTITIONS",
        "many": "INVALID_REPLICATION_FACTOR",
        "odd": "INVALID_CONFIG",
    }
    admin.delete_topics(["there"])["there"].result(60)
    eventually(lambda: "there" not in admin.list_topics(timeout=30).topics, "the topic is gone")
    assert not any((disk / "there-0").exists() for disk in shared_box.disks)
    _create(shared_box, "there", 1)
    producer = _producer(shared_box)
    producer.produce("there", b"again")
    assert producer.flush(60) == 0
    assert [message.value() for message in _read(shared_box, "there", 1)] == [b"again"]


def test_kcat_reads_what_kcat_wrote_and_fetches_leave_by_sendfile(shared_box: RunningBox) -> None:
    assert shutil.which("kcat"), "kcat is not installed; ./install.sh test installs it"
    before = shared_box.counters("acceptor@0").values.get("fetch.sendfile_bytes", 0)
    lines = "".join(f"{number}\n" for number in range(1, 100_001))
    for codec in ("none", "lz4"):
        subprocess.run(["kcat", "-q", "-b", shared_box.bootstrap, "-t", f"kcat-{codec}", "-P", "-z", codec], input=lines, text=True, check=True, timeout=60)
        command = ["kcat", "-q", "-b", shared_box.bootstrap, "-t", f"kcat-{codec}", "-C", "-o", "beginning", "-e"]
        assert subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout == lines
    stored = sum(header.size_bytes for codec in ("none", "lz4") for header in stored_batches(shared_box, f"kcat-{codec}", 0))
    assert shared_box.counters("acceptor@0").values["fetch.sendfile_bytes"] - before >= stored
