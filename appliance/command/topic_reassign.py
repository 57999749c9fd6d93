"""`millrace topic reassign`: spread topics over boxes anew, or put partitions where they are wanted.

Weak spot: as of `reassigning`; what is planned while another reassignment is under way counts with its target.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Annotated

import typer

from appliance.base.clock import SystemClock
from appliance.base.errors import ErrorCode, RequestRefused
from appliance.base.model import topic_name_problem
from appliance.command.disk_drain import bytes_of
from appliance.command.failures import EXIT_FAILED, UsageProblem
from appliance.command.kafka import open_cluster
from appliance.command.options import BootstrapOption, ConfigOption, DataOption, argument, option
from appliance.command.output import bytes_text, plural, say

if TYPE_CHECKING:
    from appliance.client.boxes import Partition
    from appliance.client.cluster import ClusterClient
    from appliance.cluster.box_balance import BalancePlan
    from appliance.command.cluster_view import ClusterView

ThrottleOption = Annotated[
    str | None, option("--throttle", metavar="BYTES/S", help="How fast each box may receive: 50000000, 50M, 50MiB. [default: as fast as it goes]")
]
PlanOption = Annotated[bool, option("--dry-run", "--plan", help="Show what would move, how much and how long it takes; change nothing.")]
NoWaitOption = Annotated[bool, option("--no-wait", help="Order it and return.")]

SELF_MADE = (
    "topics that boxes make by themselves get their copies back, unless the settings ask for fewer on every box: ingest.topic.replication.factor, "
    "offsets.topic.replication.factor, share.coordinator.state.topic.replication.factor, transaction.state.log.replication.factor"
)


def reassign(
    topics: Annotated[list[str] | None, argument("TOPIC", "The topics. [default: all]")] = None,
    to: Annotated[str | None, option("--to", metavar="BOX,BOX", help="Only these boxes, by broker id. [default: all that run]")] = None,
    replicas: Annotated[
        list[str] | None,
        option("--replicas", metavar="P=BOX,BOX", help="Put partition P on these boxes, the leader first; one topic only, may be given several times."),
    ] = None,
    plan: PlanOption = False,
    throttle: ThrottleOption = None,
    no_wait: NoWaitOption = False,
    cancel: Annotated[bool, option("--cancel", help="Call off what is on its way: every partition stays where it was.")] = False,
    bootstrap: BootstrapOption = None,
    data: DataOption = None,
    config: ConfigOption = None,
) -> None:
    """Spread topics evenly over boxes with as few moves as it takes, while they are written and read.

    Example: millrace topic reassign --dry-run; millrace topic reassign orders --to 1,2,4 --throttle 50MiB
    """
    wanted, boxes, bytes_per_second = require_meaning(topics or [], to, replicas or [], throttle, cancel, plan)
    with open_cluster(bootstrap, data, config) as cluster:
        from appliance.command.cluster_view import look_at_cluster

        view = look_at_cluster(cluster)
        require_there(view, topics or [], boxes or [], wanted)
        chosen = set(topics) if topics else None
        if cancel:
            cancel_all(cluster, view, [key for key in view.ongoing if chosen is None or key[0] in chosen], chosen)
            return
        made = explicit_plan(view, (topics or [""])[0], wanted) if wanted else spread_plan(view, chosen, boxes)
        carry_out(cluster, view, made, plan, bytes_per_second, no_wait, chosen)


def require_meaning(
    topics: list[str], to: str | None, replicas: list[str], throttle: str | None, cancel: bool, plan: bool
) -> tuple[dict[int, tuple[int, ...]], list[int] | None, int | None]:
    """(partition → boxes, boxes to spread over, bytes a second). Raises UsageProblem with everything that is wrong."""
    problems = [problem for name in topics if (problem := topic_name_problem(name))]
    wanted: dict[int, tuple[int, ...]] = {}
    for text in replicas:
        number, separator, ids = text.partition("=")
        boxes = parse_ids(ids)
        if not separator or not number.strip().isdigit() or not boxes:
            problems.append(f"--replicas {text}: write a partition and its boxes, each once, for example --replicas 0=1,2,3")
        elif int(number) in wanted:
            problems.append(f"--replicas names partition {int(number)} twice")
        else:
            wanted[int(number)] = tuple(boxes)
    spread = parse_ids(to) if to is not None else None
    if to is not None and not spread:
        problems.append(f"--to {to}: write broker ids, each once, for example --to 1,2,3")
    if replicas and len(topics) != 1:
        problems.append("--replicas is for one topic; name it")
    if replicas and to is not None:
        problems.append("--replicas and --to both say where to; give one of them")
    if cancel and (replicas or to is not None or throttle is not None or plan):
        problems.append("--cancel stands alone, or with topics")
    bytes_per_second = None
    if throttle is not None:
        try:
            bytes_per_second = bytes_of(throttle)
        except UsageProblem as problem:
            problems.append(f"--throttle: {problem}")
    if problems:
        raise UsageProblem("\n".join(problems))
    return wanted, spread, bytes_per_second


def parse_ids(text: str) -> list[int]:
    """`1,2,3`; nothing for what is no list of different broker ids."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdigit() for part in parts) or len(set(parts)) < len(parts):
        return []
    return [int(part) for part in parts]


