"""A streaming job: a function from the stream of records to the stream of rows, and the events of its micro-batches.

`MODULE:FUNCTION` names a user's function: it takes and returns a DataFrame (the columns of
`spark.readStream.format("millrace")`) and runs like the built-in one.

The hosts of a job: a host is `new` in its first minute, `silent` after `silent_minutes` full minutes without a record,
and `back` in the minute of its next record. Time is that of the records: without records no minute ends, so no host becomes
silent. Minutes are integers since 1970 UTC.

Weak spot: modules beside the user's module are not sent to Spark's workers; with `--master`, users send them by
`spark.submit.pyFiles`.
"""

from __future__ import annotations

import importlib
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from appliance.pipeline.log_minutes import SOURCE_SCHEMA, log_minutes
from appliance.pipeline.problems import StreamProblem

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


NEW, SILENT, BACK = "new", "silent", "back"


class Host(NamedTuple):
    first_minute: int
    last_minute: int
    is_silent: bool = False


class HostEvent(NamedTuple):
    minute: int
    host: str
    event: str
    last_minute: int
    """the last minute with a record of the host before this one"""


class Roster(NamedTuple):
    """All hosts that ever sent a record, and the newest complete minute."""

    hosts: Mapping[str, Host]
    closed_minute: int = -1

    def to_state(self) -> dict[str, Any]:
        return {"closed_minute": self.closed_minute, "hosts": {name: list(host) for name, host in self.hosts.items()}}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Roster:
        """Decode the state; an empty one is the empty roster."""
        hosts = {name: Host(int(first), int(last), bool(silent)) for name, (first, last, silent) in state.get("hosts", {}).items()}
        return cls(hosts, int(state.get("closed_minute", -1)))


def plan_roster(roster: Roster, minutes_of: Mapping[str, Sequence[int]], silent_minutes: int) -> tuple[Roster, list[HostEvent]]:
    """Return the roster after the minutes in `minutes_of` (host → minutes, any order), and their events in order."""
    closed_minute = max([roster.closed_minute, *(minute for minutes in minutes_of.values() for minute in minutes)])
    hosts: dict[str, Host] = {}
    events: list[HostEvent] = []
    for name in sorted({*roster.hosts, *minutes_of}):
        host, happened = _follow(name, roster.hosts.get(name), sorted(set(minutes_of.get(name, ()))), closed_minute, silent_minutes)
        hosts[name] = host
        events += happened
    return Roster(hosts, closed_minute), sorted(events)


def _follow(name: str, host: Host | None, minutes: Sequence[int], closed_minute: int, silent_minutes: int) -> tuple[Host, list[HostEvent]]:
    events: list[HostEvent] = []
    for minute in minutes:
        if host is None:
            events.append(HostEvent(minute, name, NEW, minute))
            host = Host(minute, minute)
            continue
        host, gone = _maybe_silent(name, host, minute - 1, silent_minutes)
        events += gone
        if host.is_silent and minute > host.last_minute:
            events.append(HostEvent(minute, name, BACK, host.last_minute))
            host = host._replace(is_silent=False)
        host = Host(min(host.first_minute, minute), max(host.last_minute, minute), host.is_silent)
    assert host is not None, "a host is in the roster or has minutes"
    host, gone = _maybe_silent(name, host, closed_minute, silent_minutes)
    return host, events + gone


def _maybe_silent(name: str, host: Host, closed_minute: int, silent_minutes: int) -> tuple[Host, list[HostEvent]]:
    silent_from = host.last_minute + silent_minutes
    if host.is_silent or closed_minute < silent_from:
        return host, []
    return host._replace(is_silent=True), [HostEvent(silent_from, name, SILENT, host.last_minute)]


BUILT_IN = "log_minutes"
HOST_TABLE = "hosts"
HOST_SCHEMA = pa.schema([
    ("date", pa.date32()), ("minute", pa.timestamp("us", "UTC")), ("host", pa.string()), ("event", pa.string()), ("last_minute", pa.timestamp("us", "UTC")),
])  # fmt: skip
MINUTE_US = 60_000_000
MINUTES_MAX = int(datetime(9999, 1, 1, tzinfo=UTC).timestamp()) // 60
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*:[A-Za-z_][A-Za-z0-9_]*")


class MoreRows(NamedTuple):
    """Rows of a second table that follow from a micro-batch, and the new state."""

    rows: list[dict[str, Any]]
    state: Mapping[str, Any]


class Following(NamedTuple):
    """A further table: `follow` gets the state so far and these columns of the micro-batch's rows."""

    table: str
    schema: pa.Schema
    columns: tuple[str, ...]
    follow: Callable[[Mapping[str, Any], pa.Table], MoreRows]


class StreamJob(NamedTuple):
    """`table` is the directory of its rows; `module_file` is sent to workers."""

    name: str
    table: str
    transform: Callable[[DataFrame], DataFrame]
    source_schema: str | None = None
    """The source's columns that are needed; None: all but headers."""
    following: Following | None = None
    module_file: str | None = None


def built_in_job(late: str, silent_minutes: int) -> StreamJob:
    """Minutes of a log, and the hosts that are new, silent or back."""
    following = Following(HOST_TABLE, HOST_SCHEMA, ("minute", "host"), partial(follow_hosts, silent_minutes))
    return StreamJob(BUILT_IN, "minutes", partial(log_minutes, late=late), SOURCE_SCHEMA, following)


def follow_hosts(silent_minutes: int, state: Mapping[str, Any], rows: pa.Table) -> MoreRows:
    """Minutes outside the range of dates are skipped."""
    minutes_of: dict[str, list[int]] = {}
    instants = pc.cast(pc.cast(rows.column("minute"), pa.timestamp("us", "UTC")), pa.int64())
    for instant, host in zip(instants.to_pylist(), rows.column("host").to_pylist(), strict=True):
        if (minute := instant // MINUTE_US) < MINUTES_MAX:
            minutes_of.setdefault(host, []).append(minute)
    roster, events = plan_roster(Roster.from_state(state), minutes_of, silent_minutes)
    more = [
        {
            "date": time_of(event.minute).date(),
            "minute": time_of(event.minute),
            "host": event.host,
            "event": event.event,
            "last_minute": time_of(event.last_minute),
        }
        for event in events
    ]
    return MoreRows(more, roster.to_state())


def time_of(minute: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(minutes=minute)


def load_job(name: str) -> StreamJob:
    """Import a user's job, MODULE:FUNCTION, also from the current directory. Raises StreamProblem."""
    if _NAME.fullmatch(name) is None:
        raise StreamProblem(f"--job {name}: write MODULE:FUNCTION, such as my_jobs:errors_by_app")
    module_name, _, function_name = name.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # not in front: a file here must not stand for a module that is imported later
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise StreamProblem(f"--job {name}: {error}; looked in {os.getcwd()} and where Python looks") from error
    function = getattr(module, function_name, None)
    if not callable(function):
        raise StreamProblem(f"--job {name}: {module.__file__} has no function {function_name}")
    return StreamJob(name, function_name, function, module_file=_single_file(module))


def _single_file(module: Any) -> str | None:
    """Return the user's module file; packages and installed modules reach workers by other ways."""
    file = getattr(module, "__file__", None)
    if not file or "." in module.__name__ or os.path.basename(file) == "__init__.py" or "site-packages" in file:
        return None
    return str(file)
