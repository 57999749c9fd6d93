"""Options of the reader: those of Spark's Kafka connector, with its defaults and its refusals."""

from __future__ import annotations

import pickle

import pytest

from appliance.base.model import TopicPartition
from appliance.client.address import Address
from appliance.client.security import ClientSecurity
from appliance.pipeline.cluster_access import ReadPath, access_from
from appliance.pipeline.offset_limits import EARLIEST, LATEST, AtTime, EveryPartition, GivenOffsets, offsets_from_document, offsets_to_document
from appliance.pipeline.option_values import OptionValues
from appliance.pipeline.problems import SourceProblem
from appliance.pipeline.source_options import Selection, SourceOptions, read_options

BASE = {"kafka.bootstrap.servers": "box:9093,other", "subscribe": "a"}


def read(is_stream: bool | None = False, **options: str) -> SourceOptions:
    named = {name.replace("__", "."): value for name, value in options.items()}
    return read_options({**BASE, **named}, is_stream)


def refusal(is_stream: bool | None = False, **options: str) -> str:
    with pytest.raises(SourceProblem) as refused:
        read(is_stream, **options)
    return str(refused.value)


def test_defaults_are_those_of_the_kafka_connector() -> None:
    batch, stream = read(False), read(True)
    assert (batch.starting, batch.ending) == (EveryPartition(EARLIEST), EveryPartition(LATEST))
    assert (stream.starting, stream.max_trigger_delay_ms) == (EveryPartition(LATEST), 15 * 60 * 1000)
    for each in (batch, stream):
        assert (each.fail_on_data_loss, each.include_headers, each.skip_corrupt, each.min_partitions, each.max_records) == (True, False, False, None, None)
        assert (each.max_offsets_per_trigger, each.min_offsets_per_trigger, each.num_retries, each.retry_interval_ms) == (None, None, 3, 10)
        assert (each.access.read_committed, each.access.path) == (False, ReadPath.AUTO)
        assert each.access.bootstrap == (Address("box", 9093), Address("other", 9092))


def test_names_of_options_are_read_in_any_case_and_values_as_they_are() -> None:
    options = read_options({"KAFKA.bootstrap.SERVERS": "b", "SubScribe": " B , a,B", "STARTINGOFFSETS": '{"B":{"0":3}, "a":{"1":-2}}'}, False)
    assert options.selection == Selection(topics=("B", "a"))
    assert options.starting == GivenOffsets("startingOffsets", {TopicPartition("B", 0): 3, TopicPartition("a", 1): EARLIEST})


def test_every_option_is_understood() -> None:
    options = read(
        True, includeHeaders="TRUE", failOnDataLoss="false", maxOffsetsPerTrigger="100", minOffsetsPerTrigger="10", maxTriggerDelay="2m", minPartitions="4",
        maxRecordsPerPartition="1000", fetchOffset__numRetries="7", fetchOffset__retryIntervalMs="20", groupIdPrefix="mine", kafka__group__id="g",
        kafka__isolation__level="read_committed", kafka__client__id="me", kafka__session__timeout__ms="1", kafkaConsumer__pollTimeoutMs="512",
        millrace__read__path="fetch", millrace__data="/srv/d0", millrace__skipCorruptBatches="true", startingTimestamp="1700000000000",
    )  # fmt: skip
    assert (options.include_headers, options.fail_on_data_loss, options.skip_corrupt) == (True, False, True)
    assert (options.max_offsets_per_trigger, options.min_offsets_per_trigger, options.max_trigger_delay_ms) == (100, 10, 120_000)
    assert (options.min_partitions, options.max_records, options.num_retries, options.retry_interval_ms) == (4, 1000, 7, 20)
    assert (options.access.read_committed, options.access.client_id, options.access.path) == (True, "me", ReadPath.FETCH)
    assert options.access.data_directory == "/srv/d0"
    assert options.starting == AtTime("startingTimestamp", 1_700_000_000_000, {}, latest_if_none=False)


