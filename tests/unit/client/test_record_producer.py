from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from appliance.base.errors import ErrorCode, RequestRefused
from appliance.client import messages
from appliance.client.errors import ClientFailed
from appliance.client.fetch import read_fetched
from appliance.client.producer import ACKS_ALL, ACKS_NONE, BatchProducer, RecordProducer, new_identity
from appliance.records.compression import Codec
from appliance.records.keys import partition_of_key
from tests.unit.client.fake_kafka_broker import TOPIC, FakeKafkaBroker, HangUp, produced


@pytest.fixture
def broker() -> Iterator[FakeKafkaBroker]:
    made = FakeKafkaBroker(partitions=3)
    yield made
    made.close()


def values_in(broker: FakeKafkaBroker, partition: int) -> list[bytes | None]:
    return [record.value for batch in broker.appended[partition] for record in read_fetched(batch, 0).records]


def producer_of(broker: FakeKafkaBroker, *, acks: int = ACKS_ALL, **options: Any) -> RecordProducer:
    cluster = broker.cluster()
    batches = BatchProducer(cluster, new_identity(cluster) if acks == ACKS_ALL else None, acks=acks)
    return broker.keep(RecordProducer(batches, TOPIC, **options))


def send_numbers(producer: RecordProducer, count: int, key: bytes | None = None) -> None:
    for number in range(count):
        producer.send(b"%d" % number, key)
    producer.flush()


def refuse_once(broker: FakeKafkaBroker, code: ErrorCode, message: str | None = None) -> None:
    """The next produce is refused whole, those after it are served."""

    def refuse(request: Any) -> dict[str, Any]:
        broker.answers[messages.PRODUCE] = broker.produce
        answers = [produced(data.index, code, message) for topic in request.topic_data for data in topic.partition_data]
        return {"responses": [{"name": TOPIC, "partition_responses": answers}], "throttle_time": 0}

    broker.answers[messages.PRODUCE] = refuse


def test_records_without_key_fill_one_partition_after_the_other(broker: FakeKafkaBroker) -> None:
    producer = producer_of(broker, batch_bytes=1000)
    send_numbers(producer, 1000)
    assert producer.acknowledged == 1000
    found = [values_in(broker, partition) for partition in range(3)]
    assert all(found)
    assert sorted(int(value or b"") for values in found for value in values) == list(range(1000))
    assert all(values == sorted(values, key=lambda value: int(value or b"")) for values in found)


def test_a_key_decides_the_partition(broker: FakeKafkaBroker) -> None:
    producer = producer_of(broker)
    send_numbers(producer, 10, b"host-7")
    assert len(values_in(broker, partition_of_key(b"host-7", 3))) == 10


@pytest.mark.parametrize("code", [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.REQUEST_TIMED_OUT])
def test_a_refusal_that_heals_is_tried_again_in_order(broker: FakeKafkaBroker, code: ErrorCode) -> None:
    producer = producer_of(broker, batch_bytes=500)
    refuse_once(broker, code)
    send_numbers(producer, 500, b"k")
    assert producer.batches.retries >= 1
    assert values_in(broker, partition_of_key(b"k", 3)) == [b"%d" % number for number in range(500)]


def test_a_refusal_that_does_not_heal_is_raised_with_the_brokers_words(broker: FakeKafkaBroker) -> None:
    producer = producer_of(broker)
    refuse_once(broker, ErrorCode.INVALID_RECORD, "a key is missing.")
    with pytest.raises(RequestRefused, match=r"write to numbers-\d: a key is missing \(INVALID_RECORD\)"):
        send_numbers(producer, 1)
    assert producer.acknowledged == 0


def test_a_lost_connection_is_opened_again_and_what_was_unanswered_is_sent_again(broker: FakeKafkaBroker) -> None:
    def hang_up(request: Any) -> None:
        broker.answers[messages.PRODUCE] = broker.produce
        raise HangUp

    producer = producer_of(broker)
    broker.answers[messages.PRODUCE] = hang_up
    notices: list[str] = []
    producer.batches.on_notice = notices.append
    send_numbers(producer, 10, b"k")
    assert producer.acknowledged == 10
    assert values_in(broker, partition_of_key(b"k", 3)) == [b"%d" % number for number in range(10)]
    assert len(notices) == 1 and "retrying" in notices[0]


def test_a_partition_whose_leader_moved_is_written_at_its_new_leader(broker: FakeKafkaBroker) -> None:
    producer = producer_of(broker)
    refuse_once(broker, ErrorCode.NOT_LEADER_OR_FOLLOWER)
    broker.leaders = dict.fromkeys(range(3), 2)
    send_numbers(producer, 1)
    assert list(producer.batches.connections) == [1, 2] or list(producer.batches.connections) == [2]
    assert producer.acknowledged == 1


def test_delivery_is_given_up_after_its_time(broker: FakeKafkaBroker) -> None:
    producer = broker.keep(RecordProducer(BatchProducer(broker.cluster(), delivery_timeout_ms=-1), TOPIC))
    refuse_once(broker, ErrorCode.NOT_ENOUGH_REPLICAS)
    with pytest.raises(RequestRefused, match=r"min\.insync\.replicas"):
        send_numbers(producer, 1)


def test_a_broker_that_went_away_is_reported(broker: FakeKafkaBroker) -> None:
    producer = broker.keep(RecordProducer(BatchProducer(broker.cluster(), delivery_timeout_ms=-1), TOPIC))
    broker.stop()
    with pytest.raises(ClientFailed, match="no broker at"):
        send_numbers(producer, 1)


def test_acks_0_waits_for_nothing(broker: FakeKafkaBroker) -> None:
    producer = producer_of(broker, acks=ACKS_NONE)
    send_numbers(producer, 5, b"k")
    assert producer.acknowledged == 5
    assert producer.batches.connections[1].under_way == 0


@pytest.mark.parametrize("codec", list(Codec))
def test_batches_carry_the_codec_asked_for(broker: FakeKafkaBroker, codec: Codec) -> None:
    send_numbers(producer_of(broker, codec=codec), 5, b"k")
    (batch,) = broker.appended[partition_of_key(b"k", 3)]
    assert batch[22] & 7 == codec


def test_a_topic_that_is_not_there_is_said_at_once(broker: FakeKafkaBroker) -> None:
    with pytest.raises(RequestRefused, match="no such topic"):
        broker.keep(RecordProducer(BatchProducer(broker.cluster()), "other", allow_auto_topic_creation=False))


def test_a_broker_that_never_answers_is_left_and_its_batches_are_sent_again(broker: FakeKafkaBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    def be_silent(request: Any) -> None:
        broker.answers[messages.PRODUCE] = broker.produce

    monkeypatch.setattr("appliance.client.producer.SILENCE_MS_MAX", 20)
    producer = producer_of(broker)
    producer.batches.on_notice = lambda notice: monkeypatch.undo()  # the second attempt may take its time
    broker.answers[messages.PRODUCE] = be_silent
    send_numbers(producer, 3, b"k")
    assert producer.acknowledged == 3
    assert producer.batches.retries == 1
