"""`millrace status`: processes, disks, topics and rates of a box, for people or (`--json`) for programs."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

from appliance.base.clock import SystemClock
from appliance.base.settings import Box
from appliance.command.finding import find_running_box
from appliance.command.options import ConfigOption, DataOption, JsonOption
from appliance.command.output import NOTHING, Column, bytes_text, count_text, duration_text, plural, print_table
from appliance.runtime.ensemble_checks import access_warning

if TYPE_CHECKING:
    from appliance.command.box_status import BoxStatus, ClusterStatus, ProcessStatus, TopicStatus
    from appliance.command.finding import FoundBox
    from appliance.command.process_memory import BoxMemory, Memory
    from appliance.ipc.disk_reports import FoundDamage, LostOffsets, MoveProgress
    from appliance.senders.ingest_figures import KnownSenders

DAMAGES_SHOWN = 5
MOVES_SHOWN = 10
MISSING_SHOWN = 3
SILENT_SHOWN = 5
WORDS_SHOWN = 60
"""Of what a process says of itself; `disk list` and the journal tell all."""


def status(
    as_json: JsonOption = False,
    data: DataOption = None,
    config: ConfigOption = None,
) -> None:
    """Show processes, disks, topics and rates."""
    found = find_running_box(data, config)
    from appliance.command.box_status import measure

    gathered = measure(found.layout, found.box)
    if as_json:
        sys.stdout.write(json.dumps(gathered.document(), indent=2) + "\n")
    else:
        print_status(found, gathered, SystemClock().wall_ms())


def _access_warning(found: FoundBox) -> str | None:
    try:
        return access_warning(Box.from_document(dict(found.box)))
    except TypeError:  # box.json of another release
        return None


def print_status(found: FoundBox, gathered: BoxStatus, now_ms: int) -> None:
    started_ms = int(found.box.get("started_wall_ms") or 0)
    up = f"  up {duration_text((now_ms - started_ms) / 1000)}" if started_ms else ""
    zookeeper = f"  zookeeper {found.box['zookeeper']}" if found.box.get("zookeeper") else ""
    print(f"box {found.layout.box}  kafka {found.kafka_address}  broker {found.box['broker_id']}{zookeeper}{up}\n")
    if (access := _access_warning(found)) is not None:
        print(f"warning: {access}\n")
    columns = [Column("process"), Column("pid", is_number=True), Column("state"), Column("since", is_number=True), Column("restarts", is_number=True)]
    print_table(
        [*columns, Column("memory", is_number=True), Column("arenas", is_number=True)],
        [
            [process.name, str(process.pid or NOTHING), _state(process), _age(process.since_ms, now_ms), count_text(process.restarts), *_memory(process.memory)]
            for process in gathered.processes
        ],
    )
    if gathered.memory is not None:
        print_memory(gathered.memory)
    print(code_line(gathered.processes))
    print()
    print_table(
        [Column("disk"), Column("state"), Column("free", is_number=True), Column("total", is_number=True), Column("path")],
        [[disk.name, disk.shown_state, bytes_text(disk.free_bytes), bytes_text(disk.total_bytes), disk.path] for disk in gathered.disks],
    )
    for disk_name, damages in gathered.damages.items():
        print_damages(disk_name, damages)
    for disk_name, lost in gathered.lost.items():
        print_lost(disk_name, lost)
    if gathered.moves:
        print_moves(gathered.moves)
    print()
    print_table(
        [Column("topic"), Column("partitions", is_number=True), Column("records", is_number=True), Column("size", is_number=True), Column("state")],
        [[topic.name, str(topic.partitions), count_text(topic.records), _size(topic), _problems(topic.problems)] for topic in gathered.topics],
    )
    if gathered.cluster is not None and (len(gathered.cluster.brokers) > 1 or gathered.cluster.absent):
        print(f"\n{cluster_line(gathered.cluster)}")
    if gathered.cluster is not None and not gathered.cluster.has_own_controller:
        print(f"\n{NO_CONTROLLER}")
    if gathered.cluster is not None and not gathered.cluster.has_zookeeper:
        print(f"\n{zookeeper_line(gathered.cluster)}")
    if gathered.cluster is not None and gathered.cluster.zookeeper_missing:
        print(f"\n{gathered.cluster.zookeeper_missing}")
    if gathered.senders is not None and gathered.senders.known_count:
        print(f"\n{senders_line(gathered.senders)}")
    print()
    print("  ".join(_rate(name, rate) for name, rate in gathered.rates.items()))


NO_CONTROLLER = (
    "the controller of this box does not run: boxes, leaders and in-sync sets are shown as it last saw them, and topics are neither created nor moved"
    " until it runs again"
)


def cluster_line(cluster: ClusterStatus) -> str:
    """The boxes, and the replication of what this box leads."""
    found = cluster.replication
    controller = f"controller is {cluster.controller}" if cluster.controller in cluster.brokers else "no controller"
    troubles = {
        "under-replicated": found.under_replicated,
        "below min.insync.replicas": found.under_min_isr,
        "without leader": found.offline,
        "led by others instead": found.not_preferred,
    }
    words = [f"{count} {trouble}" for trouble, count in troubles.items() if count]
    if cluster.absent:
        words.insert(0, f"not registered, although partitions have replicas there: {', '.join(map(str, cluster.absent))}")
    if found.unreplicated_records_max:
        words.append(f"up to {count_text(found.unreplicated_records_max)} records of a partition not replicated yet")
    return f"cluster of brokers {', '.join(map(str, cluster.brokers))}, {controller}; here {found.leaders} partitions led and {found.followers} followed: " + (
        ", ".join(words) or "ok"
    )


def zookeeper_line(cluster: ClusterStatus) -> str:
    """What does not go on while the ensemble cannot be reached from here."""
    words = "ZooKeeper is not reached from this box: topics, leaders and in-sync sets stay as they were"
    if len(cluster.brokers) < 2:
        return words
    return f"{words}; consumers, and producers without acks=all, are refused where other boxes have replicas, too"


def senders_line(senders: KnownSenders) -> str:
    """The number of senders, and the silent ones, longest first."""
    words = f"{plural(senders.known_count, 'sender')} of lines"
    if not senders.silent:
        return f"{words}, none silent for {duration_text(senders.limit_ms / 1000)}"
    shown = [f"{known.host} (for {duration_text(known.silent_ms(senders.now_ms) / 1000)})" for known in senders.silent[:SILENT_SHOWN]]
    more = f" and {len(senders.silent) - SILENT_SHOWN} more" if len(senders.silent) > SILENT_SHOWN else ""
    return f"{words}; silent: {', '.join(shown)}{more}; see `millrace ingest status --senders`"


def code_line(processes: list[ProcessStatus]) -> str:
    """Whether the processes use the compiled modules of the produce path; those that do not, if some do."""
    pure = [process.name for process in processes if process.is_compiled is False]
    if not any(process.is_compiled for process in processes):
        return "produce path: pure Python"
    return "produce path: compiled" + (f", but pure Python in {', '.join(pure)}" if pure else "")


def print_memory(memory: BoxMemory) -> None:
    """One line for all Python processes, as the promise about them is made: without the arenas, and with them."""
    python = memory.python
    print(
        f"memory (PSS) of all Python processes: {bytes_text(python.without_arenas)} without arenas ({bytes_text(python.own)} their own, "
        f"{bytes_text(python.other_shared)} tables, rings and counters), {bytes_text(python.total)} with them"
        + (f"; of the JVM: {bytes_text(memory.jvm.total)}" if memory.jvm is not None else "")
    )
    if memory.missing:
        shown = ", ".join(memory.missing[:MISSING_SHOWN]) + (f" and {len(memory.missing) - MISSING_SHOWN} more" if len(memory.missing) > MISSING_SHOWN else "")
        print(f"without {shown}, which could not be read: only root and the box's user may read them, and a process that waits for its disk does not answer")


def print_moves(moves: tuple[MoveProgress, ...]) -> None:
    """Those that are under way before those that wait."""
    from appliance.command.moves import MOVE_COLUMNS, move_row

    print()
    print_table(MOVE_COLUMNS, [move_row(move) for move in sorted(moves, key=lambda move: move.state == "waiting")[:MOVES_SHOWN]])
    if len(moves) > MOVES_SHOWN:
        print(f"and {len(moves) - MOVES_SHOWN} more (--json shows all)")


def print_damages(disk: str, damages: tuple[FoundDamage, ...]) -> None:
    print(f"\ndisk {disk}: {len(damages)} damaged places in closed segments")
    for damage in damages[:DAMAGES_SHOWN]:
        print(f"  {damage.topic}-{damage.partition} offset {damage.offset}, {damage.file} at byte {damage.position}: {damage.words}")
    if len(damages) > DAMAGES_SHOWN:
        print(f"  and {len(damages) - DAMAGES_SHOWN} more (--json shows all)")


def print_lost(disk: str, lost: tuple[LostOffsets, ...]) -> None:
    print(f"\ndisk {disk}: {len(lost)} ranges of offsets are missing; their files were changed beside the log-writer")
    for each in lost[:DAMAGES_SHOWN]:
        state = "consumers go on behind them" if each.is_settled else "waits for a leader, or a restart of the log-writer"
        print(f"  {each.topic}-{each.partition} lacks offsets {each.first} to {each.until - 1}: {state}")
    if len(lost) > DAMAGES_SHOWN:
        print(f"  and {len(lost) - DAMAGES_SHOWN} more (--json shows all)")


def _rate(name: str, rate: float) -> str:
    what = name.removesuffix("_per_s")
    if what.startswith("bytes_"):
        return f"{what.removeprefix('bytes_')} {bytes_text(rate)}/s"
    return f"{what.replace('_', ' ')} {count_text(rate)}/s"


def _state(process: ProcessStatus) -> str:
    """What it says of itself matters while it does not serve: how far recovery is, what it waits for."""
    if not process.words or process.state == "serving":
        return process.state
    return f"{process.state} ({process.words if len(process.words) <= WORDS_SHOWN else process.words[: WORDS_SHOWN - 1] + '…'})"


def _memory(memory: Memory | None) -> list[str]:
    return [NOTHING, NOTHING] if memory is None else [bytes_text(memory.without_arenas), bytes_text(memory.arenas) if memory.arenas else NOTHING]


def _age(since_ms: int | None, now_ms: int) -> str:
    return NOTHING if not since_ms else duration_text((now_ms - since_ms) / 1000)


def _size(topic: TopicStatus) -> str:
    return bytes_text(topic.bytes) if topic.bytes_are_whole else f"> {bytes_text(topic.bytes)}"


def _problems(problems: dict[str, str]) -> str:
    if not problems:
        return "ok"
    shown = [f"{partition}: {words}" for partition, words in list(problems.items())[:3]]
    return "; ".join(shown) + (f"; and {len(problems) - 3} more" if len(problems) > 3 else "")
