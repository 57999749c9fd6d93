"""The state of a box, from its shared memory, image file and supervisor's socket. No log disk is read.

`gather` reads; `describe_*` and `BoxStatus.document` are pure. Weak spots: processes are read one after the other, so
figures of two of them may be microseconds apart; only what is on this box's disks counts, led or followed, and for a log of
several segments the table has the size of the active one only.
"""

from __future__ import annotations

import json
import select
import time
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from appliance.base.clock import Clock, SystemClock
from appliance.base.compiled import COMPILED_GAUGE
from appliance.base.errors import MillraceError
from appliance.base.layout import BoxLayout
from appliance.base.settings import default_settings, load_box
from appliance.cluster.disk_moves import standing_moves
from appliance.cluster.metadata_image import ImageUnreadable, MetadataImage, PartitionImage, read_image
from appliance.cluster.replication_figures import ReplicationFigures, count_replication
from appliance.command.process_memory import BoxMemory, Memory, box_memory, memory_of
from appliance.ipc.disk_reports import FoundDamage, LostOffsets, MoveProgress, lost_file, read_lost, read_report, report_file
from appliance.ipc.frames import PeerGone, connect_unix
from appliance.runtime.request_server import STATUS
from appliance.runtime.unit_process import SYSTEMD
from appliance.senders.ingest_figures import KnownSenders, look_at_senders
from appliance.shm.counters import CounterSnapshot, list_counters, read_counters
from appliance.shm.disk_tables import attach_table, overdue_operation
from appliance.shm.partition_table import DISK_STATE_NAMES, ROLE_FOLLOWER, ROLE_LEADER, ROLE_OFFLINE, Row


class TopicStatus(NamedTuple):
    """One topic. `bytes` is at least what its logs occupy here; `bytes_are_whole` says whether it is all. `problems`: partition → words."""

    name: str
    partitions: int
    records: int
    bytes: int
    bytes_are_whole: bool
    problems: dict[str, str]


LOG_WRITER_DOWN = "log-writer down"
DISK_TROUBLES = {
    "hung": "hangs",
    "full": "is full: read only",
    "starting": "is starting: its logs are being opened",
    LOG_WRITER_DOWN: "is not served: its log-writer does not run and is started again",
}
"""States of a disk in which its table looks well: that of a hung disk or of a dead log-writer is of the moment before."""


def rows_in_place(image: MetadataImage, rows: Iterable[tuple[str, Row]]) -> dict[tuple[bytes, int], Row]:
    """Return the rows by topic id and partition, without those of orphans."""
    return {(bytes(row.topic_id), row.partition): row for disk, row in rows if image.is_in_place(disk, row.topic_id, row.partition)}


def describe_topics(
    image: MetadataImage, rows: Iterable[tuple[str, Row]], broker_id: int, disk_states: Mapping[str, str] = MappingProxyType({})
) -> list[TopicStatus]:
    """Every topic of the image, by name."""
    by_partition = rows_in_place(image, rows)
    described = []
    for name, topic in sorted(image.topics.items()):
        here = [by_partition.get((bytes(topic.topic_id), partition)) for partition in range(len(topic.partitions))]
        known = [row for row in here if row is not None]
        problems = {}
        for partition, (wanted, row) in enumerate(zip(topic.partitions, here, strict=True)):
            problem = partition_problem(wanted, row, broker_id)
            trouble = DISK_TROUBLES.get(disk_states.get(wanted.disk or "", "")) if broker_id in wanted.replicas else None
            if trouble:
                of_cluster = f"; {problem}" if problem and is_of_cluster(wanted) else ""
                problem = f"disk {wanted.disk} {trouble}{of_cluster}"
            if problem:
                problems[str(partition)] = problem
        described.append(
            TopicStatus(
                name,
                len(topic.partitions),
                sum(max(row.high_watermark - row.log_start_offset, 0) for row in known),
                sum(row.active_position for row in known),
                all(row.active_base_offset <= row.log_start_offset for row in known),
                problems,
            )
        )
    return described


