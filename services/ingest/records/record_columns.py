"""Records that came together and look alike, by columns: what a parser that reads a chunk at once makes of it.

A sequence of `Record` for whoever looks at single ones (routes, replays of single records); the plain way to the batches takes the columns as they are, which
saves making the records. Made once, not changed. Weak: `fields` of a record is put together anew each time it is asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, cast, overload

from services.ingest.records.record import Record

Column = Sequence[Any]


class RecordColumns(Sequence[Record]):
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
    def __getitem__(self, place: int) -> Record: ...

    @overload
    def __getitem__(self, place: slice) -> list[Record]: ...

    def __getitem__(self, place: int | slice) -> Record | list[Record]:
        if isinstance(place, slice):
            return [self._record(number) for number in range(*place.indices(len(self.values)))]
        return self._record(place)

    def __iter__(self) -> Iterator[Record]:
        return map(self._record, range(len(self.values)))

    def _record(self, place: int) -> Record:
        fields = self._fields[place]
        if self._moved:
            fields = {**fields, **{name: column[place] for name, column in self._moved}}
        severities, facilities = self._columns
        named = self.hosts[place], self.apps[place], self._tag, severities[place], facilities[place]
        return Record(self.values[place], self.times_ms[place], *named, self._labels, fields)


class PlainColumns(NamedTuple):
    """What the plain way to the batches wants to know."""

    values: Sequence[bytes]
    times_ms: Sequence[int | None]
    names: Sequence[str | None]
    """Of which each record's key is made."""


def columns_of(records: Sequence[Record], by_host: bool, by_app: bool) -> PlainColumns:
    """The columns of records that came one by one, or together."""
    if isinstance(records, RecordColumns):
        names = records.hosts if by_host else records.apps if by_app else (None,) * len(records)
        return PlainColumns(records.values, records.times_ms, names)
    values, times_ms, hosts, apps = zip(*[record[:4] for record in records], strict=True)
    names = hosts if by_host else apps if by_app else (None,) * len(records)
    return PlainColumns(cast("Sequence[bytes]", values), cast("Sequence[int | None]", times_ms), cast("Sequence[str | None]", names))
