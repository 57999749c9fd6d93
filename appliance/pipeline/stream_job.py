"""What a streaming job is: a function from the stream of records to the stream of rows, and what follows from the rows of each micro-batch.

`MODULE:FUNCTION` names a function of the user's own: DataFrame in (the columns of `spark.readStream.format("millrace")`), DataFrame out; it runs as the one
that is built in does. Weak spot: modules beside the user's own are not sent to Spark's workers; `--master` users send them by `spark.submit.pyFiles`.
"""

from __future__ import annotations

import importlib
import os
import re
import sys
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from appliance.pipeline.host_roster import Roster, plan_roster
from appliance.pipeline.log_minutes import SOURCE_SCHEMA, log_minutes
from appliance.pipeline.stream_problem import StreamProblem

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

BUILT_IN = "log_minutes"
HOST_TABLE = "hosts"
HOST_SCHEMA = pa.schema([
    ("date", pa.date32()), ("minute", pa.timestamp("us", "UTC")), ("host", pa.string()), ("event", pa.string()), ("last_minute", pa.timestamp("us", "UTC")),
])  # fmt: skip
MINUTE_US = 60_000_000
MINUTES_MAX = int(datetime(9999, 1, 1, tzinfo=UTC).timestamp()) // 60
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*:[A-Za-z_][A-Za-z0-9_]*")


class MoreRows(NamedTuple):
    """Rows of one more table that follow from a micro-batch, and the state that goes with them."""

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
    """Of the source's columns those that are needed; all but headers where this is None."""
    following: Following | None = None
    module_file: str | None = None


def built_in_job(late: str, silent_minutes: int) -> StreamJob:
    """Minutes of a log, and the hosts that are new, silent or back."""
    following = Following(HOST_TABLE, HOST_SCHEMA, ("minute", "host"), partial(follow_hosts, silent_minutes))
    return StreamJob(BUILT_IN, "minutes", partial(log_minutes, late=late), SOURCE_SCHEMA, following)


def follow_hosts(silent_minutes: int, state: Mapping[str, Any], rows: pa.Table) -> MoreRows:
    """Minutes beyond what a date can be are passed over."""
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
    """The user's own, by MODULE:FUNCTION; found in the current directory, too. Raises StreamProblem."""
    if _NAME.fullmatch(name) is None:
        raise StreamProblem(f"--job {name}: write MODULE:FUNCTION, such as my_jobs:errors_by_app")
    module_name, _, function_name = name.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise StreamProblem(f"--job {name}: {error}; looked in {os.getcwd()} and where Python looks") from error
    function = getattr(module, function_name, None)
    if not callable(function):
        raise StreamProblem(f"--job {name}: {module.__file__} has no function {function_name}")
    return StreamJob(name, function_name, function, module_file=_single_file(module))


def _single_file(module: Any) -> str | None:
    """A module that is one file of the user's; packages and what is installed are on workers by other ways."""
    file = getattr(module, "__file__", None)
    if not file or "." in module.__name__ or os.path.basename(file) == "__init__.py" or "site-packages" in file:
        return None
    return str(file)