def is_of_cluster(wanted: PartitionImage) -> bool:
    """Return whether other boxes see a problem of the partition, too: no leader, or replicas out of sync."""
    return wanted.leader < 0 or len(wanted.isr) < len(wanted.replicas)


def partition_problem(wanted: PartitionImage, row: Row | None, broker_id: int) -> str | None:
    """What an operator should know about a partition, or None: the image says what should be, the row what is."""
    if wanted.leader < 0:
        return "no leader"
    if len(wanted.isr) < len(wanted.replicas):
        return f"under-replicated: {len(wanted.isr)} of {len(wanted.replicas)} replicas in sync"
    if broker_id not in wanted.replicas:
        return None
    if row is None:
        return f"not open on disk {wanted.disk}" if wanted.disk else "on no disk of this box"
    if row.role == ROLE_OFFLINE:
        return f"disk {wanted.disk} is offline"
    if wanted.leader == broker_id and (row.role != ROLE_LEADER or row.leader_epoch < wanted.leader_epoch):
        return "leadership not yet taken up"
    if wanted.leader != broker_id and (row.role != ROLE_FOLLOWER or row.leader_epoch < wanted.leader_epoch):
        return f"does not follow broker {wanted.leader} yet"
    return None


ANSWERS_SECONDS = 0.6
"""How long supervisor, systemd and kernel may take together; what does not come is left out, or taken from shared memory."""
SUPERVISOR_SECONDS = 0.3
MEASURE_SECONDS = 0.3
"""Time between the readings that rates come from."""


class BoxNotRunning(MillraceError):
    """The files of the box exist, but no process runs."""


class ProcessStatus(NamedTuple):
    """One process; `since_ms` is wall time, `restarts` None if they are not counted, `words` its own description."""

    name: str
    pid: int | None
    state: str
    since_ms: int | None
    restarts: int | None
    words: str = ""
    memory: Memory | None = None
    """None: not asked, or not allowed to."""
    is_compiled: bool | None = None
    """Whether it uses the compiled modules; None if it has no counters."""

    def document(self) -> dict[str, Any]:
        described = {"name": self.name, "pid": self.pid, "state": self.state, "since": self.since_ms, "restarts": self.restarts, "words": self.words}
        return described | {"compiled": self.is_compiled, "memory": None if self.memory is None else self.memory.document()}


OLD_COPY = {1: ", restored from a copy", 2: ", newer than the state directory"}
"""By `log_writer.old_copy`."""


class DiskStatus(NamedTuple):
    """One log directory as its log-writer sees it; sizes are None before it has looked."""

    name: str
    path: str
    state: str
    free_bytes: int | None
    total_bytes: int | None
    draining: bool = False
    """It is being emptied: it takes no new partitions."""

    @property
    def shown_state(self) -> str:
        return f"{self.state}, draining" if self.draining else self.state


class Reading(NamedTuple):
    """Counters and tables at one moment."""

    monotonic_ms: int
    wall_ms: int
    counters: dict[str, CounterSnapshot]
    disk_states: dict[str, str]
    rows: list[tuple[str, Row]]
    """(disk name, row)"""


class ClusterStatus(NamedTuple):
    """The cluster as this box sees it; `controller` is -1 if there is none."""

    brokers: tuple[int, ...]
    controller: int
    replication: ReplicationFigures
    has_zookeeper: bool = True
    """Whether this box's session is connected: else brokers, controller and leaders are those of before."""
    zookeeper: str = ""
    """The connect string, as clients of ZooKeeper take it."""
    absent: tuple[int, ...] = ()
    """Boxes that have replicas and are not registered."""
    has_own_controller: bool = True
    """Whether the controller process of this box runs: else all of this is of before."""
    zookeeper_missing: str = ""
    """Which members of the ensemble do not serve, in words; '' if all do or the box knows none."""

    def document(self) -> dict[str, Any]:
        return {
            "brokers": self.brokers,
            "absent": self.absent,
            "has_own_controller": self.has_own_controller,
            "zookeeper_missing": self.zookeeper_missing,
            "controller": self.controller,
            "zookeeper": self.zookeeper,
            "has_zookeeper": self.has_zookeeper,
            "replication": self.replication._asdict(),
        }


