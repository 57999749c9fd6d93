"""How `millrace top` looks: an `Activity` as a heading and tables, which print plainly or live on a terminal. Pure.

On a small terminal topics are left out first, the quietest first, then processes. Weak spot: disks never are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from appliance.command.output import NOTHING, Column, bytes_text, count_text, micros_text, plain_table, plural, rich_table

if TYPE_CHECKING:
    from rich.console import RenderableType

    from appliance.command.box_activity import Activity, Latency

_LATENCIES = [Column(title, is_number=True) for title in ("p50", "p99", "p99.9", "max")]
FIXED_LINES = 22
"""Headings, blanks, requests and what says that more was left out, beside a line for each process, disk and topic."""
ROWS_MIN = 3


class TopTable(NamedTuple):
    columns: Sequence[Column]
    rows: list[list[str]]


def heading(title: str, activity: Activity) -> str:
    return f"{title}  {plural(activity.connections, 'connection')}, {plural(activity.parked, 'request')} parked"


def tables(activity: Activity, topics_max: int | None = None, processes_max: int | None = None) -> list[TopTable]:
    return [_processes(activity, processes_max), _disks(activity), _requests(activity), _topics(activity, topics_max)]


def syslog_line(activity: Activity) -> str:
    """The ledger: whatever was received is stored, counted with a reason, or still in flight."""
    syslog = activity.syslog
    dropped = f"; {count_text(syslog.kernel_drops)} dropped by the kernel" if syslog.kernel_drops else ""
    return (
        f"syslog {count_text(syslog.lines_per_s)} lines/s: {count_text(syslog.received)} received = {count_text(syslog.stored)} stored"
        f" + {count_text(syslog.counted)} counted + {count_text(syslog.in_flight)} in flight{dropped}"
    )


def plain_text(title: str, activity: Activity) -> str:
    """For a file or a pipe."""
    return "\n".join([f"{heading(title, activity)}\n", *(plain_table(*table) for table in tables(activity) if table.rows), syslog_line(activity)]) + "\n"


def rich_screen(title: str, activity: Activity, height: int) -> RenderableType:
    """For a terminal of `height` lines."""
    from rich.console import Group
    from rich.text import Text

    room = height - FIXED_LINES - len(activity.disks)
    processes_max = max(room - ROWS_MIN, ROWS_MIN)
    topics_max = max(room - min(len(activity.processes), processes_max), ROWS_MIN)
    parts: list[RenderableType] = [Text(heading(title, activity), style="bold"), Text()]
    for table in tables(activity, topics_max, processes_max):
        if table.rows:
            parts += [rich_table(*table), Text()]
    return Group(*parts, Text(syslog_line(activity)))


def _processes(activity: Activity, processes_max: int | None) -> TopTable:
    """All of them in their order, or the busiest."""
    shown = activity.processes
    if processes_max is not None and len(shown) > processes_max:
        shown = sorted(shown, key=lambda process: -(process.cpu_percent or 0))[:processes_max]
    columns = [Column("process"), Column("pid", is_number=True), Column("state"), Column("cpu", is_number=True), Column("pss", is_number=True),
               Column("restarts", is_number=True)]  # fmt: skip
    rows = [
        [process.name, str(process.pid or NOTHING), process.state, _percent(process.cpu_percent), bytes_text(process.pss_bytes), count_text(process.restarts)]
        for process in shown
    ]
    if left := len(activity.processes) - len(shown):
        rows.append([f"and {left} more", *[""] * (len(columns) - 1)])
    return TopTable(columns, rows)


def _disks(activity: Activity) -> TopTable:
    columns = [Column("disk"), Column("state"), Column("written/s", is_number=True), Column("appends/s", is_number=True),
               Column("round p50", is_number=True), Column("p99", is_number=True), Column("free", is_number=True)]  # fmt: skip
    rows = [
        [disk.name, disk.state, bytes_text(disk.bytes_per_s), count_text(disk.appends_per_s), micros_text(disk.append.p50_us), micros_text(disk.append.p99_us),
         bytes_text(disk.free_bytes)]
        for disk in activity.disks
    ]  # fmt: skip
    return TopTable(columns, rows)


def _requests(activity: Activity) -> TopTable:
    columns = [Column("work"), Column("per s", is_number=True), *_LATENCIES]
    return TopTable(columns, [[request.name, count_text(request.per_s), *_latency_texts(request.latency)] for request in activity.requests])


def _topics(activity: Activity, topics_max: int | None) -> TopTable:
    columns = [Column("topic"), Column("partitions", is_number=True), Column("records in/s", is_number=True), Column("in/s", is_number=True),
               Column("records out/s", is_number=True), Column("out/s", is_number=True)]  # fmt: skip
    shown = activity.topics if topics_max is None else activity.topics[:topics_max]
    rows = [
        [topic.name, str(topic.partitions), count_text(topic.records_in_per_s), bytes_text(topic.bytes_in_per_s), _estimate(topic.records_out_per_s),
         bytes_text(topic.bytes_out_per_s)]
        for topic in shown
    ]  # fmt: skip
    if left := len(activity.topics) - len(shown):
        rows.append([f"and {left} more", *[""] * (len(columns) - 1)])
    return TopTable(columns, rows)


def _latency_texts(latency: Latency) -> list[str]:
    return [micros_text(value) for value in latency]


def _percent(percent: float | None) -> str:
    return NOTHING if percent is None else f"{percent:.0f} %"


def _estimate(count: float) -> str:
    """Records that went out are estimated from bytes."""
    return f"~{count_text(count)}" if count else "0"
