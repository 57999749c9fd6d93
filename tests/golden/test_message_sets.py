"""Message sets as clients sent them (`tests/golden/capture_message_sets.py` makes them again), and the requests they came in."""

from __future__ import annotations

from pathlib import Path

import pytest

from appliance.protocol.apis import SERVED_APIS, ApiKey
from appliance.protocol.fetch import decode_fetch
from appliance.protocol.framing import FrameSplitter, parse_request_header
from appliance.protocol.produce import decode_produce
from appliance.records.batch import batch_problem, read_batch_header
from appliance.records.compression import Codec, with_old_header_checksum, with_right_header_checksum
from appliance.records.conversion import convert_up
from appliance.records.legacy import read_entries, read_message_set
from appliance.records.record import iterate_records
from tests.golden.capture_message_sets import CLIENTS, DIRECTORY, RECORDS

FRAMES = sorted((Path(__file__).parent / DIRECTORY).glob("*.hex"))
LIMIT = 1 << 20


def test_sets_of_both_magics_were_captured_in_every_codec_from_every_client() -> None:
    names = {path.stem for path in FRAMES}
    for codec in ("none", "gzip", "snappy", "lz4"):
        assert f"magic0-Produce-v1-{codec}-librdkafka" in names
        assert {f"magic1-Produce-v2-{codec}-{client}" for client in CLIENTS["magic1"]} <= names
    assert {"magic0-Fetch-v1-librdkafka", "magic1-Fetch-v3-librdkafka", "magic1-Fetch-v3-kafka-clients", "magic0-Produce-v1-none-kafkajs"} <= names


@pytest.mark.parametrize("path", FRAMES, ids=lambda path: path.stem)
def test_a_request_with_a_message_set_is_understood(path: Path) -> None:
    scenario, name, version, *rest = path.stem.split("-")
    (request,) = FrameSplitter(1 << 20).feed(bytes.fromhex(path.read_text()))
    header = parse_request_header(request, 0, len(request))
    assert (SERVED_APIS[header.api_key].name, f"v{header.api_version}") == (name, version)
    if header.api_key == ApiKey.FETCH:
        fetch = decode_fetch(request, header.body_position, len(request), header.api_version)
        (wanted,) = fetch.partitions
        assert (wanted.topic, wanted.partition, wanted.fetch_offset, fetch.replica_id) == ("golden", 0, 0, -1)
        assert 0 < wanted.max_bytes <= fetch.max_bytes
        return
    (part,) = decode_produce(request, header.body_position, len(request), header.api_version).partitions
    magic, codec, end = int(scenario[-1]), Codec[rest[0].upper()], part.records_position + part.records_size

    found_codec, messages, says_append_time = read_message_set(request, part.records_position, end, LIMIT)

    assert (part.topic, part.partition, found_codec, says_append_time) == ("golden", 0, codec, False)
    expected = [(magic, record.timestamp if magic else -1, record.key, record.value) for record in RECORDS]
    assert [(message.magic, message.timestamp, message.key, message.value) for message in messages] == expected
    batch = convert_up(request, part.records_position, end, LIMIT, False)
    assert batch_problem(batch, 0, len(batch), LIMIT) is None
    assert read_batch_header(batch).codec is codec
    assert [(record.timestamp, record.key, record.value) for record in iterate_records(batch, LIMIT)] == [one[1:] for one in expected]


@pytest.mark.parametrize(("name", "is_right"), [("magic0-Produce-v1-lz4-librdkafka", False), ("magic1-Produce-v2-lz4-librdkafka", True)])
def test_librdkafka_writes_the_header_checksum_of_its_time(name: str, is_right: bool) -> None:
    request = bytes.fromhex((Path(__file__).parent / DIRECTORY / f"{name}.hex").read_text())[4:]
    header = parse_request_header(request, 0, len(request))
    (part,) = decode_produce(request, header.body_position, len(request), header.api_version).partitions
    (wrapper,) = read_entries(request, part.records_position, part.records_position + part.records_size, LIMIT, tolerates_tail=False)
    stream = wrapper.value
    assert stream is not None
    assert stream == (with_right_header_checksum if is_right else with_old_header_checksum)(stream)
    assert with_right_header_checksum(stream) != with_old_header_checksum(stream)