class BoxStatus(NamedTuple):
    processes: list[ProcessStatus]
    disks: list[DiskStatus]
    topics: list[TopicStatus]
    rates: dict[str, float]
    damages: dict[str, tuple[FoundDamage, ...]]
    """What the scrubbers found, by disk; disks without damage are left out."""
    lost: dict[str, tuple[LostOffsets, ...]]
    """Offsets that logs lack, by disk; disks without any are left out."""
    moves: tuple[MoveProgress, ...] = ()
    """Partitions that are being moved to another disk."""
    memory: BoxMemory | None = None
    cluster: ClusterStatus | None = None
    senders: KnownSenders | None = None

    def document(self) -> dict[str, Any]:
        """What `--json` prints."""
        return {
            "processes": [process.document() for process in self.processes],
            "memory": None if self.memory is None else self.memory.document(),
            "disks": [disk._asdict() for disk in self.disks],
            "topics": [topic._asdict() for topic in self.topics],
            "rates": self.rates,
            "cluster": None if self.cluster is None else self.cluster.document(),
            "senders": None if self.senders is None else self.senders.document(),
            "moves": [move._asdict() for move in self.moves],
            "damages": [{"disk": disk, **damage._asdict()} for disk, damages in self.damages.items() for damage in damages],
            "lost_offsets": [{"disk": disk, **each._asdict()} for disk, lost in self.lost.items() for each in lost],
        }


def read_shared_memory(layout: BoxLayout, disk_names: list[str], clock: Clock) -> Reading:
    """One look at every counter and every table of the box."""
    counters = {}
    for name in list_counters(layout):
        snapshot = read_counters(layout, name)
        if snapshot is not None:
            counters[name] = snapshot
    states: dict[str, str] = {}
    rows: list[tuple[str, Row]] = []
    hung_ns = _setting_ms(layout, "log.disk.deadline.ms") * 1_000_000
    for disk in disk_names:
        table = attach_table(layout, disk)
        if table is None:
            continue
        writer = counters.get(f"log-writer@{disk}")
        states[disk] = DISK_STATE_NAMES[table.disk_state] if table.disk_state < len(DISK_STATE_NAMES) else str(table.disk_state)
        if overdue_operation(table.words, clock.monotonic_ns(), hung_ns):
            states[disk] = "hung"
        if writer is None or not writer.is_alive:
            states[disk] = LOG_WRITER_DOWN
        rows += [(disk, row) for _, row in table.rows()]
        table.close()
    return Reading(clock.monotonic_ms(), clock.wall_ms(), counters, states, rows)


def _setting_ms(layout: BoxLayout, name: str) -> int:
    """As the box's settings say; where a box left no settings behind, the default."""
    try:
        return load_box(layout).integer(name)
    except FileNotFoundError:
        return int(default_settings()[name])


def ask_supervisor(layout: BoxLayout) -> list[dict[str, Any]] | None:
    """Processes as their supervisor knows them; None if it does not answer in time, or there is none."""
    connected = connect_unix(layout.supervisor_socket)
    if connected is None:
        return None
    poll = select.poll()
    poll.register(connected.fileno(), select.POLLIN)
    deadline = time.monotonic() + SUPERVISOR_SECONDS
    try:
        connected.send(STATUS, 1)
        while poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
            for frame in connected.receive():
                if frame.kind == STATUS:
                    processes: list[dict[str, Any]] = json.loads(frame.payload)["processes"]
                    return processes
    except PeerGone:
        return None
    finally:
        connected.close()
    return None


