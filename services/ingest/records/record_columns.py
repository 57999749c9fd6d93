"""Records that arrived together and have the same fields, by columns: what a parser that reads a chunk at once returns.

A sequence of `IngestRecord` for callers that read single ones (routes, repeats of single records). The path
without routes and identities takes the columns as they are and never makes the records. Immutable.
Weak: the `fields` of a record are merged again each time they are read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, cast, overload

from services.ingest.records.record import IngestRecord

Column = Sequence[Any]


class ColumnarRecords(Sequence[IngestRecord]):
    """Columns have one value for each record. `moved`: names and columns of what was taken out of `fields`."""

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
    def __getitem__(self, place: int) -> IngestRecord: ...

    @overload
    def __getitem__(self, place: slice) -> list[IngestRecord]: ...

    def __getitem__(self, place: int | slice) -> IngestRecord | list[IngestRecord]:
        if isinstance(place, slice):
            return [self._record(number) for number in range(*place.indices(len(self.values)))]
        return self._record(place)

    def __iter__(self) -> Iterator[IngestRecord]:
        return map(self._record, range(len(self.values)))

    def _record(self, place: int) -> IngestRecord:
        fields = self._fields[place]
        if self._moved:
            fields = {**fields, **{name: column[place] for name, column in self._moved}}
        severities, facilities = self._columns
        named = self.hosts[place], self.apps[place], self._tag, severities[place], facilities[place]
        return IngestRecord(self.values[place], self.times_ms[place], *named, self._labels, fields)


class PlainColumns(NamedTuple):
    """What the plain way to the batches wants to know."""

    values: Sequence[bytes]
    times_ms: Sequence[int | None]
    names: Sequence[str | None]
    """Of which each record's key is made."""


def columns_of(records: Sequence[IngestRecord], by_host: bool, by_app: bool) -> PlainColumns:
    """The columns of records that came one by one, or together."""
    if isinstance(records, ColumnarRecords):
        names = records.hosts if by_host else records.apps if by_app else (None,) * len(records)
        return PlainColumns(records.values, records.times_ms, names)
    values, times_ms, hosts, apps = zip(*[record[:4] for record in records], strict=True)
    names = hosts if by_host else apps if by_app else (None,) * len(records)
    return PlainColumns(cast("Sequence[bytes]", values), cast("Sequence[int | None]", times_ms), cast("Sequence[str | None]", names))
