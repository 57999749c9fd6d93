"""Read a range by Fetch from the leader; the next fetch is in flight while the last response is decoded.

Owned by one reader, one thread, one connection. Retriable failures (a broker restarts, leadership moves) are retried until
nothing arrived for `patience_ms`. Weak spot: it fetches from leaders only, never from a nearer follower.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator

from appliance.base.errors import ErrorCode, ProtocolViolation, RequestRefused
from appliance.base.model import NO_LEADER, BrokerId
from appliance.client.admin import list_offsets
from appliance.client.cluster import ClusterClient
from appliance.client.connection import ClientConnection
from appliance.client.errors import ClientFailed, ConnectionLost, error_code, is_retriable, refused
from appliance.client.messages import FETCH, ClientFetchRequest, ClientFetchResponse, PartitionOfFetch, PartitionToFetch, TopicToFetch
from appliance.pipeline.batch_scan import AbortedRecords, RawBatches, ReadProgress
from appliance.pipeline.cluster_access import ClusterAccess
from appliance.pipeline.offset_range import OffsetRange
from appliance.pipeline.problems import DataLoss, OnDataLoss
from appliance.protocol.offset_apis import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP
from appliance.records.batch import whole_batches

READ_COMMITTED, READ_UNCOMMITTED = 1, 0
GONE_AFTER_MS = 5_000
"""A topic that stays unknown for this long is deleted; a broker that has just started may not know it yet."""


class FetchedBatches:
    """Fetch responses of one partition, for one range."""

    def __init__(self, access: ClusterAccess, wanted: OffsetRange) -> None:
        self._access = access
        self._wanted = wanted
        self._partition = wanted.topic_partition

    def raw_batches(self, progress: ReadProgress, on_data_loss: OnDataLoss) -> Generator[RawBatches, None, None]:
        """Yield responses; each must be scanned before the next. Raises the client's error after `patience_ms` without one."""
        if progress.next_offset >= self._wanted.end:
            return
        with self._access.open(self._access.patience_ms) as cluster:
            backoff = cluster.backoff()
            while progress.next_offset < self._wanted.end:
                before = progress.next_offset
                try:
                    yield from self._from_leader(cluster, progress, on_data_loss)
                except (ClientFailed, RequestRefused, ProtocolViolation) as error:
                    if isinstance(error, ProtocolViolation):
                        error = ConnectionLost(f"could not read {self._partition}: {error}")
                    if not is_retriable(error):
                        raise
                    if progress.next_offset > before:
                        backoff.succeeded()
                    backoff.pause_or_raise(error)

    def _from_leader(self, cluster: ClusterClient, progress: ReadProgress, on_data_loss: OnDataLoss) -> Iterator[RawBatches]:
        """Fetch while one connection to one leader lasts."""
        leader = self._leader(cluster, progress, on_data_loss)
        if leader is None:
            return
        connection = cluster.open_connection(leader)
        try:
            yield from self._responses(cluster, connection, progress, on_data_loss)
        finally:
            connection.close()

    def _leader(self, cluster: ClusterClient, progress: ReadProgress, on_data_loss: OnDataLoss) -> BrokerId | None:
        """Return the partition's leader; None if the partition no longer exists, which is reported."""
        unknown = cluster.backoff(GONE_AFTER_MS)
        while True:
            topic = cluster.metadata([self._wanted.topic]).topics.get(self._wanted.topic)
            if topic is not None and topic.error != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                break
            try:
                unknown.pause_or_raise(refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"read {self._partition}"))
            except RequestRefused:
                self._lose(progress, self._wanted.end, "the topic is gone", on_data_loss)
                return None
        if topic.error != ErrorCode.NONE:
            raise refused(topic.error, f"read {self._partition}")
        planned = self._access.topic_id(self._wanted.topic)
        if planned is not None and topic.topic_id is not None and topic.topic_id != planned:
            self._lose(progress, self._wanted.end, "the topic was deleted, and another one of its name was created", on_data_loss)
            return None
        leader = {known.partition: known.leader for known in topic.partitions}.get(self._wanted.partition)
        if leader is None:
            self._lose(progress, self._wanted.end, f"the topic has {len(topic.partitions)} partitions only", on_data_loss)
        elif leader == NO_LEADER:
            raise refused(ErrorCode.LEADER_NOT_AVAILABLE, f"read {self._partition}")
        return leader

    def _responses(self, cluster: ClusterClient, connection: ClientConnection, progress: ReadProgress, on_data_loss: OnDataLoss) -> Iterator[RawBatches]:
        """Yield answers; the next offset is usually known before this answer is decoded, so its fetch is already sent."""
        waiting = cluster.backoff()
        asked = self._ask(connection, progress.next_offset)
        while progress.next_offset < self._wanted.end:
            answer = self._answer(connection)
            before = progress.next_offset
            if asked == before:  # else a batch was left out, and this is not what follows
                code = error_code(answer.error_code)
                if code == ErrorCode.OFFSET_OUT_OF_RANGE:
                    self._move_into_range(cluster, progress, on_data_loss)
                elif code != ErrorCode.NONE:
                    raise refused(answer.error_code, f"read {self._partition}")
                elif answer.records:
                    records = memoryview(answer.records)
                    following = self._following(records)
                    if following is not None and before < following < self._wanted.end:
                        asked = self._ask(connection, following)
                    yield RawBatches(records, 0, len(records), self._aborted(answer))
                if progress.next_offset > before:
                    waiting.succeeded()
                else:
                    waiting.pause_or_raise(ConnectionLost(f"the leader of {self._partition} gives nothing from offset {before} on"))
            if not connection.under_way and progress.next_offset < self._wanted.end:
                asked = self._ask(connection, progress.next_offset)

    def _following(self, records: memoryview) -> int | None:
        """Return the offset after these batches; None if only reading them shows it."""
        whole = whole_batches([records])
        return whole.next_offset if whole is not None and whole.size_bytes else None

    def _aborted(self, answer: PartitionOfFetch) -> AbortedRecords | None:
        if not self._access.read_committed:
            return None
        return AbortedRecords((each.producer_id, each.first_offset) for each in answer.aborted_transactions or ())

    def _ask(self, connection: ClientConnection, offset: int) -> int:
        size_bytes = self._access.fetch_bytes
        partition = PartitionToFetch(self._wanted.partition, fetch_offset=offset, max_bytes=size_bytes)
        request = ClientFetchRequest(
            max_wait_ms=self._access.fetch_wait_ms,
            max_bytes=size_bytes,
            isolation_level=READ_COMMITTED if self._access.read_committed else READ_UNCOMMITTED,
            topics=(TopicToFetch(self._wanted.topic, partitions=(partition,)),),
        )
        connection.send(FETCH, request)
        return offset

    def _answer(self, connection: ClientConnection) -> PartitionOfFetch:
        """Return the partition's part of a response."""
        body: ClientFetchResponse = connection.receive(self._access.fetch_wait_ms + self._access.request_timeout_ms).body
        if body.error_code != ErrorCode.NONE:
            raise refused(body.error_code, f"read {self._partition}")
        for topic in body.topics:
            for answer in topic.partitions:
                return answer
        raise ProtocolViolation("client_response", "a fetch response says nothing of the partition that was asked for")

    def _move_into_range(self, cluster: ClusterClient, progress: ReadProgress, on_data_loss: OnDataLoss) -> None:
        """Handle OFFSET_OUT_OF_RANGE: retention deleted the offset, or the log was truncated."""
        earliest = list_offsets(cluster, [self._partition], EARLIEST_TIMESTAMP)[self._partition].offset
        if earliest > progress.next_offset:
            self._lose(progress, earliest, f"the log begins at offset {earliest} now", on_data_loss)
            return
        latest = list_offsets(cluster, [self._partition], LATEST_TIMESTAMP)[self._partition].offset
        if latest <= progress.next_offset:
            self._lose(progress, self._wanted.end, f"the log ends at offset {latest}", on_data_loss)

    def _lose(self, progress: ReadProgress, end: int, reason: str, on_data_loss: OnDataLoss) -> None:
        """Report that offsets up to `end` are lost, as far as they belong to the range."""
        end = min(end, self._wanted.end)
        if end > progress.next_offset:
            on_data_loss(DataLoss(self._wanted.topic, self._wanted.partition, progress.next_offset, end, reason))
            progress.lose(end)
