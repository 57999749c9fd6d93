"""The acceptor: client connections, their reply order, waiting produces and fetches.

One turn: completions of the log-writers, news of tables and image, parked requests whose row moved or whose time is up; then the poller
hands it readable and writable connections. Alone owns its client sockets, its arena and its rings. It never touches a log directory.
What is not in the page cache it has the log-readers read. Weak spot: `broker/residency.py` says how sure that is.
"""

from __future__ import annotations

import errno
import os
import resource
import select
import socket
from collections import Counter as Tally
from collections.abc import Callable

from appliance.agents.image_follower import ImageFollower
from appliance.base.errors import ProtocolViolation
from appliance.broker.box_view import BoxView
from appliance.broker.closings import (
    ADDRESS_LIMIT,
    CLIENT_LEFT,
    CONNECTION_LIMIT,
    DISK_READ_FAILED,
    FRAME_TIMEOUT,
    IDLE,
    MEMORY_LIMIT,
    SLOW_BODY,
    STOPPING,
    UNANSWERED,
    Closings,
)
from appliance.broker.cold_reads import ColdReads
from appliance.broker.connection import Connection
from appliance.broker.delayed import Delayed
from appliance.broker.dispatch import Dispatch, Handler
from appliance.broker.follower_fetches import PROGRESS_TOLD
from appliance.broker.handlers.api_versions import ApiVersionsHandler
from appliance.broker.handlers.coordinated import COORDINATED_KEYS, CoordinatedHandler
from appliance.broker.handlers.delete_records import DeleteRecordsHandler, PartDeletion
from appliance.broker.handlers.describe_cluster import DescribeClusterHandler
from appliance.broker.handlers.describe_log_dirs import DescribeLogDirsHandler
from appliance.broker.handlers.describe_producers import DescribeProducersHandler, PartDescription
from appliance.broker.handlers.describe_topic_partitions import DescribeTopicPartitionsHandler
from appliance.broker.handlers.fetch import FetchHandler
from appliance.broker.handlers.find_coordinator import FindCoordinatorHandler
from appliance.broker.handlers.forwarded import ForwardedHandler
from appliance.broker.handlers.list_offsets import ListOffsetsHandler
from appliance.broker.handlers.metadata import MetadataHandler
from appliance.broker.handlers.offset_for_leader_epoch import OffsetForLeaderEpochHandler
from appliance.broker.handlers.produce import ProduceHandler
from appliance.broker.handlers.write_txn_markers import PartMarker, WriteTxnMarkersHandler
from appliance.broker.held_memory import HeldMemory
from appliance.broker.lease_gate import LeaseGate
from appliance.broker.read_replicas import RACK_AWARE_SELECTOR
from appliance.broker.receiver import Receiver
from appliance.broker.residency import choose_residency
from appliance.broker.transaction_peers import TransactionPeers
from appliance.broker.transaction_questions import TransactionQuestions
from appliance.broker.transport import PlainTransport
from appliance.client.peers import Peers
from appliance.ipc.box_disks import BoxDisks
from appliance.ipc.controller_link import ControllerLink
from appliance.ipc.coordinator_link import CoordinatorLink
from appliance.ipc.descriptors import DescriptorKind
from appliance.ipc.disk_health import DiskHealth
from appliance.ipc.log_reader_proxy import LogReaderProxy
from appliance.ipc.proxies import LogWriterProxies, Source
from appliance.protocol.apis import SERVED_APIS, ApiKey
from appliance.runtime.agent import PARK_MS_MAX, ServiceContext
from appliance.shm.lease import LeaseReader

READ_INTEREST = select.EPOLLIN | select.EPOLLRDHUP
ACCEPT_BURST = 64
SWEEP_NS = 1_000_000_000
SWEEP_SLICE = 500
"""Connections that are looked at in one turn of a sweep."""
LOG_READER_DEADLINE_MS = 10_000
WAIT_FOR_DISKS_NS = 3_000_000_000
SEGMENT_FILES_MIN, SEGMENT_FILES_MAX = 256, 8192
DESCRIPTORS_RESERVED = 512
"""For segments, channels and look-ups: connections never take these."""
ACCEPT_PAUSE_NS = 100_000_000
_PRODUCE = int(DescriptorKind.PRODUCE)
_DELETE_RECORDS = int(DescriptorKind.DELETE_RECORDS)
_MARKER = int(DescriptorKind.TRANSACTION_MARKER)
_PROGRESS = int(DescriptorKind.PROGRESS)
_NO_ROOM_TO_ACCEPT = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM))


