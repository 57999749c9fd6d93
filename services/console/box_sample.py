"""Samples the whole box from shared memory and files on tmpfs: counters, tables, metadata image,
cost of processes.

`BoxReader` keeps the mappings and reads what changed (about 1 ms for 2,000 idle partitions);
`BoxSample` is the result. No request is sent to another process. Owned by the console's loop. Weak:
processes are read one after the other, so their figures may be some microseconds apart.

Whether a process serves, judged by its counters alone.

Pure. Weak: a process that hangs counts as serving until
its heartbeat is older than the watchdog allows.

Counts senders and silent senders, from files that the ingests write once a second.

Owned by the console's loop. A file is read again after it was replaced; silence is judged by the
present time. Weak: senders that exceed an ingest's limit are not included.
"""

from __future__ import annotations

import os
from math import nan
from typing import Any, NamedTuple

import orjson

from appliance.base.clock import Clock
from appliance.base.layout import BoxLayout
from appliance.base.settings import Box, load_box
from appliance.cluster.metadata_image import ImageUnreadable, MetadataImage, read_image
from appliance.runtime.process_cost import ProcessCost, published_cost
from appliance.senders.ingest_figures import IngestFigures, gather
from appliance.senders.sender_accounts import OTHERS, read_senders, senders_file
from appliance.shm.counters import CounterReader, CounterSnapshot, list_counters
from services.console.disk_sample import DiskReader, DiskSample


class Readiness(NamedTuple):
    """`missing`: name → why it does not serve."""

    processes: int
    missing: dict[str, str]

    @property
    def is_ready(self) -> bool:
        """Whether all processes serve."""
        return not self.missing


def judge_process(snapshot: CounterSnapshot | None, alive: bool, now_ns: int, silence_ns_max: int) -> str | None:
    """Return why a process does not serve, or None."""
    if snapshot is None:
        return "not started"
    if not alive:
        return "dead"
    if snapshot.state != "serving":
        return snapshot.state or "starting"
    if now_ns - snapshot.heartbeat_ns > silence_ns_max:
        return "hung"
    return None


class SendersSample(NamedTuple):
    """`silent` are those of `known` that were not heard for long."""

    known: int = 0
    silent: int = 0


class SendersReader:
    """Reads the ingests' files of senders repeatedly; an unchanged file is not read again."""

    def __init__(self, layout: BoxLayout, silent_ms: int) -> None:
        self._layout = layout
        self._silent_ms = silent_ms
        self._changed_ns: dict[str, int] = {}
        self._last_seen_ms: dict[str, dict[str, int]] = {}

    def look(self, ingests: list[str], wall_ms: int) -> SendersSample:
        """Return the senders of these ingests together: one that any of them heard is not silent."""
        last_seen_ms: dict[str, int] = {}
        for name in ingests:
            for host, seen_ms in self._of(name).items():
                last_seen_ms[host] = max(seen_ms, last_seen_ms.get(host, 0))
        return SendersSample(len(last_seen_ms), sum(wall_ms - seen_ms >= self._silent_ms for seen_ms in last_seen_ms.values()))

    def _of(self, name: str) -> dict[str, int]:
        path = senders_file(self._layout, name)
        try:
            changed_ns = os.stat(path).st_mtime_ns
        except OSError:
            return {}
        if self._changed_ns.get(name) != changed_ns:
            self._changed_ns[name] = changed_ns
            self._last_seen_ms[name] = {known.host: known.last_seen_ms for known in read_senders(path) if known.host != OTHERS}
        return self._last_seen_ms[name]


SUPERVISOR = "supervisor"
SERVING = "serving"
PROCESS_STATES = ("not started", "starting", "recovering", SERVING, "offline", "stopping", "dead", "hung")


class ProcessSample(NamedTuple):
    """One process of the box; `pid` is 0 while it does not run."""

    name: str
    state: str
    pid: int = 0
    started_wall_ms: int = 0
    heartbeat_ns: int = 0
    cost: ProcessCost | None = None
    pss_bytes: int | None = None


class BoxSample(NamedTuple):
    """The box at one moment; `counters` and `disks` by name."""

    wall_ms: int
    monotonic_ns: int
    box: Box
    processes: tuple[ProcessSample, ...]
    counters: dict[str, CounterSnapshot]
    disks: dict[str, DiskSample]
    image: MetadataImage
    senders: SendersSample = SendersSample()
    tables: tuple[dict[str, Any], ...] = ()
    """What the tabler shows of each table (`services/tabler/table_state.py`)."""

    @property
    def is_alive(self) -> bool:
        """Whether a process of the box runs besides the console."""
        return any(process.pid for process in self.processes if process.name != "console")

    @property
    def missing(self) -> dict[str, str]:
        """Name → why it does not serve, except for the supervisor."""
        return {process.name: process.state for process in self.processes if process.state != SERVING and process.name != SUPERVISOR}

    @property
    def readiness(self) -> Readiness:
        """The answer of `/readyz`."""
        return Readiness(len(self.box.process_names()), self.missing)

    @property
    def fullest_disk_percent(self) -> float:
        """The used share of the disk that is used most; NaN if no log-writer has reported."""
        sizes = [snapshot.values for name, snapshot in self.counters.items() if name.startswith("log-writer@")]
        used = [100 * (1 - values.get("disk.free_bytes", 0) / size) for values in sizes if (size := values.get("disk.total_bytes"))]
        return max(used, default=nan)

    def total(self, counter: str, process: str = "") -> int:
        """Return the sum of a counter over its label values, of one process or of all."""
        labelled = counter + "{"
        return sum(
            value
            for name, snapshot in self.counters.items()
            if process in ("", name)
            for label, value in snapshot.values.items()
            if label == counter or label.startswith(labelled)
        )


