"""What the controller process of a box does for the replicas on its own disks, whoever is controller of the cluster.

Disks are brought up when their log-writers come, told what they are, and heard when they wish for another in-sync set; what this box is assigned is made
here, what it is not to have any more is deleted; and when a box or a disk dies, or this box stops, others take over. Each is a part with its own memory,
looked at while there is something to do; the order in which they look is here. Weak spot: while ZooKeeper is away log-writers are told what is known, and
all else waits.
"""

from __future__ import annotations

from appliance.runtime.agent import ServiceContext
from services.controller.decisions.cluster import Cluster
from services.controller.disk_bring_up import DiskBringUp
from services.controller.disk_commands import DiskCommands
from services.controller.disk_spaces import DiskSpaces
from services.controller.failover import Failover
from services.controller.hosting import Hosting
from services.controller.isr_keeper import IsrKeeper
from services.controller.live_brokers import LiveBrokers
from services.controller.role_keeper import RoleKeeper
from services.controller.zookeeper.cluster_membership import ClusterMembership
from services.controller.zookeeper.operation import OperationRunner


class BoxReplicas:
    """`runner` is dropped when the box leaves, `own_runner` is not."""

    def __init__(
        self,
        context: ServiceContext,
        cluster: Cluster,
        membership: ClusterMembership,
        runner: OperationRunner,
        own_runner: OperationRunner,
        disks: DiskCommands,
        spaces: DiskSpaces,
    ) -> None:
        counters, log, now_ms, on_failure = context.counters, context.log, context.clock.monotonic_ms, membership.on_failure
        session_ms = context.box.integer("zookeeper.session.timeout.ms")
        deadline_ms = context.box.integer("log.disk.deadline.ms")
        self.isr = IsrKeeper(cluster, runner, lambda: membership.has_arrived, counters, on_failure)
        self.bring_up = bring_up = DiskBringUp(cluster, runner, disks, self.isr.is_settled, deadline_ms, now_ms, counters, log, on_failure)
        self._roles = RoleKeeper(cluster, own_runner, bring_up.is_brought_up, now_ms)
        self._live_brokers = LiveBrokers(cluster, own_runner, now_ms)
        self._hosting = Hosting(cluster, runner, spaces.available, bring_up.all_told, counters, log, on_failure)
        self.failover = Failover(
            cluster,
            runner,
            bring_up.is_dead,
            bring_up.is_brought_up,
            lambda: bring_up.patience_ms(session_ms),
            now_ms,
            counters,
            log,
            on_failure,
        )

    def is_fenced(self) -> bool:
        """Whether nobody is to elect this box: it has not told yet what its disks have lost, or is about to stop."""
        return self.failover.is_leaving or not self.bring_up.all_settled()

    def on_arrived(self) -> None:
        self.bring_up.on_arrived()
        self.failover.on_arrived()

    def reconsider(self) -> None:
        """While the box has arrived: start what is to be done and not under way."""
        self.bring_up.reconsider()
        self.failover.reconsider()
        self._hosting.reconsider()

    def do_work(self) -> int:
        """Carry out wishes that came, tell what has changed."""
        return self.isr.do_work() + self._roles.do_work() + self._live_brokers.do_work()
