from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from appliance.base.errors import ErrorCode, RequestRefused
from appliance.base.model import TopicPartition
from appliance.client import messages
from appliance.client.fetch import read_fetched
from appliance.client.producer import BatchProducer
from appliance.cluster.state_log import ProducerIdentity
from appliance.records.batch import batch_problem, read_batch_header
from appliance.records.builder import BatchBuilder
from tests.unit.client.fake_kafka_broker import TOPIC, FakeKafkaBroker, HangUp, produced

FIRST, SECOND = TopicPartition(TOPIC, 0), TopicPartition(TOPIC, 1)


@pytest.fixture
def broker() -> Iterator[FakeKafkaBroker]:
    made = FakeKafkaBroker(partitions=2)
    yield made
    made.close()


def sender_of(broker: FakeKafkaBroker, transactional_id: str | None = None, **options: Any) -> BatchProducer:
    return broker.keep(BatchProducer(broker.cluster(), ProducerIdentity(77, 3), transactional_id=transactional_id, **options))


def batch_of(*values: bytes) -> bytes:
    builder = BatchBuilder()
    for value in values:
        builder.append(1_700_000_000_000, None, value)
    return builder.build()


def identities(batches: list[bytes]) -> list[tuple[int, int, int, int]]:
    headers = [read_batch_header(batch) for batch in batches]
    return [(header.producer_id, header.producer_epoch, header.base_sequence, header.records_count) for header in headers]


def answer_once(broker: FakeKafkaBroker, code: ErrorCode) -> None:
    """The next produce is answered with `code`, those after it are served."""

    def refuse(request: Any) -> dict[str, Any]:
        broker.answers[messages.PRODUCE] = broker.produce
        answers = [produced(data.index, code) for topic in request.topic_data for data in topic.partition_data]
        return {"responses": [{"name": TOPIC, "partition_responses": answers}], "throttle_time": 0}

    broker.answers[messages.PRODUCE] = refuse


def test_batches_of_a_partition_are_numbered_without_a_gap(broker: FakeKafkaBroker) -> None:
    sender = sender_of(broker)
    sender.append(FIRST, batch_of(b"a", b"b"))
    sender.append(SECOND, batch_of(b"x"))
    sender.append(FIRST, batch_of(b"c", b"d", b"e"))
    sender.append(FIRST, batch_of(b"f"))
    sender.flush()
    assert identities(broker.appended[0]) == [(77, 3, 0, 2), (77, 3, 2, 3), (77, 3, 5, 1)]
    assert identities(broker.appended[1]) == [(77, 3, 0, 1)]
    assert [record.value for batch in broker.appended[0] for record in read_fetched(batch, 0).records] == [b"a", b"b", b"c", b"d", b"e", b"f"]


@pytest.mark.parametrize("transactional_id", [None, "mine"])
def test_a_stamped_batch_is_one_that_a_broker_accepts(broker: FakeKafkaBroker, transactional_id: str | None) -> None:
    sender = sender_of(broker, transactional_id)
    sender.append(FIRST, batch_of(b"a"))
    sender.flush()
    (batch,) = broker.appended[0]
    assert batch_problem(batch, 0, len(batch), 1 << 20) is None
    assert read_batch_header(batch).is_transactional == (transactional_id is not None)
    assert [request.transactional_id for name, request in broker.requests if name == "produce"] == [transactional_id]


def test_what_lost_its_answer_goes_again_under_the_same_sequence(broker: FakeKafkaBroker) -> None:
    def lose_answer(request: Any) -> dict[str, Any]:
        broker.produce(request)
        broker.answers[messages.PRODUCE] = broker.produce
        raise HangUp

    broker.answers[messages.PRODUCE] = lose_answer
    sender = sender_of(broker)
    sender.append(FIRST, batch_of(b"a", b"b"))
    sender.append(FIRST, batch_of(b"c"))
    sender.flush()
    first, again, following = broker.appended[0]
    assert again == first
    assert identities([following]) == [(77, 3, 2, 1)]


def test_a_batch_that_the_broker_has_already_counts_as_sent(broker: FakeKafkaBroker) -> None:
    answer_once(broker, ErrorCode.DUPLICATE_SEQUENCE_NUMBER)
    sender = sender_of(broker)
    sender.append(FIRST, batch_of(b"a"))
    sender.flush()
    assert broker.appended[0] == []


def test_a_moved_leader_is_looked_for_and_asked_again(broker: FakeKafkaBroker) -> None:
    answer_once(broker, ErrorCode.NOT_LEADER_OR_FOLLOWER)
    sender = sender_of(broker)
    sender.append(FIRST, batch_of(b"a"))
    sender.flush()
    assert identities(broker.appended[0]) == [(77, 3, 0, 1)]
    assert broker.count_of("metadata") == 2, "once before each try"


@pytest.mark.parametrize("code", [ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.MESSAGE_TOO_LARGE])
def test_what_will_not_heal_is_raised(broker: FakeKafkaBroker, code: ErrorCode) -> None:
    answer_once(broker, code)
    sender = sender_of(broker)
    sender.append(FIRST, batch_of(b"a"))
    with pytest.raises(RequestRefused) as raised:
        sender.flush()
    assert raised.value.code is code


def test_little_waits_before_it_is_sent(broker: FakeKafkaBroker) -> None:
    sender = sender_of(broker, waiting_bytes_max=0)
    sender.append(FIRST, batch_of(b"a"))
    assert len(broker.appended[0]) == 1
    assert sender.ends == {FIRST: 1}
