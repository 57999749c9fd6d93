"""Send closed batches to the leaders of their partitions until they are stored.

Owned by one ingest agent. Each partition has a `PartitionQueue` with its own idempotent producer,
so that a log recognises a batch that is offered twice. `PartitionLeaders` knows the leaders,
`LocalLeaders` and `RemoteLeaders` carry batches there, `BatchAnswers` handles the results. Batches
for a dead disk move to the next live partition. Batches that no leader takes wait in memory up to
the budget of their location, then in the spool; then senders are not read.

Weak: a batch that was offered to a dead disk is stored twice if that disk had written it. Lines of
a key keep their order within a partition only: after a disk dies or returns, earlier and later
lines are in two partitions.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Collection, Mapping
from operator import attrgetter
from typing import Any

from appliance.base.model import NO_LEADER
from appliance.client.peer_stream import peer_context
from appliance.cluster.metadata_cache import LocalReplica, MetadataCache
from appliance.cluster.metadata_image import BrokerImage
from appliance.runtime.agent import ServiceContext
from appliance.senders.accounting import LossReason
from appliance.shm.arena import Arena
from services.ingest.producer.batch_answers import BatchAnswers
from services.ingest.producer.ingest_spooling import IngestSpooling
from services.ingest.producer.local_leaders import LocalLeaders
from services.ingest.producer.partition_leaders import Key, PartitionLeaders
from services.ingest.producer.partition_queues import IN_FLIGHT_MAX, IngestProducers, PartitionQueue, PartitionQueues, ProducerIdSource
from services.ingest.producer.previous_incarnation import InheritedState
from services.ingest.producer.producer_batch import ProducerBatch
from services.ingest.producer.remote_leaders import RemoteLeaders
from services.ingest.producer.unresolved_sequences import UnresolvedSequences
from services.ingest.records.acknowledger import Acknowledger
from services.ingest.records.batcher import ReadyBatch

_by_number = attrgetter("number")


class BatchSender:
    """`on_changed(topic)`: the set of blocked or redirected partitions of the topic changed."""

    def __init__(
        self,
        context: ServiceContext,
        arena: Arena,
        view: MetadataCache,
        acknowledger: Acknowledger,
        producer_ids: ProducerIdSource,
        previous: InheritedState,
        may_be_replaced: Callable[[LocalReplica], bool],
        on_changed: Callable[[str], None],
    ) -> None:
        box, clock, counters = context.box, context.clock, context.counters
        self._clock = clock
        self._view = view
        self._broker_id = view.broker_id
        self._acknowledger = acknowledger
        self._producers = IngestProducers(producer_ids, clock.monotonic_ns())
        budget_bytes = min(box.integer("disk.budget.bytes"), arena.size_bytes // len(box.disks))
        self.leaders = PartitionLeaders(view.broker_id, budget_bytes, counters, self._can_spool, on_changed)
        self.queues = PartitionQueues(self.leaders, counters)
        self._spooling = IngestSpooling(
            previous.spool,
            self.queues.charge,
            lambda batch: batch.bytes_in(arena),
            acknowledger.on_lost,
            acknowledger.on_returned,
            previous.replays.before_offer,
        )
        answers = BatchAnswers(self.queues, self.leaders.topic_ids, acknowledger, previous.replays, self._on_ended, context)
        self._local = LocalLeaders(arena, view, self.queues.of, answers, may_be_replaced)
        self._remote = RemoteLeaders(context.poller, clock, answers, self._local.copy_out, counters, peer_context(box, context.log))
        self._unresolved = UnresolvedSequences(previous.peers, answers.on_found, answers.on_sequences_lost)
        self._next_number = 0
        self._held: frozenset[Key] = frozenset()
        self._away: set[int] = set()
        """Boxes that could not be reached when the blocked partitions were last computed."""
        self._batches = counters.counter("ingest.batches")
        self._batch_bytes = counters.counter("ingest.batch_bytes")

    @property
    def is_empty(self) -> bool:
        return not self.queues.in_flight and not any(queue.waiting for queue in self.queues.waiting)

    @property
    def waits(self) -> bool:
        """True if batches wait to be offered."""
        return bool(self.queues.waiting)

    @property
    def waits_for_rows(self) -> bool:
        """True if appended batches wait for a high watermark."""
        return self._local.waits_for_rows

    def describe(self) -> str:
        return f"{self.queues.in_flight} batches in flight, {sum(len(queue.waiting) for queue in self.queues.waiting)} waiting"

    def can_send_now(self, topic: str, partition: int) -> bool:
        """True if a batch that is closed now is offered at once; otherwise it may as well stay open
        and grow."""
        queue = self.queues.by_key.get((topic, partition))
        return queue is None or (not queue.waiting and len(queue.in_flight) < (IN_FLIGHT_MAX if queue.may_pipeline else 1))

    def has_batches_of(self, topic: str) -> bool:
        """True if batches of the topic are waiting, in flight or in the overflow."""
        return any(queue.waiting or queue.in_flight or queue.overflow for queue in self.queues.by_key.values() if queue.topic == topic)

    # -- in

    def set_dead_disks(self, disks: frozenset[str]) -> None:
        self.leaders.set_dead_disks(disks)
        self.refresh()

    def set_brokers(self, brokers: Mapping[int, BrokerImage]) -> None:
        """Replace the other boxes by those of the metadata image."""
        self._remote.set_brokers(brokers)

    def refresh(self) -> None:
        """Apply a change of leaders or disks to all queues."""
        self.leaders.refresh()
        for queue in list(self.queues.by_key.values()):
            self.queues.on_leaders_changed(queue)
            self._maybe_detach(queue)
        self.leaders.update_blocked()

    def _maybe_detach(self, queue: PartitionQueue) -> None:
        """If another box leads now, offer again what a hung log-writer of this box still holds."""
        if queue.leader in (NO_LEADER, self._broker_id) or isinstance(queue.offered_to, int) or self._local.serves(queue):
            return
        for batch in [batch for batch in queue.in_flight if not batch.is_appended]:
            self._local.on_detached(batch)

    def put(self, topic: str, batches: list[ReadyBatch]) -> None:
        """Append closed batches to their queues, or to the overflow behind them."""
        for ready in batches:
            batch = ProducerBatch(topic, ready, self._next_number, self._clock.monotonic_ns())
            self._next_number += 1
            self._batches.add()
            self._batch_bytes.add(batch.size_bytes)
            queue = self.queues.add(batch)
            if not queue.overflow and not (self.leaders.is_over(queue.location) and not self._is_served(queue)):
                queue.waiting.append(batch)
                self.queues.charge(queue, batch)
            elif not self._spooling.put(queue, batch):
                self.leaders.update_blocked()  # the spool is full: block the partition

    def hold(self, keys: Collection[Key]) -> None:
        """Offer nothing to these partitions.

        It is not known yet which of the previous incarnation's spooled batches they have. Those
        come first: if a newer batch went before, a repeat could overtake what waits in the spool.
        """
        if self._held != (held := frozenset(keys)):
            self._held = held
            self.leaders.update_blocked()  # a held partition counts as unreachable, so its batches may be spooled

    def adopt(self, batch: ProducerBatch) -> None:
        """Insert a batch that a previous incarnation left in the spool, before all batches of this
        one."""
        batch.is_spooled = True
        queue = self.queues.add(batch)
        if queue.waiting and batch.number < queue.waiting[0].number:
            queue.overflow.extendleft(reversed(queue.waiting))
            queue.waiting.clear()
        insort(queue.overflow, batch, key=_by_number)

    def account_stored(self, batch: ProducerBatch) -> None:
        """Count a batch of a previous incarnation that its leader has as stored."""
        self._acknowledger.on_stored(batch)

    def _is_served(self, queue: PartitionQueue) -> bool:
        """True if its leader is reachable as far as is known. Nothing is offered to a held queue,
        so nothing is learned about its leader."""
        if queue.leader == NO_LEADER or (queue.topic, queue.partition) in self._held:
            return False
        return self._local.serves(queue) if queue.leader == self._broker_id else self._remote.serves(queue.leader)

    def _can_spool(self, key: Key) -> bool:
        queue = self.queues.by_key.get(key)
        return queue is not None and self._spooling.has_space and not self._is_served(queue)

    # -- out

    def send(self, now_ns: int) -> int:
        """Offer waiting batches to the leaders that can take them; return the number of batches."""
        sent = 0
        elsewhere: dict[int, list[PartitionQueue]] = {}
        waiting = self.queues.waiting
        for queue in list(waiting):
            if self._held and (queue.topic, queue.partition) in self._held:
                continue
            if queue.overflow:
                self._refill(queue)
            if queue.is_unresolved and queue.waiting:
                if not queue.in_flight:
                    self._unresolved.resolve(queue, now_ns // 1_000_000)
            elif queue.waiting and self._producers.is_ready(queue, now_ns):
                if queue.leader in (NO_LEADER, self._broker_id):
                    sent += self._local.offer(queue, now_ns)
                else:
                    elsewhere.setdefault(queue.leader, []).append(queue)
            if not queue.waiting and not queue.overflow:
                waiting.pop(queue, None)
        for leader, queues in elsewhere.items():
            sent += self._remote.offer(leader, queues, now_ns)
        self.queues.in_flight += sent
        if not waiting:
            self._spooling.on_idle()
        return sent

    def _refill(self, queue: PartitionQueue) -> None:
        """Refill the queue from its overflow if a leader can take its batches.

        A remote leader counts as away until a request succeeds. So a queue with nothing waiting and
        nothing in flight is refilled too: otherwise no request would find out that the box is back.
        """
        is_redirected = self.queues.is_redirected(queue)
        is_unasked = not queue.waiting and not queue.in_flight and queue.leader not in (NO_LEADER, self._broker_id)
        if is_redirected or is_unasked or self._is_served(queue):
            self._spooling.refill(queue)
            if is_redirected:
                self.queues.redirect_waiting(queue)

    def do_work(self, now_ns: int) -> int:
        """Check high watermarks and receive the answers of other boxes."""
        work = self._remote.do_work(now_ns)
        if self.leaders.has_any_over and (away := self._remote.away) != self._away:
            self._away = away
            self.leaders.update_blocked()  # a queue whose box is away may use the spool
            work += 1
        if self._unresolved:
            work += self._unresolved.turn(now_ns // 1_000_000, self._view.image)
        if self._local.waits_for_rows:
            work += self._local.check_high_watermarks()
        return work

    # -- what comes back

    def on_completion(self, batch: ProducerBatch, entry: tuple[Any, ...]) -> None:
        """Handle a log-writer's completion: appended or refused."""
        self._local.on_completion(batch, entry)

    def on_lost(self, batch: ProducerBatch) -> None:
        """The log-writer died before it completed the batch."""
        self._local.on_lost(batch)

    def on_detached(self, batch: ProducerBatch) -> None:
        """The log-writer's disk was detached: offer a copy."""
        self._local.on_detached(batch)

    def _on_ended(self, batch: ProducerBatch) -> None:
        self._local.free(batch)
        self._spooling.done(batch)

    def give_up(self) -> int:
        """Stop: spool what no leader has taken, count what does not fit as lost, and return the
        lost records.

        A batch in flight that is counted as lost may still be stored. The ledger errs on this side
        only: a record that is counted as stored is stored.
        """
        lost = 0
        for queue in self.queues.by_key.values():
            for batch in self._spooling.spool_all(queue):
                lost += self._acknowledger.on_lost(batch, LossReason.SHUTDOWN)
        self.queues.clear()
        return lost

    def close(self) -> None:
        self._remote.close()