class AcceptorAgent:
    """One acceptor process."""

    def __init__(self, context: ServiceContext) -> None:
        self._context = context
        self._clock = context.clock
        self._poller = context.poller
        counters = context.counters
        box = context.box
        disks = [disk.name for disk in box.disks]
        arena_bytes, ring_entries = box.integer("acceptor.arena.bytes"), box.integer("channel.ring.entries")
        self._source = Source(context.layout, context.process_name, context.incarnation, arena_bytes, ring_entries)
        self._connections: dict[int, Connection] = {}
        self._per_address: Tally[str] = Tally()
        self._dirty: set[Connection] = set()
        self._delayed = Delayed()
        self._proxies = LogWriterProxies(
            self._source, disks, self._poller, self._clock, counters, self._on_completion, self._on_lost, self._on_connected, self._on_gone
        )
        self._health = DiskHealth(self._proxies.by_disk.values(), box.integer("log.disk.deadline.ms"), self._on_hung, self._on_well)
        self._view = BoxView(box.broker_id, self._proxies, box.integer("message.max.bytes"))
        self._image = ImageFollower(context.layout, self._view, context.log)
        self._make_reader: Callable[[str], LogReaderProxy] = lambda disk: LogReaderProxy(
            disk, context.layout, self._poller, self._clock, counters, LOG_READER_DEADLINE_MS
        )
        self._readers = {disk: self._make_reader(disk) for disk in disks}
        self._box_disks = BoxDisks(context.layout, box)
        self._controller = ControllerLink(context.layout, self._poller, self._clock, self._image.on_changed)
        budget_bytes = min(box.integer("disk.budget.bytes"), self._source.arena.size_bytes // len(disks))
        self._coordinator = CoordinatorLink(context.layout, self._poller, self._clock)
        self._peers = Peers(f"acceptor of broker {box.broker_id}", self._poller, self._clock)
        questions = TransactionQuestions(self._coordinator, TransactionPeers(self._view, self._peers))
        self._lease = LeaseGate(LeaseReader(context.layout), self._clock, counters)
        self._produce = ProduceHandler(
            self._view, self._source.arena, self._delayed, self._clock, counters, budget_bytes, self._mark_dirty, questions, self._lease
        )
        self._cold = ColdReads(self._readers, self._clock, counters, self._mark_dirty, self._on_disk_read_failed)
        self._fetch = FetchHandler(
            self._view,
            self._readers,
            self._delayed,
            self._clock,
            counters,
            box.integer("fetch.max.bytes"),
            _segment_files_max(),
            choose_residency(box.text("fetch.residency")),
            self._cold,
            box.integer("max.incremental.fetch.session.cache.slots"),
            _random_session_id,
            self._mark_dirty,
            box.text("replica.selector.class") == RACK_AWARE_SELECTOR,
            self._lease,
        )
        forwarded = ForwardedHandler(self._controller, self._mark_dirty)
        handlers: dict[int, Handler] = dict.fromkeys(SERVED_APIS, forwarded)
        handlers.update(dict.fromkeys(COORDINATED_KEYS, CoordinatedHandler(self._coordinator, self._view, self._controller, self._mark_dirty)))
        handlers[ApiKey.FETCH] = self._fetch
        handlers[ApiKey.LIST_OFFSETS] = ListOffsetsHandler(self._view, self._readers, self._clock, counters, self._mark_dirty)
        handlers[ApiKey.OFFSET_FOR_LEADER_EPOCH] = OffsetForLeaderEpochHandler(self._view, self._readers, counters, self._mark_dirty)
        handlers[ApiKey.METADATA] = MetadataHandler(self._view, self._controller, counters, box.flag("auto.create.topics.enable"), self._mark_dirty)
        self._delete_records = DeleteRecordsHandler(self._view, self._clock, counters, self._mark_dirty)
        handlers[ApiKey.DELETE_RECORDS] = self._delete_records
        self._write_markers = WriteTxnMarkersHandler(self._view, self._delayed, self._coordinator, self._clock, counters, self._mark_dirty)
        handlers[ApiKey.WRITE_TXN_MARKERS] = self._write_markers
        self._describe_producers = DescribeProducersHandler(self._view, self._source.arena, self._clock, self._mark_dirty)
        handlers[ApiKey.DESCRIBE_PRODUCERS] = self._describe_producers
        handlers[ApiKey.FIND_COORDINATOR] = FindCoordinatorHandler(self._view, self._controller, self._mark_dirty)
        handlers[ApiKey.DESCRIBE_CLUSTER] = DescribeClusterHandler(self._view, self._mark_dirty)
        handlers[ApiKey.DESCRIBE_LOG_DIRS] = DescribeLogDirsHandler(self._view, self._proxies, context.layout, lambda: box.disks, self._mark_dirty)
        handlers[ApiKey.DESCRIBE_TOPIC_PARTITIONS] = DescribeTopicPartitionsHandler(self._view, self._mark_dirty)
        handlers[ApiKey.API_VERSIONS] = ApiVersionsHandler(self._mark_dirty)
        self._dispatch = Dispatch(self._produce, handlers)
        self._receiver = Receiver(
            self._source.arena, self._clock, counters, box.integer("socket.request.max.bytes"), self._dispatch.on_request, self._pause_reading
        )
        self._listening = context.listen_sockets["kafka"]
        self._listening.setblocking(False)
        self._accepting = False
        self._accept_again_ns = 0
        self._accept_failures = counters.counter("acceptor.accept_failures")
        self._closings = Closings(counters, self._clock, context.log)
        self._held = HeldMemory(box.integer("acceptor.heap.bytes"))
        self._held_bytes = counters.counter("acceptor.held_bytes")
        self._arena_used_bytes = counters.counter("acceptor.arena_used_bytes")
        self._connections_max = self._find_connections_max(box.integer("max.connections"))
        self._per_address_max = box.integer("max.connections.per.ip")
        self._idle_ns = box.integer("connections.max.idle.ms") * 1_000_000
        self._frame_timeout_ns = box.integer("request.frame.timeout.ms") * 1_000_000
        self._connections_open = counters.counter("acceptor.connections")
        self._requests_parked = counters.counter("acceptor.parked")
        self._connections_accepted = counters.counter("acceptor.connections_accepted")
        self._sendfile_bytes = counters.counter("fetch.sendfile_bytes")
        self._connections_open.set(0)
        self._next_sweep_ns = 0
        self._unswept: list[Connection] = []
        """connections that this second's sweep has not come to"""
        self._stopping = False
        self._ready = False
        self._wait_for_disks_until_ns = self._clock.monotonic_ns() + WAIT_FOR_DISKS_NS

    # -- duty cycle

    def do_work(self) -> int:
        now_ns = self._clock.monotonic_ns()
        # What was received since the last turn goes to the log-writers before we send replies: they append meanwhile (measured: 10 % less CPU).
        self._proxies.flush()
        work = self._proxies.do_work(now_ns)
        work += self._produce.transactions.ask(now_ns)
        work += self._health.look(now_ns)
        work += self._controller.do_work(now_ns)
        work += self._coordinator.do_work(now_ns)
        if self._image.is_stale:
            self._image.load()
            work += 1
        work += self._peers.do_work(now_ns)
        if self._view.refresh():
            self._peers.refresh(self._view.image.brokers)
            self._fetch.files.keep_only(self._view.rows())
            self._fetch.on_view_changed()
            work += 1
        if len(self._delayed):
            work += self._delayed.wake_moved()
            work += self._delayed.expire(now_ns)
        if self._receiver.somebody_waits:
            work += self._receiver.retry(self._resume)
        if now_ns >= self._next_sweep_ns:
            self._sweep(now_ns)
        if self._unswept:
            self._sweep_some(now_ns)
            work += 1
        if self._accept_again_ns and now_ns >= self._accept_again_ns:
            self._start_accepting()
        while self._dirty:
            work += 1
            self._send(self._dirty.pop())
        self._cold.send_releases()
        self._proxies.flush()
        if not self._ready:
            self._maybe_ready()
        return work

    def may_park(self) -> bool:
        self._source.watch_rows(bool(len(self._delayed)))
        self._source.doorbell.prepare_to_sleep()
        if self._proxies.has_completions() or self._image.is_stale or self._dirty:
            self._source.doorbell.wake()
            return False
        if len(self._delayed) and self._delayed.wake_moved():
            self._source.doorbell.wake()
            return False
        return True

    def unpark(self) -> None:
        self._source.doorbell.wake()

    def park_ms(self) -> int:
        now_ns = self._clock.monotonic_ns()
        return self._produce.transactions.park_ms(now_ns, self._delayed.ms_to_next_deadline(now_ns, PARK_MS_MAX))

    def begin_stop(self) -> None:
        self._stopping = True
        self._stop_accepting()
        for connection in self._connections.values():
            self._update_interest(connection)

    def stopped(self) -> bool:
        return not any(proxy.outstanding for proxy in self._proxies.by_disk.values()) and not any(
            connection.outgoing for connection in self._connections.values()
        )

    def close(self) -> None:
        for connection in list(self._connections.values()):
            self._close(connection, STOPPING)
        for reader in self._readers.values():
            reader.close()
        self._controller.close()
        self._coordinator.close()
        self._peers.close()
        self._lease.close()
        self._proxies.close()
        self._source.close()

    def status_line(self) -> str:
        return f"{len(self._connections)} connections, {len(self._delayed)} requests parked"

    def _maybe_ready(self) -> None:
        """Ready when clients can be served: an image is there, and the log-writers answer, or have had their time: a disk that is dead or
        hung must not keep the others' clients out."""
        if self._view.image.generation == 0:
            return
        if self._clock.monotonic_ns() < self._wait_for_disks_until_ns and not all(proxy.serving for proxy in self._proxies.by_disk.values()):
            return
        self._ready = True
        self._start_accepting()
        self._context.notifier.ready()

    # -- news

    def _on_completion(self, part: object, entry: tuple[int, ...]) -> None:
        kind = entry[0]
        if kind == _PRODUCE:
            self._produce.on_completion(part, entry)  # type: ignore[arg-type]
        elif kind == _DELETE_RECORDS:
            self._delete_records.on_completion(part, entry)  # type: ignore[arg-type]
        elif kind == _MARKER:
            self._write_markers.on_completion(part, entry)  # type: ignore[arg-type]
        elif kind != _PROGRESS:
            self._describe_producers.on_completion(part, entry)  # type: ignore[arg-type]

    def _on_lost(self, part: object) -> None:
        if isinstance(part, PartDeletion):
            self._delete_records.on_lost(part)
        elif isinstance(part, PartMarker):
            self._write_markers.on_lost(part)
        elif isinstance(part, PartDescription):
            self._describe_producers.on_lost(part)
        elif part is not PROGRESS_TOLD:
            self._produce.on_lost(part)  # type: ignore[arg-type]

    def _on_connected(self, disk: str) -> None:
        self._image.is_stale = True

    def _on_gone(self, disk: str) -> None:
        self._fetch.files.forget_disk(disk)
        self._context.log.info(f"log-writer@{disk} is gone; its clients get retriable errors until it is back", disk=disk, peer=f"log-writer@{disk}")

    def _on_hung(self, disk: str, operation: str) -> None:
        """Everybody who waits for it is answered now; what the log-writer was given stays its own until it is done or dead."""
        for part in self._proxies.by_disk[disk].under_way():
            self._on_set_aside(part)
        self._readers[disk].give_up()
        self._context.log.warning(f"disk {disk} hangs ({operation}): its clients get KAFKA_STORAGE_ERROR until it answers", disk=disk)

    def _on_set_aside(self, part: object) -> None:
        """Answer for a log-writer that still has the batch."""
        if isinstance(part, PartDeletion):
            self._delete_records.on_lost(part)
        elif isinstance(part, PartMarker):
            self._write_markers.on_lost(part)
        elif isinstance(part, PartDescription):
            self._describe_producers.on_hung(part)
        elif part is not PROGRESS_TOLD:
            self._produce.on_hung(part)  # type: ignore[arg-type]

    def _look_at_disks(self, now_ns: int) -> None:
        """Disks that were added, removed or replaced while we run."""
        changes = self._box_disks.look(now_ns)
        for disk in changes.came:
            self._readers[disk.name] = self._make_reader(disk.name)
            self._proxies.add_disk(disk.name)
        for disk in changes.went:
            self._proxies.remove_disk(disk.name, self._on_set_aside)
            self._readers.pop(disk.name).close()
        for disk in changes.replaced:
            self._proxies.replace_disk(disk.name, self._on_set_aside)
            self._readers[disk.name].hang_up()

    def _on_well(self, disk: str) -> None:
        self._context.log.notice(f"disk {disk} answers again, its clients are served", disk=disk)

    # -- connections

    def _find_connections_max(self, wanted: int) -> int:
        """As the setting says, or fewer where the process may not open so many descriptors."""
        allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        if allowed == resource.RLIM_INFINITY:
            return wanted
        possible = max(allowed - DESCRIPTORS_RESERVED - _segment_files_max(), allowed // 2)
        if possible < wanted:
            self._context.log.notice(f"takes {possible} connections, not the {wanted} of max.connections: it may open {allowed} descriptors (ulimit -Hn)")
        return min(wanted, possible)

    def _start_accepting(self) -> None:
        self._accept_again_ns = 0
        if not self._stopping and not self._accepting:
            self._accepting = True
            self._poller.register(self._listening.fileno(), select.EPOLLIN | select.EPOLLEXCLUSIVE, self._on_acceptable)

    def _stop_accepting(self) -> None:
        if self._accepting:
            self._accepting = False
            self._poller.unregister(self._listening.fileno())

    def _on_acceptable(self, _events: int) -> None:
        for _ in range(ACCEPT_BURST):
            try:
                sock, peer = self._listening.accept()
            except OSError as error:
                if error.errno in _NO_ROOM_TO_ACCEPT:
                    # The client stays in the queue and the socket stays readable: without a pause we would spin.
                    self._accept_failures.add()
                    self._stop_accepting()
                    self._accept_again_ns = self._clock.monotonic_ns() + ACCEPT_PAUSE_NS
                return
            self._add_connection(sock, peer[0])

    def _add_connection(self, sock: socket.socket, address: str) -> None:
        if len(self._connections) >= self._connections_max:
            sock.close()
            self._closings.tell(CONNECTION_LIMIT, address, f"{self._connections_max} connections are open (max.connections)")
            return
        if self._per_address[address] >= self._per_address_max:
            sock.close()
            self._closings.tell(ADDRESS_LIMIT, address, f"it has {self._per_address_max} connections (max.connections.per.ip)")
            return
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection = Connection(PlainTransport(sock), address, self._clock.monotonic_ns())
        descriptor = sock.fileno()
        self._connections[descriptor] = connection
        self._per_address[address] += 1
        connection.interest = READ_INTEREST
        self._poller.register(descriptor, READ_INTEREST, lambda events: self._on_event(connection, events))
        self._connections_accepted.add()
        self._connections_open.set(len(self._connections))

    def _on_event(self, connection: Connection, events: int) -> None:
        if connection.closed:
            return
        if events & select.EPOLLIN and not connection.read_paused:
            self._receive(connection)
        elif events & (select.EPOLLHUP | select.EPOLLERR | select.EPOLLRDHUP):
            self._close(connection, CLIENT_LEFT)
            return
        if events & select.EPOLLOUT and not connection.closed:
            self._send(connection)

    def _receive(self, connection: Connection) -> None:
        connection.last_active_ns = self._clock.monotonic_ns()
        try:
            if not self._receiver.receive(connection):
                self._close(connection, CLIENT_LEFT)
                return
        except ProtocolViolation as violation:
            self._violated(connection, violation)
            return
        except OSError:
            self._close(connection, CLIENT_LEFT)
            return
        self._charge(connection)

    def _charge(self, connection: Connection) -> None:
        """Count what the connection holds; when all hold too much together, those that do so for longest have to go."""
        if connection.closed or not (connection.held_bytes or connection.pending or connection.outgoing_bytes or connection.request_bytes):
            return
        held = self._held
        held.update(connection)
        if held.is_over:
            for leaving in held.plan_shedding():
                words = f"it holds {leaving.held_bytes} bytes of the {held.limit_bytes} that all connections may hold (acceptor.heap.bytes)"
                self._close(leaving, MEMORY_LIMIT, words)

    def _violated(self, connection: Connection, violation: ProtocolViolation) -> None:
        self._close(connection, violation.reason, str(violation))

    def _mark_dirty(self, connection: Connection) -> None:
        self._dirty.add(connection)

    def _on_disk_read_failed(self, connection: Connection) -> None:
        self._close(connection, DISK_READ_FAILED)

    def _send(self, connection: Connection) -> None:
        """Send what is ready; go on reading what had to wait for it."""
        if connection.closed or connection.waits_for_disk:
            return
        if connection.outgoing:
            connection.last_active_ns = self._clock.monotonic_ns()  # it takes what it asked for, however slowly
        try:
            stays_open = connection.collect_ready()
            sent_before = connection.sent_file_bytes
            connection.send_outgoing()
            self._sendfile_bytes.add(connection.sent_file_bytes - sent_before)
            if not stays_open:
                self._close(connection, *(connection.closing or (UNANSWERED,)))
                return
            if not self._cold.maybe_read_rest(connection):
                self._close(connection, DISK_READ_FAILED)
                return
            if connection.read_paused:
                self._receiver.resume(connection)
        except ProtocolViolation as violation:
            self._violated(connection, violation)
            return
        except OSError:
            self._close(connection, CLIENT_LEFT)
            return
        self._update_interest(connection)
        self._charge(connection)

    def _pause_reading(self, connection: Connection) -> None:
        self._update_interest(connection)

    def _update_interest(self, connection: Connection) -> None:
        reads = not connection.read_paused and not self._stopping
        interest = (READ_INTEREST if reads else 0) | (select.EPOLLOUT if connection.outgoing and not connection.waits_for_disk else 0)
        if interest != connection.interest and not connection.closed:
            connection.interest = interest
            self._poller.modify(connection.transport.fileno(), interest)

    def _resume(self, connection: Connection) -> None:
        """Go on with a connection whose request found no room in the arena."""
        try:
            self._receiver.resume(connection)
        except ProtocolViolation as violation:
            self._violated(connection, violation)
            return
        self._update_interest(connection)
        self._charge(connection)

    def _sweep(self, now_ns: int) -> None:
        """Once a second: end questions that a log-reader does not answer, see about disks; the connections are looked at in slices, by `_sweep_some`."""
        self._next_sweep_ns = now_ns + SWEEP_NS
        self._look_at_disks(now_ns)
        self._lease.look_for()
        self._fetch.sweep(now_ns)
        self._requests_parked.set(len(self._delayed))
        self._unswept = list(self._connections.values())
        for connection in self._receiver.slow_bodies(now_ns):
            self._close(connection, SLOW_BODY, "others wait for the arena that its request holds, and it comes too slowly")
        self._delayed.forget_closed()
        self._closings.sweep(now_ns)
        self._held_bytes.set(self._held.total_bytes)
        self._arena_used_bytes.set(self._source.arena.size_bytes - self._source.arena.free_bytes)
        if self._accepting:
            self._on_acceptable(0)  # the one that a connection woke (EPOLLEXCLUSIVE wakes one) may be stopped, and hold it: nobody else is told
        for reader in self._readers.values():
            reader.expire(now_ns)

    def _sweep_some(self, now_ns: int) -> None:
        """Close what is idle or dawdles, of a few connections: ten thousand at once would be ten milliseconds for everybody."""
        some, self._unswept = self._unswept[-SWEEP_SLICE:], self._unswept[:-SWEEP_SLICE]
        for connection in some:
            if connection.closed:
                continue
            if connection.frame_since_ns and now_ns - connection.frame_since_ns > self._frame_timeout_ns:
                self._close(connection, FRAME_TIMEOUT, "a request that it began did not come whole in time (request.frame.timeout.ms)")
            elif now_ns - connection.last_active_ns > self._idle_ns and not connection.replies:
                self._close(connection, IDLE)
            if connection.outgoing and connection.move_to_heap(now_ns):
                self._charge(connection)
            if connection.replies:
                for reply in list(connection.replies):
                    if reply.awaited is not None and now_ns > reply.awaited.deadline_ns:
                        reply.awaited.on_too_late()

    def _close(self, connection: Connection, reason: str, words: str = "") -> None:
        """Close it and count why; `words` are for the log, if its client is to blame."""
        if connection.closed:
            return
        connection.closed = True
        descriptor = connection.transport.fileno()
        self._poller.unregister(descriptor)
        del self._connections[descriptor]
        self._per_address[connection.address] -= 1
        if not self._per_address[connection.address]:
            del self._per_address[connection.address]
        self._receiver.drop(connection)
        connection.outgoing.clear()
        connection.replies.clear()
        connection.transport.close()
        self._held.forget(connection)
        self._dirty.discard(connection)
        self._connections_open.set(len(self._connections))
        if words:
            self._closings.tell(reason, connection.address, words)
        else:
            self._closings.count(reason)


def _random_session_id() -> int:
    """A fetch session's id says nothing, and another acceptor's hardly ever names one of ours."""
    return int.from_bytes(os.urandom(4), "big") >> 1


def _segment_files_max() -> int:
    """How many segments may be open at once: a fetch of many partitions needs one for each, and must not push out its own."""
    allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if allowed == resource.RLIM_INFINITY:
        return SEGMENT_FILES_MAX
    return max(SEGMENT_FILES_MIN, min(SEGMENT_FILES_MAX, allowed // 8))
