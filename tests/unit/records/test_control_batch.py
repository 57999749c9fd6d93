"""The end of a transaction as a batch: what is written is read, what is not a marker is passed over."""

from __future__ import annotations

import pytest

from appliance.records.batch import CRC_AT, read_batch_header, stored_batch_problem
from appliance.records.builder import BatchBuilder
from appliance.records.control_batch import EndTransactionMarker, build_end_transaction_batch, read_end_transaction_marker
from appliance.records.retained_batch import empty_batch


@pytest.mark.parametrize("is_commit", [True, False])
def test_a_marker_is_read_as_it_was_written(is_commit: bool) -> None:
    marker = EndTransactionMarker(is_commit, 7)
    raw = build_end_transaction_batch(3, 2, marker, 1_700_000_000_000)
    assert stored_batch_problem(raw, 0, len(raw)) is None
    header = read_batch_header(raw)
    assert header.is_control and header.is_transactional
    assert (header.producer_id, header.producer_epoch, header.base_sequence, header.records_count) == (3, 2, -1, 1)
    assert read_end_transaction_marker(raw) == marker


def test_what_is_no_marker_says_nothing() -> None:
    raw = build_end_transaction_batch(3, 2, EndTransactionMarker(True, 7), 1_700_000_000_000)
    assert read_end_transaction_marker(empty_batch(read_batch_header(raw))) is None
    raw[CRC_AT] ^= 1
    assert read_end_transaction_marker(raw) is None
    commit, value = b"\0\0\0\1", b"\0" * 6
    others = [(None, value), (b"\0\0\0\2", value), (commit[:3], value), (commit, None), (commit, value[:5]), (b"\xff\xff\0\1", value)]
    for key, content in others:
        builder = BatchBuilder()
        builder.append(0, key, content)
        assert read_end_transaction_marker(builder.build()) is None
