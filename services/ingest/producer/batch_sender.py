"""Where the batches of an ingest go: to the leaders of their partitions, on this box or another, again if need be, until they are stored.

Owned by one ingest agent. Each partition has a lane (`ingest_lane`) with a producer of its own, so that what is offered again is known to the log; who leads it
says the image (`ingest_places`), how it goes there `local_leaders` and `remote_leaders`, what comes of it `batch_answers`. What waits for a dead disk moves to
a partition that lives. Batches that nobody takes wait in memory up to their place's budget, then in the spool, then senders do.
Weak: a batch that was offered to a dead disk is stored twice if that disk had taken it; and the order of a key's lines holds within a partition: when its
disk dies or comes back, lines before and after are in two partitions.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Collection, Mapping
from operator import attrgetter
from typing import Any

from appliance.base.clock import Clock
from appliance.base.logging import Logger
from appliance.base.model import NO_LEADER
from appliance.cluster.metadata_cache import LocalReplica, MetadataCache
from appliance.cluster.metadata_image import BrokerImage
from appliance.ipc.registry import Registry
from appliance.senders.accounting import LossReason
from appliance.shm.arena import Arena
from appliance.shm.counters import Counters
from services.ingest.producer.batch_answers import BatchAnswers, ReplayRecorder
from services.ingest.producer.ingest_producers import IngestProducers, ProducerIdSource
from services.ingest.producer.ingest_spooling import IngestSpooling, Spool
from services.ingest.producer.local_leaders import LocalLeaders
from services.ingest.producer.partition_queue import UNDER_WAY_MAX, PartitionQueue
from services.ingest.producer.partition_queues import PartitionQueues
from services.ingest.producer.producer_batch import ProducerBatch
from services.ingest.producer.remote_leaders import RemoteLeaders
from services.ingest.producer.unresolved_sequences import UnresolvedSequences
from services.ingest.records.acknowledger import Acknowledger
from services.ingest.records.batcher import ReadyBatch
from services.ingest.records.ingest_places import IngestPlaces, Key
from services.ingest.replay.journalled_batches import SequenceRequester

_by_number = attrgetter("number")


class BatchSender:
    """`on_changed(topic)`: other partitions of it are blocked, or stood in for, than before."""

    def __init__(
        self,
        arena: Arena,
        view: MetadataCache,
        budget_bytes: int,
        registry: Registry,
        clock: Clock,
        counters: Counters,
        log: Logger,
        acknowledger: Acknowledger,
        producer_ids: ProducerIdSource,
        replays: ReplayRecorder,
        spool: Spool,
        peers: SequenceRequester,
        may_lead_alone: Callable[[LocalReplica], bool],
        on_changed: Callable[[str], None],
    ) -> None:
        self._clock = clock
        self._view = view
        self._broker_id = view.broker_id
        self._acknowledger = acknowledger
        self._producers = IngestProducers(producer_ids, clock.monotonic_ns())
        self.places = IngestPlaces(view.broker_id, budget_bytes, counters, self._can_spool, on_changed)
        self.lanes = PartitionQueues(self.places, counters)
        self._spooling = IngestSpooling(spool, self.lanes.charge, lambda batch: batch.bytes_in(arena), acknowledger.on_lost, replays.before_offer)
        answers = BatchAnswers(self.lanes, self.places.topic_ids, acknowledger, replays, self._on_ended, clock, counters, log)
        self._local = LocalLeaders(arena, view, self.lanes.of, answers, may_lead_alone)
        self._remote = RemoteLeaders(registry, clock, answers, self._local.take_out, counters)
        self._doubtful = UnresolvedSequences(peers, answers.on_found, answers.on_sequences_lost)
        self._next_number = 0
        self._held: frozenset[Key] = frozenset()
        self._away: set[int] = set()
        """Boxes that could not be reached when budgets were looked at last."""
        self._batches = counters.counter("ingest.batches")
        self._batch_bytes = counters.counter("ingest.batch_bytes")

    @property
    def is_empty(self) -> bool:
        return not self.lanes.under_way and not any(lane.waiting for lane in self.lanes.waiting)

    @property
    def waits(self) -> bool:
        """Whether batches wait to be offered."""
        return bool(self.lanes.waiting)

    @property
    def waits_for_rows(self) -> bool:
        """Whether a high watermark is awaited."""
        return self._local.waits_for_rows

    def describe(self) -> str:
        return f"{self.lanes.under_way} batches under way, {sum(len(lane.waiting) for lane in self.lanes.waiting)} waiting"

    def has_room(self, topic: str, partition: int) -> bool:
        """Whether a batch that is closed now can go at once: if not, it may as well grow."""
        lane = self.lanes.by_key.get((topic, partition))
        return lane is None or (not lane.waiting and len(lane.under_way) < (UNDER_WAY_MAX if lane.is_open else 1))

    def holds(self, topic: str) -> bool:
        """Whether batches of a topic are somewhere on their way."""
        return any(lane.waiting or lane.under_way or lane.behind for lane in self.lanes.by_key.values() if lane.topic == topic)

    # -- in

    def set_dead_disks(self, disks: frozenset[str]) -> None:
        """Which disks are dead now."""
        self.places.set_dead_disks(disks)
        self.refresh()

    def set_brokers(self, brokers: Mapping[int, BrokerImage]) -> None:
        """The other boxes, as the image has them."""
        self._remote.set_brokers(brokers)

    def refresh(self) -> None:
        """Leaders, or disks, are others than before."""
        self.places.refresh()
        for lane in list(self.lanes.by_key.values()):
            self.lanes.look_at(lane)
            self._maybe_set_aside(lane)
        self.places.look_at_budgets()

    def _maybe_set_aside(self, lane: PartitionQueue) -> None:
        """What a log-writer holds that hangs goes again, where another box leads now."""
        if lane.leader in (NO_LEADER, self._broker_id) or isinstance(lane.offered_to, int) or self._local.serves(lane):
            return
        for batch in [batch for batch in lane.under_way if not batch.is_appended]:
            self._local.on_set_aside(batch)

    def put(self, topic: str, batches: list[ReadyBatch]) -> None:
        """Take closed batches."""
        for ready in batches:
            batch = ProducerBatch(topic, ready, self._next_number, self._clock.monotonic_ns())
            self._next_number += 1
            self._batches.add()
            self._batch_bytes.add(batch.size_bytes)
            lane = self.lanes.enter(batch)
            if not lane.behind and not (self.places.is_over(lane.place) and not self._is_served(lane)):
                lane.waiting.append(batch)
                self.lanes.charge(lane, batch)
            elif not self._spooling.put(lane, batch):
                self.places.look_at_budgets()  # it is full

    def hold(self, keys: Collection[Key]) -> None:
        """Nothing is offered to these partitions: of what a previous life left for them it is not known yet what is stored, and that comes first."""
        if self._held != (held := frozenset(keys)):
            self._held = held
            self.places.look_at_budgets()  # what waits for them may go to the spool meanwhile

    def adopt(self, batch: ProducerBatch) -> None:
        """One that a previous life left in the spool: before everything of this one, which is not offered yet."""
        batch.is_spooled = True
        lane = self.lanes.enter(batch)
        if lane.waiting and batch.number < lane.waiting[0].number:
            lane.behind.extendleft(reversed(lane.waiting))
            lane.waiting.clear()
        insort(lane.behind, batch, key=_by_number)

    def book_stored(self, batch: ProducerBatch) -> None:
        """One that a previous life had in flight, and that its leader has."""
        self._acknowledger.on_stored(batch)

    def _is_served(self, lane: PartitionQueue) -> bool:
        """Whether its leader can be reached, as far as is known. What is held is not offered, so nothing gets known of its leader."""
        if lane.leader == NO_LEADER or (lane.topic, lane.partition) in self._held:
            return False
        return self._local.serves(lane) if lane.leader == self._broker_id else self._remote.serves(lane.leader)

    def _can_spool(self, key: Key) -> bool:
        lane = self.lanes.by_key.get(key)
        return lane is not None and self._spooling.has_room and not self._is_served(lane)

    # -- out

    def send(self, now_ns: int) -> int:
        """Offer what waits, as far as leaders are there and have room; returns how many batches went."""
        sent = 0
        elsewhere: dict[int, list[PartitionQueue]] = {}
        waiting = self.lanes.waiting
        for lane in list(waiting):
            if self._held and (lane.topic, lane.partition) in self._held:
                continue
            if lane.behind:
                self._refill(lane)
            if lane.is_doubtful and lane.waiting:
                if not lane.under_way:
                    self._doubtful.ask(lane, now_ns // 1_000_000)
            elif lane.waiting and self._producers.is_ready(lane, now_ns):
                if lane.leader in (NO_LEADER, self._broker_id):
                    sent += self._local.offer(lane, now_ns)
                else:
                    elsewhere.setdefault(lane.leader, []).append(lane)
            if not lane.waiting and not lane.behind:
                waiting.pop(lane, None)
        for leader, lanes in elsewhere.items():
            sent += self._remote.offer(leader, lanes, now_ns)
        self.lanes.under_way += sent
        if not waiting:
            self._spooling.rest()
        return sent

    def _refill(self, lane: PartitionQueue) -> None:
        """From behind, if it can go on, or if nobody would find out that it can: another box is found again by those who ask it for something."""
        is_stood_in_for = self.lanes.is_stood_in_for(lane)
        is_unasked = not lane.waiting and not lane.under_way and lane.leader not in (NO_LEADER, self._broker_id)
        if is_stood_in_for or is_unasked or self._is_served(lane):
            self._spooling.refill(lane)
            if is_stood_in_for:
                self.lanes.move_waiting(lane)

    def do_work(self, now_ns: int) -> int:
        """High watermarks, and answers of other boxes."""
        work = self._remote.do_work(now_ns)
        if self.places.has_any_over and (away := self._remote.away) != self._away:
            self._away = away
            self.places.look_at_budgets()  # what waits for them may go to the spool, or may not any more
            work += 1
        if self._doubtful:
            work += self._doubtful.turn(now_ns // 1_000_000, self._view.image)
        if self._local.waits_for_rows:
            work += self._local.look_at_watermarks()
        return work

    # -- what comes back

    def on_completion(self, batch: ProducerBatch, entry: tuple[Any, ...]) -> None:
        """A log-writer appended the batch, or refused it."""
        self._local.on_completion(batch, entry)

    def on_lost(self, batch: ProducerBatch) -> None:
        """Its log-writer died first."""
        self._local.on_lost(batch)

    def on_set_aside(self, batch: ProducerBatch) -> None:
        """Its log-writer was given up."""
        self._local.on_set_aside(batch)

    def _on_ended(self, batch: ProducerBatch) -> None:
        self._local.free(batch)
        self._spooling.done(batch)

    def give_up(self) -> int:
        """The process ends: what nobody took is for the next life, as far as the spool has room; book the rest. What of that is under way may be stored after
        all; it is counted as lost, never the other way round."""
        lost = 0
        for lane in self.lanes.by_key.values():
            for batch in self._spooling.keep(lane):
                lost += self._acknowledger.on_lost(batch, LossReason.SHUTDOWN)
        self.lanes.clear()
        return lost

    def close(self) -> None:
        self._remote.close()
