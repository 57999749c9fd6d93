"""The ingest: receives from senders, sends batches to partition leaders, acknowledges.

One turn: completions and deaths of log-writers, changes of tables and image, batches that are due,
acknowledgements; then the poller passes datagrams and streams to their owners. The agent alone owns
its senders' connections, its arena and its rings; the next incarnation continues the ledger in its
counters. It never opens a log directory. If a disk is dead, partitions on other disks take its
lines (`partition_leaders`); batches for partitions of other boxes go there (`remote_leaders`).

Weak: one thread does everything; large requests are taken in steps over turns, shared by sender
address (`listeners.sliced_work`). Several ingests share the listening sockets.
"""

from __future__ import annotations

from collections.abc import Iterable

from appliance.base.model import NO_LEADER
from appliance.client.peer_stream import peer_context
from appliance.client.peers import Peers
from appliance.cluster.lease_gate import LeaseGate
from appliance.cluster.metadata_cache import MetadataCache
from appliance.cluster.metadata_image import ImageFollower
from appliance.cluster.security_image import authorizer_of
from appliance.ipc.box_disks import BoxDisks, DiskHealth
from appliance.ipc.producer_id_leases import ProducerIdLeases
from appliance.ipc.proxies import LogWriterProxies
from appliance.ipc.request_link import ControllerLink
from appliance.ipc.source import Source
from appliance.runtime.agent import PARK_MS_MAX, ServiceContext
from appliance.senders.accounting import LossReason, read_ledger
from appliance.senders.listener import Listener, ListenerTransport
from appliance.senders.sender_tables import tables_of
from appliance.shm.lease import LeaseReader
from services.ingest.listeners.sender_connections import SenderConnections
from services.ingest.listeners.sender_datagrams import SenderDatagrams
from services.ingest.producer.batch_sender import BatchSender
from services.ingest.producer.partition_leaders import DeadDisks
from services.ingest.producer.previous_incarnation import InheritedState
from services.ingest.producer.producer_batch import ProducerBatch
from services.ingest.records.acknowledger import Acknowledger
from services.ingest.records.held_records import HeldRecords
from services.ingest.records.ingest_ledger import IngestLedger, SenderLedgers
from services.ingest.records.ingest_topics import IngestTopics
from services.ingest.records.live_tap import LiveTap
from services.ingest.records.record_router import RecordRouter
from services.ingest.records.sender_rights import SenderRights

SWEEP_NS = 1_000_000_000
DRAIN_NS_MAX = 4_000_000_000
"""How long a stop takes what had arrived; a sender that never pauses is read no longer than a
kernel's buffer lasts."""
WAITING_PARK_MS = 20
"""While batches wait for a leader."""


