"""Check that every record of a produced batch has a key, as a compacted topic requires.

Pure. The acceptor uses it for compacted topics only, because the batch has to be opened, up to
`opened_batch_limit`. Weak spot: about 2 µs a record, and the opened records are not kept.
"""

from __future__ import annotations

from itertools import islice
from typing import Final, NamedTuple

from appliance.base.errors import ErrorCode
from appliance.records.batch import read_batch_header
from appliance.records.compression import Buffer, opened_batch_limit
from appliance.records.corrupt_batch import CorruptBatch
from appliance.records.retained_batch import open_records, slice_records

NAMED_MAX: Final = 10_000
"""Keyless records of one batch that a response names: as many as librdkafka puts into a batch.
A client may send millions."""


class KeylessProblem(NamedTuple):
    """Why a compacted topic refuses a batch, and which of its records are to blame (numbers in the batch, at most NAMED_MAX)."""

    code: ErrorCode
    reason: str
    records: tuple[int, ...] = ()


def keyless_problem(batch: Buffer) -> KeylessProblem | None:
    """Why a batch (already checked by `batch_problem`) cannot go into a compacted topic, or None."""
    header = read_batch_header(batch)
    try:
        records = slice_records(open_records(header, batch, opened_batch_limit(len(batch))), header.records_count)
    except CorruptBatch as corrupt:
        return KeylessProblem(ErrorCode.INVALID_RECORD, f"the batch cannot be opened, and a compacted topic must look at its keys: {corrupt}")
    keyless = tuple(islice((number for number, record in enumerate(records) if record.key is None), NAMED_MAX))
    if not keyless:
        return None
    return KeylessProblem(ErrorCode.INVALID_RECORD, f"record {keyless[0]} of the batch has no key; a compacted topic cannot take it", keyless)
