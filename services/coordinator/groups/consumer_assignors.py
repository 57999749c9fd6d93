"""The assignors of the coordinator, `uniform` and `range`: which member gets which partitions in the end.

Both are pure functions of subscriptions, partition counts and the former target. `uniform` spreads all
partitions evenly and moves as few as possible. `range` gives each member a run of neighbours of each
topic, so that partitions of equal numbers of several topics belong to one member. Weak spot: racks are
ignored; if subscriptions differ, `uniform` stops when no single move makes the result more even.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from heapq import heapify, heappop, heappush, heapreplace
from typing import Final, NamedTuple

from appliance.base.model import TopicId
from services.coordinator.groups.consumer_member import Partitions

Place = tuple[TopicId, int]
Targets = dict[str, Partitions]


class Subscriber(NamedTuple):
    """A member, as an assignor sees it."""

    member_id: str
    instance_id: str | None
    topics: tuple[TopicId, ...]
    """Those that it reads and that there are."""
    target: Partitions
    """What it was to read until now."""


Counts = Mapping[TopicId, int]
Assignor = Callable[[list[Subscriber], Counts], Targets]


def range_targets(subscribers: list[Subscriber], counts: Counts) -> Targets:
    """Static members first, by instance; then the others by member id. The first ones get one more where it does not come out even."""
    ranked = sorted(subscribers, key=lambda subscriber: (subscriber.instance_id is None, subscriber.instance_id or subscriber.member_id))
    given: dict[str, set[Place]] = {subscriber.member_id: set() for subscriber in subscribers}
    by_topic: dict[TopicId, list[str]] = {topic_id: [] for topic_id in counts}
    for subscriber in ranked:
        for topic_id in subscriber.topics:
            by_topic[topic_id].append(subscriber.member_id)
    for topic_id, count in counts.items():
        of_topic = by_topic[topic_id]
        if not of_topic:
            continue
        share, more = divmod(count, len(of_topic))
        first = 0
        for rank, member_id in enumerate(of_topic):
            end = first + share + (rank < more)
            given[member_id].update((topic_id, partition) for partition in range(first, end))
            first = end
    return {member_id: frozenset(places) for member_id, places in given.items()}


def uniform_targets(subscribers: list[Subscriber], counts: Counts) -> Targets:
    """Assign every partition of a subscribed topic to one subscriber. If all subscriptions are equal, counts differ by at most one."""
    if len({subscriber.topics for subscriber in subscribers}) <= 1:
        return _even(subscribers, counts)
    return _as_even_as_can_be(subscribers, counts)


def _even(subscribers: list[Subscriber], counts: Counts) -> Targets:
    """If subscriptions are equal, each member keeps its partitions up to its quota; the rest is distributed."""
    topics = subscribers[0].topics if subscribers else ()
    places = [(topic_id, partition) for topic_id in topics for partition in range(counts[topic_id])]
    if not subscribers:
        return {}
    share, more = divmod(len(places), len(subscribers))
    known = frozenset(places)
    kept: dict[str, list[Place]] = {}
    taken: set[Place] = set()
    for subscriber in sorted(subscribers, key=lambda each: (-len(each.target & known), each.member_id)):  # members with most are the first to keep one more
        mine = sorted((subscriber.target & known) - taken)
        limit = share + (more > 0 and len(mine) > share)
        kept[subscriber.member_id] = mine[:limit]
        taken.update(mine[:limit])
        more -= len(kept[subscriber.member_id]) > share
    rest = iter([place for place in places if place not in taken])
    for subscriber in sorted(subscribers, key=lambda each: (len(kept[each.member_id]), each.member_id), reverse=True):
        mine = kept[subscriber.member_id]
        if len(mine) <= share and more > 0:
            limit, more = share + 1, more - 1
        else:
            limit = max(share, len(mine))
        mine += [next(rest) for _ in range(limit - len(mine))]
    return {member_id: frozenset(mine) for member_id, mine in kept.items()}


def _as_even_as_can_be(subscribers: list[Subscriber], counts: Counts) -> Targets:
    """Keep valid assignments; assign free partitions to the member with the fewest; then move single partitions from members with more to members
    with less."""
    by_topic: dict[TopicId, list[str]] = {}
    for subscriber in subscribers:
        for topic_id in subscriber.topics:
            by_topic.setdefault(topic_id, []).append(subscriber.member_id)
    holders: dict[Place, str] = {}
    for subscriber in sorted(subscribers):
        topics = frozenset(subscriber.topics)
        for topic_id, partition in subscriber.target:
            if topic_id in topics and partition < counts[topic_id]:
                holders.setdefault((topic_id, partition), subscriber.member_id)
    loads = dict.fromkeys((subscriber.member_id for subscriber in subscribers), 0)
    for member_id in holders.values():
        loads[member_id] += 1
    for topic_id in sorted(by_topic, key=lambda each: (len(by_topic[each]), each)):  # the pickiest topics first
        least = [(loads[member_id], member_id) for member_id in by_topic[topic_id]]
        heapify(least)
        for partition in range(counts[topic_id]):
            if (topic_id, partition) not in holders:
                load, member_id = heappop(least)
                holders[topic_id, partition] = member_id
                loads[member_id] = load + 1
                heappush(least, (load + 1, member_id))
    _level(by_topic, holders, loads)
    given: dict[str, set[Place]] = {subscriber.member_id: set() for subscriber in subscribers}
    for place, member_id in holders.items():
        given[member_id].add(place)
    return {member_id: frozenset(places) for member_id, places in given.items()}


def _level(by_topic: Mapping[TopicId, list[str]], holders: dict[Place, str], loads: dict[str, int]) -> None:
    """Every move makes a pair more even by two at least, so this comes to an end."""
    has_moved = True
    while has_moved:
        has_moved = False
        held: dict[TopicId, dict[str, list[Place]]] = {topic_id: {} for topic_id in by_topic}
        for place, member_id in holders.items():
            held[place[0]].setdefault(member_id, []).append(place)
        for topic_id, member_ids in by_topic.items():
            least = [(loads[member_id], member_id) for member_id in member_ids]
            most = [(-loads[member_id], member_id) for member_id in held[topic_id]]
            heapify(least)
            heapify(most)
            while most:
                giver, taker = most[0][1], least[0][1]
                if most[0][0] != -loads[giver]:
                    heapreplace(most, (-loads[giver], giver))
                elif least[0][0] != loads[taker]:
                    heapreplace(least, (loads[taker], taker))
                elif loads[giver] - loads[taker] < 2:
                    break
                else:
                    place = held[topic_id][giver].pop()
                    holders[place] = taker
                    loads[giver] -= 1
                    loads[taker] += 1
                    has_moved = True
                    if not held[topic_id][giver]:
                        heappop(most)
                    if taker not in held[topic_id]:
                        heappush(most, (-loads[taker], taker))
                    held[topic_id].setdefault(taker, []).append(place)


UNIFORM: Final = "uniform"
ASSIGNORS: Final[Mapping[str, Assignor]] = {UNIFORM: uniform_targets, "range": range_targets}
"""By their names on the wire, the default first."""
