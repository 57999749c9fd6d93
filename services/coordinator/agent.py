"""The coordinator: consumer groups, share groups and transactions whose state topics' partitions this box leads, and share partitions that it leads.

One process per box. The acceptors forward whole requests over `coordinator.sock`. State goes into `__consumer_offsets` and
`__transaction_state` through the rings, like any producer's batches. The log-readers read it back at the start, and whenever
this box becomes the leader of a partition (`state_topic.py`). A crash loses nothing that was answered: the next incarnation,
or the next leader, reads the topics. The coordinator asks other boxes to write markers where they lead, and about
transactions that they coordinate. It owns nothing on a disk.
Weak spot: members that were joining at a crash join again; until its partitions are loaded it answers
COORDINATOR_LOAD_IN_PROGRESS.
"""

from __future__ import annotations

from typing import Any

from appliance.base.errors import ErrorCode
from appliance.base.model import ProducerId, TopicPartition
from appliance.client.peer_stream import peer_context
from appliance.client.peers import Peers
from appliance.client.transaction_gate import TransactionPeers
from appliance.cluster.metadata_cache import MetadataCache
from appliance.cluster.metadata_image import ImageFollower
from appliance.cluster.security_image import AuthorizerFollower, authorizer_of
from appliance.cluster.state_log import OFFSETS_TOPIC, SHARE_TOPIC, TRANSACTIONS_TOPIC
from appliance.ipc.box_disks import BoxDisks, DiskHealth
from appliance.ipc.frames import Frame
from appliance.ipc.log_reader_proxy import LogReaderProxy, follow_disks
from appliance.ipc.producer_id_leases import ProducerIdLeases
from appliance.ipc.proxies import LogWriterProxies
from appliance.ipc.request_frames import KafkaRequest
from appliance.ipc.request_link import ControllerLink
from appliance.ipc.source import Source
from appliance.runtime.agent import PARK_MS_MAX, ServiceContext
from appliance.runtime.process_cost import HeapBound
from appliance.runtime.request_server import RequestClient, RequestServer
from appliance.shm.lease import LeaseReader
from services.coordinator.coordinated_groups import CoordinatedGroups, LegacyOffsetRequests, TopicCreations
from services.coordinator.coordinated_shares import CoordinatedShares, StateTopics
from services.coordinator.coordinated_transactions import CoordinatedTransactions
from services.coordinator.coordinator_requests import CoordinatorRequests
from services.coordinator.groups.group_records import offset_record
from services.coordinator.groups.ports import NameBound
from services.coordinator.marker_appends import MarkerAppend, MarkerAppends
from services.coordinator.marker_requests import MarkerRequests
from services.coordinator.member_rights import MemberRights
from services.coordinator.state.confirmations import LeadershipConfirmations
from services.coordinator.state.state_partition import StateAppend
from services.coordinator.state.state_topic import StateTopic
from services.coordinator.transactions.transaction_records import encode_transaction_key
from services.coordinator.verification_guards import GuardQuestion

LOG_READER_DEADLINE_MS = 10_000
LEASE_SOUGHT_NS = 1_000_000_000

Offered = StateAppend | MarkerAppend | GuardQuestion
"""What a log-writer may have been offered."""


