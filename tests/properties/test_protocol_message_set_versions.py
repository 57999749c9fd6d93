"""Produce before 3 and Fetch before 4, which kio does not know, against the classes that kafka-python kept for them."""

from __future__ import annotations

import warnings
from io import BytesIO
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.base.model import NO_TOPIC_ID
from appliance.protocol.fetch import FetchPartition, FetchPartitionResult, decode_fetch, encode_fetch_response
from appliance.protocol.produce import ProduceResult, decode_produce, encode_produce_response
from lab.protocol_messages import FAILURE, INT16, INT32, INT64, NAME

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # of importlib.resources, in kafka-python's own modules
    from kafka.protocol.old import fetch as kafka_fetch
    from kafka.protocol.old import produce as kafka_produce

PRODUCED_TOPICS = st.lists(st.tuples(NAME, st.lists(st.tuples(INT32, st.none() | st.binary(max_size=100)), max_size=3)), max_size=3)
FETCHED_TOPICS = st.lists(st.tuples(NAME, st.lists(st.tuples(INT32, INT64, INT32), max_size=3)), max_size=3)
TOPIC = st.sampled_from("abc")
RESULTS = st.lists(st.tuples(TOPIC, INT32, st.just(0) | FAILURE, INT64, INT64), max_size=5)
OLD_CODE = {56: 6}
"""KAFKA_STORAGE_ERROR is sent in versions that know it."""


def their_class(module: Any, name: str, version: int) -> Any:
    return getattr(module, f"{name}_v{version}")


def grouped(answers: list[tuple[Any, ...]]) -> list[tuple[str, list[tuple[Any, ...]]]]:
    """Neighbours of one topic share its entry."""
    topics: list[tuple[str, list[tuple[Any, ...]]]] = []
    for topic, *fields in answers:
        if not topics or topics[-1][0] != topic:
            topics.append((topic, []))
        topics[-1][1].append(tuple(fields))
    return topics


@pytest.mark.parametrize("version", range(3))
@given(acks=INT16, timeout_ms=INT32, topics=PRODUCED_TOPICS)
def test_a_produce_request_is_located(version: int, acks: int, timeout_ms: int, topics: list[Any]) -> None:
    encoded = their_class(kafka_produce, "ProduceRequest", version)(acks, timeout_ms, topics).encode()
    arena = b"\x55" * 7 + encoded + b"\xaa" * 50
    request = decode_produce(arena, 7, 7 + len(encoded), version)
    assert (request.acks, request.timeout_ms, request.transactional_id) == (acks, timeout_ms, None)
    found = [(part.topic, part.partition, arena[part.records_position : part.records_position + part.records_size]) for part in request.partitions]
    assert found == [(topic, index, records or b"") for topic, partitions in topics for index, records in partitions]


@pytest.mark.parametrize("version", range(3))
@given(results=RESULTS, throttle_time_ms=INT32)
def test_a_produce_response_is_understood(version: int, results: list[Any], throttle_time_ms: int) -> None:
    frame = encode_produce_response(version, 9, [ProduceResult(*result) for result in results], throttle_time_ms)
    response = their_class(kafka_produce, "ProduceResponse", version).decode(BytesIO(frame[8:]))
    if version >= 1:
        assert response.throttle_time_ms == throttle_time_ms
    answers = [(topic, index, OLD_CODE.get(code, code), offset, time) for topic, index, code, offset, time in results]
    expected = grouped(answers if version >= 2 else [answer[:-1] for answer in answers])
    assert response.responses == expected


@pytest.mark.parametrize("version", range(4))
@given(numbers=st.tuples(INT32, INT32, INT32), max_bytes=INT32, topics=FETCHED_TOPICS)
def test_a_fetch_request_is_understood(version: int, numbers: tuple[int, int, int], max_bytes: int, topics: list[Any]) -> None:
    head = (*numbers, max_bytes) if version >= 3 else numbers
    encoded = their_class(kafka_fetch, "FetchRequest", version)(*head, topics).encode()
    request = decode_fetch(b"\x55" * 7 + encoded + b"\xaa" * 50, 7, 7 + len(encoded), version)
    assert (request.replica_id, request.max_wait_ms, request.min_bytes) == numbers
    assert request.max_bytes == (max_bytes if version >= 3 else 2**31 - 1)
    assert (request.isolation_level, request.session_id, request.session_epoch, request.forgotten) == (0, 0, -1, [])
    assert request.partitions == [
        FetchPartition(topic, NO_TOPIC_ID, index, -1, offset, -1, -1, size) for topic, partitions in topics for index, offset, size in partitions
    ]


@pytest.mark.parametrize("version", range(4))
@given(
    results=st.lists(st.tuples(TOPIC, INT32, st.just(0) | FAILURE, INT64, st.none() | st.binary(min_size=1, max_size=100)), max_size=5), throttle_time_ms=INT32
)
def test_a_fetch_response_is_understood(version: int, results: list[Any], throttle_time_ms: int) -> None:
    ours = [FetchPartitionResult(topic, NO_TOPIC_ID, index, code, mark, 5, 6, records, ()) for topic, index, code, mark, records in results]
    frame = b"".join(encode_fetch_response(version, 9, 0, 0, ours, throttle_time_ms))  # type: ignore[arg-type]
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    response = their_class(kafka_fetch, "FetchResponse", version).decode(BytesIO(frame[8:]))
    if version >= 1:
        assert response.throttle_time_ms == throttle_time_ms
    answers = [(topic, index, OLD_CODE.get(code, code), mark, records or b"") for topic, index, code, mark, records in results]
    assert response.responses == grouped(answers)
