"""All changes of topics that admin requests or the controller itself have ordered, over all boxes.

Owned by the controller agent. Each part runs its operations under the controller's fence, and
starts again after an arrival. An order is carried out in the term in which it was received, or
never: meanwhile another controller may have done it, or the opposite, and its name may be another
topic's by now. Weak: all parts are checked twice a second, whether or not they have work.
"""

from __future__ import annotations

from collections.abc import Callable

from appliance.base.model import TopicId
from appliance.base.settings import Box
from appliance.cluster.placement import CreationDefaults
from appliance.cluster.state_log import internal_topic
from appliance.senders.sender_tables import tables_of
from services.controller.admin.broker_loggers import BrokerLoggers
from services.controller.admin.configs import ConfigAdministration
from services.controller.admin.elections import ElectionAdministration, LeadershipReturn
from services.controller.admin.move_requests import DiskDraining
from services.controller.admin.partitions import PartitionAdministration
from services.controller.admin.reassignments import ReassignmentAdministration
from services.controller.admin.topic_administration import TopicAdministration
from services.controller.admin.topic_copies import TopicCopies, copies_wanted
from services.controller.admin.waiting_requests import NOT_CONTROLLER
from services.controller.decisions.cluster import ControllerContext
from services.controller.decisions.topic_operations import Spaces


class ClusterAdministration:
    """Call `reconsider` while this box has arrived."""

    def __init__(
        self,
        context: ControllerContext,
        box: Box,
        loggers: BrokerLoggers,
        spaces: Spaces,
        new_topic_id: Callable[[], TopicId],
    ) -> None:
        self._cluster = cluster = context.cluster
        self._term: int | None = None
        """The controller epoch in which orders were received; None while another box is the controller."""
        defaults = CreationDefaults(
            box.integer("num.partitions"),
            box.integer("default.replication.factor"),
            topics_max=box.integer("max.topics"),
            partitions_per_box_max=box.integer("max.partitions.per.box"),
            table_locations=tuple(box.table_locations),
        )
        self.topics = TopicAdministration(
            context,
            spaces,
            new_topic_id,
            defaults,
            box.flag("delete.topic.enable"),
            lambda name: internal_topic(name, box, len(cluster.open_brokers())),
        )
        self.partitions = PartitionAdministration(context, spaces, defaults)
        self.configs = ConfigAdministration(context)
        self.loggers = loggers
        self.reassignments = ReassignmentAdministration(context)
        leadership_return = LeadershipReturn(
            box.flag("auto.leader.rebalance.enable"),
            box.integer("leader.imbalance.check.interval.seconds") * 1000,
            box.integer("leader.imbalance.per.broker.percentage"),
        )
        self.elections = ElectionAdministration(context, leadership_return)
        self.draining = DiskDraining(context)
        elections = self.elections if leadership_return.is_enabled else None
        self._box = box
        self._copies_wanted = _copies_wanted(box)
        self._copies = TopicCopies(cluster, self._copies_wanted, self.reassignments, elections, context.clock.monotonic_ms, context.log)

    def on_arrived(self) -> None:
        """The tree was loaded; whether this box is the controller is known again."""
        self._forget_former_terms()
        self.configs.on_arrived()

    def on_reloaded(self) -> None:
        """The tables of senders may name other topics."""
        self._copies_wanted.update(_copies_wanted(self._box))

    def reconsider(self) -> None:
        """Continue whatever is not done."""
        self._forget_former_terms()
        self.topics.reconsider()
        self.partitions.reconsider()
        self.configs.reconsider()
        self.reassignments.reconsider()
        self.elections.reconsider()
        self._copies.reconsider()
        self.draining.reconsider()

    def _forget_former_terms(self) -> None:
        """Refuse the orders of a former term. A term that directly follows ours is ours, too: no
        box was controller in between.
        """
        former, fence = self._term, self._cluster.fence
        self._term = fence.controller_epoch if fence is not None else None
        if self._term is None or (former is not None and self._term > former + 1):
            self.topics.forget_orders(NOT_CONTROLLER)
            self.partitions.forget_orders(NOT_CONTROLLER)
            self.reassignments.forget_orders(NOT_CONTROLLER)
            self.elections.forget_orders(NOT_CONTROLLER)


def _copies_wanted(box: Box) -> dict[str, int]:
    """Return the replicas for the topics that boxes create by themselves, including those in the
    tables of senders.
    """
    own = dict.fromkeys(tables_of(box).router().topics, box.integer("ingest.topic.replication.factor"))
    return own | copies_wanted(box)
