"""Shared by `millrace topic reassign`, `topic alter --replication-factor` and `millrace box …`: show a plan, order, watch.

The commands plan and watch; the controller moves the replicas, with or without them. So a command may be interrupted and run
again: it plans what is not ordered yet and continues to watch.

A throttle is set before the orders and removed when nothing moves any more, by a later run if the first was interrupted,
because the throttle is stored in configs. A box's rate stays while another throttled reassignment needs it.
Weak spots: progress compares log sizes on both sides, so a log that is written faster than it is copied never ends; a
throttle of these topics is removed also if another client set it.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Collection, Iterable

from appliance.base.clock import Clock
from appliance.base.errors import ErrorCode, RequestRefused
from appliance.client.admin import alter_topic_settings, topic_settings
from appliance.client.boxes import Partition, alter_box_settings, box_settings, reassign
from appliance.client.cluster import ClusterClient
from appliance.cluster.box_balance import BalancePlan
from appliance.command.cluster_view import ClusterView, look_at_cluster
from appliance.command.output import NOTHING, Column, bytes_text, duration_text, plural, print_table, say

RATES = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")
LEADERS = "leader.replication.throttled.replicas"
FOLLOWERS = "follower.replication.throttled.replicas"


def throttled_replicas(plan: BalancePlan) -> dict[str, dict[str, str]]:
    """topic → its two configs: the replicas that are copied from, and those that are copied to."""
    sources: dict[str, list[str]] = {}
    sinks: dict[str, list[str]] = {}
    for change in sorted(plan.changes, key=lambda change: (change.topic, change.partition)):
        if change.coming:
            sources.setdefault(change.topic, []).extend(f"{change.partition}:{box}" for box in change.former)
            sinks.setdefault(change.topic, []).extend(f"{change.partition}:{box}" for box in change.coming)
    return {topic: {LEADERS: ",".join(sources[topic]), FOLLOWERS: ",".join(sinks[topic])} for topic in sinks}


def set_throttle(cluster: ClusterClient, view: ClusterView, plan: BalancePlan, bytes_per_second: int) -> None:
    """On every box that runs, and on the topics of the plan."""
    for topic, configs in throttled_replicas(plan).items():
        alter_topic_settings(cluster, topic, configs, ())
    for broker_id in view.boxes:
        alter_box_settings(cluster, broker_id, dict.fromkeys(RATES, str(bytes_per_second)), ())


def lift_throttle(cluster: ClusterClient, view: ClusterView, topics: Collection[str] | None = None) -> bool:
    """Of those of `topics` (None: of all) of which nothing is on its way any more, as `view` has it. Whether there was one."""
    under_way = {topic for topic, _ in view.ongoing}
    at_rest = {topic for topic, _ in view.partitions} - under_way
    lifted = False
    for topic in sorted(at_rest if topics is None else at_rest.intersection(topics)):
        if found := _throttled(cluster, topic):
            alter_topic_settings(cluster, topic, {}, found)
            lifted = True
    if lifted and not any(_throttled(cluster, topic) for topic in sorted(under_way)):
        for broker_id in sorted(view.boxes):
            if rates := [name for name in RATES if name in box_settings(cluster, broker_id)]:
                alter_box_settings(cluster, broker_id, {}, rates)
    return lifted


def _throttled(cluster: ClusterClient, topic: str) -> list[str]:
    """Which of the two configs stand on the topic itself."""
    own = topic_settings(cluster, topic).own
    return [name for name in (LEADERS, FOLLOWERS) if name in own]


LOOK_SECONDS = 0.5
LINE_SECONDS = 5.0
SHOWN_MAX = 20
REFUSALS_SHOWN = 5
BAR_CELLS = 24


def print_plan(plan: BalancePlan, throttle: int | None) -> None:
    """What goes where, and how long it takes at least."""
    shown = [
        [
            f"{change.topic}-{change.partition}",
            bytes_text(change.size_bytes),
            _listed(change.former),
            _listed(change.replicas),
            ", ".join([*(f"+{box}" for box in change.coming), *(f"-{box}" for box in change.going)]) or "order only",
        ]
        for change in plan.changes[:SHOWN_MAX]
    ]
    print_table([Column("partition"), Column("size", is_number=True), Column("replicas"), Column("become"), Column("change")], shown)
    more = f", {len(plan.changes) - SHOWN_MAX} of them not shown" if len(plan.changes) > SHOWN_MAX else ""
    print(f"{plural(len(plan.changes), 'partition')}, {bytes_text(plan.moved_bytes)} to copy{more}")
    received = sorted(plan.bytes_to().items())
    if received:
        print("to receive: " + ", ".join(f"box {box} {bytes_text(size)}" for box, size in received))
    if throttle is not None and received:
        print(f"at {bytes_text(throttle)}/s for each box that is at least {duration_text(max(size for _, size in received) / throttle)}")


def order(cluster: ClusterClient, plan: BalancePlan) -> None:
    """Raises RequestRefused with what was refused; the rest is on its way then."""
    refuse(reassign(cluster, {(change.topic, change.partition): change.replicas for change in plan.changes}).values())


def refuse(refusals: Iterable[RequestRefused]) -> None:
    """Raises all refusals as one."""
    told = list(refusals)
    if told:
        shown = [str(refusal) for refusal in told[:REFUSALS_SHOWN]]
        more = [f"and {len(told) - REFUSALS_SHOWN} more"] if len(told) > REFUSALS_SHOWN else []
        raise RequestRefused(told[0].code, "\n".join([*shown, *more]))


def cancel(cluster: ClusterClient, partitions: Collection[Partition]) -> int:
    """Call off what is on its way of `partitions`; how many were."""
    refusals = reassign(cluster, dict.fromkeys(partitions))
    gone = [refusal for refusal in refusals.values() if refusal.code is ErrorCode.NO_REASSIGNMENT_IN_PROGRESS]
    refuse(refusal for refusal in refusals.values() if refusal not in gone)
    return len(partitions) - len(gone)


def watch(
    cluster: ClusterClient,
    partitions: Collection[Partition],
    clock: Clock,
    meanwhile: Callable[[ClusterView], bool] = lambda _view: False,
    pause: Callable[[float], None] = time.sleep,
) -> ClusterView:
    """Until none of `partitions` is on its way, and `meanwhile` (asked at every look, it may order more) has nothing left to do; the last look."""
    bar = ReassignmentBar(clock)
    while True:
        view = look_at_cluster(cluster)
        bar.show(view, partitions)
        busy = meanwhile(view)
        if not busy and not any(partition in view.ongoing for partition in partitions):
            bar.end(view, partitions)
            return view
        pause(LOOK_SECONDS)


class ReassignmentBar:
    """One line on a terminal, drawn over itself; elsewhere a line every few seconds."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._began_ms = clock.monotonic_ms()
        self._wanted: dict[tuple[Partition, int], int] = {}
        """(partition, box that receives it) → bytes that it will have."""
        self._first_done: int | None = None
        self._next_line_ms = 0

    def show(self, view: ClusterView, partitions: Collection[Partition]) -> None:
        now_ms = self._clock.monotonic_ms()
        text = self.text(view, partitions, now_ms)
        if sys.stderr.isatty():
            sys.stderr.write(f"\r{text}\x1b[K")
            sys.stderr.flush()
        elif now_ms >= self._next_line_ms:
            self._next_line_ms = now_ms + int(LINE_SECONDS * 1000)
            say(text)

    def text(self, view: ClusterView, partitions: Collection[Partition], now_ms: int) -> str:
        """`[####....]  40%  1.2 GiB of 3.0 GiB  3 of 8 partitions  80.0 MiB/s  ETA 22s`"""
        left = {(key, box): view.size_on(key, box) for key in partitions if key in view.ongoing for box in view.ongoing[key].adding}
        for key, box in left:
            self._wanted[(key, box)] = max(self._wanted.get((key, box), 0), view.size_of(key))
        total = sum(self._wanted.values())
        done = sum(size - max(0, size - left[copy]) if copy in left else size for copy, size in self._wanted.items())
        if self._first_done is None:
            self._first_done = done
        rate = (done - self._first_done) * 1000 / max(1, now_ms - self._began_ms)
        waiting = sum(1 for key in partitions if key in view.ongoing)
        share = done / total if total else (0.0 if waiting else 1.0)
        cells = int(share * BAR_CELLS)
        eta = duration_text((total - done) / rate) if rate > 0 else NOTHING
        return (
            f"[{'#' * cells}{'.' * (BAR_CELLS - cells)}] {share:4.0%}  {bytes_text(done)} of {bytes_text(total)}"
            f"  {len(partitions) - waiting} of {plural(len(partitions), 'partition')}  {bytes_text(rate)}/s  ETA {eta}"
        )

    def end(self, view: ClusterView, partitions: Collection[Partition]) -> None:
        self._next_line_ms = 0
        self.show(view, partitions)
        if sys.stderr.isatty():
            sys.stderr.write("\n")


def _listed(broker_ids: Iterable[int]) -> str:
    return ",".join(str(broker_id) for broker_id in broker_ids)