def describe_processes(supervised: list[dict[str, Any]] | None, counters: dict[str, CounterSnapshot]) -> list[ProcessStatus]:
    """The supervisor's word where it has one; what a process says of its own state goes before "running"."""
    if supervised is None:
        described = [_unsupervised(snapshot) for _, snapshot in sorted(counters.items())]
    else:
        described = [
            ProcessStatus(known["name"], known.get("pid"), known["state"], known.get("since"), known.get("restarts"), known.get("status", ""))
            for known in supervised
        ]
    marks = {name: snapshot.values.get(COMPILED_GAUGE) for name, snapshot in counters.items()}
    return [process._replace(is_compiled=None if (mark := marks.get(process.name)) is None else bool(mark)) for process in described]


def _unsupervised(snapshot: CounterSnapshot) -> ProcessStatus:
    return ProcessStatus(
        snapshot.process_name, snapshot.pid if snapshot.is_alive else None, snapshot.state if snapshot.is_alive else "dead", snapshot.started_wall_ms, None
    )


def describe_disks(disks: list[dict[str, Any]], reading: Reading) -> list[DiskStatus]:
    described = []
    controller = reading.counters.get("controller")
    marks = {} if controller is None else controller.values
    for disk in disks:
        name = str(disk["name"])
        snapshot = reading.counters.get(f"log-writer@{name}")
        values = {} if snapshot is None else snapshot.values
        state = reading.disk_states.get(name, "unknown")
        if snapshot is None or not snapshot.is_alive:
            state = LOG_WRITER_DOWN
        state += OLD_COPY.get(1 if marks.get("controller.restored") else values.get("log_writer.old_copy", 0), "")
        draining = bool(marks.get(f'controller.disk_draining{{disk="{name}"}}'))
        described.append(DiskStatus(name, str(disk["path"]), state, values.get("disk.free_bytes"), values.get("disk.total_bytes"), draining))
    return described


class ProcessAnswers(NamedTuple):
    """The processes as their supervisor and systemd know them, and their memory as the kernel does."""

    processes: list[ProcessStatus]
    memories: dict[str, Memory]
    zookeeper_missing: str = ""


def ask(layout: BoxLayout, box: dict[str, Any], reading: Reading) -> ProcessAnswers:
    """Ask, for ANSWERS_SECONDS at most: a process that hangs must not hold the status of the others."""
    deadline = time.monotonic() + ANSWERS_SECONDS
    probed = _begin_probe(box)
    supervised = ask_supervisor(layout)
    require_running(layout, box, supervised, reading.counters)
    if box.get("managed_by") == SYSTEMD:
        from appliance.command.unit_installation import with_unit_states  # 40 ms that a box of `millrace run` need not pay

        supervised = with_unit_states(box, supervised, deadline - time.monotonic())
    processes = describe_processes(supervised, reading.counters)
    memories = memory_of({process.name: process.pid for process in processes if process.pid}, max(0.0, deadline - time.monotonic()))
    return ProcessAnswers(processes, memories, probed())


def _begin_probe(box: dict[str, Any]) -> Callable[[], str]:
    """Probe the members of the ensemble meanwhile; call the result for the missing ones in words. One that answers neither yes nor no takes a second."""
    texts = box.get("zookeeper_members", [])
    if not texts:
        return str
    from concurrent.futures import ThreadPoolExecutor

    from appliance.base.zookeeper_member import parse_member
    from appliance.cluster.zookeeper_probe import missing_members, missing_words
    from appliance.command.ensemble_view import probe_context

    def probe() -> str:
        try:
            return missing_words(missing_members([parse_member(str(text)) for text in texts], probe_context(box)))
        except OSError as error:  # this user may not read the certificate of the box
            return f"ZooKeeper was not asked: {error}"

    pool = ThreadPoolExecutor(1)
    found = pool.submit(probe)
    pool.shutdown(wait=False)
    return found.result