class BoxReader:
    """Takes samples of the box repeatedly; keeps its mappings between them."""

    def __init__(self, layout: BoxLayout, box: Box, clock: Clock) -> None:
        self.layout = layout
        self._clock = clock
        self._box = box
        self._box_changed_ns = -1
        self._counters: dict[str, CounterReader] = {}
        self._disks: dict[str, DiskReader] = {}
        self._senders = SendersReader(layout, box.integer("ingest.sender.silent.ms"))
        self._image = MetadataImage.empty()
        self._image_identity: tuple[int, int] = (0, 0)
        self._tables: tuple[dict[str, Any], ...] = ()
        self._tables_identity: tuple[int, int] = (0, 0)

    def read(self) -> BoxSample:
        """Return a new sample. Takes about 1 ms for 2,000 idle partitions."""
        self._look_at_box()
        self._look_at_image()
        self._look_at_tables()
        now_ns = self._clock.monotonic_ns()
        counters = self._read_counters()
        processes = tuple(self._process(name, counters.get(name), now_ns) for name in (SUPERVISOR, *self._box.process_names()))
        disks = {disk.name: self._disks[disk.name].look(now_ns) for disk in self._box.disks}
        wall_ms = self._clock.wall_ms()
        senders = self._senders.look([f"ingest@{index}" for index in range(self._box.ingests)], wall_ms)
        return BoxSample(wall_ms, now_ns, self._box, processes, counters, disks, self._image, senders, self._tables)

    def senders(self, now_ms: int) -> IngestFigures:
        """Return what senders brought. Reads the ingests' files of senders, thousands of rows."""
        return gather(self.layout, self._box, None, now_ms)

    def _read_counters(self) -> dict[str, CounterSnapshot]:
        names = list_counters(self.layout)
        for gone in [name for name in self._counters if name not in names]:
            self._counters.pop(gone).close()
        snapshots = {}
        for name in names:
            reader = self._counters.setdefault(name, CounterReader(self.layout, name))
            snapshot = reader.read()
            if snapshot is not None:
                snapshots[name] = snapshot
        return snapshots

    def _process(self, name: str, snapshot: CounterSnapshot | None, now_ns: int) -> ProcessSample:
        alive = snapshot is not None and snapshot.is_alive
        state = judge_process(snapshot, alive, now_ns, self._box.integer("watchdog.timeout.ms") * 1_000_000) or SERVING
        if snapshot is None or not alive:
            return ProcessSample(name, state)
        return ProcessSample(name, state, snapshot.pid, snapshot.started_wall_ms, snapshot.heartbeat_ns, *published_cost(snapshot.values))

    def _look_at_box(self) -> None:
        """Follow disks that are added and removed."""
        changed_ns = _stat(self.layout.box_file)[0]
        if changed_ns and changed_ns != self._box_changed_ns:
            self._box_changed_ns = changed_ns
            self._box = load_box(self.layout)
        names = {disk.name for disk in self._box.disks}
        for name in names - self._disks.keys():
            self._disks[name] = DiskReader(self.layout, name, self._box.integer("log.disk.deadline.ms"))
        for name in self._disks.keys() - names:
            self._disks.pop(name).close()

    def _look_at_image(self) -> None:
        identity = _stat(self.layout.image_file)
        if identity == self._image_identity:
            return
        try:
            self._image = read_image(self.layout.image_file) or MetadataImage.empty()
        except ImageUnreadable:
            return  # keep the last image; processes that need it log the problem
        self._image_identity = identity

    def _look_at_tables(self) -> None:
        identity = _stat(self.layout.tables_file)
        if identity == self._tables_identity:
            return
        self._tables, self._tables_identity = (), identity
        try:
            with open(self.layout.tables_file, "rb") as file:
                shown = orjson.loads(file.read())
        except (OSError, orjson.JSONDecodeError):
            return
        if shown.get("box_started_ms") == self._box.started_wall_ms:  # otherwise of an earlier start, with or without tables now
            self._tables = tuple(shown["tables"])

    def close(self) -> None:
        """Unmap all counters and partition tables."""
        for reader in self._counters.values():
            reader.close()
        for disk in self._disks.values():
            disk.close()


def _stat(path: str) -> tuple[int, int]:
    """Return (time of change, inode); zeros if the file does not exist."""
    try:
        found = os.stat(path)
    except OSError:
        return 0, 0
    return found.st_mtime_ns, found.st_ino
