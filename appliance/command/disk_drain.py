"""`millrace disk drain`: move everything that a disk holds to the other disks, while it is written and read.

The command plans and watches; the controller moves, with or without it. So it may be cut off at any moment, and run again, when it plans what is not ordered
yet and goes on watching. Weak spot: sizes and free bytes are those of the moment (`cluster/box_balance.py`).
"""

from __future__ import annotations

import json
import select
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from appliance.base.clock import Clock, SystemClock
from appliance.base.errors import ErrorCode, RequestRefused
from appliance.base.layout import BoxLayout
from appliance.command.failures import EXIT_FAILED, UsageProblem
from appliance.command.finding import find_running_box
from appliance.command.options import ConfigOption, DataOption, argument, option
from appliance.command.output import Column, bytes_text, count_text, duration_text, plural, print_table, say
from appliance.ipc.disk_reports import FAILED, MoveProgress
from appliance.ipc.request_frames import MOVE_ORDERS, MOVE_ORDERS_DONE

if TYPE_CHECKING:
    from appliance.cluster.box_balance import DrainPlan, FreeSpace, PartitionOnDisk

ANSWER_MS = 35_000
ATTEMPTS = 10
ATTEMPT_PAUSE_SECONDS = 0.5
LOOK_SECONDS = 0.5
LINE_SECONDS = 5.0
ORDERS_MAX = 1_000
"""Moves in one frame."""
SHOWN_MAX = 20
BAR_CELLS = 24
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


def drain(
    name: Annotated[str, argument("NAME", "The disk, as `millrace disk list` calls it.")],
    to: Annotated[list[str] | None, option("--to", metavar="DISK", help="Move to this disk only; may be given several times. [default: all others]")] = None,
    throttle: Annotated[
        str | None, option("--throttle", metavar="BYTES/S", help="How fast each target may copy: 50000000, 50M, 50MiB. [default: the box's setting]")
    ] = None,
    dry_run: Annotated[bool, option("--dry-run", help="Show the plan, change nothing.")] = False,
    no_wait: Annotated[bool, option("--no-wait", help="Order the moves and return.")] = False,
    cancel: Annotated[bool, option("--cancel", help="Take back what is not moved yet; the disk takes new partitions again.")] = False,
    data: DataOption = None,
    config: ConfigOption = None,
) -> None:
    """Move everything a disk holds to other disks, while it is written and read. The disk takes no new partitions from then on."""
    found = find_running_box(data, config)
    bytes_per_second = None if throttle is None else bytes_of(throttle)
    names = [str(disk["name"]) for disk in found.box["disks"]]
    for disk in [name, *(to or [])]:
        if disk not in names:
            raise UsageProblem(f"there is no disk {disk}; there are {', '.join(names)}")
    if cancel:
        _refuse(ask_controller(found.layout, {"disk": name, "draining": False, "cancel": True}))
        print(f"disk {name} takes new partitions again; what was not moved yet stays on it")
        return
    if name in (to or []) or len(names) == 1:
        raise UsageProblem(
            f"there must be another disk to move to; add one: millrace disk add PATH (there {'is' if len(names) == 1 else 'are'} {', '.join(names)})"
        )
    box_disks = [dict(disk) for disk in found.box["disks"]]
    drained = Drained(found.layout, box_disks, name, to, SystemClock())
    view = drained.look()
    plan = view.plan()
    if view.unordered and not view.is_readable:
        words = f"disk {name} cannot be read now: {view.state}; its partitions have no known size. Run this again when `millrace disk list` says online"
        raise RequestRefused(ErrorCode.KAFKA_STORAGE_ERROR, words)
    print_plan(name, plan, view.moves)
    if plan.unplaced:
        raise RequestRefused(ErrorCode.KAFKA_STORAGE_ERROR, unplaced_words(name, plan, view.closed))
    if dry_run:
        return
    try:
        drained.order(plan, bytes_per_second, throttle is not None)
        if no_wait:
            print(f"the moves go on; look with: millrace disk drain {name}, millrace disk list")
            return
        drained.watch(bytes_per_second)
    except KeyboardInterrupt:
        say(f"\nthe moves go on without this command; look again with: millrace disk drain {name}; take them back with: millrace disk drain {name} --cancel")
        raise typer.Exit(EXIT_FAILED) from None
    print(f"disk {name} is empty and takes no new partitions; take it out with: millrace disk remove {name}")