def gather(layout: BoxLayout, box: dict[str, Any], before: Reading, after: Reading, answers: ProcessAnswers | None = None) -> BoxStatus:
    """The status from two readings some time apart, and from `answers` between them."""
    processes, memories, zookeeper_missing = answers or ask(layout, box, after)
    image = image_of(layout)
    pids = {process.name: process.pid for process in processes if process.pid}
    return BoxStatus(
        [process._replace(memory=memories.get(process.name)) for process in processes],
        describe_disks(box["disks"], after),
        describe_topics(image, after.rows, int(box["broker_id"]), after.disk_states),
        rates_between(before, after),
        {disk["name"]: damages for disk in box["disks"] if (damages := read_report(report_file(layout, disk["name"])).damages)},
        {disk["name"]: lost for disk in box["disks"] if (lost := read_lost(lost_file(layout, disk["name"])))},
        standing_moves(layout, image, [str(disk["name"]) for disk in box["disks"]]),
        box_memory(pids, memories),
        describe_cluster(image, after, int(box["broker_id"]), str(box.get("zookeeper", "")))._replace(zookeeper_missing=zookeeper_missing),
        look_at_senders(layout, [process.name for process in processes], _setting_ms(layout, "ingest.sender.silent.ms"), after.wall_ms),
    )


def measure(layout: BoxLayout, box: dict[str, Any]) -> BoxStatus:
    """Read shared memory twice for the rates, and ask about the processes meanwhile."""
    clock = SystemClock()
    disk_names = [str(disk["name"]) for disk in box["disks"]]
    before = read_shared_memory(layout, disk_names, clock)
    answers = ask(layout, box, before)
    time.sleep(max(0.0, MEASURE_SECONDS - (clock.monotonic_ms() - before.monotonic_ms) / 1000))
    return gather(layout, box, before, read_shared_memory(layout, disk_names, clock), answers)


def describe_cluster(image: MetadataImage, reading: Reading, broker_id: int, zookeeper: str = "") -> ClusterStatus:
    by_partition = rows_in_place(image, reading.rows)
    controller = reading.counters.get("controller")
    runs = controller is None or controller.is_alive
    has_zookeeper = controller is None or not runs or bool(controller.values.get("controller.zookeeper_connected", 1))
    placed = {replica for topic in image.topics.values() for partition in topic.partitions for replica in partition.replicas}
    return ClusterStatus(
        tuple(sorted(image.brokers)),
        image.controller_id,
        count_replication(image, by_partition, broker_id),
        has_zookeeper,
        zookeeper,
        tuple(sorted(placed - image.brokers.keys())),
        runs,
    )


def require_running(layout: BoxLayout, box: dict[str, Any], supervised: list[dict[str, Any]] | None, counters: dict[str, CounterSnapshot]) -> None:
    """BoxNotRunning when neither the supervisor answers nor any process that has counters is alive."""
    if supervised is None and not any(snapshot.is_alive for snapshot in counters.values()):
        directory = box["disks"][0]["path"] if box.get("disks") else layout.runtime_directory
        raise BoxNotRunning(f"the box of {directory} does not run: it ended without tidying up; start it again with `{_start_command(box)}`")


def _start_command(box: dict[str, Any]) -> str:
    return "systemctl start millrace.target" if box.get("managed_by") == SYSTEMD else "millrace run"


def image_of(layout: BoxLayout) -> MetadataImage:
    try:
        return read_image(layout.image_file) or MetadataImage.empty()
    except ImageUnreadable:
        return MetadataImage.empty()


RATE_COUNTERS: dict[str, str] = {
    "records_in_per_s": "log_writer.records",
    "bytes_in_per_s": "log_writer.bytes",
    "bytes_out_per_s": "fetch.sendfile_bytes",
    "syslog_lines_per_s": "ingest.received",
}
"""Name of a rate → the counter, summed over processes and label values, that it is the rise of."""


def rates_between(before: Reading, after: Reading) -> dict[str, float]:
    """Per second. Counters outlive their process, so a restart in between costs nothing."""
    seconds = max(after.monotonic_ms - before.monotonic_ms, 1) / 1000
    return {name: round(max(_sum(after, counter) - _sum(before, counter), 0) / seconds, 1) for name, counter in RATE_COUNTERS.items()}


def _sum(reading: Reading, counter: str) -> int:
    labelled = counter + "{"
    return sum(value for snapshot in reading.counters.values() for label, value in snapshot.values.items() if label == counter or label.startswith(labelled))