class CoordinatorAgent:
    """The duty cycle."""

    def __init__(self, context: ServiceContext) -> None:
        self._context = context
        self._clock = context.clock
        self._poller = context.poller
        counters, box = context.counters, context.box
        disks = [disk.name for disk in box.disks]
        self._source = Source(
            context.layout, context.process_name, context.incarnation, box.integer("coordinator.arena.bytes"), box.integer("channel.ring.entries")
        )
        self._proxies = LogWriterProxies(self._source, disks, self._poller, counters, self._on_completion, self._on_lost, self._on_connected, self._on_gone)
        self._health = DiskHealth(self._proxies.by_disk.values(), box.integer("log.disk.deadline.ms"), self._on_hung, lambda _disk: None)
        self._view = MetadataCache(box.broker_id, self._proxies)
        self._image = ImageFollower(context.layout, self._view, context.log)
        self._readers = {disk: self._make_reader(disk) for disk in disks}
        self._box_disks = BoxDisks(context.layout, box)
        self._controller = ControllerLink(context.layout, self._poller, self._clock, self._image.on_changed)
        self._wall_ahead_ms = self._clock.wall_ms() - self._clock.monotonic_ms()
        self._offsets_topic, self._transactions_topic = self._make_topic(OFFSETS_TOPIC), self._make_topic(TRANSACTIONS_TOPIC)
        self._share_topic = self._make_topic(SHARE_TOPIC)
        self._topics = (self._offsets_topic, self._transactions_topic, self._share_topic)
        authorizer = authorizer_of(box)
        self._security = AuthorizerFollower(context.layout, authorizer, context.log) if authorizer is not None else None
        rights = MemberRights(self._security) if self._security is not None else None
        has_memory = HeapBound(box.integer("coordinator.heap.bytes"), self._clock.monotonic_ns).has_room
        legacy = LegacyOffsetRequests(self._controller)
        self._groups = CoordinatedGroups(box, self._offsets_topic, self._view, legacy, self._now_ms, counters, rights, has_memory)
        self._groups.creations = TopicCreations(self._controller, self._on_topics_created)
        self._peers = Peers(f"coordinator of broker {box.broker_id}", self._poller, self._clock, peer_context(box, context.log))
        state_topics = StateTopics(self._offsets_topic, self._share_topic)
        self._shares = CoordinatedShares(box, state_topics, self._view, self._readers, self._peers, self._now_ms, self._is_other_group, counters)
        self._groups.load_too(self._shares.places)
        self._shares.may_be_replaced = self._may_be_replaced
        self._shares.groups.may_grow = lambda growth: self._groups.coordinator.directory.may_grow(growth)
        self._producer_ids = ProducerIdLeases(self._controller, self._clock, counters.counter("coordinator.producer_ids"), context.log)
        self._markers = MarkerAppends(self._view, MarkerRequests(self._peers), self._clock, counters, self._on_transaction_ended, self._has_waiting_offsets)
        self._transactions = CoordinatedTransactions(
            box,
            self._transactions_topic,
            self._view,
            self._markers,
            self._producer_ids,
            self._groups.offsets_partition_of,
            self._now_ms,
            lambda: self._groups.on_refused(NameBound.TRANSACTIONAL_IDS),
            lambda: self._groups.coordinator.directory.may_grow(1),
        )
        self._server = RequestServer(context.layout.coordinator_socket, self._poller, self._on_frame)
        verifies = box.flag("transaction.partition.verification.enable")
        elsewhere = TransactionPeers(self._view, self._peers)
        self._lease = LeaseReader(context.layout)
        self._lease_sought_ns = self._clock.monotonic_ns()
        confirmations = {
            OFFSETS_TOPIC: LeadershipConfirmations(self._offsets_topic, offset_record("", TopicPartition("", -1), None).key),
            TRANSACTIONS_TOPIC: LeadershipConfirmations(self._transactions_topic, encode_transaction_key("")),
        }
        self._requests = CoordinatorRequests(
            self._groups, self._transactions, elsewhere, confirmations, self._may_be_replaced, verifies, self._now_ms, counters, self._server.send, rights
        )
        self._requests.shares = self._shares
        self._ready = False
        self._stopping = False

    def _now_ms(self) -> int:
        """The wall clock at the start plus the monotonic time since: a change of the system clock must not expire sessions or transactions."""
        return self._clock.monotonic_ms() + self._wall_ahead_ms

    def _may_be_replaced(self, topic: str) -> bool:
        """Whether another box may coordinate what this one coordinates by its rows: the topic has replicas elsewhere, and the lease has ended. What is
        appended is acknowledged only if that is not so; what is remembered may be old."""
        if self._lease.holds(self._clock.boottime_ns()):
            return False
        image = self._view.image.topics.get(topic)
        return image is not None and any(len(partition.replicas) > 1 for partition in image.partitions)

    def _is_other_group(self, name: str) -> bool:
        """Whether a share group may not have this name."""
        return self._groups.coordinator.directory.find(name) is not None

    def _has_waiting_offsets(self, place: TopicPartition) -> bool:
        """Of a transaction, perhaps: its marker must not pass them."""
        return place.topic == OFFSETS_TOPIC and self._offsets_topic.has_waiting(place.partition)

    def _make_topic(self, name: str) -> StateTopic:
        context = self._context
        return StateTopic(name, self._source.arena, self._view, self._readers, self._clock, self._now_ms, context.counters, context.log)

    def _make_reader(self, disk: str) -> LogReaderProxy:
        context = self._context
        return LogReaderProxy(disk, context.layout, self._poller, self._clock, context.counters, LOG_READER_DEADLINE_MS)

    # -- duty cycle

    def do_work(self) -> int:
        now_ns = self._clock.monotonic_ns()
        work = self._proxies.do_work(now_ns)
        work += self._health.look(now_ns)
        self._look_at_disks(now_ns)
        work += self._controller.do_work(now_ns)
        if self._image.is_stale:
            self._image.load()
            if self._security is not None:
                self._security.load()
            work += 1
        if self._view.refresh():
            self._peers.refresh(self._view.image.brokers)
            self._groups.refresh()
            self._transactions.refresh()
            self._shares.refresh()
            self._markers.refresh()
            work += 1
        if now_ns - self._lease_sought_ns >= LEASE_SOUGHT_NS:
            self._lease_sought_ns = now_ns
            self._lease.look_for()
        for reader in self._readers.values():
            work += reader.expire(now_ns)
        work += sum(topic.turn(now_ns) for topic in self._topics) + self._markers.turn(now_ns)
        work += self._producer_ids.turn(now_ns) + self._peers.do_work(now_ns)
        now_ms = self._now_ms()
        work += self._groups.coordinator.tick(now_ms) + self._transactions.coordinator.tick(now_ms) + self._shares.tick(now_ms)
        for reader in self._readers.values():
            if reader.arena.released:
                reader.send_releases()
        self._proxies.flush()
        if not self._ready and self._view.image.generation:
            self._ready = True
            self._context.notifier.ready()
        self._requests.count_waiting()
        return work

    def may_park(self) -> bool:
        self._source.watch_rows(self._markers.waits_for_rows or self._shares.waits_for_rows or any(topic.waits_for_rows for topic in self._topics))
        self._source.doorbell.prepare_to_sleep()
        if self._proxies.has_completions() or self._image.is_stale:
            self._source.doorbell.wake()
            return False
        return True

    def unpark(self) -> None:
        self._source.doorbell.wake()

    def park_ms(self) -> int:
        now_ms, wait_ms = self._now_ms(), PARK_MS_MAX
        for deadline_ms in (self._groups.coordinator.next_deadline_ms(), self._transactions.coordinator.next_deadline_ms(), self._shares.next_deadline_ms()):
            if deadline_ms is not None:
                wait_ms = min(wait_ms, deadline_ms - now_ms)
        return max(0, wait_ms)

    def begin_stop(self) -> None:
        self._stopping = True

    def stopped(self) -> bool:
        return not any(topic.has_unanswered for topic in self._topics)

    def _on_frame(self, client: RequestClient, frame: Frame) -> None:
        if self._stopping:
            self._server.drop_peer(client)  # its acceptor answers for us
        else:
            self._requests.on_frame(client, frame)

    def close(self) -> None:
        self._server.close()
        for topic in self._topics:
            topic.end_all()
        for reader in self._readers.values():
            reader.close()
        self._controller.close()
        self._peers.close()
        self._lease.close()
        self._proxies.close()
        self._source.close()

    def status_line(self) -> str:
        led, loading = sum(topic.led_count for topic in self._topics), sum(topic.loading_count for topic in self._topics)
        return f"{led} state partitions" + (f", {loading} of them loading" if loading else "")

    # -- news

    def _look_at_disks(self, now_ns: int) -> None:
        changes = self._box_disks.look(now_ns)
        self._proxies.follow(changes, self._on_detached)
        follow_disks(self._readers, changes, self._make_reader)

    # -- log-writers

    def _on_completion(self, append: Offered, entry: tuple[Any, ...]) -> None:
        if isinstance(append, MarkerAppend):
            self._markers.on_completion(append, entry)
        elif isinstance(append, GuardQuestion):
            append.guards.on_answer(append, entry)
        else:
            append.topic.on_completion(append, entry)

    def _on_lost(self, append: Offered) -> None:
        if isinstance(append, MarkerAppend):
            self._markers.on_lost(append)
        elif isinstance(append, GuardQuestion):
            append.guards.on_lost(append)
        else:
            append.topic.on_lost(append)

    def _on_transaction_ended(self, topic_partition: TopicPartition, producer_id: ProducerId, is_commit: bool) -> None:
        if topic_partition.topic == OFFSETS_TOPIC:
            self._groups.coordinator.complete_transaction(topic_partition.partition, producer_id, is_commit)

    def _on_topics_created(self, asker: KafkaRequest, names: list[str]) -> None:
        who = f"{asker.origin.principal} ({asker.client_host})"
        self._context.log.info(f"created {len(names)} internal topics of a streams group for {who}: {', '.join(names[:10])}", peer=asker.client_host)

    def _on_detached(self, append: Offered) -> None:
        """Answer the waiting request: another process serves the disk. The slot is freed when the old process is gone (`_on_lost`)."""
        if isinstance(append, MarkerAppend):
            self._markers.on_lost(append)
        else:
            append.answer(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def _on_connected(self, _disk: str) -> None:
        self._image.is_stale = True

    def _on_gone(self, disk: str) -> None:
        self._context.log.info(f"log-writer@{disk} is gone; groups and transactions on it wait until it is back", disk=disk, peer=f"log-writer@{disk}")

    def _on_hung(self, disk: str, operation: str) -> None:
        """The deadline answers the waiting request; the order stays with the log-writer."""
        self._readers[disk].give_up()
        self._context.log.warning(f"disk {disk} hangs ({operation}): groups and transactions on it wait until it answers", disk=disk)