def require_there(view: ClusterView, topics: Collection[str], boxes: Collection[int], wanted: dict[int, tuple[int, ...]]) -> None:
    """Raises UsageProblem for every topic, partition and box that is not there."""
    known = {name for name, _ in view.partitions}
    problems = [f"there is no topic {name}" for name in topics if name not in known]
    if not problems:
        problems += [f"topic {name} has no partition {number}" for name in topics for number in sorted(wanted) if (name, number) not in view.partitions]
    named = {*boxes, *(box for replicas in wanted.values() for box in replicas)}
    if absent := sorted(named - view.boxes.keys()):
        problems.append(f"no box {', '.join(map(str, absent))} runs; there are {', '.join(map(str, sorted(view.boxes))) or 'none'}")
    if problems:
        raise UsageProblem("\n".join(problems))


def explicit_plan(view: ClusterView, topic: str, wanted: dict[int, tuple[int, ...]]) -> BalancePlan:
    """Partitions where they were asked to be, as far as they are not."""
    from appliance.cluster.box_balance import BalancePlan, PlannedReassignment

    changes = []
    for number, replicas in sorted(wanted.items()):
        former = view.target_of((topic, number))
        if former != replicas:
            changes.append(PlannedReassignment(topic, number, former, replicas, view.size_of((topic, number))))
    return BalancePlan(tuple(changes))


def spread_plan(view: ClusterView, topics: Collection[str] | None, boxes: Collection[int] | None) -> BalancePlan:
    """Off the boxes that are not wanted, then evenly over those that are."""
    from appliance.cluster.box_balance import BalancePlan, PlannedReassignment, plan_balance, plan_box_drain

    held = {(each.topic, each.partition): each for each in view.held(topics)}
    rooms = view.rooms() if boxes is not None else view.open_rooms()
    onto = set(boxes) if boxes is not None else {room.broker_id for room in rooms}
    outside = {replica for each in held.values() for replica in each.replicas} - onto
    left = plan_box_drain(held.values(), [room for room in rooms if room.broker_id in onto], outside if boxes is not None else ())
    gone = dict(held)
    for change in left.changes:
        key = (change.topic, change.partition)
        gone[key] = gone[key]._replace(replicas=change.replicas)
    spread = plan_balance(gone.values(), [room for room in rooms if room.broker_id in onto], onto)
    final = {(change.topic, change.partition): change.replicas for change in (*left.changes, *spread.changes)}
    changes = [
        PlannedReassignment(*key, held[key].replicas, replicas, held[key].size_bytes) for key, replicas in final.items() if replicas != held[key].replicas
    ]
    return BalancePlan(tuple(sorted(changes, key=lambda change: (-change.size_bytes, change.topic, change.partition))), left.unplaced)


def carry_out(
    cluster: ClusterClient, view: ClusterView, plan: BalancePlan, only_plan: bool, throttle: int | None, no_wait: bool, topics: Collection[str] | None
) -> None:
    """Show, order, watch: also what is on its way already."""
    from appliance.command import reassigning
    from appliance.command.reassigning import lift_throttle, set_throttle

    refuse_unplaced(plan)
    under_way = {key for key in view.ongoing if topics is None or key[0] in topics}
    if plan.changes:
        reassigning.print_plan(plan, throttle)
    elif not under_way:
        print("everything is where it should be")
        if not only_plan:
            lift_left_over(cluster, view, topics)
        return
    if under_way:
        print(f"{plural(len(under_way), 'partition')} on the way already")
    if only_plan:
        return
    partitions = under_way | {(change.topic, change.partition) for change in plan.changes}
    try:
        if throttle is not None:
            set_throttle(cluster, view, plan, throttle)
        reassigning.order(cluster, plan)
        if no_wait:
            ends = ", and to lift the throttle at its end" if throttle is not None else ""
            print(f"it goes on without this command; give the same one without --no-wait to watch it{ends}")
            return
        last = reassigning.watch(cluster, partitions, SystemClock())
        lift_throttle(cluster, last, {name for name, _ in partitions})
    except KeyboardInterrupt:
        say("\nit goes on without this command; run it again to watch, or with --cancel to call it off")
        raise typer.Exit(EXIT_FAILED) from None
    print(f"{plural(len(partitions), 'partition')} where {'it' if len(partitions) == 1 else 'they'} should be")


def lift_left_over(cluster: ClusterClient, view: ClusterView, topics: Collection[str] | None) -> None:
    """Remove the throttle of a reassignment that ended while no command watched it: it would slow down later followers."""
    from appliance.command.reassigning import lift_throttle

    if lift_throttle(cluster, view, topics):
        print("the throttle of an earlier reassignment is lifted")


def refuse_unplaced(plan: BalancePlan) -> None:
    if plan.unplaced:
        names = ", ".join(str(held) for held in plan.unplaced[:5]) + (", …" if len(plan.unplaced) > 5 else "")
        size = sum(held.size_bytes for held in plan.unplaced)
        words = (
            f"{plural(len(plan.unplaced), 'partition')} ({bytes_text(size)}) fit on no other box: {names}; add a box or a disk, or lower the replication factor"
            f" ({SELF_MADE})"
        )
        raise RequestRefused(ErrorCode.INVALID_REPLICA_ASSIGNMENT, words)


def cancel_all(cluster: ClusterClient, view: ClusterView, partitions: Collection[Partition], topics: Collection[str] | None) -> None:
    """All of `partitions`, which are on their way; where there are none, what an earlier reassignment of `topics` (None: of any) left is cleared away."""
    from appliance.command import reassigning
    from appliance.command.reassigning import lift_throttle

    if not partitions:
        print("nothing is on its way")
        lift_left_over(cluster, view, topics)
        return
    count = reassigning.cancel(cluster, partitions)
    others = {key: view.ongoing[key] for key in view.ongoing.keys() - set(partitions)}
    lift_throttle(cluster, view._replace(ongoing=others), {name for name, _ in partitions})
    print(f"called off: {plural(count, 'partition')}")
