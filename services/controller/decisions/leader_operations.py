"""Who leads when somebody cannot: the deaths of boxes (as controller of the cluster), and the misfortunes of this box's own replicas.

`failover` decides, `state_changes` writes. Killed between two transactions, the rest is decided again by whoever is controller then, or by the next
life of the box. Owned by the controller process. Weak spot: a box that is cut off from ZooKeeper hears of its replacement only when it is back, or from
the replicas that follow somebody else; what it acknowledges meanwhile is none of acks=all.
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
"""Partitions whose leadership goes to other boxes in one step of a stop: all of them have no leader until their new ones have taken all of them."""
OTHERS_NEED = 2
"""Times as long as our own log-writers for a part: theirs are told later, by two boxes, and then follow each other (measured; three times changes nothing)."""
PAUSES_MS_MAX = 2_500
"""Of all pauses of a stop together."""
PAUSE_MS_MAX = 500
"""Of one: a stop that gives nothing away for 3 s is not waited for (`runtime/leaving.py`), and a machine that needs long for a part needs that time itself."""
LEAVING_MS = 6_000
"""There are pauses only while all parts will be done within this: a stop is waited for 8 s, and what is left then all goes at once, when the box is gone."""


class Elections(NamedTuple):
    """What became of partitions: other leaders, of them those that were not in sync; no leader any more; smaller in-sync sets."""

    elected: int = 0
    unclean: int = 0
    without_leader: int = 0
    shrunk: int = 0


# --- as controller of the cluster --------------------------------------------------------------------------------------


def to_elect(cluster: Cluster) -> list[tuple[TopicState, int]]:
    """Partitions whose leader, or a member of whose in-sync set, does not live; those without a leader among them."""
    live = cluster.not_dead()
    found = []
    for name, topic in cluster.topics.items():
        if name in cluster.deleting:
            continue
        for number, state in topic.states.items():
            if not live.issuperset(state.isr) or state.leader not in live:
                found.append((topic, number))
    found.sort(key=lambda each: each[0].states[each[1]].leader in live)  # those that nobody serves first
    return found


def elect_after_deaths(cluster: Cluster, partitions: list[tuple[TopicState, int]]) -> Operation[Elections]:
    """Leaders for those of `partitions` whose leader does not live, and in-sync sets without the dead."""
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
    """Partitions that lie on this box (on `disks` of it), have other replicas, and are led from here or are in sync here."""
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


def to_withdraw(cluster: Cluster, disk: str) -> list[tuple[TopicState, int]]:
    """Replicas on a disk that cannot serve, of which others can take over something."""
    eligible = cluster.eligible_brokers()
    return [
        (topic, number)
        for topic, number in led_or_in_sync(cluster, (disk,))
        if withdraw(topic.states[number], topic.replicas[number], cluster.broker_id, eligible) is not None
    ]


def to_take_up(cluster: Cluster, report: DiskReport) -> list[tuple[TopicState, int]]:
    """Partitions on a disk that can serve which nobody leads, and which were in sync here."""
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


def withdraw_replicas(cluster: Cluster, partitions: Partitions) -> Operation[int]:
    """Hand the leadership of `partitions` to others in sync, and leave their in-sync sets, as far as others are there; returns how many states changed."""

    changed = yield from _write_withdrawal(cluster, partitions)
    if changed:
        yield Publish()
    return changed


def _write_withdrawal(cluster: Cluster, partitions: Partitions) -> Operation[int]:
    def decide(topic: TopicState, number: int, state: PartitionState) -> PartitionState | None:
        return withdraw(state, topic.replicas[number], cluster.broker_id, cluster.eligible_brokers())

    changes = [StateChange(topic, number, partial(decide, topic, number)) for topic, number in partitions]
    made = yield from change_states(cluster, changes, cluster.own_writes())
    return len(made)


def take_up_replicas(cluster: Cluster, partitions: Partitions) -> Operation[None]:
    """Lead those of `partitions` that nobody leads, where this broker is in sync."""
    changes = [StateChange(topic, number, lambda state: take_up(state, cluster.broker_id)) for topic, number in partitions]
    if (yield from change_states(cluster, changes, cluster.own_writes())):
        yield Publish()


def settle_unclean_boot(cluster: Cluster, report: DiskReport, partitions: list[tuple[TopicState, int]], others_had_their_time: bool) -> Operation[int]:
    """A disk may have lost the ends of its logs: other members of the in-sync sets lead, or leader epochs are raised; returns how many partitions wait for
    other members to come."""
    if not report.unbumped:
        return 0
    eligible = set(cluster.eligible_brokers()) - {cluster.broker_id}
    settled = []
    for topic, number in partitions:
        state = topic.states[number]
        others = set(state.isr) - {cluster.broker_id}
        may_wait = state.leader == cluster.broker_id and others and not others & eligible
        if (topic.name, number) in report.unbumped and (others_had_their_time or not may_wait):
            settled.append((topic, number))

    def decide(topic: TopicState, number: int, state: PartitionState) -> PartitionState | None:
        return after_unclean_boot(state, topic.replicas[number], cluster.broker_id, cluster.eligible_brokers()) or state

    # Where it is a follower and not in sync the same state is written again: a wish to take it in, from what it had before, is void then.
    changes = [StateChange(topic, number, partial(decide, topic, number), is_forced=True) for topic, number in settled]
    yield from change_states(cluster, changes, cluster.own_writes())
    report.unbumped -= {(topic.name, number) for topic, number in settled}
    waiting = report.unbumped & {(topic.name, number) for topic, number in partitions}
    report.unbumped = waiting
    return len(waiting)


def raise_leader_epochs(cluster: Cluster, topic: TopicState, partitions: Iterable[int]) -> Operation[None]:
    """A larger leader epoch for partitions that this broker leads."""

    def decide(state: PartitionState) -> PartitionState | None:
        return bump_leader_epoch(state, state.controller_epoch) if state.leader == cluster.broker_id else None

    yield from change_states(cluster, [StateChange(topic, number, decide) for number in partitions], cluster.own_writes())


def fence_box(cluster: Cluster, is_fenced: bool) -> Operation[None]:
    """Write down whether others may elect this box, or take it into in-sync sets."""
    cluster.use_own_record(*(yield from change_record(cluster.broker_id, lambda record: record._replace(is_fenced=is_fenced))))


def leave_cluster(cluster: Cluster, on_given_away: Callable[[int], None], now_ms: Callable[[], int]) -> Operation[int]:
    """The box is about to stop: nobody elects it or takes it into an in-sync set any more, and it leads nothing that another box can lead. Returns how many
    states changed. Its next registration takes the mark back.

    What it leads goes first and a part at a time, so that a partition waits for those of its part, and not for all that the box leads. Our own log-writers
    have taken a part before the next one goes, and then the others have their time for it, unless the stop would take too long. Given away without pauses,
    667 partitions on a machine whose processors that fills were all without acks=all for 2 s, and with them each for 0.3 to 0.6 s."""
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
        given_away = yield from _write_withdrawal(cluster, part)
        on_given_away(given_away)
        changed += given_away
        yield from send_roles(cluster, part)  # at once: roles that somebody else has sent are not waited for
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
