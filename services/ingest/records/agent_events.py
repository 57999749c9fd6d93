"""Build the events of agents that arrived together, by columns, at half the cost.

Pure functions. Most records of a chunk have the same names, and their values the same types. So
each question is answered once for a column instead of once for a record: which role a name has,
whether every value fits it. Records with different names form groups. A column whose values differ
in kind (a host here, none there), that has no text where text is expected, or that orjson cannot
encode goes to `agent_record`, record by record. That function handles all cases and defines the
result.

Weak: a chunk in which every record has other names gains nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, cast

import orjson

from appliance.senders.listener import Listener
from services.ingest.protocols.document import plain_default
from services.ingest.records.agent_event import agent_record, time_reader
from services.ingest.records.event import MILLISECONDS, NO_TIME, heads_written, seconds_written, write_head, write_second
from services.ingest.records.field_roles import FieldKind, FieldRole, facility_of, roles_of, severity_of, severity_of_python
from services.ingest.records.ingest_record import Column, ColumnarRecords, IngestRecord

_NS_A_MS: Final = 1_000_000
ALIKE_MIN: Final = 4
"""Fewer records with the same names are built one by one."""
_HEAD: Final = ("host", "app", "proc_id", "msg_id", "severity", "facility")
_BEFORE: Final = frozenset((*_HEAD, "message"))
"""Names of `known` that are not after the message."""
_BEHIND: Final = ("trace_id", "span_id")
_NUMBER_OR_TEXT: Final = frozenset((int, str))
_TEXT_OR_NONE: Final = frozenset((str, type(None)))
_TIMES: Final = frozenset((str, int, float))
_MOVED_KINDS: Final = (FieldKind.TEXT, FieldKind.NUMBER_OR_TEXT)


class Common(NamedTuple):
    """What the protocol defines for all records of a chunk."""

    known: dict[str, Any]
    """As `agent_record` expects it."""
    behind: dict[str, Any]
    """The part after the message; objects are encoded already."""


def common_of(known: dict[str, Any]) -> Common:
    return Common(known, {name: _written(value) for name, value in known.items() if name not in _BEFORE})


def _written(value: Any) -> Any:
    if type(value) is dict:
        try:
            return orjson.Fragment(orjson.dumps([value])[1:-1])  # one level deeper, as in the event
        except TypeError:
            pass
    return value


class _Times(NamedTuple):
    """The times of records: the start of each event, its milliseconds, and its nanoseconds if it is
    finer (else 0)."""

    begins: Sequence[bytes]
    times_ms: Sequence[int | None]
    finer: Sequence[int]


class _Unlike(Exception):
    """The values of a column differ in kind."""


def agent_records(
    fields: Sequence[dict[str, Any]],
    listener: Listener,
    common: Common,
    times_ns: Sequence[int | None] | None = None,
    said: Mapping[str, Column] | None = None,
) -> Sequence[IngestRecord]:
    """Return the records of `fields` (which are changed), in order.

    `times_ns`: the protocol's own times. `said`: what the protocol defines for each record, by the
    names of `known`; None where it defines nothing.
    """
    shapes = list(map(tuple, fields))
    if listener.raw or len(fields) < ALIKE_MIN:
        return _one_by_one(fields, listener, common, times_ns, said)
    if shapes.count(shapes[0]) == len(shapes):
        return _alike(shapes[0], fields, listener, common, times_ns, said)
    indices: dict[tuple[str, ...], list[int]] = {}
    for index, shape in enumerate(shapes):
        indices.setdefault(shape, []).append(index)
    if len(indices) * ALIKE_MIN > len(shapes):
        return _one_by_one(fields, listener, common, times_ns, said)
    records: list[Any] = [None] * len(shapes)
    for shape, group in indices.items():
        group_said = said and {name: [column[index] for index in group] for name, column in said.items()}
        group_times = times_ns and [times_ns[index] for index in group]
        for index, record in zip(group, _alike(shape, [fields[index] for index in group], listener, common, group_times, group_said), strict=True):
            records[index] = record
    return records


def _one_by_one(
    fields: Sequence[dict[str, Any]], listener: Listener, common: Common, times_ns: Sequence[int | None] | None, said: Mapping[str, Column] | None
) -> list[IngestRecord]:
    records = []
    for index, each in enumerate(fields):
        known = common.known
        if said:
            known = {**known, **{name: column[index] for name, column in said.items() if column[index] is not None}}
        records.append(agent_record(each, listener, known, None if times_ns is None else times_ns[index]))
    return records


def _alike(
    shape: tuple[str, ...],
    fields: Sequence[dict[str, Any]],
    listener: Listener,
    common: Common,
    times_ns: Sequence[int | None] | None,
    said: Mapping[str, Column] | None,
) -> Sequence[IngestRecord]:
    """Build records with the same names."""
    moved: list[tuple[str, Column]] = []
    try:
        parts, behind = _said(shape, common, said or {}, len(fields))
        times = _given_times(times_ns, len(fields))
        for role in roles_of(shape):
            if role.part in parts or role.part in common.known or role.part in behind:
                continue
            if role.kind is FieldKind.TIME:
                if times_ns is None and (read := _read_times(role, fields, listener)) is not None:
                    begins, times_ms, is_moved = read
                    times = _Times(begins, times_ms, times.finer)
                    parts[role.part] = begins
                    if is_moved:
                        moved.append((role.name, [each[role.name] for each in fields]))
            elif (column := _FITTING[role.kind](role, fields)) is not None:
                parts[role.part] = column
                if role.kind in _MOVED_KINDS and not role.inner:
                    moved.append((role.name, [each[role.name] for each in fields]))
        return _write(fields, common, parts, behind, times, moved)
    except (_Unlike, TypeError):
        for name, column in moved:
            for each, value in zip(fields, column, strict=True):
                each[name] = value
        return _one_by_one(fields, listener, common, times_ns, said)


def _said(shape: tuple[str, ...], common: Common, said: Mapping[str, Column], count: int) -> tuple[dict[str, Column], dict[str, Column]]:
    """Return the columns that the protocol defines: those up to the message, and those after it."""
    parts: dict[str, Column] = {name: (value,) * count for name, value in common.known.items() if name in _BEFORE}
    behind: dict[str, Column] = {}
    for name, column in said.items():
        missing = column.count(None)
        if missing == count:
            continue
        if missing and any(role.part == name for role in roles_of(shape)):
            raise _Unlike
        (parts if name in _BEFORE else behind)[name] = column
    message = parts.get("message")
    if message is not None and not _TEXT_OR_NONE.issuperset(map(type, message)):
        raise _Unlike
    return parts, behind


def _given_times(times_ns: Sequence[int | None] | None, count: int) -> _Times:
    """Return the start of each event, its milliseconds, and its nanoseconds if it is finer (else
    0)."""
    if times_ns is None:
        return _Times((NO_TIME,) * count, (None,) * count, ())
    if None in times_ns:
        raise _Unlike
    given = cast("Sequence[int]", times_ns)
    times_ms = [time_ns // _NS_A_MS for time_ns in given]
    seconds = {second: seconds_written.get(second) or write_second(second) for second in {time_ms // 1000 for time_ms in times_ms}}
    if not all(seconds.values()):
        raise _Unlike
    begins = [seconds[time_ms // 1000] + MILLISECONDS[time_ms % 1000] for time_ms in times_ms]
    return _Times(begins, times_ms, [time_ns if time_ns % _NS_A_MS else 0 for time_ns in given])


def _read_times(role: FieldRole, fields: Sequence[dict[str, Any]], listener: Listener) -> tuple[list[bytes], list[int | None], bool] | None:
    """Do the same for texts; also return whether the texts are in the event's own form."""
    column = [each[role.name] for each in fields]
    kinds = set(map(type, column))
    if kinds != {str}:
        if kinds.isdisjoint(_TIMES):
            return None
        raise _Unlike
    read = time_reader(listener.time_zone).read_rfc3339
    texts = [text.encode("utf-8", "replace") for text in column]
    instants = [read(text) if text else None for text in texts]
    found = [instant for instant in instants if instant is not None]
    if not found:
        return None
    own = sum(instant[1] == text for instant, text in zip(instants, texts, strict=True) if instant is not None)
    if len(found) < len(instants) or 0 < own < len(found):
        raise _Unlike
    return [b'{"time":"%b"' % instant[1] for instant in found], [instant[0] for instant in found], own > 0


