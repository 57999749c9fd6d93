"""`millrace disk …`: list, add, drain (`disk_drain`), remove, replace, orphans (`disk_orphans`), while the box runs.

What touches a directory is done here, so that a disk that hangs can hang this command and not the supervisor; the supervisor then only starts, stops and
writes down. Weak spot: that a disk is empty is looked up before it is removed; what is created on it in between is lost to its users until it is added again.
"""

from __future__ import annotations

import json
import os
import select
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import typer

from appliance.base.clock import SystemClock
from appliance.base.errors import ErrorCode, RequestRefused
from appliance.base.layout import BoxLayout
from appliance.command.disk_drain import drain
from appliance.command.disk_orphans import orphans
from appliance.command.failures import UsageProblem
from appliance.command.finding import FoundBox, find_running_box
from appliance.command.options import ConfigOption, DataOption, JsonOption, argument, option
from appliance.command.output import Column, bytes_text, plural, print_table
from appliance.runtime.disk_orders import ADD, REMOVE, REPLACE

if TYPE_CHECKING:
    from appliance.shm.partition_table import Row

NameArgument = Annotated[str, argument("NAME", "The disk, as `millrace disk list` calls it.")]
ForceOption = Annotated[
    list[str] | None,
    option(
        "--force",
        metavar="REASON",
        help="Use the directory although: missing (it does not exist and is created), root-filesystem, same-device (as another log directory or the state),"
        " other-files. Once for each reason, or several separated by commas.",
    ),
]
ANSWER_MS = 5_000


def build_app(markup: Literal["rich"] | None) -> typer.Typer:
    app = typer.Typer(
        help="List, add, drain, remove and replace disks while the box runs; find directories that no topic owns.",
        no_args_is_help=True,
        rich_markup_mode=markup,
    )
    app.command("list")(list_disks)
    app.command("add")(add)
    app.command("drain")(drain)
    app.command("remove")(remove)
    app.command("replace")(replace)
    app.command("orphans")(orphans)
    return app


def list_disks(
    as_json: JsonOption = False,
    data: DataOption = None,
    config: ConfigOption = None,
) -> None:
    """Show the box's disks: online, full, hung, offline (and why), starting; and the partitions that move between them."""
    found = find_running_box(data, config)
    from appliance.cluster.disk_moves import standing_moves
    from appliance.command.box_status import ask_supervisor, describe_disks, image_of, read_shared_memory
    from appliance.command.status import print_moves
    from appliance.command.unit_installation import with_unit_states

    names = [str(disk["name"]) for disk in found.box["disks"]]
    disks = describe_disks(found.box["disks"], read_shared_memory(found.layout, names, SystemClock()))
    processes = {process["name"]: process.get("status", "") for process in with_unit_states(found.box, ask_supervisor(found.layout)) or []}
    moves = standing_moves(found.layout, image_of(found.layout), names)
    if as_json:
        print(json.dumps([disk._asdict() | {"moves": [move._asdict() for move in moves if disk.name == move.source_disk]} for disk in disks], indent=2))
        return
    print_table(
        [Column("disk"), Column("state"), Column("free", is_number=True), Column("total", is_number=True), Column("path"), Column("log-writer")],
        [
            [disk.name, disk.shown_state, bytes_text(disk.free_bytes), bytes_text(disk.total_bytes), disk.path, processes.get(f"log-writer@{disk.name}", "")]
            for disk in disks
        ],
    )
    if moves:
        print_moves(moves)


def add(
    path: Annotated[str, argument("PATH", "The new log directory.")],
    force: ForceOption = None,
    data: DataOption = None,
    config: ConfigOption = None,
) -> None:
    """Serve one more disk. New partitions go to the disk with the most free space; existing ones stay."""
    found = find_running_box(data, config)
    usable = _usable(found.box, path, force or [])
    if _is_managed_by_systemd(found):
        from appliance.command.unit_orders import check_disk_for_units, hand_over_directory

        check_disk_for_units(usable, os.path.basename(usable))
        hand_over_directory(usable)
    ordered = order_disk(found.layout, ADD, "", usable)
    _follow(found, ADD, ordered, config)
    print(f"added disk {ordered['disk']}: {ordered['path']}")