def test_times_come_before_offsets_and_one_time_before_times_by_partition() -> None:
    given = {"startingOffsets": "latest", "startingOffsetsByTimestamp": '{"a":{"0":5}}', "startingOffsetsByTimestampStrategy": "latest"}
    assert read(True, **given).starting == AtTime("startingOffsetsByTimestamp", None, {TopicPartition("a", 0): 5}, latest_if_none=True)
    assert read(True, **given, startingTimestamp="9").starting == AtTime("startingTimestamp", 9, {}, latest_if_none=True)
    assert read(False, endingTimestamp="9", endingOffsets="latest").ending == AtTime("endingTimestamp", 9, {}, latest_if_none=True)


def test_what_is_read_must_be_said_in_exactly_one_way() -> None:
    assert "one of the following options must be specified" in _refusal_of({"kafka.bootstrap.servers": "b"})
    assert "only one of the options" in refusal(assign='{"a":[0]}')
    assert "only one of the options" in refusal(subscribePattern="a.*")
    assert "names no topic" in refusal(subscribe=" , ")
    assert "is no pattern" in _refusal_of({"kafka.bootstrap.servers": "b", "subscribePattern": "a["})
    assert "is empty" in _refusal_of({"kafka.bootstrap.servers": "b", "subscribePattern": " "})
    assigned = read_options({"kafka.bootstrap.servers": "b", "assign": '{"b":[1,0],"a":[2]}'}, False).selection.assigned
    assert assigned == (TopicPartition("a", 2), TopicPartition("b", 0), TopicPartition("b", 1))


def _refusal_of(options: dict[str, str]) -> str:
    with pytest.raises(SourceProblem) as refused:
        read_options(options, False)
    return str(refused.value)


@pytest.mark.parametrize("text", ["", "5", "[]", "{}", '{"a"}', '{"a":0}', '{"a":{"x":1}}', '{"a":{"0":"1"}}', '{"a":{"0":true}}', '{"a":{}}', '{"a":{"0":3}'])
def test_malformed_offsets_are_shown_beside_an_example(text: str) -> None:
    for option in ("startingOffsetsByTimestamp", "endingOffsetsByTimestamp"):
        assert refusal(**{option: text}) == f'option \'{option}\': expected e.g. {{"topicA":{{"0":23,"1":-1}},"topicB":{{"0":-2}}}}, got {text}'
    if text:
        assert "expected e.g." in refusal(startingOffsets=text)


@pytest.mark.parametrize("text", ["", "a", "{}", '{"a":0}', '{"a":["0"]}', '{"a":[-1]}', '{"a":[]}', '{"a":[0}'])
def test_malformed_partitions_are_shown_beside_an_example(text: str) -> None:
    assert 'expected e.g. {"topicA":[0,1],"topicB":[0,1]}' in _refusal_of({"kafka.bootstrap.servers": "b", "assign": text})


def test_a_batch_cannot_start_at_the_end_nor_end_at_the_beginning() -> None:
    assert "starting offset can't be latest for batch queries" in refusal(startingOffsets="latest")
    assert "startingOffsets for a-0 can't be latest" in refusal(startingOffsets='{"a":{"0":-1}}')
    assert "ending offset can't be earliest for batch queries" in refusal(endingOffsets="earliest")
    assert "endingOffsets for a-0 can't be earliest" in refusal(endingOffsets='{"a":{"0":-2}}')
    assert read(True, startingOffsets="Latest").starting == EveryPartition(LATEST)