def unplaced_words(name: str, plan: DrainPlan, closed: dict[str, str]) -> str:
    """Say what fits on no disk that takes partitions now, and which disks take none."""
    without = sum(placed.size_bytes for placed in plan.unplaced)
    words = f"{plural(len(plan.unplaced), 'partition')} ({bytes_text(without)}) of disk {name} fit on no other disk"
    others = ", ".join(f"{disk} ({state})" for disk, state in closed.items())
    return f"{words}; add one: millrace disk add PATH" + (f"; or wait for disks that take none now: {others}" if others else "")


def bytes_of(text: str) -> int:
    """`50000000`, `50M`, `50MiB`. Raises UsageProblem."""
    plain = text.strip().lower().removesuffix("/s").removesuffix("b").removesuffix("i")
    digits = plain.rstrip("kmg")
    unit = plain[len(digits) :]
    if not digits.isdigit() or unit not in _UNITS or not int(digits):
        raise UsageProblem(f"{text!r} is no number of bytes; write 50000000, 50M or 50MiB")
    return int(digits) * _UNITS[unit]


def print_plan(name: str, plan: DrainPlan, moves: tuple[MoveProgress, ...]) -> None:
    if plan.moves:
        shown = [[f"{move.topic}-{move.partition}", bytes_text(move.size_bytes), move.target_disk] for move in plan.moves[:SHOWN_MAX]]
        print_table([Column("partition"), Column("size", is_number=True), Column("to")], shown)
        more = f", {len(plan.moves) - SHOWN_MAX} of them not shown" if len(plan.moves) > SHOWN_MAX else ""
        print(f"{plural(len(plan.moves), 'partition')}, {bytes_text(plan.size_bytes)}, to move from disk {name}{more}")
    if moves:
        print(f"{plural(len(moves), 'move')} from disk {name} under way already")
    if not plan.moves and not moves and not plan.unplaced:
        print(f"disk {name} holds nothing")


class DrainView(NamedTuple):
    """One reading: partitions without an order to move, current moves, and free space."""

    unordered: tuple[PartitionOnDisk, ...]
    moves: tuple[MoveProgress, ...]
    rooms: tuple[FreeSpace, ...]
    sizes: dict[tuple[str, int], int]
    """Bytes of everything that lies on the disk."""
    state: str = "online"
    """Of the disk that is emptied."""
    closed: dict[str, str] = {}  # noqa: RUF012  never changed
    """Other disks that take nothing now, with their states."""
    has_controller: bool = True
    """Whether the controller process of the box runs, which moves."""

    @property
    def is_readable(self) -> bool:
        """Whether sizes are known and partitions can be copied from the disk."""
        return self.state.startswith(("online", "full"))

    @property
    def trouble(self) -> str:
        """What the moves wait for; '' if they go on."""
        if not self.has_controller:
            return "waiting: the controller of this box does not run"
        return "" if self.is_readable else f"waiting: the disk is not served ({self.state})"

    def plan(self) -> DrainPlan:
        """Plan where the partitions go that have no order yet."""
        from appliance.cluster.box_balance import plan_drain  # it imports more than `--help` needs

        return plan_drain(self.unordered, self.rooms)


