"""What reading an OTLP request gives, in either encoding. Values only. Weak: records are read when they are asked for, once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from services.ingest.records.ingest_record import IngestRecord

SLICE_RECORDS = 128


class BadPayload(ValueError):
    """It is not what it says it is. The text says why."""


class TooManyRecords(BadPayload):
    """More than `RECORDS_MAX`."""


class Reading(NamedTuple):
    """A request's records, in order, a slice at a time; and how many of it can never be stored because they are too large to be read."""

    slices: Iterator[Sequence[IngestRecord]]
    too_large: int = 0
