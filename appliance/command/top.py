"""`millrace top`: once a second CPU and memory of each process, disks, requests with latencies, topics, syslog.

Everything is read from shared memory and /proc, so watching costs the box nothing. On a small terminal topics are left out
first, the quietest first, then processes. Weak spot: memory (PSS) is read every fifth time only, because the kernel takes
milliseconds for it.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from appliance.base.clock import SystemClock
from appliance.command.finding import FoundBox, find_running_box
from appliance.command.options import ConfigOption, DataOption, option
from appliance.command.output import NOTHING, Column, bytes_text, count_text, duration_text, micros_text, plain_table, plural, rich_table, until_reader_closes

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


MEMORY_EVERY = 5


def top(
    once: Annotated[bool, option("--once", help="Measure one interval, print it and end; so it is anyway where the output is no terminal.")] = False,
    as_json: Annotated[bool, option("--json", help="For programs: one interval as JSON.")] = False,
    interval: Annotated[float, option("--interval", "-i", metavar="SECONDS", min=0.1, max=3600, help="Time between two looks. [default: 1]")] = 1.0,
    data: DataOption = None,
    config: ConfigOption = None,
) -> None:
    """Watch rates and latencies of processes, disks, requests and topics; Ctrl-C ends it.

    Latencies are of the last interval, within 12.5 %. "fetch" leaves out the time in which a fetch waits for records to come.
    """
    watch = BoxWatch(find_running_box(data, config))
    try:
        if as_json or once or not sys.stdout.isatty():
            activity = watch.measure(interval)
            with until_reader_closes():
                sys.stdout.write(json.dumps(activity.document(), indent=2) + "\n" if as_json else _plain(watch, activity))
        else:
            show_live(watch, interval)
    except KeyboardInterrupt:
        pass  # the ordinary end of watching something


def _plain(watch: BoxWatch, activity: Activity) -> str:
    from appliance.command.top import plain_text

    return plain_text(watch.title(), activity)


def show_live(watch: BoxWatch, interval: float) -> None:
    """On the terminal's other screen, which is gone afterwards; what was there before is there again."""
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    from appliance.command.top import rich_screen

    console = Console(highlight=False)
    with Live(Text("measuring …"), console=console, screen=True, auto_refresh=False) as live:
        while True:
            activity = watch.measure(interval)
            live.update(rich_screen(watch.title(), activity, console.height), refresh=True)


class BoxWatch:
    """Samples one box again and again; remembers the last one."""

    def __init__(self, found: FoundBox) -> None:
        from appliance.command.box_activity import take_sample

        self._found = found
        self._clock = SystemClock()
        self._disks = [str(disk["name"]) for disk in found.box["disks"]]
        self._memory: dict[int, int | None] = {}
        self._looks = 0
        self._last = take_sample(found.layout, self._disks, self._processes(), self._clock, with_memory=False)

    def title(self) -> str:
        box: dict[str, Any] = self._found.box
        started_ms = int(box.get("started_wall_ms") or 0)
        up = f"  up {duration_text((self._clock.wall_ms() - started_ms) / 1000)}" if started_ms else ""
        return f"box {self._found.layout.box}  kafka {self._found.kafka_address}{up}"

    def measure(self, seconds: float) -> Activity:
        """Wait, sample, and return what happened since the last sample. Raises BoxNotRunning if the box has ended."""
        from appliance.command.box_activity import activity_between, take_sample
        from appliance.command.box_status import image_of

        time.sleep(seconds)
        with_memory = self._looks % MEMORY_EVERY == 0
        self._looks += 1
        processes = self._processes()
        sample = take_sample(self._found.layout, self._disks, processes, self._clock, with_memory)
        if with_memory:
            self._memory = {pid: usage.pss_bytes for pid, usage in sample.usages.items()}
        remembered = {pid: usage._replace(pss_bytes=self._memory.get(pid)) for pid, usage in sample.usages.items()}
        sample = sample._replace(usages=remembered)
        before, self._last = self._last, sample
        return activity_between(self._found.box, image_of(self._found.layout), processes, before, sample)

    def _processes(self) -> list[Any]:
        from appliance.command.box_status import ask_supervisor, describe_processes, read_shared_memory, require_running

        supervised = ask_supervisor(self._found.layout)
        counters = {} if supervised is not None else read_shared_memory(self._found.layout, [], self._clock).counters
        require_running(self._found.layout, self._found.box, supervised, counters)
        return describe_processes(supervised, counters)
