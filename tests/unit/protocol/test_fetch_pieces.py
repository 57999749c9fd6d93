"""Fetch responses as pieces, some of which are not ours."""

from __future__ import annotations

import struct
from typing import NamedTuple

import pytest

from appliance.base.errors import ErrorCode
from appliance.base.model import TopicId
from appliance.protocol.fetch import AbortedTransaction, FetchPartitionResult, encode_fetch_response

TOPIC_ID = TopicId(b"i" * 16)


class FileRange(NamedTuple):
    """Stands for a range that sendfile would send."""

    size_bytes: int


def result(partition: int, records: FileRange | bytes | None = None, error_code: int = 0) -> FetchPartitionResult:
    return FetchPartitionResult("syslog", TOPIC_ID, partition, error_code, 10, 10, 0, records)


@pytest.mark.parametrize("version", range(17))
def test_the_frame_size_counts_the_ranges_and_each_comes_behind_its_partition(version: int) -> None:
    ranges = [FileRange(100_000), FileRange(7)]
    pieces = encode_fetch_response(version, 5, 0, 0, [result(0, ranges[0]), result(1), result(2, ranges[1])])

    assert [piece for piece in pieces if isinstance(piece, FileRange)] == ranges
    assert isinstance(pieces[0], bytes)
    assert pieces[1] is ranges[0]
    own = b"".join(piece for piece in pieces if isinstance(piece, bytes))
    assert struct.unpack_from(">i", own)[0] == len(own) - 4 + 100_007
    # Bytes of ours are never split: one piece before each range, and what follows the last.
    assert len(pieces) == (5 if version >= 12 else 4)


@pytest.mark.parametrize("version", range(17))
def test_a_response_without_records_is_one_piece(version: int) -> None:
    assert len(encode_fetch_response(version, 5, 0, 0, [result(0), result(1, b""), result(2, FileRange(0))])) == 1
    assert len(encode_fetch_response(version, 5, ErrorCode.FETCH_SESSION_ID_NOT_FOUND, 0, [])) == 1


def test_a_range_has_the_same_bytes_around_it_as_records_of_its_size() -> None:
    for size in (1, 127, 128, 20_000):
        for version in range(17):
            with_range = encode_fetch_response(version, 5, 0, 0, [result(0, FileRange(size))])
            with_bytes = encode_fetch_response(version, 5, 0, 0, [result(0, b"r" * size)])
            assert [piece if isinstance(piece, bytes) else b"r" * size for piece in with_range] == with_bytes


def test_aborted_transactions_are_null_empty_or_listed() -> None:
    def encoded(version: int, aborted: tuple[AbortedTransaction, ...] | None) -> bytes:
        piece = encode_fetch_response(version, 5, 0, 0, [result(0)._replace(aborted_transactions=aborted)])[0]
        assert isinstance(piece, bytes)
        return piece

    assert encoded(4, None)[-8:] == struct.pack(">ii", -1, 0)
    assert encoded(4, ())[-8:] == struct.pack(">ii", 0, 0)
    assert encoded(4, (AbortedTransaction(3, 4),))[-24:] == struct.pack(">iqqi", 1, 3, 4, 0)
    # null or empty list, no preferred replica, empty records, no tagged fields of partition, topic and response
    assert encoded(12, None)[-9:] == b"\0\xff\xff\xff\xff\1\0\0\0"
    assert encoded(12, ())[-9:] == b"\1\xff\xff\xff\xff\1\0\0\0"


def test_a_failed_disk_is_a_lost_leader_to_fetch_5() -> None:
    for version, code in ((4, 6), (5, 6), (6, 56), (16, 56)):
        piece = encode_fetch_response(version, 5, 0, 0, [result(9, error_code=ErrorCode.KAFKA_STORAGE_ERROR)])[0]
        assert isinstance(piece, bytes)
        assert struct.pack(">ih", 9, code) in piece
