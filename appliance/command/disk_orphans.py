"""`millrace disk orphans`: partition directories that no topic owns, and ways to adopt or remove them.

The command reads directories, partition tables and the image; the controller decides once more by ZooKeeper before it removes or adopts a log, also by
name alone, if `partition.metadata` cannot be read. Only a `-stray` directory, whose name is never used again, is removed here. Weak: a disk that hangs
may hang this command.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from appliance.base.clock import SystemClock
from appliance.base.errors import ErrorCode, MillraceError, RequestRefused
from appliance.command.failures import PartlyDone, UsageProblem
from appliance.command.finding import FoundBox, find_running_box
from appliance.command.options import ConfigOption, DataOption, JsonOption, YesOption, confirm, option, parse_setting
from appliance.command.output import NOTHING, Column, bytes_text, duration_text, plural, print_table, say

if TYPE_CHECKING:
    from collections.abc import Iterable

    from appliance.cluster.metadata_image import MetadataImage
    from appliance.shm.partition_table import Row

DELETED_TOPIC, PLACED_ELSEWHERE, ANOTHER_TOPIC = "no topic of this name", "the cluster places it elsewhere", "of an earlier topic of this name"
STRAY, UNREADABLE = "set aside (-stray)", "partition.metadata is missing or damaged"


class OrphanDirectory(NamedTuple):
    """`log_start_offset` and `end_offset` are None if no log-writer has the log open and no segment says them."""

    disk: str
    directory: str
    topic: str
    partition: int
    topic_id: str | None
    size_bytes: int
    changed_seconds: int
    """Seconds since the newest file changed."""
    log_start_offset: int | None
    end_offset: int | None
    reason: str
    inode: tuple[int, int]
    """Device and inode of the directory that was listed."""

    @property
    def name(self) -> str:
        """As `--remove` takes it."""
        return f"{self.disk}/{self.directory}"

    @property
    def is_served(self) -> bool:
        """Whether a log-writer has it open, or would open it."""
        return self.reason not in (STRAY, UNREADABLE)


def orphans(
    adopt: Annotated[str | None, option("--adopt", metavar="TOPIC", help="Make a topic of the logs of this name, with their records, offsets and id.")] = None,
    topic_id: Annotated[str | None, option("--topic-id", metavar="ID", help="Which, if logs of several topics have the name.")] = None,
    setting: Annotated[
        list[str] | None, option("--set", metavar="NAME=VALUE", help="A setting of the adopted topic, such as retention.ms=-1; several times.")
    ] = None,
    remove: Annotated[
        list[str] | None, option("--remove", metavar="DISK/DIRECTORY", help="Delete this one for good, or `all`; may be given several times.")
    ] = None,
    allow_missing: Annotated[
        bool, option("--allow-missing", help="Adopt with empty partitions, although other boxes of the cluster may have their logs.")
    ] = False,
    yes: YesOption = False,
    dry_run: Annotated[bool, option("--dry-run", help="Show what would be adopted or removed, change nothing.")] = False,
    as_json: JsonOption = False,
    data: DataOption = None,
    config: ConfigOption = None,
) -> None:
    """List partition directories that no topic of the cluster owns on this box; adopt or remove them.

    Example: millrace disk orphans; millrace disk orphans --adopt orders --set retention.ms=-1
    """
    if adopt and remove:
        raise UsageProblem("adopt or remove, not both at once")
    if (topic_id or setting or allow_missing) and not adopt:
        raise UsageProblem("--topic-id, --set and --allow-missing belong to --adopt TOPIC")
    found = find_running_box(data, config)
    listed, unread = find_orphans(found)
    for words in unread:
        say(f"millrace: {words}")
    if adopt:
        _adopt(found, choose_topic(listed, adopt, topic_id), dict(parse_setting(text) for text in setting or []), allow_missing, yes, dry_run)
    elif remove:
        _remove(found, choose_directories(listed, remove), yes, dry_run)
    elif as_json:
        print(json.dumps([each._asdict() for each in listed], indent=2))
    else:
        print_orphans(listed)


def find_orphans(found: FoundBox) -> tuple[list[OrphanDirectory], list[str]]:
    """Look through all disks that can be read; return also which could not, and why."""
    from appliance.command.box_status import describe_disks, image_of, read_shared_memory

    clock = SystemClock()
    disks = [dict(disk) for disk in found.box["disks"]]
    reading = read_shared_memory(found.layout, [str(disk["name"]) for disk in disks], clock)
    image, broker_id = image_of(found.layout), int(found.box["broker_id"])
    rows = {(disk, str(_text_of(row.topic_id)), row.partition): row for disk, row in reading.rows}
    listed: list[OrphanDirectory] = []
    described = describe_disks(disks, reading)
    away = {disk.name: disk.state for disk in described if not disk.state.startswith(("online", "full"))}
    unread = [f"disk {name} is not looked at: {state}" for name, state in away.items()]
    for disk in described:
        if disk.name in away:
            continue
        try:
            listed += orphans_in(disk.name, disk.path, image, broker_id, rows, away, reading.wall_ms)
        except OSError as error:
            unread.append(f"could not read disk {disk.name}: {(error.strerror or str(error)).lower()}: {error.filename}")
    return listed, unread


def _text_of(topic_id: bytes) -> str:
    from appliance.base.model import TopicId

    return str(TopicId(topic_id))


def orphans_in(
    disk: str, path: str, image: MetadataImage, broker_id: int, rows: dict[tuple[str, str, int], Row], away: dict[str, str], now_ms: int
) -> list[OrphanDirectory]:
    """Return the orphans of one log directory. `away`: the states of disks that do not serve. Raises OSError."""
    from appliance.storage.directory_identity import read_topic_id
    from appliance.storage.partition_directory import STRAY_SUFFIX, is_leaving, parse_partition_name

    listed = []
    for name in sorted(os.listdir(path)):
        is_stray = name.endswith(STRAY_SUFFIX) and is_leaving(name)
        parsed = parse_partition_name(name.rpartition(".")[0] if is_stray else name)
        if parsed is None or not os.path.isdir(f"{path}/{name}"):
            continue
        try:
            known = read_topic_id(f"{path}/{name}")
        except ValueError:
            known = None
        topic_id = None if known is None else str(known)
        if is_stray:
            reason = STRAY
        elif topic_id is None:
            reason = _unreadable(image, broker_id, disk, *parsed, rows)
        else:
            reason = orphan_reason(image, broker_id, disk, *parsed, topic_id, away)
        if not reason:
            continue
        row = None if is_stray or topic_id is None else rows.get((disk, topic_id, parsed.partition))
        inode = _inode(f"{path}/{name}")
        size_bytes, changed_ms, start, end = _contents(f"{path}/{name}")
        if row is not None:
            start, end = row.log_start_offset, row.log_end_offset
        listed.append(OrphanDirectory(disk, name, *parsed, topic_id, size_bytes, max(0, now_ms - changed_ms) // 1000, start, end, reason, inode))
    return listed


def _inode(path: str) -> tuple[int, int]:
    status = os.lstat(path)
    return status.st_dev, status.st_ino


def _unreadable(image: MetadataImage, broker_id: int, disk: str, topic: str, partition: int, rows: dict[tuple[str, str, int], Row]) -> str:
    """As `orphan_reason`, of a log without an id: '' too if the log of this name is open."""
    known = image.topics.get(topic)
    if known is not None:
        topic_id = str(known.topic_id)
        if (disk, topic_id, partition) in rows or not orphan_reason(image, broker_id, disk, topic, partition, topic_id, {}):
            return ""
    return UNREADABLE


def orphan_reason(image: MetadataImage, broker_id: int, disk: str, topic: str, partition: int, topic_id: str, away: dict[str, str]) -> str:
    """Return why no topic owns a log on this disk, or ''."""
    known = image.topics.get(topic)
    if known is None:
        return DELETED_TOPIC
    if str(known.topic_id) != topic_id:
        return ANOTHER_TOPIC
    if partition < len(known.partitions):
        placed = known.partitions[partition]
        if broker_id in placed.replicas:
            if placed.may_lie_on(disk):
                return ""
            if placed.disk in away:
                return f"{PLACED_ELSEWHERE}, on disk {placed.disk} ({away[placed.disk]}): perhaps the only copy, not removed"
    return PLACED_ELSEWHERE


def _contents(path: str) -> tuple[int, int, int | None, int | None]:
    """Return the size, when a file last changed (wall ms), and the base offsets of the first segment and of the last."""
    from appliance.storage.segment_files import LOG_SUFFIX, offset_of_name

    size_bytes, changed_ns, bases = 0, 0, []
    for entry in os.scandir(path):
        status = entry.stat(follow_symlinks=False)
        size_bytes += status.st_blocks * 512
        changed_ns = max(changed_ns, status.st_mtime_ns)
        base = offset_of_name(entry.name, LOG_SUFFIX)
        if base is not None:
            bases.append(int(base))
    return size_bytes, changed_ns // 1_000_000, min(bases, default=None), max(bases, default=None)


def print_orphans(listed: list[OrphanDirectory]) -> None:
    if not listed:
        print("no orphans: the cluster places every partition directory where it lies")
        return
    columns = [Column("orphan"), Column("topic id"), Column("size", is_number=True), Column("start offset", is_number=True),
               Column("end offset", is_number=True), Column("changed", is_number=True), Column("why")]  # fmt: skip
    rows = []
    for each in listed:
        end = NOTHING if each.end_offset is None else str(each.end_offset) if each.is_served else f">= {each.end_offset}"
        start = NOTHING if each.log_start_offset is None else str(each.log_start_offset)
        rows.append([each.name, each.topic_id or NOTHING, bytes_text(each.size_bytes), start, end, f"{duration_text(each.changed_seconds)} ago", each.reason])
    print_table(columns, rows)
    total = sum(each.size_bytes for each in listed)
    print(f"{plural(len(listed), 'orphan')}, {bytes_text(total)}; adopt: millrace disk orphans --adopt TOPIC; delete: --remove DISK/DIRECTORY")


# ---- adopting


def choose_topic(listed: Iterable[OrphanDirectory], name: str, topic_id: str | None) -> list[OrphanDirectory]:
    """Return the logs that make the topic. Raises UsageProblem if they are not those of one topic."""
    named = [each for each in listed if each.topic == name and each.is_served and topic_id in (None, each.topic_id)]
    if not named:
        raise UsageProblem(f"no orphan is a log of topic {name}{f' with id {topic_id}' if topic_id else ''}; look with: millrace disk orphans")
    if any(each.reason == ANOTHER_TOPIC for each in named):
        raise UsageProblem(f"there is another topic {name}; its records stay. Delete it before, or remove the orphans")
    if any(each.reason.startswith(PLACED_ELSEWHERE) for each in named):
        raise UsageProblem(
            f"topic {name} is there, with its replicas on other disks or boxes: read it there. Records that it lacks, as after `millrace disk"
            " replace`, are in the orphans alone: read them with `millrace log dump --records FILE`. Then remove the orphans"
        )
    ids = sorted({str(each.topic_id) for each in named})
    if len(ids) > 1:
        raise UsageProblem(f"orphans of topic {name} are of several topics; choose with --topic-id: {', '.join(ids)}")
    return named


def _adopt(found: FoundBox, logs: list[OrphanDirectory], settings: dict[str, str], allow_missing: bool, yes: bool, dry_run: bool) -> None:
    name, topic_id = logs[0].topic, logs[0].topic_id
    print_orphans(logs)
    count = max(each.partition for each in logs) + 1
    empty = sorted(set(range(count)) - {each.partition for each in logs})
    print(f"topic {name}, id {topic_id}, with {plural(count, 'partition')}" + (f"; without a log, so empty: {', '.join(map(str, empty))}" if empty else ""))
    if "retention.ms" not in settings:
        print("retention begins at once, by the box's settings; --set retention.ms=-1 keeps everything")
    if dry_run:
        return
    if not yes:
        confirm(f"Adopt topic {name}?", "add --yes")
    refused = _order(found, {"adopt": {"topic": name, "topic_id": topic_id, "config": settings, "allow_missing": allow_missing}})
    if refused:
        _, code, words = refused[0]
        if code == ErrorCode.NOT_CONTROLLER:
            words = "another box is the controller of the cluster, and only that box adopts its orphans; `millrace box list` names it"
        raise RequestRefused(ErrorCode(code), f"could not adopt topic {name}: {words or ErrorCode(code).name}")
    print(f"adopted topic {name} with {plural(count, 'partition')}")


# ---- removing


def choose_directories(listed: list[OrphanDirectory], names: list[str]) -> list[OrphanDirectory]:
    """Return the named orphans. Raises UsageProblem for a name that is none."""
    by_name = {each.name: each for each in listed}
    if names == ["all"]:
        return listed
    if unknown := [name for name in names if name not in by_name]:
        raise UsageProblem("\n".join(f"{name} is no orphan; write DISK/DIRECTORY as `millrace disk orphans` does" for name in unknown))
    return [by_name[name] for name in dict.fromkeys(names)]


def _remove(found: FoundBox, chosen: list[OrphanDirectory], yes: bool, dry_run: bool) -> None:
    print_orphans(chosen)
    if dry_run or not chosen:
        return
    if not yes:
        confirm(f"Delete {plural(len(chosen), 'orphan')} and all their records for good?", "add --yes")
    removals = [[each.disk, each.topic, each.partition, each.topic_id] for each in chosen if each.reason != STRAY]
    refused = {what: words or ErrorCode(code).name for what, code, words in (_order(found, {"remove": removals}) if removals else [])}
    failed = [f"{what}: {words}" for what, words in refused.items()]
    paths = {str(disk["name"]): str(disk["path"]) for disk in found.box["disks"]}
    for each in chosen:
        try:
            if each.reason == STRAY:
                _remove_directory(paths[each.disk], each)
            elif each.name not in refused and _is_there(f"{paths[each.disk]}/{each.directory}", each):
                failed.append(f"{each.name}: its log-writer serves it now")
        except OSError as error:
            failed.append(f"{each.name}: {(error.strerror or str(error)).lower()}")
    print(f"removed {plural(len(chosen) - len(failed), 'orphan')}")
    if failed:
        raise PartlyDone("\n".join(f"could not remove {words}" for words in failed))


def _is_there(path: str, orphan: OrphanDirectory) -> bool:
    try:
        return _inode(path) == orphan.inode
    except FileNotFoundError:
        return False


def _remove_directory(path: str, orphan: OrphanDirectory) -> None:
    """Rename it first: if this is interrupted, the next start of the log-writer goes on. Raises OSError, also if another directory has its name."""
    import errno
    import shutil

    from appliance.base.model import TopicPartition
    from appliance.storage.partition_directory import DELETE_SUFFIX, leaving_name

    leaving = f"{path}/{leaving_name(TopicPartition(orphan.topic, orphan.partition), os.urandom(16).hex(), DELETE_SUFFIX)}"
    if not _is_there(f"{path}/{orphan.directory}", orphan):
        raise OSError(errno.ESTALE, "it is another directory now, or gone; list again")
    os.rename(f"{path}/{orphan.directory}", leaving)
    shutil.rmtree(leaving)


def _order(found: FoundBox, orders: dict[str, Any]) -> list[list[Any]]:
    from appliance.ipc.move_orders import ask_controller
    from appliance.ipc.request_frames import ORPHAN_ORDERS

    try:
        return ask_controller(found.layout, orders, kind=ORPHAN_ORDERS)
    except MillraceError as error:
        raise RequestRefused(ErrorCode.BROKER_NOT_AVAILABLE, f"{error}; look with millrace disk orphans at what was done") from error