# -- roles


def _values(role: FieldRole, fields: Sequence[dict[str, Any]]) -> list[Any]:
    name, inner = role.name, role.inner
    if inner:
        return [value.get(inner) if type(value) is dict else None for value in [each[name] for each in fields]]
    return [each[name] for each in fields]


def _texts(role: FieldRole, fields: Sequence[dict[str, Any]]) -> Column | None:
    column = _values(role, fields)
    kinds = set(map(type, column))
    if kinds == {str} and all(column):
        return column
    if bytes in kinds or any(type(value) is str and value for value in column):
        raise _Unlike
    return None


def _numbers_or_texts(role: FieldRole, fields: Sequence[dict[str, Any]]) -> Column | None:
    column = _values(role, fields)
    kinds = set(map(type, column))
    if kinds <= _NUMBER_OR_TEXT:
        return list(map(str, column))
    if kinds.isdisjoint(_NUMBER_OR_TEXT):
        return None
    raise _Unlike


def _codes(role: FieldRole, fields: Sequence[dict[str, Any]]) -> Column | None:
    column, read = _values(role, fields), _CODE_READERS[role.kind]
    codes: Sequence[int | None]
    if set(map(type, column)) == {str}:
        table = {word: read(word) for word in set(column)}
        codes = [table[word] for word in column]
    else:
        codes = list(map(read, column))
    missing = codes.count(None)
    if not missing:
        return codes
    if missing == len(codes):
        return None
    raise _Unlike