class Drained:
    """The disk that is emptied, from outside."""

    def __init__(self, layout: BoxLayout, disks: list[dict[str, Any]], name: str, to: list[str] | None, clock: Clock) -> None:
        self._layout = layout
        self._disks = disks
        self._name = name
        self._to = to
        self._clock = clock

    def look(self) -> DrainView:
        from appliance.cluster.box_balance import FreeSpace, PartitionOnDisk
        from appliance.command.box_status import describe_disks, image_of, read_shared_memory
        from appliance.command.moves import standing_moves

        names = [str(disk["name"]) for disk in self._disks]
        image, sizes = image_of(self._layout), self._sizes()
        moves = standing_moves(self._layout, image, names)
        ordered = {(move.topic, move.partition) for move in moves}
        unordered = []
        for topic in image.topics.values():
            for number, partition in enumerate(topic.partitions):
                if partition.disk == self._name and (topic.name, number) not in ordered:
                    unordered.append(PartitionOnDisk(topic.name, number, sizes.get((str(topic.topic_id), number), 0)))
        names_by_id = {str(topic.topic_id): topic.name for topic in image.topics.values()}
        by_name = {(names_by_id.get(topic_id, topic_id), number): size for (topic_id, number), size in sizes.items()}
        promised = {name: sum(max(0, move.lag_bytes) for move in moves if move.target_disk == name) for name in names}
        reading = read_shared_memory(self._layout, names, self._clock)
        disks = {disk.name: disk for disk in describe_disks(self._disks, reading)}
        targets = [disk for disk in disks.values() if disk.name != self._name and (not self._to or disk.name in self._to)]
        rooms = tuple(
            FreeSpace(disk.name, disk.free_bytes or 0, disk.total_bytes or 0, promised[disk.name])
            for disk in targets
            if disk.state == "online" and not disk.draining
        )
        closed = {disk.name: disk.shown_state for disk in targets if disk.state != "online" or disk.draining}
        controller = reading.counters.get("controller")
        has_controller = controller is None or controller.is_alive
        own_moves = tuple(move for move in moves if move.source_disk == self._name)
        return DrainView(tuple(unordered), own_moves, rooms, by_name, disks[self._name].state, closed, has_controller)

    def _sizes(self) -> dict[tuple[str, int], int]:
        from appliance.base.model import TopicId
        from appliance.shm.disk_tables import attach_table

        table = attach_table(self._layout, self._name)
        if table is None:
            return {}
        try:
            return {(str(TopicId(row.topic_id)), row.partition): table.sealed_bytes(index) + row.active_position for index, row in table.rows()}
        finally:
            table.close()

    def order(self, plan: DrainPlan, throttle: int | None, again: bool = False) -> None:
        """Mark the disk and order the moves; with `again` those that stand get the new throttle, too. Raises RequestRefused, with what was not ordered."""
        moves = [[move.topic, move.partition, move.target_disk] for move in plan.moves]
        if again:
            moves += [[move.topic, move.partition, move.target_disk] for move in self.look().moves]
        refused: list[list[Any]] = []
        for start in range(0, max(1, len(moves)), ORDERS_MAX):
            orders = {"disk": self._name, "draining": True, "throttle": throttle, "moves": moves[start : start + ORDERS_MAX]}
            try:
                refused += ask_controller(self._layout, orders)
            except RequestRefused as error:
                raise RequestRefused(error.code, f"{error.message}; {start} of {plural(len(moves), 'move')} are ordered and go on") from error
        _refuse(refused)

    def watch(self, throttle: int | None) -> None:
        """Until nothing is left on the disk; what came upon it since the plan is ordered as well."""
        bar = ProgressBar(self._clock)
        while True:
            view = self.look()
            if not view.unordered and not view.moves and not view.sizes:
                bar.end(view)
                return
            trouble = view.trouble
            if view.unordered and not trouble:
                trouble = self._order_rest(view, throttle)
            bar.show(view, trouble)
            time.sleep(LOOK_SECONDS)

    def _order_rest(self, view: DrainView, throttle: int | None) -> str:
        """Order what came upon the disk since the plan; return what that waits for, or ''."""
        plan = view.plan()
        if plan.moves:
            try:
                self.order(plan, throttle)
            except RequestRefused as error:
                if error.code != ErrorCode.BROKER_NOT_AVAILABLE:
                    raise
                return "waiting: the controller does not answer"
        return f"waiting: {unplaced_words(self._name, plan, view.closed)}" if plan.unplaced else ""