@pytest.mark.parametrize("option", ["endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"])
def test_a_stream_has_no_end(option: str) -> None:
    assert "not valid in streaming queries" in refusal(True, **{option: "latest"})


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"minPartitions": "0"}, "minPartitions must be positive"),
        ({"maxRecordsPerPartition": "-1"}, "maxRecordsPerPartition must be positive"),
        ({"maxOffsetsPerTrigger": "many"}, "it must be a whole number"),
        ({"maxOffsetsPerTrigger": "5", "minOffsetsPerTrigger": "6"}, r"must be at least minOffsetsPerTrigger (6)"),
        ({"maxTriggerDelay": "soon"}, "it must be a time such as 15m"),
        ({"failOnDataLoss": "maybe"}, "it must be true or false"),
        ({"startingTimestamp": "-5"}, "startingTimestamp must be at least 0"),
        ({"startingOffsets": '{"a":{"0":-3}}'}, "an offset is at least 0"),
        ({"startingOffsetsByTimestamp": '{"a":{"0":-1}}'}, "a time must be milliseconds"),
        ({"startingOffsetsByTimestampStrategy": "guess"}, "must be one of error, latest"),
        ({"kafka.auto.offset.reset": "earliest"}, "set the option 'startingOffsets'"),
        ({"kafka.key.deserializer": "x"}, "Kafka option 'key.deserializer' is not supported"),
        ({"kafka.enable.auto.commit": "true"}, "not supported"),
        ({"kafka.security.protocol": "TLS"}, "security.protocol is 'TLS'"),
        ({"kafka.security.protocol": "SASL_SSL"}, "sasl.mechanism is ''"),
        ({"kafka.sasl.mechanism": "PLAIN"}, "option 'kafka.sasl.mechanism' is set, but 'kafka.security.protocol' is PLAINTEXT"),
        ({"kafka.ssl.truststore.location": "/ca"}, "option 'kafka.ssl.truststore.location' is set, but"),
        ({"kafka.security.protocol": "SSL", "kafka.ssl.truststore.type": "JKS"}, "only PEM is supported"),
        ({"kafka.security.protocol": "SSL", "kafka.ssl.engine.factory.class": "x"}, "ssl.engine.factory.class is not supported"),
        ({"kafka.isolation.level": "serializable"}, "must be one of read_uncommitted, read_committed"),
        ({"kafka.bootstrap.servers": "b:x"}, "has no valid port"),
        ({"millrace.read.path": "magic"}, "must be one of auto, segments, fetch"),
        ({"millrace.reed.path": "fetch"}, "there is no option 'millrace.reed.path'"),
    ],
)
def test_what_is_wrong_with_an_option_is_said(options: dict[str, str], words: str) -> None:
    for is_stream in (None, True):
        assert words in refusal(is_stream, **{name.replace(".", "__"): value for name, value in options.items()})


def test_tls_and_sasl_have_the_option_names_of_kafka_in_any_case_and_no_text_has_the_password() -> None:
    options = {
        "kafka.Security.Protocol": "sasl_ssl",
        "kafka.sasl.mechanism": "SCRAM-SHA-512",
        "kafka.sasl.jaas.config": 'org.apache.kafka.common.security.scram.ScramLoginModule required username="alice" password="hidden";',
        "kafka.ssl.truststore.type": "PEM",
        "kafka.ssl.truststore.location": "/ca.pem",
        "kafka.ssl.keystore.location": "/own.pem",
    }
    access = access_from({"kafka.bootstrap.servers": "box:9093", **options})
    assert access.security == ClientSecurity("SASL_SSL", "SCRAM-SHA-512", "alice", "hidden", "/ca.pem", "/own.pem")
    assert "hidden" not in f"{access!r} {access}" and pickle.loads(pickle.dumps(access)) == access
    assert access_from({"kafka.bootstrap.servers": "box:9093", "kafka.security.protocol": "plaintext"}).security is None


def test_without_servers_the_box_of_this_machine_is_meant(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLRACE_DATA", "/nowhere/at/all")
    assert "no running box of this machine has the data directory /nowhere/at/all" in _refusal_of({"subscribe": "a"})


@pytest.mark.parametrize(
    ("text", "milliseconds"), [("15m", 900_000), ("10s", 10_000), ("250ms", 250), ("7", 7), ("1h", 3_600_000), ("2 MIN", 120_000), ("1d", 86_400_000)]
)
def test_a_time_is_read_as_spark_writes_it(text: str, milliseconds: int) -> None:
    assert OptionValues({"x": text}).milliseconds("x", "0") == milliseconds


def test_offsets_are_the_same_text_whatever_order_they_came_in() -> None:
    one = {TopicPartition("b", 10): 3, TopicPartition("b", 9): 2, TopicPartition("a", 0): 1}
    other = dict(reversed(one.items()))
    assert str(offsets_to_document(one)) == str(offsets_to_document(other)) == "{'a': {'0': 1}, 'b': {'9': 2, '10': 3}}"
    assert offsets_from_document(offsets_to_document(one)) == one
