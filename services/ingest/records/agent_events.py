"""Events of agents that came together, written together: the same as `agent_event.agent_record` for each of them, at half the cost.

Pure functions. A sender repeats himself: most records of a chunk have the same names, their texts the same type. So each question is asked once for a column
and not once for a record: which role a name has, whether every value fits it. Records of different names are put into groups. Whatever is not alike in a
column (a host here, none there), is no text where one should be, or cannot be written by orjson, goes to `agent_record`, one by one, which knows all cases and
is what this has to agree with. Weak: a chunk of which every record has other names gains nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, cast

import orjson

from appliance.senders.listener import Listener
from services.ingest.protocols.document import plain_default
from services.ingest.records.agent_event import agent_record, time_reader
from services.ingest.records.event_json import MILLISECONDS, NO_TIME, heads_written, seconds_written, write_head, write_second
from services.ingest.records.event_roles import FieldKind, FieldRole, roles_of
from services.ingest.records.record import IngestRecord
from services.ingest.records.record_columns import Column, ColumnarRecords
from services.ingest.records.severity import facility_of, severity_of, severity_of_python

_NS_A_MS: Final = 1_000_000
ALIKE_MIN: Final = 4
"""Fewer records of the same names are written one by one."""
_HEAD: Final = ("host", "app", "proc_id", "msg_id", "severity", "facility")
_BEFORE: Final = frozenset((*_HEAD, "message"))
"""What of `known` does not stand behind the message."""
_BEHIND: Final = ("trace_id", "span_id")
_NUMBER_OR_TEXT: Final = frozenset((int, str))
_TEXT_OR_NONE: Final = frozenset((str, type(None)))
_TIMES: Final = frozenset((str, int, float))
_MOVED_KINDS: Final = (FieldKind.TEXT, FieldKind.NUMBER_OR_TEXT)


class Common(NamedTuple):
    """What the protocol says of all of them."""

    known: dict[str, Any]
    """As `agent_record` wants it."""
    behind: dict[str, Any]
    """What of it stands behind the message; objects are JSON already."""


def common_of(known: dict[str, Any]) -> Common:
    """For any number of records."""
    return Common(known, {name: _written(value) for name, value in known.items() if name not in _BEFORE})


def _written(value: Any) -> Any:
    if type(value) is dict:
        try:
            return orjson.Fragment(orjson.dumps([value])[1:-1])  # as deep as it stands in the event
        except TypeError:
            pass
    return value


class _Unlike(Exception):
    """Not the same for all."""


def agent_records(
    fields: Sequence[dict[str, Any]],
    listener: Listener,
    common: Common,
    times_ns: Sequence[int | None] | None = None,
    said: Mapping[str, Column] | None = None,
) -> Sequence[IngestRecord]:
    """The records of `fields` (which are changed), in order. `times_ns`: the protocol's own. `said`: what the protocol says of each, by the names of `known`;
    None where it says nothing."""
    shapes = list(map(tuple, fields))
    if listener.raw or len(fields) < ALIKE_MIN:
        return _one_by_one(fields, listener, common, times_ns, said)
    if shapes.count(shapes[0]) == len(shapes):
        return _alike(shapes[0], fields, listener, common, times_ns, said)
    places: dict[tuple[str, ...], list[int]] = {}
    for place, shape in enumerate(shapes):
        places.setdefault(shape, []).append(place)
    if len(places) * ALIKE_MIN > len(shapes):
        return _one_by_one(fields, listener, common, times_ns, said)
    records: list[Any] = [None] * len(shapes)
    for shape, group in places.items():
        group_said = said and {name: [column[place] for place in group] for name, column in said.items()}
        group_times = times_ns and [times_ns[place] for place in group]
        for place, record in zip(group, _alike(shape, [fields[place] for place in group], listener, common, group_times, group_said), strict=True):
            records[place] = record
    return records


def _one_by_one(
    fields: Sequence[dict[str, Any]], listener: Listener, common: Common, times_ns: Sequence[int | None] | None, said: Mapping[str, Column] | None
) -> list[IngestRecord]:
    records = []
    for place, each in enumerate(fields):
        known = common.known
        if said:
            known = {**known, **{name: column[place] for name, column in said.items() if column[place] is not None}}
        records.append(agent_record(each, listener, known, None if times_ns is None else times_ns[place]))
    return records


def _alike(
    shape: tuple[str, ...],
    fields: Sequence[dict[str, Any]],
    listener: Listener,
    common: Common,
    times_ns: Sequence[int | None] | None,
    said: Mapping[str, Column] | None,
) -> Sequence[IngestRecord]:
    """Records of the same names."""
    moved: list[tuple[str, Column]] = []
    try:
        parts, behind = _said(shape, common, said or {}, len(fields))
        begins, times_ms, finer = _given_times(times_ns, len(fields))
        for role in roles_of(shape):
            if role.part in parts or role.part in common.known or role.part in behind:
                continue
            if role.kind is FieldKind.TIME:
                if times_ns is None and (read := _read_times(role, fields, listener)) is not None:
                    begins, times_ms, is_moved = read
                    parts[role.part] = begins
                    if is_moved:
                        moved.append((role.name, [each[role.name] for each in fields]))
            elif (column := _FITTING[role.kind](role, fields)) is not None:
                parts[role.part] = column
                if role.kind in _MOVED_KINDS and not role.inner:
                    moved.append((role.name, [each[role.name] for each in fields]))
        return _write(fields, common, parts, behind, begins, times_ms, finer, moved)
    except (_Unlike, TypeError):
        for name, column in moved:
            for each, value in zip(fields, column, strict=True):
                each[name] = value
        return _one_by_one(fields, listener, common, times_ns, said)


def _said(shape: tuple[str, ...], common: Common, said: Mapping[str, Column], count: int) -> tuple[dict[str, Column], dict[str, Column]]:
    """Columns of what the protocol says: of what stands up to the message, and behind it."""
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


def _given_times(times_ns: Sequence[int | None] | None, count: int) -> tuple[Sequence[bytes], Sequence[int | None], Sequence[int]]:
    """How each event begins, its milliseconds, and its nanoseconds where it is finer (else 0)."""
    if times_ns is None:
        return (NO_TIME,) * count, (None,) * count, ()
    if None in times_ns:
        raise _Unlike
    given = cast("Sequence[int]", times_ns)
    times_ms = [time_ns // _NS_A_MS for time_ns in given]
    seconds = {second: seconds_written.get(second) or write_second(second) for second in {time_ms // 1000 for time_ms in times_ms}}
    if not all(seconds.values()):
        raise _Unlike
    begins = [seconds[time_ms // 1000] + MILLISECONDS[time_ms % 1000] for time_ms in times_ms]
    return begins, times_ms, [time_ns if time_ns % _NS_A_MS else 0 for time_ns in given]


def _read_times(role: FieldRole, fields: Sequence[dict[str, Any]], listener: Listener) -> tuple[list[bytes], list[int | None], bool] | None:
    """The same of texts; and whether they are the event's own now."""
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
    """Severities and facilities."""
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
"""What every record has of a role; None if none has anything that fits."""


# -- writing


def _write(
    fields: Sequence[dict[str, Any]],
    common: Common,
    parts: Mapping[str, Column],
    behind: Mapping[str, Column],
    begins: Sequence[bytes],
    times_ms: Sequence[int | None],
    finer: Sequence[int],
    moved: list[tuple[str, Column]],
) -> ColumnarRecords:
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
