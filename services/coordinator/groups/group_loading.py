"""Load one partition of `__consumer_offsets` into memory, record by record, then all its groups at once.

The last value of a key wins. Offsets of a transaction count from its marker on; without a marker they stay pending. A loaded
group is stable with the members of its last record, each with one session time-out for its first request, or it is empty.
Owned by the group coordinator. Weak spot: a record that cannot be decoded is skipped and counted, as if it did not exist.
"""

from __future__ import annotations

from collections.abc import Iterable

from appliance.base.model import ProducerId, TopicPartition
from appliance.cluster.state_log import LoadedRecord
from services.coordinator.groups.group import Group
from services.coordinator.groups.group_directory import GroupDirectory, HostedGroup
from services.coordinator.groups.group_log import GroupLog
from services.coordinator.groups.group_membership import ClassicMembership, OtherMemberships
from services.coordinator.groups.group_records import GROUP_METADATA, OFFSET_COMMIT, GroupMetadataKey, OffsetKey, read_key, restored_group
from services.coordinator.groups.ports import GroupSettings
from services.coordinator.groups.rebalances import Rebalances
from services.coordinator.state.state_format import UnreadableRecord


class _PartitionLoad:
    """What was read so far. `metadata` is undone by tombstones; it is understood at the end, so that older generations cost nothing."""

    def __init__(self) -> None:
        self.groups: dict[str, HostedGroup] = {}
        self.metadata: dict[str, bytes] = {}
        self.transactions: dict[ProducerId, set[str]] = {}
        self.ended: dict[ProducerId, bool] = {}
        """Transactions whose markers were written meanwhile, behind the end of what is read: producer id → is commit."""
        self.end_offset = 0


class GroupLoading:
    """Partitions on their way into the directory."""

    def __init__(self, settings: GroupSettings, directory: GroupDirectory, rebalances: Rebalances, log: GroupLog, others: OtherMemberships) -> None:
        self._settings = settings
        self._directory = directory
        self._rebalances = rebalances
        self._log = log
        self._others = others
        self._loads: dict[int, _PartitionLoad] = {}
        self.skipped_records = 0

    def begin(self, partition: int) -> None:
        """Whatever a load before this one had read is void."""
        self._directory.begin_load(partition)
        self._others.begin_load(partition)
        self._loads[partition] = _PartitionLoad()

    def forget(self, partition: int) -> None:
        self._loads.pop(partition, None)
        self._others.stop_load(partition)

    def load(self, partition: int, records: Iterable[LoadedRecord]) -> None:
        """In the order of the log, as many at a time as the caller has time for."""
        load = self._loads[partition]
        for record in records:
            load.end_offset = record.offset + 1
            if record.is_commit is not None:
                self._end_transaction(load, record)
                continue
            try:
                self._load_record(partition, load, record)
            except UnreadableRecord:
                self.skipped_records += 1

    def _load_record(self, partition: int, load: _PartitionLoad, record: LoadedRecord) -> None:
        match read_key(record.key):
            case OffsetKey(group_id, topic, index):
                self._load_offset(partition, load, record, group_id, TopicPartition(topic, index))
            case GroupMetadataKey(group_id):
                if record.value is None:
                    load.metadata.pop(group_id, None)
                else:
                    load.metadata[group_id] = record.value
                    self._others.forget(partition, group_id)
            case _:
                self.skipped_records += not self._others.load(partition, record)

    def _load_offset(self, partition: int, load: _PartitionLoad, record: LoadedRecord, group_id: str, place: TopicPartition) -> None:
        value = None if record.value is None else OFFSET_COMMIT.decode_value(record.value)
        hosted = load.groups.get(group_id)
        if hosted is None:
            hosted = load.groups[group_id] = HostedGroup(group_id, partition, ClassicMembership(Group(group_id, partition, record.timestamp_ms)))
        if record.producer is None:
            if value is None:
                hosted.offsets.remove([place], record.offset)
            else:
                hosted.offsets.put_loaded(place, record.offset, value)
            return
        producer_id = record.producer.producer_id
        if value is None:
            hosted.offsets.remove_pending(producer_id, place)
        else:
            hosted.offsets.put_pending(producer_id, place, record.offset, value)
            load.transactions.setdefault(producer_id, set()).add(group_id)

    def _end_transaction(self, load: _PartitionLoad, record: LoadedRecord) -> None:
        assert record.producer is not None and record.is_commit is not None
        producer_id = record.producer.producer_id
        for group_id in load.transactions.pop(producer_id, ()):
            load.groups[group_id].offsets.end_transaction(producer_id, record.is_commit)

    def end_transaction(self, partition: int, producer_id: ProducerId, is_commit: bool) -> None:
        """Its marker is in the log now; all that it ends stands before it, read or not."""
        load = self._loads.get(partition)
        if load is not None:
            load.ended[producer_id] = is_commit

    # ---- the end of a load

    def finish(self, partition: int, now_ms: int) -> None:
        """The partition is active from now on, and the sessions of its members begin anew."""
        load = self._loads.pop(partition)
        for producer_id, is_commit in load.ended.items():
            for group_id in load.transactions.pop(producer_id, ()):
                load.groups[group_id].offsets.end_transaction(producer_id, is_commit)
        classic = [group for group in (self._restored(partition, load, group_id) for group_id in load.metadata) if group is not None]
        memberships = {group.group_id: ClassicMembership(group) for group in classic}
        others = self._others.finish_load(partition, now_ms)
        for group_id, membership in (memberships | dict(others)).items():
            hosted = load.groups.get(group_id)
            if hosted is None:
                load.groups[group_id] = HostedGroup(group_id, partition, membership)
            else:
                hosted.membership = membership
        known = [hosted for group_id, hosted in load.groups.items() if group_id in memberships or group_id in others or not hosted.offsets.is_empty]
        self._log.begin(partition, load.end_offset)
        self._directory.activate(partition, known)
        for group in classic:
            for member in group.members.values():
                self._rebalances.renew_session(group, member, now_ms)
            if len(group.members) > self._settings.group_max_size:
                self._rebalances.prepare(group, now_ms)

    def _restored(self, partition: int, load: _PartitionLoad, group_id: str) -> Group | None:
        try:
            return restored_group(group_id, partition, GROUP_METADATA.decode_value(load.metadata[group_id]))
        except UnreadableRecord:
            self.skipped_records += 1
            return None