_CODE_READERS: Final[dict[FieldKind, Callable[[object], int | None]]] = {
    FieldKind.SEVERITY: severity_of,
    FieldKind.PYTHON_SEVERITY: severity_of_python,
    FieldKind.FACILITY: facility_of,
}
_FITTING: Final = {FieldKind.TEXT: _texts, FieldKind.NUMBER_OR_TEXT: _numbers_or_texts, **dict.fromkeys(_CODE_READERS, _codes)}
"""The values of a role; None if no record has a fitting one."""


# -- writing


def _write(
    fields: Sequence[dict[str, Any]],
    common: Common,
    parts: Mapping[str, Column],
    behind: Mapping[str, Column],
    times: _Times,
    moved: list[tuple[str, Column]],
) -> ColumnarRecords:
    begins, times_ms, finer = times
    nothing = (None,) * len(fields)
    known_behind = common.behind
    tails: list[dict[str, Any]] = [{"message": message, **known_behind} for message in parts.get("message", nothing)]
    for name, column in behind.items():
        _put(tails, name, column)
    if any(finer):
        _put(tails, "event_time_ns", [time_ns or None for time_ns in finer])
    for name in _BEHIND:
        if name in parts:
            _put(tails, name, parts[name])
    for name, _ in moved:
        for each in fields:
            del each[name]
    if fields[0]:
        for tail, each in zip(tails, fields, strict=True):
            tail["fields"] = each
    heads = [parts.get(name, nothing) for name in _HEAD]
    rows = list(zip(*heads, strict=True))
    written = {row: heads_written.get(row) or write_head(row) for row in set(rows)}
    dumps = orjson.dumps
    values = [begin + written[row] + dumps(tail, plain_default)[1:] for begin, row, tail in zip(begins, rows, tails, strict=True)]
    host, app, _, _, severity, facility = heads
    known = common.known
    labels = known.get("labels") or known.get("resource")
    return ColumnarRecords(values, times_ms, host, app, severity, facility, known.get("tag"), labels, fields, moved)


def _put(tails: list[dict[str, Any]], name: str, column: Column) -> None:
    if None in column:
        for tail, value in zip(tails, column, strict=True):
            if value is not None:
                tail[name] = value
    else:
        for tail, value in zip(tails, column, strict=True):
            tail[name] = value
