"""One incarnation of a box's controller process: everything of `services/controller/agent.py` that decides about replicas, without sockets and processes.

The keepers (elections, ISR changes, roles, disks that come, reads of the tree), the operations that they start, and the runner of these are the shipped
ones; put together here, as the agent and its parts do it (`box_replicas`, `membership`, `disk_reports`), with messages for a session and method calls for
rings. Owned by its box. Weak spot: what those do between the keepers (the turn, an arrival) is written down twice.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from appliance.base.clock import Clock
from appliance.base.errors import ErrorCode
from appliance.base.logging import Logger
from appliance.base.model import TopicId
from appliance.cluster.znodes import BoxRecord, BrokerRegistration
from appliance.shm.counters import Counters
from services.controller.decisions.arrival import Arrival, arrive
from services.controller.decisions.cluster import Cluster, ControllerContext
from services.controller.decisions.disk_report import DiskReport
from services.controller.disk_bring_up import DiskBringUp
from services.controller.disk_commands import DiskCommands
from services.controller.failover import Failover
from services.controller.isr_keeper import IsrKeeper
from services.controller.role_keeper import RoleKeeper
from services.controller.zookeeper.operation import ControllerMoved, DiskCommand, OperationOutcome, OperationRunner
from services.controller.zookeeper.requests import Request, ZooKeeperConnectionLost
from services.controller.zookeeper.znode_watcher import ZnodeWatcher
from services.log_writer.replicas.replication_state import IsrProposal
from tests.simulation.session import Session
from tests.simulation.world import MS, World
from tests.simulation.writer import Writer
from tests.simulation.zookeeper import SESSION_TIMEOUT, ZooKeeper

TOPIC, PARTITION, DISK = "t", 0, "d0"
TOPIC_ID = TopicId(bytes(range(16)))
RECONSIDER = 200 * MS
ARRIVE_AGAIN = 300 * MS
COMMAND = 300_000
"""One way to a log-writer or back, in nanoseconds, at most."""
DISK_DEADLINE_MS = 1_500


def directory_of(broker_id: int) -> str:
    return f"directory-of-{broker_id}"


class _Counter:
    def add(self, count: int = 1) -> None: ...

    def set(self, value: int) -> None: ...


class _Counters:
    def counter(self, name: str) -> _Counter:
        return _Counter()

    gauge = counter


class _Notes:
    """What the keepers log, in the trace."""

    def __init__(self, world: World, broker_id: int) -> None:
        self._world, self._broker_id = world, broker_id

    def info(self, text: str, **_fields: Any) -> None:
        self._world.note(f"box {self._broker_id}: {text}")

    warning = error = critical = info


class ControllerProcess:
    """`on_image` hears of each image: what the box's acceptor and replica-fetcher know. It is its own clock, and its own view of its one disk."""

    def __init__(self, world: World, zookeeper: ZooKeeper, broker_id: int, session_id: int, on_image: Callable[[Cluster], None]) -> None:
        self._world, self._on_image = world, on_image
        self.broker_id = broker_id
        self.is_alive = True
        self.cluster = Cluster(broker_id, {}, [DISK])
        self._arrived = self._has_turn = False
        self._arrive_at: int | None = None
        self._reconsider_at = 0
        self._writer: Writer | None = None
        self._wishes: list[dict[str, Any]] = []
        self._runner = runner = OperationRunner(self._ask, self._command, self._publish, self._pause)
        self._own_runner = OperationRunner(self._ask, self._command, self._publish, self._pause)
        counters, log = cast(Counters, _Counters()), cast(Logger, _Notes(world, broker_id))
        context = ControllerContext(self.cluster, runner, cast(Clock, self), counters, log, self._on_failure, lambda: self._arrived)
        self._isr = IsrKeeper(context)
        self._bring_up = bring_up = DiskBringUp(context, cast(DiskCommands, self), self._isr.is_settled, DISK_DEADLINE_MS)
        self._roles = RoleKeeper(self.cluster, self._own_runner, bring_up.is_brought_up, self.monotonic_ms)
        patience = lambda: bring_up.patience_ms(SESSION_TIMEOUT // MS)  # noqa: E731
        self._failover = Failover(context, bring_up.is_dead, lambda _disk: False, bring_up.is_brought_up, patience)
        self._watcher = ZnodeWatcher(context, lambda: TOPIC_ID, lambda: (), self._session_id, self._reconsider_now)
        self.session = Session(world, zookeeper, broker_id, session_id, self._on_connected, self._leave, self._reads)
        self._turn_again()

    def die(self) -> None:
        self.is_alive = False
        self._runner.drop_all()
        self._own_runner.drop_all()
        self.session.close()

    @property
    def is_settled(self) -> bool:
        """Whether it has its session, and its disk was brought up."""
        return self._arrived and self.session.is_connected and self._bring_up.all_settled()

    # --- the clock and the disk, as keepers ask for them

    def monotonic_ns(self) -> int:
        return self._world.now

    def monotonic_ms(self) -> int:
        return self._world.now // MS

    wall_ms = monotonic_ms

    def connected(self, _disk: str) -> bool:
        return self._writer is not None

    def is_offline(self, _disk: str) -> bool:
        return self._writer is None

    # --- the log-writer

    def on_writer(self, writer: Writer) -> None:
        """A log-writer, or a new incarnation of it, connects."""
        self._writer = writer
        self._wishes.clear()
        partitions = {(TOPIC, PARTITION): str(TOPIC_ID)}
        report = DiskReport(DISK, directory_of(self.broker_id), 0, writer.needs_epoch_bump, partitions)
        self.cluster.add_report(report)
        writer.on_wish = self._on_isr_change
        self._bring_up.on_connected(report)
        self._reconsider_now()

    def on_writer_gone(self) -> None:
        self._writer = None
        self.cluster.reports.clear()
        self._isr.on_disk_gone(DISK)
        self._bring_up.on_gone(DISK)

    def _on_isr_change(self, wish: IsrProposal) -> None:
        document = {"topic": TOPIC, "partition": PARTITION, "topic_id": str(TOPIC_ID), "change": wish.number, "leader_epoch": wish.leader_epoch}
        document |= {
            "partition_epoch": wish.partition_epoch,
            "isr": list(wish.isr),
            "broker_epochs": {str(key): value for key, value in wish.broker_epochs.items()},
        }
        self._world.after(self._hop(), self._take_isr_change, self._writer, document)

    def _take_isr_change(self, writer: Writer, document: dict[str, Any]) -> None:
        if self.is_alive and writer is self._writer:
            self._isr.on_requests(DISK, [document])
            self._turn_soon()

    def _command(self, command: DiskCommand, on_done: Callable[[Any], None]) -> None:
        self._world.after(self._hop(), self._deliver, self._writer, command, on_done)

    def _deliver(self, writer: Writer | None, command: DiskCommand, on_done: Callable[[Any], None]) -> None:
        is_there = writer is not None and writer.is_alive
        code = writer.command(command.kind, command.payload) if writer is not None and is_there else ErrorCode.KAFKA_STORAGE_ERROR
        self._world.after(self._hop(), self._confirm, on_done, code)

    def _confirm(self, on_done: Callable[[Any], None], code: int) -> None:
        if self.is_alive:
            on_done(code)
            self._turn_soon()

    def _hop(self) -> int:
        return int(self._world.chance.random() * COMMAND)

    # --- ZooKeeper

    def _session_id(self) -> int:
        return self.session.session_id

    def _ask(self, request: Request, on_reply: Callable[[Any], None]) -> None:
        self.session.ask(request, on_reply)
        self._turn_soon()

    def _publish(self, on_done: Callable[[None], None]) -> None:
        if self.cluster.topics:
            self._on_image(self.cluster)
        self._world.after(0, self._confirm, on_done, None)

    def _pause(self, duration_ms: int, on_done: Callable[[None], None]) -> None:
        self._world.after(duration_ms * MS, self._confirm, on_done, None)

    def _on_connected(self) -> None:
        self._arrive_at = self._world.now
        self._turn_soon()

    def _leave(self) -> None:
        """Nothing that ZooKeeper said can be acted on any more."""
        self._arrived, self._arrive_at = False, None
        self._watcher.forget()
        self._runner.drop_all()
        self.cluster.forget()

    def _on_failure(self, failure: Exception) -> None:
        if isinstance(failure, ZooKeeperConnectionLost):
            return
        self._world.note(f"box {self.broker_id}: reads everything again, because of {failure!r}")
        self._leave()
        self._arrive_at = self._world.now + (0 if isinstance(failure, ControllerMoved) else ARRIVE_AGAIN)

    def _reads(self, path: str) -> None:
        self._watcher.on_change(path.rstrip("/"))
        self._turn_soon()

    # --- the turn

    def _turn_soon(self) -> None:
        if not self._has_turn:
            self._has_turn = True
            self._world.after(50_000, self._turn)

    def _turn_again(self) -> None:
        """However quiet it is."""
        if self.is_alive:
            self._turn_soon()
            self._world.after(RECONSIDER, self._turn_again)

    def _reconsider_now(self) -> None:
        self._reconsider_at = 0
        self._turn_soon()

    def _turn(self) -> None:
        self._has_turn = False
        if not self.is_alive:
            return
        now = self._world.now
        if self._arrive_at is not None and now >= self._arrive_at:
            self._start_arrival()
        if self._arrived and now >= self._reconsider_at:
            self._reconsider_at = now + RECONSIDER
            self._bring_up.reconsider()
            self._failover.reconsider()
        self._isr.do_work()
        self._roles.do_work()

    def _start_arrival(self) -> None:
        self._leave()
        if not self.session.is_connected:
            return
        registration = BrokerRegistration(self.broker_id, (("PLAINTEXT", f"box{self.broker_id}", 9092),), {"PLAINTEXT": "PLAINTEXT"}, None, self.monotonic_ms())
        box = BoxRecord(f"identity-of-{self.broker_id}", {directory_of(self.broker_id): DISK}, is_fenced=not self._bring_up.all_settled())
        arrival = Arrival(self.session.session_id, registration, box, "cluster", False, False, self.monotonic_ms(), lambda: TOPIC_ID)
        self._runner.start("arrive", arrive(self.cluster, arrival), self._on_arrived)

    def _on_arrived(self, outcome: OperationOutcome) -> None:
        if outcome.failure is not None:
            self._on_failure(outcome.failure)
            return
        self._arrived = True
        self._watcher.on_arrived()
        self._bring_up.on_arrived()
        self._failover.on_arrived()
        self._reconsider_now()
