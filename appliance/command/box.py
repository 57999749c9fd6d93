"""`millrace box …`: the boxes of the cluster; fill one, empty one, take one out.

Adding and draining plan as `cluster/box_balance.py` says and are reassignments like any other, so they may be cut off and run again. A box that is drained
gets no new replicas from then on (a config for all brokers says so), until it is filled again, taken out, or the drain is called off. Weak spot: as of
`reassigning`.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from appliance.base.clock import SystemClock
from appliance.base.errors import ErrorCode, RequestRefused
from appliance.command.disk_drain import bytes_of
from appliance.command.ensemble_view import probe_ensemble
from appliance.command.failures import EXIT_FAILED, UsageProblem
from appliance.command.kafka import open_cluster
from appliance.command.options import BootstrapOption, ConfigOption, DataOption, JsonOption, YesOption, argument, confirm, option
from appliance.command.output import NOTHING, Column, bytes_text, plural, print_table, say
from appliance.command.topic_reassign import (
    NoWaitOption,
    PlanOption,
    ThrottleOption,
    cancel_all,
    carry_out,
    lift_left_over,
    refuse_unplaced,
)

if TYPE_CHECKING:
    from appliance.client.boxes import BoxDescription
    from appliance.client.cluster import ClusterClient
    from appliance.cluster.box_balance import BalancePlan
    from appliance.command.cluster_view import ClusterView

BoxArgument = Annotated[int, argument("BOX", "The box, by its broker id (see `millrace box list`).")]


def build_app(markup: Literal["rich"] | None) -> typer.Typer:
    app = typer.Typer(help="The boxes of the cluster: list, fill, empty and take out.", no_args_is_help=True, rich_markup_mode=markup)
    app.command("list")(list_boxes)
    app.command("add")(add)
    app.command("drain")(drain)
    app.command("remove")(remove)
    return app


def list_boxes(as_json: JsonOption = False, bootstrap: BootstrapOption = None, data: DataOption = None, config: ConfigOption = None) -> None:
    """List the boxes: what each leads and holds, and its free space."""
    with open_cluster(bootstrap, data, config) as cluster:
        from appliance.command.cluster_view import look_at_cluster

        view = look_at_cluster(cluster, with_ongoing=False)
    ensemble = probe_ensemble(bootstrap, data, config)
    broker_ids = sorted({*view.boxes, *view.absent_boxes(), *(member.member_id for member in ensemble.members)})
    boxes = [_listed(view, broker_id) | {"zookeeper": ensemble.state_of(broker_id) or None} for broker_id in broker_ids]
    if as_json:
        sys.stdout.write(json.dumps({"boxes": boxes, "problems": [ensemble.words] if ensemble.words else []}, indent=2) + "\n")
        return
    rows = [_row(box) for box in boxes]
    columns = [Column("box", is_number=True), Column("address"), Column("rack"), Column("state"), Column("leads", is_number=True),
               Column("replicas", is_number=True), Column("out of sync", is_number=True), Column("held", is_number=True),
               Column("free", is_number=True), Column("of", is_number=True)]  # fmt: skip
    if ensemble.members:
        columns.append(Column("zookeeper"))
        rows = [[*row, box["zookeeper"] or NOTHING] for row, box in zip(rows, boxes, strict=True)]
    print_table(columns, rows)
    if missing := ensemble.words:
        print(missing)


def _listed(view: ClusterView, broker_id: int) -> dict[str, Any]:
    """What `list` says of a box; sizes in bytes, None where they are not known."""
    box = view.boxes.get(broker_id)
    replicas = view.replicas_on(broker_id)
    held = free = total = None
    if box is not None and box.contents is not None:
        held = sum(box.contents.sizes.values())
        room = next(room for room in view.rooms() if room.broker_id == broker_id)
        free, total = room.free_bytes, room.total_bytes
    return {
        "box": broker_id,
        "address": box.address if box else None,
        "rack": box.rack if box else None,
        "state": f"{_state(box)}, drain" if broker_id in view.closed else _state(box),
        "leads": sum(1 for metadata in view.partitions.values() if metadata.leader == broker_id),
        "replicas": len(replicas),
        "out_of_sync": sum(1 for key in replicas if broker_id not in view.partitions[key].isr),
        "held_bytes": held,
        "free_bytes": free,
        "total_bytes": total,
    }


def _row(box: dict[str, Any]) -> list[str]:
    texts = [NOTHING if box[name] is None else str(box[name]) for name in ("box", "address", "rack", "state", "leads", "replicas", "out_of_sync")]
    return texts + [bytes_text(box[name]) for name in ("held_bytes", "free_bytes", "total_bytes")]


def _state(box: BoxDescription | None) -> str:
    if box is None:
        return "away"
    if box.contents is None:
        return "silent"
    if any(disk.error is not ErrorCode.NONE for disk in box.contents.disks):
        return "disk offline"
    return "controller" if box.is_controller else "serving"


def add(
    box: BoxArgument,
    plan: PlanOption = False,
    throttle: ThrottleOption = None,
    no_wait: NoWaitOption = False,
    cancel: Annotated[bool, option("--cancel", help="Call off what is on its way to the box.")] = False,
    bootstrap: BootstrapOption = None,
    data: DataOption = None,
    config: ConfigOption = None,
) -> None:
    """Fill a box that runs: move replicas onto it until it holds its share. Start it first: millrace run --zookeeper … --broker-id N.

    Example: millrace box add 4 --dry-run; millrace box add 4 --throttle 50MiB
    """
    bytes_per_second = None if throttle is None else bytes_of(throttle)
    with open_cluster(bootstrap, data, config) as cluster:
        from appliance.cluster.box_balance import plan_balance
        from appliance.command.cluster_view import close_to_replicas, look_at_cluster

        view = look_at_cluster(cluster)
        require_running(view, box)
        if cancel:
            _cancel(cluster, view, coming_to=box)
            return
        rooms = [room for room in view.rooms() if room.broker_id == box or room.broker_id not in view.closed]
        made = plan_balance(view.held(), rooms, {box})
        if not plan:
            close_to_replicas(cluster, view, box, False)
        carry_out(cluster, view, made, plan, bytes_per_second, no_wait, None)


def drain(
    box: BoxArgument,
    plan: PlanOption = False,
    throttle: ThrottleOption = None,
    cancel: Annotated[bool, option("--cancel", help="Call off what is not moved yet; it stays on the box.")] = False,
    bootstrap: BootstrapOption = None,
    data: DataOption = None,
    config: ConfigOption = None,
) -> None:
    """Empty a box: move all its replicas to the others, while they are written and read. It gets no new ones from then on (until `millrace box add`, or
    --cancel). Cut off, it may be run again; the box may be dead already.

    Example: millrace box drain 2 --dry-run; millrace box drain 2 --throttle 50MiB; then stop it, and: millrace box remove 2
    """
    bytes_per_second = None if throttle is None else bytes_of(throttle)
    with open_cluster(bootstrap, data, config) as cluster:
        from appliance.command.cluster_view import close_to_replicas, look_at_cluster

        view = look_at_cluster(cluster)
        require_known(view, box)
        if cancel:
            close_to_replicas(cluster, view, box, False)
            _cancel(cluster, view, going_from=box)
            return
        _drain(cluster, view, box, plan, bytes_per_second)


def _drain(cluster: ClusterClient, view: ClusterView, box: int, only_plan: bool, throttle: int | None) -> None:
    from appliance.cluster.box_balance import plan_box_drain
    from appliance.command import reassigning
    from appliance.command.cluster_view import close_to_replicas
    from appliance.command.reassigning import lift_throttle, set_throttle

    made = plan_box_drain(view.held(), view.open_rooms(), {box})
    refuse_unplaced(made)
    if made.changes:
        reassigning.print_plan(made, throttle)
    plans = DrainPlans(box, view, made)
    partitions = set(view.replicas_on(box))
    if under_way := [key for key in partitions if key in view.ongoing]:
        print(f"{plural(len(under_way), 'partition')} on the way already")
    if not only_plan:
        close_to_replicas(cluster, view, box, True)
    if not partitions:
        print(f"box {box} holds nothing")
        if not only_plan:
            lift_left_over(cluster, view, None)
    if only_plan or not partitions:
        return

    def order_more(look: ClusterView) -> bool:
        """What was on its way to the box, or is put there by name."""
        close_to_replicas(cluster, look, box, True)
        partitions.update(look.replicas_on(box))
        more = plans.next(look)
        refuse_unplaced(more)
        if more.changes:
            reassigning.order(cluster, more)
        return bool(look.replicas_on(box))

    try:
        if throttle is not None:
            set_throttle(cluster, view, made, throttle)
        reassigning.order(cluster, made)
        last = reassigning.watch(cluster, partitions, SystemClock(), order_more)
        lift_throttle(cluster, last, {name for name, _ in partitions})
    except KeyboardInterrupt:
        say(f"\nwhat is ordered goes on without this command; run it again to watch and to end it, or: millrace box drain {box} --cancel")
        raise typer.Exit(EXIT_FAILED) from None
    print(f"box {box} holds nothing any more; stop it, then take it out with: millrace box remove {box}")


class DrainPlans:
    """What a drain orders later: partitions that come to the box while it is drained.

    Brokers learn of a finished reassignment later than the controller. Until then no reassignment is listed, and Metadata still names the
    old replicas beside the new ones. Such a partition looks as if it had to leave the box once more: the order would give it one replica
    too many, or no box would be left for it. So a partition counts again only if it looks so `LOOKS_MIN` times in a row.
    """

    LOOKS_MIN = 10
    """At one look each half second: more than a busy broker needs to read a new image."""

    def __init__(self, box: int, view: ClusterView, ordered: BalancePlan) -> None:
        """`view`: the first look; `ordered`: the plan for it."""
        self._box = box
        self._ordered = {(change.topic, change.partition) for change in ordered.changes}
        self._ordered.update(key for key, ongoing in view.ongoing.items() if box in ongoing.removing)
        self._seen: dict[tuple[str, int], int] = {}
        """Partition → looks in a row at which it had to leave the box."""

    def next(self, look: ClusterView) -> BalancePlan:
        """Return what to order now. `unplaced` are partitions that fit on no other box."""
        from appliance.cluster.box_balance import BalancePlan, plan_box_drain

        plan = plan_box_drain(look.held(), look.open_rooms(), {self._box})
        keys = [(change.topic, change.partition) for change in plan.changes] + [(held.topic, held.partition) for held in plan.unplaced]
        self._seen = {key: self._seen.get(key, 0) + 1 for key in keys}
        lasting = {key for key, count in self._seen.items() if count >= self.LOOKS_MIN}
        waiting = self._ordered - lasting
        changes = [change for change in plan.changes if (change.topic, change.partition) not in waiting]
        for change in changes:
            self._ordered.add((change.topic, change.partition))
            del self._seen[(change.topic, change.partition)]
        return BalancePlan(tuple(changes), tuple(held for held in plan.unplaced if (held.topic, held.partition) in lasting))


def _cancel(cluster: ClusterClient, view: ClusterView, coming_to: int | None = None, going_from: int | None = None) -> None:
    concerned = [key for key, each in view.ongoing.items() if coming_to in each.adding or going_from in each.removing]
    cancel_all(cluster, view, concerned, None)


def remove(
    box: BoxArgument,
    lost: Annotated[
        bool, option("--lost", help="It burnt, disks and all: forget it although partitions name it. A new box under the same id begins them anew, empty.")
    ] = False,
    yes: YesOption = False,
    bootstrap: BootstrapOption = None,
    data: DataOption = None,
    config: ConfigOption = None,
) -> None:
    """Take a box out for good, when it is drained and stopped: what is recorded of it is forgotten.

    Example: millrace box remove 2; of a box that burnt: millrace box remove 2 --lost
    """
    with open_cluster(bootstrap, data, config) as cluster:
        from appliance.client.boxes import unregister_box
        from appliance.command.cluster_view import close_to_replicas, look_at_cluster

        view = look_at_cluster(cluster)
        problems = []
        if (held := view.replicas_on(box)) and not lost:
            problems.append(f"box {box} holds {plural(len(held), 'replica')}; empty it first: millrace box drain {box} (or, if it burnt: --lost)")
        if box in view.boxes:
            problems.append(f"box {box} runs; stop it first (systemctl stop millrace.target on it)")
        if problems:
            raise RequestRefused(ErrorCode.INVALID_REQUEST, "\n".join(problems))
        if held and not yes:
            confirm(f"Forget box {box}, and the records that only its {plural(len(held), 'replica')} had?", "add --yes")
        unregister_box(cluster, box)
        close_to_replicas(cluster, view, box, False)
    if held:
        print(f"box {box} is forgotten; {plural(len(held), 'replica')} wait for a new box with --broker-id {box}, or for: millrace box drain {box}")
    else:
        print(f"box {box} is taken out")


def require_running(view: ClusterView, box: int) -> None:
    if box not in view.boxes:
        raise UsageProblem(f"box {box} does not run; start it first. There are {', '.join(map(str, sorted(view.boxes))) or 'none'}")
    if view.boxes[box].contents is None:
        raise UsageProblem(f"box {box} does not answer; look at `millrace status` on it")


def require_known(view: ClusterView, box: int) -> None:
    if box not in view.boxes and not view.replicas_on(box):
        raise UsageProblem(f"there is no box {box}; there are {', '.join(map(str, sorted({*view.boxes, *view.absent_boxes()})))}")