class ProgressBar:
    """What is moved, on a terminal in one line that is drawn again, elsewhere a line once in a while. All on stderr."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._began_ms = clock.monotonic_ms()
        self._sizes: dict[tuple[str, int], int] = {}
        self._first_done: int | None = None
        self._next_line_ms = 0
        self._told: set[tuple[str, int, str]] = set()

    def show(self, view: DrainView, trouble: str = "") -> None:
        now_ms = self._clock.monotonic_ms()
        self._tell_failures(view.moves)
        text = self.text(view, now_ms) + (f"  {trouble}" if trouble else "")
        if sys.stderr.isatty():
            sys.stderr.write(f"\r{text}\x1b[K")
            sys.stderr.flush()
        elif now_ms >= self._next_line_ms:
            self._next_line_ms = now_ms + int(LINE_SECONDS * 1000)
            say(text)

    def text(self, view: DrainView, now_ms: int) -> str:
        """`[####....] 40 %  1.2 GiB of 3.0 GiB  3 of 8 partitions  80.0 MiB/s  ETA 22s  lag 1,024`"""
        self._sizes.update(view.sizes)
        for move in view.moves:
            self._sizes.setdefault((move.topic, move.partition), 0)
        left = {(move.topic, move.partition): move for move in view.moves}
        here = set(left) | set(view.sizes) | {(placed.topic, placed.partition) for placed in view.unordered}
        total = sum(self._sizes.values())
        done = sum(size for key, size in self._sizes.items() if key not in here)
        done += sum(min(self._sizes[key], max(0, move.size_bytes)) for key, move in left.items())
        if self._first_done is None:
            self._first_done = done
        rate = (done - self._first_done) * 1000 / max(1, now_ms - self._began_ms)
        share = done / total if total else 1.0
        cells = int(share * BAR_CELLS)
        moved = sum(1 for key in self._sizes if key not in here)
        eta = duration_text((total - done) / rate) if rate > 0 else "-"
        lag = sum(move.offset_lag for move in left.values())
        return (
            f"[{'#' * cells}{'.' * (BAR_CELLS - cells)}] {share:4.0%}  {bytes_text(done)} of {bytes_text(total)}"
            f"  {moved} of {plural(len(self._sizes), 'partition')}  {bytes_text(rate)}/s  ETA {eta}  lag {count_text(lag)}"
        )

    def _tell_failures(self, moves: tuple[MoveProgress, ...]) -> None:
        for move in moves:
            told = (move.topic, move.partition, move.reason)
            if move.state == FAILED and told not in self._told:
                self._told.add(told)
                say(f"\n{move.topic}-{move.partition} to disk {move.target_disk}: {move.reason}; it is tried again")

    def end(self, view: DrainView) -> None:
        self._next_line_ms = 0
        self.show(view)
        if sys.stderr.isatty():
            sys.stderr.write("\n")


def _refuse(refused: list[list[Any]]) -> None:
    if refused:
        shown = [f"{what}: {words or ErrorCode(code).name}" for what, code, words in refused[:5]]
        more = [f"and {len(refused) - 5} more"] if len(refused) > 5 else []
        raise RequestRefused(ErrorCode(refused[0][1]), "\n".join([*shown, *more]))


def ask_controller(layout: BoxLayout, orders: dict[str, Any], pause: Callable[[float], None] = time.sleep, kind: int = MOVE_ORDERS) -> list[list[Any]]:
    """Give the controller orders (a frame of `kind`); what it refused. Asked again when it dies over them: an order that stands already is none. Raises
    RequestRefused if no broker answers."""
    from appliance.ipc.frames import PeerGone, connect_unix

    for _ in range(ATTEMPTS):
        connection = connect_unix(layout.controller_socket)
        if connection is not None:
            try:
                answer = _answer_of(connection, orders, kind)
            except PeerGone:
                answer = None
            finally:
                connection.close()
            if answer is not None:
                return answer
        pause(ATTEMPT_PAUSE_SECONDS)
    raise RequestRefused(ErrorCode.BROKER_NOT_AVAILABLE, "the controller does not answer; look with: millrace status")


def _answer_of(connection: Any, orders: dict[str, Any], kind: int) -> list[list[Any]] | None:
    connection.send(kind, 1, json.dumps(orders).encode())
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLIN)
    while poll.poll(ANSWER_MS):
        for frame in connection.receive():
            if frame.kind == MOVE_ORDERS_DONE:
                refused: list[list[Any]] = json.loads(frame.payload)["refused"]
                return refused
    return None
