"""What the controller process of a box does for the replicas on its own disks, whether or not it is
the controller of the cluster.

It brings up disks whose log-writers connect, sends roles, carries out AlterPartition requests,
creates assigned replicas and deletes those no longer assigned. It hands leaderships over when a
disk dies or the box shuts down, and elects for dead boxes. Each part is a component with its own
state; this one has their order. Weak: without ZooKeeper, known roles are sent and everything else
waits.
"""

from __future__ import annotations

from appliance.runtime.agent import ServiceContext
from services.controller.decisions.cluster import Cluster
from services.controller.disk_bring_up import DiskBringUp
from services.controller.disk_commands import DiskCommands
from services.controller.failover import Failover
from services.controller.hosting import DiskSpaces, Hosting
from services.controller.isr_keeper import IsrKeeper
from services.controller.role_keeper import LiveBrokers, RoleKeeper
from services.controller.zookeeper.cluster_membership import ClusterMembership
from services.controller.zookeeper.operation import OperationRunner


class BoxReplicas:
    """`runner` is dropped when the box leaves the cluster, `own_runner` is not."""

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
        self._hosting = Hosting(cluster, runner, spaces.available, bring_up.all_reported, counters, log, on_failure)
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
        """True while no box may elect this one: some disk has not reported its losses yet, or the
        box is shutting down.
        """
        return self.failover.is_shutting_down or not self.bring_up.all_settled()

    def on_arrived(self) -> None:
        self.bring_up.on_arrived()
        self.failover.on_arrived()

    def reconsider(self) -> None:
        """While the box has arrived: start what is due and not running."""
        self.bring_up.reconsider()
        self.failover.reconsider()
        self._hosting.reconsider()

    def do_work(self) -> int:
        """Carry out AlterPartition requests, and send changed roles."""
        return self.isr.do_work() + self._roles.do_work() + self._live_brokers.do_work()
