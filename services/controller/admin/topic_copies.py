"""Raise the replication factor of the topics that boxes create by themselves, once there are boxes
for it.

Such a topic is created when it is first needed, often by the first box of a cluster while that is
alone. Owned by the controller process of the box that is the cluster's controller. It acts once the
same boxes have been registered for a while: it orders a reassignment of one topic at a time, and
none beside another reassignment, except one that waits for an absent box. When all replicas are in
sync, the first ones become leaders. What is under way is in the topic's document, as for any
reassignment.

`plan_copies` (pure) chooses the boxes. A new replica goes to a rack without one first, then to the
box with the fewest replicas of the topic. First replicas are distributed over the boxes, so that
each leads some partitions. No replica is ever removed.

Weak: if an operator removes replicas, they return, unless the setting asks for fewer.
`min.insync.replicas` of `__transaction_state` keeps its first value. The free space of other boxes
is not considered.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping

from appliance.base.errors import ErrorCode
from appliance.base.logging import Logger
from appliance.base.model import AUDIT_TOPIC
from appliance.base.settings import Box
from appliance.cluster.placement import known_racks
from appliance.cluster.state_log import AUDIT_REPLICAS, OFFSETS_TOPIC, SHARE_TOPIC, TRANSACTIONS_TOPIC
from services.controller.admin.elections import ElectionAdministration
from services.controller.admin.reassignments import ReassignmentAdministration
from services.controller.admin.waiting_requests import Result
from services.controller.decisions.cluster import Cluster
from services.controller.decisions.reassignment import under_way
from services.controller.zookeeper.topic_registry import TopicState

Replicas = tuple[int, ...]


def copies_wanted(box: Box) -> dict[str, int]:
    """Return topic → replicas that it is to have if there are as many boxes."""
    own = box.integer("ingest.topic.replication.factor")
    return {
        OFFSETS_TOPIC: box.integer("offsets.topic.replication.factor"),
        TRANSACTIONS_TOPIC: box.integer("transaction.state.log.replication.factor"),
        SHARE_TOPIC: box.integer("share.coordinator.state.topic.replication.factor"),
        AUDIT_TOPIC: AUDIT_REPLICAS,
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


SETTLED_MS = 5_000
"""How long the same boxes must be registered: boxes that start together all count, and one that
comes and goes moves nothing.
"""


class TopicCopies:
    """`wanted`: topic → replicas. `electing`: holds the elections of the first replicas; None if
    they are not to lead.
    """

    def __init__(
        self,
        cluster: Cluster,
        wanted: Mapping[str, int],
        reassigning: ReassignmentAdministration,
        electing: ElectionAdministration | None,
        now_ms: Callable[[], int],
        log: Logger,
    ) -> None:
        self._cluster = cluster
        self._wanted = wanted
        self._reassigning = reassigning
        self._electing = electing
        self._now_ms = now_ms
        self._log = log
        self._boxes: list[int] = []
        self._settled_at_ms = 0
        self._growing: str | None = None

    def reconsider(self) -> None:
        """Start what is due, if no reassignment is under way."""
        cluster = self._cluster
        if cluster.fence is None:
            self._boxes = []
            return
        closed = cluster.closed_brokers()
        boxes = [broker_id for broker_id in cluster.eligible_brokers() if broker_id not in closed]
        if boxes != self._boxes:
            self._boxes, self._settled_at_ms = boxes, self._now_ms() + SETTLED_MS
        if len(boxes) < 2 or self._now_ms() < self._settled_at_ms or self._reassigning.is_busy():
            return
        if self._growing is not None:
            self._on_grown(self._growing)
            if self._growing is not None:
                return
        for name, factor in self._wanted.items():
            topic = cluster.topics.get(name)
            if topic is not None and self._grow(topic, factor):
                return

    def _grow(self, topic: TopicState, factor: int) -> bool:
        """Order a reassignment if the topic needs one; return whether it was ordered."""
        if topic.name in self._cluster.deleting or not topic.is_complete:
            return False
        planned = plan_copies(topic.replicas, self._boxes, self._cluster.racks(), factor)
        if not planned or any(under_way(each.assignment) and not self._waits_for_absent(each) for each in self._cluster.topics.values()):
            return False
        fewest = min(len(topic.replicas[number]) for number in planned)
        copies = max(map(len, planned.values()))
        boxes = ", ".join(map(str, self._boxes))
        words = f"topic {topic.name} has fewer copies than the settings ask for: {len(planned)} of its partitions get {copies} copies instead of {fewest}"
        self._log.notice(f"{words}; boxes {boxes} are there", topic=topic.name)
        self._growing = topic.name
        self._reassigning.order(topic.name, planned, self._on_ordered, is_quiet=True)
        return True

    def _on_ordered(self, _partition: int, result: Result) -> None:
        if result.code is not ErrorCode.NONE:
            self._growing = None
            self._settled_at_ms = self._now_ms() + SETTLED_MS

    def _on_grown(self, name: str) -> None:
        """Elect the first replicas once all are in sync."""
        topic = self._cluster.topics.get(name)
        if topic is not None and under_way(topic.assignment):
            if self._waits_for_absent(topic):
                self._growing = None
            return
        self._growing = None
        if topic is None or self._electing is None:
            return
        astray = [(name, number) for number, state in topic.states.items() if state.leader != topic.replicas[number][0] in state.isr]
        if astray:
            self._electing.elect(astray, False, lambda _partition, _result: None)

    def _waits_for_absent(self, topic: TopicState) -> bool:
        """Whether a reassignment under way needs an absent box, which may never return."""
        return any(not set(adding) <= set(self._cluster.live_brokers()) for adding in topic.assignment.adding_replicas.values())