def remove(name: NameArgument, data: DataOption = None, config: ConfigOption = None) -> None:
    """Serve a disk no longer. It must hold no partition; its directory stays as it is."""
    found = find_running_box(data, config)
    placed, orphaned = _placed_on(found.layout, name), _orphans_on(found.layout, name)
    if placed:
        raise RequestRefused(
            ErrorCode.INVALID_REQUEST,
            f"{plural(len(placed), 'partition')} of disk {name} would be lost ({_some(placed)}); move them away first: millrace disk drain {name}",
        )
    if unknown := [log for log, orphan in orphaned.items() if orphan.topic is None]:
        raise RequestRefused(
            ErrorCode.INVALID_REQUEST,
            f"{plural(len(unknown), 'log')} of disk {name} {'is' if len(unknown) == 1 else 'are'} of no topic ({_some(unknown)});"
            " look with: millrace disk orphans; then adopt or remove them",
        )
    ordered = order_disk(found.layout, REMOVE, name, "")
    _follow(found, REMOVE, ordered, config)
    print(f"removed disk {ordered['disk']}: {ordered['path']}")
    if orphaned:
        records = sum(orphan.row.log_end_offset - orphan.row.log_start_offset for orphan in orphaned.values())
        print(f"{plural(len(orphaned), 'orphan')} with {plural(records, 'record')} stay in that directory; read them with: millrace log dump --records FILE")


def replace(
    name: NameArgument,
    path: Annotated[str | None, argument("PATH", "The log directory of the new disk; left out: the same path.")] = None,
    accept_data_loss: Annotated[bool, option("--accept-data-loss", help="What the old disk held is given up; its partitions begin anew, empty.")] = False,
    force: ForceOption = None,
    data: DataOption = None,
    config: ConfigOption = None,
) -> None:
    """Put a new, empty disk in the place of one that is offline or hangs. It need not be mounted where the old one was."""
    found = find_running_box(data, config)
    known = {str(disk["name"]): str(disk["path"]) for disk in found.box["disks"]}
    if name not in known:
        raise UsageProblem(f"there is no disk {name}; there are {', '.join(known)}")
    placed = [*_placed_on(found.layout, name), *_orphans_on(found.layout, name)]
    if placed and not accept_data_loss:
        raise UsageProblem(f"disk {name} holds {plural(len(placed), 'partition')}; say --accept-data-loss to begin them anew, empty")
    if _is_managed_by_systemd(found):
        from appliance.command.unit_orders import check_disk_for_units, check_named_by_root, hand_over_directory

        if path is None:
            check_named_by_root(name, known[name], config)
        usable = _usable(found.box, path or known[name], force or [], but=name)
        check_disk_for_units(usable, name)
        hand_over_directory(usable)
    else:
        usable = _usable(found.box, path or known[name], force or [], but=name)
    ordered = order_disk(found.layout, REPLACE, name, usable)
    _follow(found, REPLACE, ordered, config)
    print(f"replaced disk {ordered['disk']}: {ordered['path']}, {plural(len(placed), 'partition')} begin anew")


def _is_managed_by_systemd(found: FoundBox) -> bool:
    from appliance.runtime.unit_process import SYSTEMD

    return bool(found.box.get("managed_by") == SYSTEMD)


def _follow(found: FoundBox, verb: str, ordered: dict[str, str], config: str | None) -> None:
    """Under `millrace run` the supervisor has started and stopped what was to be; under systemd that is for root to do."""
    if _is_managed_by_systemd(found):
        from appliance.command.unit_orders import carry_out

        carry_out(found.layout, verb, ordered["disk"], config)


