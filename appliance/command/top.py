"""`millrace top`: what the box is doing, once a second: processor and memory of each process, disks, requests with their latencies, topics, syslog.

Everything is read from shared memory and /proc, so watching costs the box nothing. Weak spot: memory (PSS) is asked for every fifth time only,
because the kernel takes milliseconds for it.
"""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING, Annotated, Any

from appliance.base.clock import SystemClock
from appliance.command.finding import FoundBox, find_running_box
from appliance.command.options import ConfigOption, DataOption, option
from appliance.command.output import duration_text, while_somebody_reads

if TYPE_CHECKING:
    from appliance.command.box_activity import Activity

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
            with while_somebody_reads():
                sys.stdout.write(json.dumps(activity.document(), indent=2) + "\n" if as_json else _plain(watch, activity))
        else:
            show_live(watch, interval)
    except KeyboardInterrupt:
        pass  # the ordinary end of watching something


def _plain(watch: BoxWatch, activity: Activity) -> str:
    from appliance.command.top_view import plain_text

    return plain_text(watch.title(), activity)


def show_live(watch: BoxWatch, interval: float) -> None:
    """On the terminal's other screen, which is gone afterwards; what was there before is there again."""
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    from appliance.command.top_view import rich_screen

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
        """Wait, look, and say what happened since the last look. Raises BoxNotRunning when there is nobody any more."""
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
