from __future__ import annotations

from typing import NamedTuple

import pytest

from appliance.pipeline.cluster_access import ClusterAccess
from appliance.pipeline.problems import SourceProblem
from appliance.pipeline.sink_options import SinkOptions, place_in_series, sink_options
from appliance.records.compression import Codec

SERVERS = {"kafka.bootstrap.servers": "one:1"}


class _Type(NamedTuple):
    name: str

    def simpleString(self) -> str:
        return self.name


class _Field(NamedTuple):
    name: str
    dataType: _Type


def fields(**types: str) -> list[_Field]:
    return [_Field(name, _Type(kind)) for name, kind in types.items()]


def test_options_are_those_of_sparks_kafka_connector() -> None:
    given = {
        "KAFKA.bootstrap.servers": "one:1,two:2",
        "Topic": "t",
        "kafka.compression.type": "ZSTD",
        "kafka.batch.size": "1000",
        "kafka.delivery.timeout.ms": "5000",
        "kafka.transaction.timeout.ms": "7000",
        "kafka.linger.ms": "5",
        "kafka.acks": "1",
    }
    options = sink_options(given, fields(topic="string", value="string", offset="bigint", key="binary"), False)
    assert options.access.servers == "one:1,two:2"
    assert options._replace(access=ClusterAccess(())) == SinkOptions(ClusterAccess(()), "t", ("key", "value"), Codec.ZSTD, 1000, 5000, 7000)


@pytest.mark.parametrize(
    ("types", "options", "words"),
    [
        ({"id": "bigint"}, {"topic": "t"}, "Required attribute 'value' not found among the columns id"),
        ({"value": "string"}, {}, "topic option required when no 'topic' attribute is present"),
        ({"value": "bigint"}, {"topic": "t"}, "value attribute unsupported type bigint. value must be a binary or a string"),
        ({"value": "string", "partition": "string"}, {"topic": "t"}, "partition attribute unsupported type string"),
        ({"value": "string", "headers": "array<string>"}, {"topic": "t"}, "headers attribute unsupported type array<string>"),
        ({"value": "string", "topic": "int"}, {}, "topic attribute unsupported type int"),
        ({"value": "string"}, {"topic": "a b"}, "option 'topic' is 'a b'"),
        ({"value": "string"}, {"topic": "t", "kafka.compression.type": "rar"}, "must be one of none, gzip, snappy, lz4, zstd"),
        ({"value": "string"}, {"topic": "t", "kafka.acks": "most"}, "option 'kafka.acks' is 'most'"),
        ({"value": "string"}, {"topic": "t", "kafka.batch.size": "0"}, "kafka.batch.size must be positive"),
        ({"value": "string"}, {"topic": "t", "kafka.value.serializer": "mine"}, "'kafka.value.serializer' is not supported"),
        ({"value": "string"}, {"topic": "t", "kafka.transactional.id": "mine"}, "'kafka.transactional.id' is not supported"),
        ({"value": "string"}, {"topic": "t", "kafka.sasl.mechanism": "PLAIN"}, "'kafka.security.protocol' is PLAINTEXT"),
    ],
)
def test_what_cannot_be_meant_is_said(types: dict[str, str], options: dict[str, str], words: str) -> None:
    with pytest.raises(SourceProblem) as raised:
        sink_options(SERVERS | options, fields(**types), False)
    assert words in str(raised.value)


def test_topics_are_not_overwritten() -> None:
    with pytest.raises(SourceProblem, match="mode 'overwrite' is not possible on topics"):
        sink_options(SERVERS | {"topic": "t"}, fields(value="string"), True)


def test_a_write_in_a_series_has_a_name_and_a_number() -> None:
    assert place_in_series({"topic": "t"}) is None
    assert place_in_series({"TxnAppId": "mine", "txnVersion": "7"}) == ("mine", 7)
    for half in ({"txnAppId": "mine"}, {"txnVersion": "7"}, {"txnAppId": "", "txnVersion": "7"}, {"txnAppId": "mine", "txnVersion": "-1"}):
        with pytest.raises(SourceProblem, match=r"belong together|at least 0"):
            place_in_series(half)
