"""The acceptor: client connections, their reply order, waiting produces and fetches.

One turn: completions of the log-writers, news of tables and image, parked requests whose row moved or whose time is up; then the poller
hands readable and writable connections to `client_connections`. Alone owns its client sockets, its arena and its rings. It never touches a log directory.
What is not in the page cache it has the log-readers read. Weak spot: `services/acceptor/fetch/residency.py` says how sure that is.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Callable
from typing import TYPE_CHECKING

from appliance.client.peer_stream import peer_context
from appliance.client.peers import Peers
from appliance.client.transaction_gate import TransactionPeers
from appliance.cluster.broker_configs import CONNECTIONS_MAX, CREATION_RATE, dynamic_settings
from appliance.cluster.lease_gate import LeaseGate
from appliance.cluster.metadata_cache import CacheChange, MetadataCache
from appliance.cluster.metadata_image import ImageFollower
from appliance.cluster.quota_image import QuotaFollower
from appliance.cluster.security_image import AuthorizerFollower, authorizer_of
from appliance.ipc.box_disks import BoxDisks, DiskHealth
from appliance.ipc.log_reader_proxy import LogReaderProxy, follow_disks
from appliance.ipc.proxies import LogWriterProxies
from appliance.ipc.request_link import ControllerLink, CoordinatorLink
from appliance.ipc.source import Source
from appliance.protocol.apis import SERVED_APIS, ApiKey
from appliance.runtime.agent import PARK_MS_MAX, ServiceContext
from appliance.shm.lease import LeaseReader
from services.acceptor.audit.audit_trail import AuditTrail
from services.acceptor.client_connections import ClientConnections
from services.acceptor.client_throttles import ClientThrottles
from services.acceptor.delayed import DelayedRequests
from services.acceptor.dispatch import RESTRICTED_APIS, ApiVersionsHandler, Dispatch, Handler, InterBrokerHandler, SaslHandler
from services.acceptor.fanned_out_request import InFlight
from services.acceptor.fetch.cold_reads import ColdReads
from services.acceptor.fetch.partition_read import RACK_AWARE_SELECTOR
from services.acceptor.fetch.residency import choose_residency
from services.acceptor.handlers.coordinated import COORDINATED_KEYS, CoordinatedHandler, FindCoordinatorHandler, TransactionQuestions
from services.acceptor.handlers.delete_records import DeleteRecordsHandler
from services.acceptor.handlers.describe_log_dirs import DescribeLogDirsHandler
from services.acceptor.handlers.describe_producers import DescribeProducersHandler
from services.acceptor.handlers.fetch import FetchHandler
from services.acceptor.handlers.forwarded import ForwardedHandler
from services.acceptor.handlers.metadata import DescribeClusterHandler, DescribeTopicPartitionsHandler, ListConfigResourcesHandler, MetadataHandler
from services.acceptor.handlers.offset_lookups import ListOffsetsHandler, OffsetForLeaderEpochHandler
from services.acceptor.handlers.produce import ProduceHandler
from services.acceptor.handlers.write_txn_markers import WriteTxnMarkersHandler
from services.acceptor.inter_broker import InterBrokerGate

if TYPE_CHECKING:
    from appliance.cluster.credential_image import CredentialFollower
    from services.acceptor.audit.audit_topic import AuditTopic
    from services.acceptor.authorization.request_judge import RequestJudge

SWEEP_NS = 1_000_000_000
LOG_READER_DEADLINE_MS = 10_000
WAIT_FOR_DISKS_NS = 3_000_000_000
SEGMENT_FILES_MIN, SEGMENT_FILES_MAX = 256, 8192


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
        segment_files_max = _segment_files_max()
        self._connections = ClientConnections(context, self._source.arena, segment_files_max)
        mark_dirty = self._connections.mark_dirty
        self._delayed = DelayedRequests()
        self._proxies = LogWriterProxies(self._source, disks, self._poller, counters, _complete, _lose, self._on_connected, self._on_gone)
        self._health = DiskHealth(self._proxies.by_disk.values(), box.integer("log.disk.deadline.ms"), self._on_hung, self._on_well)
        self._view = MetadataCache(box.broker_id, self._proxies)
        self._image = ImageFollower(context.layout, self._view, context.log)
        self._make_reader: Callable[[str], LogReaderProxy] = lambda disk: LogReaderProxy(
            disk, context.layout, self._poller, self._clock, counters, LOG_READER_DEADLINE_MS
        )
        self._readers = {disk: self._make_reader(disk) for disk in disks}
        self._box_disks = BoxDisks(context.layout, box)
        self._security: AuthorizerFollower | None = None
        self._controller = ControllerLink(context.layout, self._poller, self._clock, self._image.on_changed)
        budget_bytes = min(box.integer("disk.budget.bytes"), self._source.arena.size_bytes // len(disks))
        self._coordinator = CoordinatorLink(context.layout, self._poller, self._clock)
        self._peers = Peers(f"acceptor of broker {box.broker_id}", self._poller, self._clock, peer_context(box, context.log))
        questions = TransactionQuestions(self._coordinator, TransactionPeers(self._view, self._peers))
        self._lease = LeaseGate(LeaseReader(context.layout), self._clock, counters, box.integer("read.without.zookeeper.max.ms"))
        authorizer = authorizer_of(box)
        if authorizer is not None:
            # Here, not above: acceptors without an authorizer do without these modules and the schemas that they import.
            from services.acceptor.authorization.authorized_produce import AuthorizedProduceHandler
            from services.acceptor.authorization.authorized_requests import AuthorizedDispatch, AuthorizedFetchHandler
            from services.acceptor.authorization.request_judge import RequestJudge

            judge: RequestJudge | None = RequestJudge(self._view)
            produce_class: type[ProduceHandler] = AuthorizedProduceHandler
            fetch_class: type[FetchHandler] = AuthorizedFetchHandler
        else:
            judge, produce_class, fetch_class = None, ProduceHandler, FetchHandler
        self._produce = produce_class(self._view, self._source.arena, self._delayed, self._clock, counters, budget_bytes, mark_dirty, questions, self._lease)
        self._cold = ColdReads(self._readers, self._clock, counters, mark_dirty, self._connections.on_disk_read_failed)
        self._inter_broker = InterBrokerGate(box.text("inter.broker.allowed.networks"), counters, self._clock, context.log)
        self._fetch = fetch_class(
            self._view,
            self._readers,
            self._delayed,
            self._clock,
            counters,
            box.integer("fetch.max.bytes"),
            segment_files_max,
            choose_residency(box.text("fetch.residency")),
            self._cold,
            box.integer("max.incremental.fetch.session.cache.slots"),
            _random_session_id,
            self._inter_broker,
            mark_dirty,
            box.text("replica.selector.class") == RACK_AWARE_SELECTOR,
            self._lease,
        )
        if authorizer is not None:
            self._security = AuthorizerFollower(context.layout, authorizer, context.log, self._fetch.on_rights_changed)
        self._audit_topic: AuditTopic | None = None
        if authorizer is not None:
            from services.acceptor.audit import audit_topic

            self._audit_topic = audit_topic.AuditTopic(self._view, self._source.arena, self._controller, self._clock, counters)
        self._audit = AuditTrail(self._view, self._clock, context.log, counters, self._audit_topic)
        if authorizer is not None:
            authorizer.on_denied = self._audit.on_denied
        self._connections.audit_by(self._audit)
        handlers, forwarded = self._make_handlers(judge)
        self._dispatch = Dispatch(self._produce, handlers) if authorizer is None else AuthorizedDispatch(self._produce, handlers, authorizer)
        self._connections.serve(self._dispatch.on_request, self._cold)
        self._throttles = ClientThrottles(context, self._dispatch.on_request, self._connections.mute, self._connections.unmute, self._inter_broker.is_box)
        self._connections.on_closed = self._throttles.forget
        forwarded.on_throttled = self._throttles.on_mutation
        self._quotas = QuotaFollower(context.layout, context.log)
        self._audit.follow_access(self._quotas, self._find_credentials)
        self._arena_used_bytes = counters.gauge("acceptor.arena_used_bytes")
        self._requests_parked = counters.gauge("acceptor.parked")
        self._next_sweep_ns = 0
        self._ready = False
        self._wait_for_disks_until_ns = self._clock.monotonic_ns() + WAIT_FOR_DISKS_NS

    def _make_handlers(self, judge: RequestJudge | None) -> tuple[dict[int, Handler], ForwardedHandler]:
        """Return the handlers by API key, and the one of requests to the controller. `judge`: None without an authorizer."""
        context, box, counters, mark_dirty = self._context, self._context.box, self._context.counters, self._connections.mark_dirty
        forwarded = ForwardedHandler(self._controller, mark_dirty, judge, self._inter_broker.is_box)
        handlers: dict[int, Handler] = dict.fromkeys(SERVED_APIS, forwarded)
        coordinated = CoordinatedHandler(self._coordinator, self._view, self._controller, mark_dirty, box.integer("offsets.commit.timeout.ms"), judge)
        handlers.update(dict.fromkeys(COORDINATED_KEYS, coordinated))
        handlers[ApiKey.FETCH] = self._fetch
        handlers[ApiKey.LIST_OFFSETS] = ListOffsetsHandler(self._view, self._readers, self._clock, counters, mark_dirty)
        handlers[ApiKey.OFFSET_FOR_LEADER_EPOCH] = OffsetForLeaderEpochHandler(self._view, self._readers, counters, mark_dirty)
        handlers[ApiKey.METADATA] = metadata = MetadataHandler(self._view, self._controller, counters, box.flag("auto.create.topics.enable"), mark_dirty)
        handlers[ApiKey.DELETE_RECORDS] = delete_records = DeleteRecordsHandler(self._view, self._clock, counters, mark_dirty)
        handlers[ApiKey.WRITE_TXN_MARKERS] = WriteTxnMarkersHandler(self._view, self._delayed, self._coordinator, self._clock, counters, mark_dirty)
        handlers[ApiKey.DESCRIBE_PRODUCERS] = DescribeProducersHandler(self._view, self._source.arena, self._clock, mark_dirty)
        handlers[ApiKey.FIND_COORDINATOR] = FindCoordinatorHandler(self._view, self._controller, mark_dirty)
        handlers[ApiKey.DESCRIBE_CLUSTER] = DescribeClusterHandler(self._view, mark_dirty)
        handlers[ApiKey.LIST_CONFIG_RESOURCES] = ListConfigResourcesHandler(self._view, mark_dirty)
        handlers[ApiKey.DESCRIBE_LOG_DIRS] = DescribeLogDirsHandler(self._view, self._proxies, context.layout, lambda: box.disks, mark_dirty)
        handlers[ApiKey.DESCRIBE_TOPIC_PARTITIONS] = DescribeTopicPartitionsHandler(self._view, mark_dirty)
        handlers[ApiKey.API_VERSIONS] = ApiVersionsHandler(mark_dirty)
        handlers.update(dict.fromkeys((ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE), SaslHandler(self._connections.sasl, self._inter_broker, mark_dirty)))
        forwarded.audit = coordinated.audit = delete_records.audit = metadata.audit = self._audit
        for key in RESTRICTED_APIS:
            handlers[key] = InterBrokerHandler(ApiKey(key), handlers[key], self._inter_broker, mark_dirty)
        return handlers, forwarded

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
            if self._security is not None:
                self._security.load()
            if self._connections.sasl is not None:
                self._connections.sasl.credentials.load()
            if self._quotas.load():
                self._use_quotas()
            work += 1
        work += self._peers.do_work(now_ns)
        if self._view.refresh() is CacheChange.PLACES:
            self._peers.refresh(self._view.image.brokers)
            self._inter_broker.refresh(self._view.image.brokers)
            self.on_reloaded()
            self._fetch.files.keep_only(self._view.rows())
            self._fetch.on_view_changed()
            work += 1
        if len(self._delayed):
            work += self._delayed.wake_moved()
            work += self._delayed.expire(now_ns)
        if now_ns >= self._next_sweep_ns:
            self._sweep(now_ns)
        if self._throttles.muted:
            work += self._throttles.do_work(now_ns)
        if self._audit_topic is not None and self._audit_topic.has_waiting:
            work += self._audit_topic.do_work(now_ns)
        work += self._connections.do_work(now_ns)
        work += self._connections.send_dirty()
        self._cold.send_releases()
        self._proxies.flush()
        if not self._ready:
            self._maybe_ready()
        return work

    def may_park(self) -> bool:
        self._source.watch_rows(bool(len(self._delayed)))
        self._source.doorbell.prepare_to_sleep()
        if self._proxies.has_completions() or self._image.is_stale or self._connections.has_dirty:
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
        most_ms = self._throttles.park_ms(now_ns, PARK_MS_MAX) if self._throttles.muted else PARK_MS_MAX
        return self._produce.transactions.park_ms(now_ns, self._delayed.ms_to_next_deadline(now_ns, most_ms))

    def begin_stop(self) -> None:
        self._connections.begin_stop()

    def stopped(self) -> bool:
        return not any(proxy.outstanding for proxy in self._proxies.by_disk.values()) and not self._connections.has_outgoing

    def close(self) -> None:
        self._audit.close()
        self._connections.close()
        self._throttles.close()
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
        """Ready when clients can be served: an image is there, and the log-writers answer, the brokers' host names are resolved and the keys of tokens
        are read, or have had their time: a disk that is dead or hung must not keep the others' clients out."""
        if self._view.image.generation == 0 or (self._security is not None and not self._security.has_image):
            return
        if self._connections.sasl is not None and not self._connections.sasl.credentials.has_image:
            return
        is_complete = self._inter_broker.is_settled and all(proxy.serving for proxy in self._proxies.by_disk.values())
        is_complete = is_complete and (self._connections.sasl is None or self._connections.sasl.has_token_keys)
        if not is_complete and self._clock.monotonic_ns() < self._wait_for_disks_until_ns:
            return
        self._ready = True
        self._connections.accept()
        self._context.notifier.ready()

    def _use_quotas(self) -> None:
        """Without quotas, requests do not pass through what counts them."""
        quotas = self._quotas.quotas
        self._throttles.set_quotas(quotas)
        self._connections.serve_by(self._throttles.on_request if quotas.limit_requests else self._dispatch.on_request)
        self._connections.rates.connection_throttle_ms = self._throttles.connection_throttle_ms if quotas.limit_connections else None

    def _find_credentials(self) -> CredentialFollower:
        """For the audit of changes of users, which come to boxes without SASL listeners, too."""
        if self._connections.sasl is not None:
            return self._connections.sasl.credentials
        from appliance.cluster.credential_image import CredentialFollower

        return CredentialFollower(self._context.layout, self._context.log)

    def on_reloaded(self) -> None:
        """Use changed bounds of connections: from the settings file, or altered while the box runs."""
        self._connections.set_connections_max(self._wanted(CONNECTIONS_MAX))
        self._connections.rates.wanted = self._wanted(CREATION_RATE)

    def _wanted(self, setting: str) -> int:
        """Return a setting as it was altered while the box runs, or as in its file."""
        altered = dynamic_settings(self._view.image.box_config).get(setting)
        return altered if isinstance(altered, int) else self._context.box.integer(setting)

    # -- news

    def _on_connected(self, disk: str) -> None:
        self._image.is_stale = True

    def _on_gone(self, disk: str) -> None:
        self._fetch.files.forget_disk(disk)
        self._context.log.info(f"log-writer@{disk} is gone; its clients get retriable errors until it is back", disk=disk, peer=f"log-writer@{disk}")

    def _on_hung(self, disk: str, operation: str) -> None:
        """Answer all requests that wait for the disk now. The log-writer keeps its slots until it is done or dead."""
        for part in self._proxies.by_disk[disk].under_way():
            part.on_hung()
        self._readers[disk].give_up()
        self._context.log.warning(f"disk {disk} hangs ({operation}): its clients get KAFKA_STORAGE_ERROR until it answers", disk=disk)

    def _look_at_disks(self, now_ns: int) -> None:
        changes = self._box_disks.look(now_ns)
        self._proxies.follow(changes, lambda part: part.on_hung())
        follow_disks(self._readers, changes, self._make_reader)

    def _on_well(self, disk: str) -> None:
        self._context.log.notice(f"disk {disk} answers again, its clients are served", disk=disk)

    def _sweep(self, now_ns: int) -> None:
        """Once a second: end questions that a log-reader does not answer, see about disks and connections."""
        self._next_sweep_ns = now_ns + SWEEP_NS
        self._look_at_disks(now_ns)
        self._lease.look_for()
        self._fetch.sweep(now_ns)
        self._requests_parked.set(len(self._delayed))
        self._connections.sweep(now_ns)
        self._throttles.sweep(now_ns)
        self._audit.sweep(now_ns)
        self._inter_broker.sweep(now_ns)
        self._delayed.forget_closed()
        self._arena_used_bytes.set(self._source.arena.size_bytes - self._source.arena.free_bytes)
        for reader in self._readers.values():
            reader.expire(now_ns)


def _complete(part: InFlight, entry: tuple[int, ...]) -> None:
    part.on_completion(entry)


def _lose(part: InFlight) -> None:
    part.on_lost()


def _random_session_id() -> int:
    """A fetch session's id says nothing, and another acceptor's hardly ever names one of ours."""
    return int.from_bytes(os.urandom(4), "big") >> 1


def _segment_files_max() -> int:
    """How many segments may be open at once: a fetch of many partitions needs one for each, and must not push out its own."""
    allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if allowed == resource.RLIM_INFINITY:
        return SEGMENT_FILES_MAX
    return max(SEGMENT_FILES_MIN, min(SEGMENT_FILES_MAX, allowed // 8))
