"""Records that ingest wrote of syslog lines (docs/senders.md) into columns. Owned by one task.

Weak spot: those with structured data are read one after the other; in a batch that has both kinds, both are put in order again.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from appliance.pipeline.json_values import INSTANT, MISFITS, JsonValues, ValueColumns, instant, instants
from appliance.pipeline.table_kind import JsonField

_NO_STRUCTURED_DATA, _AS_TEXT = '"structured_data":{}', '"structured_data":"{}"'
"""Nowhere else in a record: within a text the quotation marks are escaped."""

SYSLOG_FIELDS = (
    *(JsonField("time", "timestamp"), JsonField("host", "string"), JsonField("app", "string"), JsonField("proc_id", "string"), JsonField("msg_id", "string")),
    *(JsonField("severity", "int"), JsonField("severity_name", "string"), JsonField("facility", "int"), JsonField("facility_name", "string")),
    *(JsonField("structured_data", "string"), JsonField("message", "string")),
    *(JsonField("parse_error", "string"), JsonField("raw", "string"), JsonField("raw_base64", "string"), JsonField("parsed", "boolean")),
)
"""What ingest writes; those of the last line only of messages that it could not read."""


class SyslogValues(JsonValues):
    """Records that ingest wrote of syslog lines. Most have no structured data: these are as plain as can be, when that is a text."""

    def __init__(self) -> None:
        super().__init__(SYSLOG_FIELDS, required=("severity", "facility", "message"))
        self._converts[0] = _sender_times

    def decode(self, values: pa.Array) -> ValueColumns:
        has_none = pc.fill_null(pc.match_substring(values, _NO_STRUCTURED_DATA), False)
        if not pc.all(has_none).as_py():
            # Those with structured data one by one, the others all at once; then as they were.
            parts = [np.flatnonzero(has_none.to_numpy(zero_copy_only=False)), np.flatnonzero(~has_none.to_numpy(zero_copy_only=False))]
            if not len(parts[0]):
                return self.decode_one_by_one(values)
            plain, others = (self._decode_part(values.take(pa.array(rows)), number == 0) for number, rows in enumerate(parts))
            return _interleaved(plain, others, parts)
        return self._decode_part(values, True)

    def _decode_part(self, values: pa.Array, has_none: bool) -> ValueColumns:
        found = self.decode_at_once(pc.replace_substring(values, _NO_STRUCTURED_DATA, _AS_TEXT, max_replacements=1)) if has_none else None
        return found or self.decode_one_by_one(values)


def _interleaved(one: ValueColumns, other: ValueColumns, rows: Sequence[NDArray[np.int64]]) -> ValueColumns:
    """Two parts of a batch, `rows` of it, in the order of the batch."""
    problems = {int(rows[number][row]): problem for number, part in enumerate((one, other)) for row, problem in part.problems.items()}
    kept = [np.delete(rows[number], list(part.problems)) for number, part in enumerate((one, other))]
    order = pa.array(np.argsort(np.concatenate(kept), kind="stable"))
    return ValueColumns([pa.concat_arrays([first, second]).take(order) for first, second in zip(one.columns, other.columns)], problems)


def _sender_times(content: list[Any]) -> pa.Array:
    """Times of syslog messages: well formed, as ingest has looked at them; a leap second is the second before, which calendars have."""
    try:
        return instants(content)
    except MISFITS:
        return pa.array([_instant_or_none(each) for each in content], INSTANT)


def _instant_or_none(content: Any) -> datetime.datetime | None:
    if content is None:
        return None
    if content.__class__ is not str:
        raise ValueError("a time is a text")
    try:
        return instant(content.replace(":60", ":59", 1) if content[16:19] == ":60" else content)
    except (ValueError, OverflowError):
        return None  # the record's own timestamp remains