class IngestAgent:
    """One ingest process."""

    def __init__(self, context: ServiceContext) -> None:
        self._context = context
        self._clock = context.clock
        self._poller = context.poller
        counters, box, log = context.counters, context.box, context.log
        disks = [disk.name for disk in box.disks]
        table = tables_of(box)
        self._default_topic = table.routes.default.topics[0]
        """The default topic; no sender is read before it exists."""
        self._source = Source(context.layout, context.process_name, context.incarnation, box.integer("ingest.arena.bytes"), box.integer("channel.ring.entries"))
        self._proxies = LogWriterProxies(
            self._source,
            disks,
            self._poller,
            counters,
            self._on_completion,
            self._on_lost,
            self._on_connected,
            self._on_gone,
            counts_records=True,  # the next incarnation accounts for completions that this one does not read
        )
        self._view = MetadataCache(box.broker_id, self._proxies)
        self._image = ImageFollower(context.layout, self._view, log)
        self._controller = ControllerLink(context.layout, self._poller, self._clock, self._image.on_changed)
        self._producer_ids = ProducerIdLeases(self._controller, self._clock, counters.counter("ingest.producer_ids"), log)
        self._lease = LeaseGate(LeaseReader(context.layout), self._clock, counters)
        self._senders = SenderLedgers(context.layout, context.process_name, self._clock)
        self._acknowledger = Acknowledger(IngestLedger(table.listeners, self._senders, counters))
        self._peers = Peers("millrace-ingest", self._poller, self._clock, peer_context(context.box, context.log))
        self._previous = InheritedState(context, {listener.name: listener for listener in table.listeners}, self._peers, self._proxies.by_disk)
        self._crash_accounting, self._replays = self._previous.accounting, self._previous.replays
        self._sender = BatchSender(
            context,
            self._source.arena,
            self._view,
            self._acknowledger,
            self._producer_ids,
            self._previous,
            self._lease.may_be_replaced,
            self._on_blocked_changed,
        )
        self._topics = IngestTopics(context, self._default_topic, self._sender, self._controller, self._on_stale)
        for left_over in self._previous.topics:
            self._topics.of(left_over)
        held = HeldRecords(box.integer("ingest.held.bytes"), counters)
        self._router = RecordRouter(table, self._topics, self._acknowledger, self._replays, held, self._clock)
        self._rights = self._router.rights = _rights_of(context, table.listeners)
        self._tap = LiveTap(context.layout.tap_socket(int(context.instance or 0)), self._poller, self._clock, self._on_watched)
        self._box_disks = BoxDisks(context.layout, box)
        self._health = DiskHealth(self._proxies.by_disk.values(), box.integer("log.disk.deadline.ms"), lambda _disk, _operation: None, lambda _disk: None)
        self._disks = DeadDisks(self._proxies, counters, log)
        self._connections = SenderConnections(context, self._router)
        self._datagrams = SenderDatagrams(context, self._router)
        self._pass_sockets(table.listeners)
        self._in_flight = counters.gauge("ingest.in_flight")
        self._oldest_waiting = counters.gauge("ingest.oldest_waiting_ms")
        self._blocks_changed = False
        self._next_sweep_ns = 0
        self._drain_until_ns = 0
        self._ready = False
        self._drained = False

    def _pass_sockets(self, listeners: Iterable[Listener]) -> None:
        """Pass each listening socket to the component that serves its transport. The sockets belong
        to the supervisor or systemd; all ingests share them. A listener without a socket is logged,
        and the others serve."""
        unused = dict(self._context.listen_sockets)
        for listener in listeners:
            sock = unused.pop(listener.fd_name, None)
            if sock is None:
                message = f"listener {listener.name} has no socket; run `millrace units apply`, then restart the box"
                self._context.log.error(message, listener=listener.name)
            else:
                (self._datagrams if listener.transport is ListenerTransport.UDP else self._connections).add(listener, sock)
        for name, sock in unused.items():
            self._context.log.warning(f"socket {name} belongs to no listener; run `millrace units apply`, then restart the box")
            sock.close()

    # -- duty cycle

    def do_work(self) -> int:
        now_ns = self._clock.monotonic_ns()
        work = self._proxies.do_work(now_ns)
        work += self._health.look(now_ns)
        self._follow_disks(now_ns)
        work += self._controller.do_work(now_ns)
        work += self._producer_ids.turn(now_ns)
        work += self._load_image()
        if self._disks.refresh(now_ns):
            self._sender.set_dead_disks(self._disks.dead)
            work += 1
        self._topics.request_missing(now_ns)
        work += self._peers.do_work(now_ns)
        work += self._previous.turn(now_ns, self._view.image, self._sender)
        work += self._sender.do_work(now_ns)
        work += self._acknowledger.notify_sessions()
        if self._drain_until_ns:
            work += self._drain(now_ns)
        work += self._topics.close_batches(now_ns)
        if self._sender.waits:
            work += self._sender.send(now_ns)
        self._proxies.flush()
        if self._blocks_changed:
            self._apply_blocks()
        work += self._connections.do_work()
        if now_ns >= self._next_sweep_ns:
            self._sweep(now_ns)
        if not self._ready:
            self._maybe_ready()
        return work

    def _load_image(self) -> int:
        work = 0
        if self._image.is_stale:
            image = self._image.load()
            if image is not None:
                self._sender.set_brokers(image.brokers)
                self._peers.refresh(image.brokers)
                self._topics.set_image(image)
                self._sender.refresh()
            if self._rights is not None:
                self._rights.load()
            work = 1
        return work + self._view.refresh()

    def _follow_disks(self, now_ns: int) -> None:
        changes = self._box_disks.look(now_ns)
        self._proxies.follow(changes, self._sender.on_detached)
        for disk in changes.went:
            self._disks.forget(disk.name)

    def may_park(self) -> bool:
        self._source.watch_rows(self._sender.waits_for_rows)
        self._source.doorbell.prepare_to_sleep()
        if self._has_news():
            self._source.doorbell.wake()
            return False
        return True

    def _has_news(self) -> bool:
        if self._proxies.has_completions() or self._image.is_stale or self._acknowledger.has_completed or (self._drain_until_ns and not self._drained):
            return True
        return self._sender.waits_for_rows and bool(self._sender.do_work(self._clock.monotonic_ns()))

    def unpark(self) -> None:
        self._source.doorbell.wake()

    def park_ms(self) -> int:
        now_ns = self._clock.monotonic_ns()
        wait_ms = self._sender.queues.ms_to_next_try(now_ns, WAITING_PARK_MS if self._sender.waits else PARK_MS_MAX)
        return self._connections.wait_ms(self._topics.wait_ms(now_ns, wait_ms))

    def begin_stop(self) -> None:
        """Accept no new connections; take what has arrived."""
        self._connections.accept(False)
        self._drain_until_ns = self._clock.monotonic_ns() + DRAIN_NS_MAX

    def stopped(self) -> bool:
        return self._drained and self._sender.is_empty and self._connections.is_empty and self._crash_accounting.is_accounted

    def close(self) -> None:
        self._datagrams.close()
        self._connections.close()
        self._tap.close()
        self._topics.close_all()
        lost = self._sender.give_up() + self._acknowledger.on_abandoned(self._topics.take_backlogs())
        if lost:
            message = f"{lost} records are lost: no leader took them before the stop; counted as shutdown"
            self._context.log.error(message, reason=str(LossReason.SHUTDOWN))
        self._controller.close()
        self._sender.close()
        self._previous.close()
        self._peers.close()
        self._lease.close()
        self._proxies.close()
        self._source.close()
        self._senders.close()
        self._update_in_flight()

    def status_line(self) -> str:
        return f"{len(self._connections)} senders, {self._sender.describe()}"

    def _maybe_ready(self) -> None:
        """Report readiness when records can be stored: the default topic exists, and one of its
        partitions is served here or led by another box."""
        topic = self._view.image.topics.get(self._default_topic)
        self._topics.of(self._default_topic)
        if topic is None or self._drain_until_ns or not self._replays.is_loaded or (self._rights is not None and not self._rights.has_image):
            return
        for number, partition in enumerate(topic.partitions):
            if self._view.placement(self._default_topic, number) is not None or partition.leader not in (NO_LEADER, self._view.broker_id):
                self._ready = True
                self._connections.accept(True)
                self._datagrams.read(True)
                self._context.notifier.ready()
                return

    def _drain(self, now_ns: int) -> int:
        """Stop: take what senders had sent, then end their sessions."""
        if self._drained:
            return 0
        is_drained = self._datagrams.drain() and self._connections.drain()
        if is_drained or now_ns >= self._drain_until_ns:
            self._datagrams.read(False)
            self._connections.finish_all()
            self._topics.close_all()
            self._drained = True
        return 1

    def _sweep(self, now_ns: int) -> None:
        self._next_sweep_ns = now_ns + SWEEP_NS
        self._datagrams.sweep()
        self._connections.sweep()
        self._senders.write_changes()
        self._lease.look_for()
        self._oldest_waiting.set(self._sender.queues.oldest_waiting_ms(now_ns))
        self._update_in_flight()

    def _update_in_flight(self) -> None:
        counters = self._context.counters
        self._in_flight.set(max(0, read_ledger({label: counters.counter(label).value for label in counters.labels()}).in_flight))

    # -- log-writers

    def _on_completion(self, batch: ProducerBatch, entry: tuple[int, ...]) -> None:
        self._sender.on_completion(batch, entry)

    def _on_lost(self, batch: ProducerBatch) -> None:
        self._sender.on_lost(batch)

    def _on_connected(self, disk: str) -> None:
        self._image.is_stale = True
        self._crash_accounting.on_connected(disk, int(self._proxies.writer_info(disk)["completed"]))

    def _on_gone(self, disk: str) -> None:
        self._crash_accounting.on_gone(disk)
        self._context.log.info(f"log-writer@{disk} is gone; lines for its partitions wait until it is back", disk=disk, peer=f"log-writer@{disk}")

    # -- news

    def _on_watched(self, tap: LiveTap | None) -> None:
        """A command watches what passes, or the last one has gone."""
        self._router.tap = self._acknowledger.ledger.tap = tap

    def _on_stale(self) -> None:
        self._image.is_stale = True

    def _on_blocked_changed(self, topic: str) -> None:
        """Locations went over or below their budget, or disks died or returned."""
        self._topics.on_blocked_changed(topic)
        self._blocks_changed = True

    def _apply_blocks(self) -> None:
        self._blocks_changed = False
        if self._ready and not self._drained:
            self._datagrams.read(not self._topics.of(self._default_topic).is_blocked)
        self._connections.resume(self._topics.is_partition_blocked)


def _rights_of(context: ServiceContext, listeners: Iterable[Listener]) -> SenderRights | None:
    """Return None if no listener or token has a principal, or the box no authorizer."""
    has_principal = any(listener.principal or any(token.principal for token in listener.tokens) for listener in listeners)
    authorizer = authorizer_of(context.box) if has_principal else None
    return None if authorizer is None else SenderRights(context, authorizer)
