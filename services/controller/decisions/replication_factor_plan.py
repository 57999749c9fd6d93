"""Decide how many replicas the automatically created topics get, and where new ones go. Pure.

Such a topic is created when it is first needed, often by the first box of a cluster while that is
alone. `services/controller/admin/topic_copies.py` adds replicas later. A new replica goes to a rack
without one first, then to the box with the fewest replicas of the topic. First replicas are
distributed over the boxes, so that each leads some partitions. No replica is ever removed. Weak:
the free space of other boxes is not considered.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping

from appliance.base.settings import Box
from appliance.cluster.placement import known_racks
from appliance.cluster.state_log import OFFSETS_TOPIC, TRANSACTIONS_TOPIC

Replicas = tuple[int, ...]


def copies_wanted(box: Box) -> dict[str, int]:
    """Return topic → replicas that it is to have if there are as many boxes."""
    own = box.integer("ingest.topic.replication.factor")
    return {
        OFFSETS_TOPIC: box.integer("offsets.topic.replication.factor"),
        TRANSACTIONS_TOPIC: box.integer("transaction.state.log.replication.factor"),
        box.text("ingest.syslog.topic"): own,
        box.text("host.figures.topic"): own,
    }


def plan_copies(partitions: Mapping[int, Replicas], brokers: Collection[int], racks: Mapping[int, str | None], factor: int) -> dict[int, Replicas]:
    """Return partition → replicas for each partition that has too few.

    Empty if some replica is on a box that is away: its return is awaited first.
    """
    wanted = min(factor, len(brokers))
    if not all(set(replicas) <= set(brokers) for replicas in partitions.values()):
        return {}
    growing = [number for number in sorted(partitions) if len(partitions[number]) < wanted]
    known = known_racks(sorted(brokers), racks)
    held = Counter(box for replicas in partitions.values() for box in replicas)
    firsts = Counter(replicas[0] for number, replicas in partitions.items() if number not in growing)
    planned = {}
    for number in growing:
        replicas = list(partitions[number])
        while len(replicas) < wanted:
            used = {known.get(box) for box in replicas}
            chosen = min(
                (box for box in brokers if box not in replicas),
                key=lambda box: (bool(known) and known[box] in used, held[box], (box - number) % (max(brokers) + 1)),
            )
            held[chosen] += 1
            replicas.append(chosen)
        first = min(replicas, key=lambda box: (firsts[box], replicas.index(box)))
        firsts[first] += 1
        planned[number] = (first, *(box for box in replicas if box != first))
    return planned