def _usable(box: dict[str, Any], path: str, force: list[str], but: str = "") -> str:
    """The absolute path of a directory that can be a disk of the box; it exists then. Raises UsageProblem with everything that is wrong."""
    from appliance.runtime.directories import in_use_problem, make_directory, shape_problems, writable_problem
    from appliance.runtime.new_disk_checks import Directory, Mounts, forced_reasons, new_disk_problems, unforced

    try:
        accepted = forced_reasons(force)
    except ValueError as error:
        raise UsageProblem(str(error)) from None
    absolute = os.path.abspath(path)
    if own := next((str(disk["name"]) for disk in box["disks"] if disk["name"] != but and str(disk["path"]) == absolute), None):
        raise UsageProblem(f"{absolute} is disk {own} of this box already")
    state = str(box["state_directory"])
    others = [Directory(f"disk {disk['name']}", str(disk["path"])) for disk in box["disks"] if disk["name"] != but]
    problems = shape_problems([*(other.path for other in others), absolute], state)
    is_same = any(str(disk["path"]) == absolute for disk in box["disks"] if disk["name"] == but)
    used = [Directory("the state directory", state), *others]
    problems += unforced(new_disk_problems(absolute, used, Mounts.of_this_machine()), accepted)
    problem = writable_problem(absolute, "PATH") or (None if is_same else in_use_problem(absolute, "PATH"))
    problems += [problem] if problem else []
    if problems or (problem := make_directory(absolute, "PATH")):
        raise UsageProblem("\n".join(problems or [str(problem)]))
    return absolute


def _some(names: Iterable[str]) -> str:
    listed = list(names)
    return ", ".join(listed[:5]) + (", …" if len(listed) > 5 else "")


class OrphanRow(NamedTuple):
    """A row of a log that the cluster does not place on this disk. `topic` None: it knows none with this id."""

    topic: str | None
    row: Row


def _placed_on(layout: BoxLayout, disk: str) -> list[str]:
    """Partitions that the image places on a disk, or moves to it."""
    from appliance.command.box_status import image_of

    return sorted(
        f"{topic.name}-{number}"
        for topic in image_of(layout).topics.values()
        for number, partition in enumerate(topic.partitions)
        if disk in (partition.disk, partition.moving_to)
    )


def _orphans_on(layout: BoxLayout, disk: str) -> dict[str, OrphanRow]:
    """Rows of a disk that the image does not place there, by the name of the log."""
    from appliance.base.model import TopicId
    from appliance.command.box_status import image_of, read_shared_memory

    image, found = image_of(layout), {}
    for _, row in read_shared_memory(layout, [disk], SystemClock()).rows:
        topic = image.topics_by_id.get(TopicId(row.topic_id))
        if topic is None or not image.is_in_place(disk, row.topic_id, row.partition):
            found[f"{topic.name if topic is not None else row.topic_id.hex()}-{row.partition}"] = OrphanRow(topic.name if topic is not None else None, row)
    return found


def order_disk(layout: BoxLayout, verb: str, name: str, path: str) -> dict[str, str]:
    """Give the supervisor an order (about a disk, or to reload the settings); its answer. Raises RequestRefused."""
    from appliance.ipc.frames import PeerGone, connect_unix
    from appliance.runtime.request_server import DISK_ORDER

    connection = connect_unix(layout.supervisor_socket)
    if connection is None:
        raise RequestRefused(ErrorCode.BROKER_NOT_AVAILABLE, "the supervisor does not answer; disks and settings are changed while the box runs")
    try:
        connection.send(DISK_ORDER, 1, json.dumps({"verb": verb, "name": name, "path": path}).encode())
        poll = select.poll()
        poll.register(connection.fileno(), select.POLLIN)
        while poll.poll(ANSWER_MS):
            for frame in connection.receive():
                answer: dict[str, str] = json.loads(frame.payload)
                if "error" in answer:
                    raise RequestRefused(ErrorCode.INVALID_REQUEST, answer["error"])
                return answer
    except PeerGone as gone:
        raise RequestRefused(ErrorCode.BROKER_NOT_AVAILABLE, f"the supervisor hung up: {gone}") from gone
    finally:
        connection.close()
    raise RequestRefused(ErrorCode.REQUEST_TIMED_OUT, "the supervisor did not answer in time; look with: millrace disk list")
