"""Transactions in the coordinator process: their rules (`transactions`) on the partitions of `__transaction_state` that this box leads.

Owned by the coordinator process. Weak spot: when the topic is made anew with another number of partitions, what was open stays to be aborted by hand.
"""

from __future__ import annotations

from collections.abc import Callable

from appliance.base.model import TopicPartition
from appliance.base.settings import Box
from appliance.cluster.metadata_cache import MetadataCache
from appliance.ipc.producer_id_leases import ProducerIdLeases
from services.coordinator.marker_appends import MarkerAppends
from services.coordinator.state.state_topic import StateTopic
from services.coordinator.transactions.transaction import TransactionSettings
from services.coordinator.transactions.transaction_coordinator import TransactionCoordinator


def transaction_settings(box: Box) -> TransactionSettings:
    return TransactionSettings(
        box.integer("transaction.max.timeout.ms"),
        box.integer("transactional.id.expiration.ms"),
        box.integer("transaction.abort.timed.out.transaction.cleanup.interval.ms"),
        box.integer("transaction.remove.expired.transaction.cleanup.interval.ms"),
        box.integer("max.transactional.ids"),
    )


class CoordinatedTransactions:
    """`topic` is where their state is."""

    def __init__(
        self,
        box: Box,
        topic: StateTopic,
        view: MetadataCache,
        markers: MarkerAppends,
        producer_ids: ProducerIdLeases,
        offsets_partition_of: Callable[[str], TopicPartition | None],
        now_ms: Callable[[], int],
        on_refused: Callable[[], None],
        has_memory: Callable[[], bool] = lambda: True,
    ) -> None:
        """`on_refused` is called for each id beyond `max.transactional.ids`."""
        self._has_memory = has_memory
        self._box = box
        self._on_refused = on_refused
        self._topic = topic
        self._view = view
        self._markers = markers
        self._producer_ids = producer_ids
        self._offsets_partition_of = offsets_partition_of
        self._now_ms = now_ms
        self._partition_count = box.integer("transaction.state.log.num.partitions")
        self.coordinator = self._make()

    def _make(self) -> TransactionCoordinator:
        coordinator = TransactionCoordinator(
            self._topic,
            self._partition_count,
            self._markers,
            self._producer_ids,
            transaction_settings(self._box),
            self._exists,
            self._topic.leader_epoch_of,
            self._offsets_partition_of,
            self._now_ms,
        )
        coordinator.ids.on_refused, coordinator.ids.has_memory = self._on_refused, self._has_memory
        self._topic.serve(coordinator)
        return coordinator

    def _exists(self, topic_partition: TopicPartition) -> bool:
        image = self._view.image.topics.get(topic_partition.topic)
        return image is not None and 0 <= topic_partition.partition < len(image.partitions)

    def leads(self, transactional_id: str) -> bool:
        """Whether its transactions are coordinated here."""
        return self._topic.leader_epoch_of(self.coordinator.ids.partition_of(transactional_id)) >= 0

    def refresh(self) -> None:
        """Image or tables have changed."""
        count = self._topic.count_partitions()
        if count and count != self._partition_count:
            self._topic.end_all()
            self._partition_count = count
            self.coordinator = self._make()
        self._topic.refresh()
