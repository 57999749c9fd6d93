"""Change leaders and in-sync sets: after deaths of boxes (as controller of the cluster), and for
this box's own replicas.

`leader_selection` decides, `state_changes` writes. If the process dies between two transactions,
the next controller, or the next incarnation on this box, decides the rest again. Owned by the
controller process. Weak: a box that is cut off from ZooKeeper learns that it was replaced only when
it reconnects, or from replicas that fetch from the new leader. Until then it acknowledges no
acks=all write, because those need the in-sync set.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import NamedTuple

from appliance.base.model import NO_LEADER
from appliance.cluster.placement import bump_leader_epoch
from appliance.cluster.znodes import PartitionState
from services.controller.decisions.cluster import Cluster, DiskReport
from services.controller.decisions.leader_selection import after_death, after_unclean_boot, take_up, withdraw
from services.controller.decisions.role_operations import send_roles
from services.controller.decisions.state_changes import StateChange, change_states
from services.controller.zookeeper.broker_registry import change_record
from services.controller.zookeeper.operation import WRITES_MAX, Operation, Pause, Publish
from services.controller.zookeeper.topic_registry import TopicState

Partitions = Iterable[tuple[TopicState, int]]

HANDED_OVER_AT_ONCE = 100
"""Leaderships that a controlled shutdown hands over in one step. Each of them has no leader until
the new leaders have taken over all of the step.
"""
OTHERS_NEED = 2
"""Pause after a step, as a multiple of our own log-writers' time for it. The other boxes learn of
the step later, two of them change roles, and then one fetches from the other (measured; a factor of
three changes nothing).
"""
PAUSES_MS_MAX = 2_500
"""Limit for all pauses of a shutdown together."""
PAUSE_MS_MAX = 500
"""Limit for one pause: a shutdown without progress for 3 s is not waited for
(`runtime/children.py`), and a slow machine needs that time for the step itself.
"""
LEAVING_MS = 6_000
"""Pauses end when the remaining steps would exceed this time. A stop waits 8 s; leaderships that
remain then are lost at once, when the box is gone.
"""


class Elections(NamedTuple):
    """Counts: partitions with another leader, of them those elected out of sync; without a leader;
    with a smaller in-sync set.
    """

    elected: int = 0
    unclean: int = 0
    without_leader: int = 0
    shrunk: int = 0


# --- as controller of the cluster --------------------------------------------------------------------------------------


def to_elect(cluster: Cluster) -> list[tuple[TopicState, int]]:
    """Return the partitions whose leader or in-sync set contains a dead broker, or which have no
    leader.
    """
    live = cluster.not_dead()
    found = []
    for name, topic in cluster.topics.items():
        if name in cluster.deleting:
            continue
        for number, state in topic.states.items():
            if not live.issuperset(state.isr) or state.leader not in live:
                found.append((topic, number))
    found.sort(key=lambda each: each[0].states[each[1]].leader in live)  # partitions without a live leader first
    return found


def elect_after_deaths(cluster: Cluster, partitions: list[tuple[TopicState, int]]) -> Operation[Elections]:
    """Elect leaders for partitions whose leader is dead, and remove dead brokers from in-sync sets."""
    before = {(topic.name, number): topic.states[number] for topic, number in partitions}
    guard = cluster.writes_fenced_by()

    def decide(topic: TopicState, number: int, state: PartitionState) -> PartitionState | None:
        unclean = cluster.config_of(topic).get("unclean.leader.election.enable") == "true"
        return after_death(state, topic.replicas[number], cluster.not_dead(), cluster.eligible_brokers(), unclean, guard.controller_epoch)

    made = yield from change_states(cluster, [StateChange(topic, number, partial(decide, topic, number)) for topic, number in partitions], guard)
    if made:
        yield Publish()
    counted = Elections()
    for change in made:
        old, new = before[(change.topic.name, change.partition)], change.topic.states[change.partition]
        if new.leader == NO_LEADER:
            counted = counted._replace(without_leader=counted.without_leader + 1)
        elif new.leader != old.leader:
            was_in_sync = new.leader in old.isr
            counted = counted._replace(elected=counted.elected + 1, unclean=counted.unclean + (not was_in_sync))
        else:
            counted = counted._replace(shrunk=counted.shrunk + 1)
    return counted


# --- this box's own replicas -------------------------------------------------------------------------------------------


def led_or_in_sync(cluster: Cluster, disks: Iterable[str] | None = None) -> list[tuple[TopicState, int]]:
    """Return the replicated partitions on this box (or on `disks` of it) that it leads or is in
    sync for.
    """
    chosen = None if disks is None else set(disks)
    return [
        (topic, number)
        for name, topic in sorted(cluster.topics.items())
        if name not in cluster.deleting
        for number, state in sorted(topic.states.items())
        if cluster.broker_id in (state.leader, *state.isr)
        and len(topic.replicas.get(number, ())) > 1
        and (chosen is None or cluster.disk_of_partition(topic, number) in chosen)
    ]


def to_withdraw(cluster: Cluster, disk: str, serves_reads: bool = False) -> list[tuple[TopicState, int]]:
    """Return the replicas on a failed or full disk whose leadership or in-sync membership another
    box can take.
    """
    eligible = cluster.eligible_brokers()
    return [
        (topic, number)
        for topic, number in led_or_in_sync(cluster, (disk,))
        if withdraw(topic.states[number], topic.replicas[number], cluster.broker_id, eligible, serves_reads) is not None
    ]


def to_take_up(cluster: Cluster, report: DiskReport) -> list[tuple[TopicState, int]]:
    """Return the partitions on a working disk that have no leader and for which this broker is in
    sync.
    """
    return [
        (topic, number)
        for name, topic in cluster.topics.items()
        if name not in cluster.deleting
        for number, state in topic.states.items()
        if state.leader == NO_LEADER
        and cluster.broker_id in state.isr
        and (name, number) not in report.unbumped
        and report.holds(topic, number)
        and cluster.disk_of_partition(topic, number) == report.disk
    ]


def withdraw_replicas(cluster: Cluster, partitions: Partitions, serves_reads: bool = False) -> Operation[int]:
    """Hand the leadership of `partitions` to other in-sync replicas and leave their in-sync sets,
    as far as others are alive.

    Returns how many states changed.
    """

    changed = yield from _write_withdrawal(cluster, partitions, serves_reads)
    if changed:
        yield Publish()
    return changed


def _write_withdrawal(cluster: Cluster, partitions: Partitions, serves_reads: bool = False) -> Operation[int]:
    def decide(topic: TopicState, number: int, state: PartitionState) -> PartitionState | None:
        return withdraw(state, topic.replicas[number], cluster.broker_id, cluster.eligible_brokers(), serves_reads)

    changes = [StateChange(topic, number, partial(decide, topic, number)) for topic, number in partitions]
    made = yield from change_states(cluster, changes, cluster.own_writes())
    return len(made)


def take_up_replicas(cluster: Cluster, partitions: Partitions) -> Operation[None]:
    """Lead those of `partitions` that have no leader and for which this broker is in sync."""
    changes = [StateChange(topic, number, lambda state: take_up(state, cluster.broker_id)) for topic, number in partitions]
    if (yield from change_states(cluster, changes, cluster.own_writes())):
        yield Publish()


def settle_unclean_boot(cluster: Cluster, report: DiskReport, partitions: list[tuple[TopicState, int]], others_are_overdue: bool) -> Operation[int]:
    """After an unclean boot the logs of a disk may have lost their ends: another in-sync replica
    leads, or the leader epoch grows.

    The epoch must grow because consumers may have read offsets that are gone; under the old epoch
    the same offsets would return with other content. Returns how many partitions still wait for
    another member of their in-sync set, which has all the records.
    """
    if not report.unbumped:
        return 0
    eligible = set(cluster.eligible_brokers()) - {cluster.broker_id}
    settled = []
    for topic, number in partitions:
        state = topic.states[number]
        others = set(state.isr) - {cluster.broker_id}
        may_wait = state.leader == cluster.broker_id and others and not others & eligible
        if (topic.name, number) in report.unbumped and (others_are_overdue or not may_wait):
            settled.append((topic, number))

    def decide(topic: TopicState, number: int, state: PartitionState) -> PartitionState | None:
        return after_unclean_boot(state, topic.replicas[number], cluster.broker_id, cluster.eligible_brokers()) or state

    # For a follower out of sync the same state is written again. This raises the partition epoch, so that a pending
    # request to add this replica fails: it was decided on records that the replica may have lost.
    changes = [StateChange(topic, number, partial(decide, topic, number), is_forced=True) for topic, number in settled]
    yield from change_states(cluster, changes, cluster.own_writes())
    report.unbumped -= {(topic.name, number) for topic, number in settled}
    waiting = report.unbumped & {(topic.name, number) for topic, number in partitions}
    report.unbumped = waiting
    return len(waiting)


def raise_leader_epochs(cluster: Cluster, topic: TopicState, partitions: Iterable[int]) -> Operation[None]:
    """Raise the leader epoch of partitions that this broker leads."""

    def decide(state: PartitionState) -> PartitionState | None:
        return bump_leader_epoch(state, state.controller_epoch) if state.leader == cluster.broker_id else None

    yield from change_states(cluster, [StateChange(topic, number, decide) for number in partitions], cluster.own_writes())


def fence_box(cluster: Cluster, is_fenced: bool) -> Operation[None]:
    """Record whether other boxes may elect this box or add it to in-sync sets."""
    cluster.use_own_record(*(yield from change_record(cluster.broker_id, lambda record: record._replace(is_fenced=is_fenced))))


def controlled_shutdown(cluster: Cluster, on_handed_over: Callable[[int], None], now_ms: Callable[[], int]) -> Operation[int]:
    """Controlled shutdown: fence this box, then hand over all it leads and leave the in-sync sets.
    Returns how many states changed.

    Led partitions go first, in steps of `HANDED_OVER_AT_ONCE`: a partition is without a leader only
    as long as its own step takes. Our log-writers apply each step before the next one starts, and
    the other boxes get a pause for it, unless the shutdown would take too long. Measured with 667
    partitions on a saturated machine: without pauses all of them were without acks=all for 2 s,
    with pauses each for 0.3 to 0.6 s. The next registration removes the fence. If the box dies in
    between, the controller elects for the rest when the session has expired.
    """
    yield from fence_box(cluster, True)
    concerned = led_or_in_sync(cluster)
    led = [(topic, number) for topic, number in concerned if topic.states[number].leader == cluster.broker_id]
    followed = [(topic, number) for topic, number in concerned if topic.states[number].leader != cluster.broker_id]
    led_parts, followed_parts = _parts(led, HANDED_OVER_AT_ONCE), _parts(followed, WRITES_MAX)
    parts = (*led_parts, *followed_parts)
    changed = 0
    since_ms = now_ms()
    for number, part in enumerate(parts, start=1):
        began_ms = now_ms()
        handed_over = yield from _write_withdrawal(cluster, part)
        on_handed_over(handed_over)
        changed += handed_over
        yield from send_roles(cluster, part)  # now, so that the step ends when our log-writers have applied it
        yield Publish()
        if number < len(led_parts):
            took_ms = now_ms() - began_ms
            spare_ms = since_ms + LEAVING_MS - now_ms() - took_ms * (len(parts) - number)
            pause_ms = min(OTHERS_NEED * took_ms, PAUSES_MS_MAX // len(led_parts), PAUSE_MS_MAX, spare_ms)
            if pause_ms > 0:
                yield Pause(pause_ms)
    return changed


def _parts(partitions: list[tuple[TopicState, int]], size: int) -> list[list[tuple[TopicState, int]]]:
    return [partitions[start : start + size] for start in range(0, len(partitions), size)]
