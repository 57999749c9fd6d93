"""`IngestRecord`: a parsed record before it is routed; and many of them by columns.

Values only. Routes read `host` … `fields`; `value` is stored. Syslog messages go to the router as
bytes (`Intake.take_syslog`) and become a record only if routes read them.

Weak: the `fields` of a record in columns are merged again each time they are read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, cast, overload


class IngestRecord(NamedTuple):
    """`value` is a JSON document, or what the sender wrote if the listener has `raw=yes`."""

    value: bytes
    time_ms: int | None = None
    """The sender's time; the record's timestamp if it is between ten years back and one day ahead.
    """
    host: str | None = None
    app: str | None = None
    tag: str | None = None
    severity: int | None = None
    """0-7"""
    facility: int | None = None
    """0-23"""
    labels: Mapping[str, Any] | None = None
    fields: Mapping[str, Any] | None = None
    """Read by `field.X` in routes and keys."""
    is_cut: bool = False
    """Its end is missing: header `truncated`."""


Column = Sequence[Any]


class ColumnarRecords(Sequence[IngestRecord]):
    """Records that arrived together and have the same fields, by columns: what a parser that reads
    a chunk at once returns.

    A sequence of `IngestRecord` for callers that read single ones (routes, repeats). The path
    without routes and identities takes the columns as they are and never makes the records. Columns
    have one value for each record. `moved`: names and columns that were removed from `fields`.
    Immutable.
    """

    __slots__ = ("_columns", "_fields", "_labels", "_moved", "_tag", "apps", "hosts", "times_ms", "values")

    def __init__(
        self,
        values: Sequence[bytes],
        times_ms: Sequence[int | None],
        hosts: Sequence[str | None],
        apps: Sequence[str | None],
        severities: Sequence[int | None],
        facilities: Sequence[int | None],
        tag: str | None,
        labels: Mapping[str, Any] | None,
        fields: Sequence[Mapping[str, Any]],
        moved: Sequence[tuple[str, Column]] = (),
    ) -> None:
        self.values = values
        self.times_ms = times_ms
        self.hosts = hosts
        self.apps = apps
        self._columns = severities, facilities
        self._tag = tag
        self._labels = labels
        self._fields = fields
        self._moved = moved

    def __len__(self) -> int:
        return len(self.values)

    @overload
    def __getitem__(self, index: int) -> IngestRecord: ...

    @overload
    def __getitem__(self, index: slice) -> list[IngestRecord]: ...

    def __getitem__(self, index: int | slice) -> IngestRecord | list[IngestRecord]:
        if isinstance(index, slice):
            return [self._record(number) for number in range(*index.indices(len(self.values)))]
        return self._record(index)

    def __iter__(self) -> Iterator[IngestRecord]:
        return map(self._record, range(len(self.values)))

    def _record(self, index: int) -> IngestRecord:
        fields = self._fields[index]
        if self._moved:
            fields = {**fields, **{name: column[index] for name, column in self._moved}}
        severities, facilities = self._columns
        named = self.hosts[index], self.apps[index], self._tag, severities[index], facilities[index]
        return IngestRecord(self.values[index], self.times_ms[index], *named, self._labels, fields)


class PlainColumns(NamedTuple):
    """The columns that the path without routes needs."""

    values: Sequence[bytes]
    times_ms: Sequence[int | None]
    names: Sequence[str | None]
    """The host or app of each record, from which its key is made."""


def columns_of(records: Sequence[IngestRecord], by_host: bool, by_app: bool) -> PlainColumns:
    """Return the columns of records that arrived one by one or together."""
    if isinstance(records, ColumnarRecords):
        names = records.hosts if by_host else records.apps if by_app else (None,) * len(records)
        return PlainColumns(records.values, records.times_ms, names)
    values, times_ms, hosts, apps = zip(*[record[:4] for record in records], strict=True)
    names = hosts if by_host else apps if by_app else (None,) * len(records)
    return PlainColumns(cast("Sequence[bytes]", values), cast("Sequence[int | None]", times_ms), cast("Sequence[str | None]", names))
