"""`millrace disk drain`: move everything that a disk holds to the other disks, while it is written and read.

The command plans and watches; the controller moves, with or without it. So it may be cut off at any moment, and run again, when it plans what is not ordered
yet and goes on watching. Weak spot: sizes and free bytes are those of the moment (`cluster/box_balance.py`).
"""

from __future__ import annotations

import sys
import time
from collections.abc import Set
from typing import TYPE_CHECKING, Annotated, Any

import typer

from appliance.base.clock import Clock, SystemClock
from appliance.base.errors import ErrorCode, RequestRefused
from appliance.base.layout import BoxLayout
from appliance.command.failures import EXIT_FAILED, UsageProblem
from appliance.command.finding import find_running_box
from appliance.command.options import ConfigOption, DataOption, argument, option
from appliance.command.output import Column, bytes_text, count_text, duration_text, plural, print_table, say
from appliance.ipc.disk_reports import FAILED, MoveProgress
from appliance.ipc.move_orders import cancel_drain, order_moves

if TYPE_CHECKING:
    from appliance.cluster.box_balance import DrainPlan
    from appliance.cluster.disk_moves import DrainView

LOOK_SECONDS = 0.5
LINE_SECONDS = 5.0
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
        cancel_drain(found.layout, name)
        print(f"disk {name} takes new partitions again; what was not moved yet stays on it")
        return
    if name in (to or []) or len(names) == 1:
        raise UsageProblem(
            f"there must be another disk to move to; add one: millrace disk add PATH (there {'is' if len(names) == 1 else 'are'} {', '.join(names)})"
        )
    box_disks = [dict(disk) for disk in found.box["disks"]]
    drained = Drained(found.layout, box_disks, name, to, SystemClock())
    view = drained.look()
    owned = {(placed.topic, placed.partition) for placed in view.unordered} | {(move.topic, move.partition) for move in view.moves}
    drained.stays = orphaned = view.sizes.keys() - owned
    plan = view.plan()
    if view.unordered and not view.is_readable:
        words = f"disk {name} cannot be read now: {view.state}; its partitions have no known size. Run this again when `millrace disk list` says online"
        raise RequestRefused(ErrorCode.KAFKA_STORAGE_ERROR, words)
    print_plan(name, plan, view.moves, len(orphaned))
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
    rest = f"has nothing but {plural(len(orphaned), 'orphan')} (millrace disk orphans)" if orphaned else "is empty"
    print(f"disk {name} {rest} and takes no new partitions; take it out with: millrace disk remove {name}")


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


def print_plan(name: str, plan: DrainPlan, moves: tuple[MoveProgress, ...], orphaned: int = 0) -> None:
    if plan.moves:
        shown = [[f"{move.topic}-{move.partition}", bytes_text(move.size_bytes), move.target_disk] for move in plan.moves[:SHOWN_MAX]]
        print_table([Column("partition"), Column("size", is_number=True), Column("to")], shown)
        more = f", {len(plan.moves) - SHOWN_MAX} of them not shown" if len(plan.moves) > SHOWN_MAX else ""
        print(f"{plural(len(plan.moves), 'partition')}, {bytes_text(plan.size_bytes)}, to move from disk {name}{more}")
    if moves:
        print(f"{plural(len(moves), 'move')} from disk {name} under way already")
    if not plan.moves and not moves and not plan.unplaced:
        print(f"disk {name} holds nothing" + (f" to move, but {plural(orphaned, 'orphan')}: millrace disk orphans" if orphaned else ""))


class Drained:
    """The disk that is emptied, from outside."""

    def __init__(self, layout: BoxLayout, disks: list[dict[str, Any]], name: str, to: list[str] | None, clock: Clock) -> None:
        self._layout = layout
        self._disks = disks
        self._name = name
        self._to = to
        self._clock = clock
        self.stays: Set[tuple[str, int]] = frozenset()
        """Orphans: logs that are not moved."""

    def look(self) -> DrainView:
        from appliance.cluster.disk_moves import DrainTarget, drain_view, standing_moves
        from appliance.command.box_status import describe_disks, image_of, read_shared_memory

        names = [str(disk["name"]) for disk in self._disks]
        image = image_of(self._layout)
        sizes, moves = self._sizes(), standing_moves(self._layout, image, names)
        reading = read_shared_memory(self._layout, names, self._clock)
        controller = reading.counters.get("controller")
        spaces = [
            DrainTarget(disk.name, disk.state, disk.shown_state, disk.free_bytes or 0, disk.total_bytes or 0, disk.draining)
            for disk in describe_disks(self._disks, reading)
        ]
        view = drain_view(self._name, image, sizes, moves, spaces, self._to)
        sizes_by_name = {key: size for key, size in view.sizes.items() if key not in self.stays}
        return view._replace(sizes=sizes_by_name, has_controller=controller is None or controller.is_alive)

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
        order_moves(self._layout, self._name, moves, throttle)

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
