"""DescribeLogDirs: each disk from its partition table, its log-writer's counters and the report of its moves.

No disk is accessed, so a hung one is reported at once. Owned by one acceptor. Weak spot: sizes are those of
records (without indexes, as in Kafka); free bytes are up to two seconds old, the progress of a move up to one.
"""

from __future__ import annotations

from collections.abc import Callable

from appliance.base.errors import ErrorCode
from appliance.base.layout import BoxLayout, Disk
from appliance.base.model import TopicId
from appliance.cluster.metadata_cache import MetadataCache
from appliance.ipc.disk_reports import MoveProgress, moves_file, read_moves
from appliance.ipc.proxies import LogWriterProxies
from appliance.protocol.framing import RequestHeader
from appliance.protocol.log_dir_apis import (
    DESCRIBE_LOG_DIRS_REQUEST,
    DESCRIBE_LOG_DIRS_RESPONSE,
    UNKNOWN_BYTES,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    LogDirPartition,
    LogDirResult,
    LogDirTopic,
)
from appliance.security.acl import AclOperation
from appliance.shm.counters import read_counters
from appliance.shm.partition_table import DISK_OFFLINE, PartitionTableReader
from services.acceptor.connection import Connection


class DescribeLogDirsHandler:
    """All such requests of one acceptor. `disks` is the box's list, as it is at each request."""

    def __init__(
        self, view: MetadataCache, proxies: LogWriterProxies, layout: BoxLayout, disks: Callable[[], list[Disk]], on_reply: Callable[[Connection], None]
    ) -> None:
        self._view = view
        self._proxies = proxies
        self._layout = layout
        self._disks = disks
        self._on_reply = on_reply

    def handle(self, connection: Connection, header: RequestHeader, buffer: memoryview, limit: int) -> None:
        request = DESCRIBE_LOG_DIRS_REQUEST.decode(buffer, header.body_position, limit, header.api_version)
        reply = connection.expect_reply(False)
        if connection.rights is not None and not connection.rights.allows_on_cluster(AclOperation.DESCRIBE):
            response = DescribeLogDirsResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        else:
            response = DescribeLogDirsResponse(results=tuple(self.describe(disk, request) for disk in self._disks()))
        reply.pieces = [DESCRIBE_LOG_DIRS_RESPONSE.encode_response(header.api_version, header.correlation_id, response)]
        reply.ready = True
        self._on_reply(connection)

    def describe(self, disk: Disk, request: DescribeLogDirsRequest) -> LogDirResult:
        """Return the result of one log directory; KAFKA_STORAGE_ERROR if its disk does not serve."""
        proxy = self._proxies.by_disk.get(disk.name)
        table = proxy.table if proxy is not None else None
        if proxy is None or table is None or proxy.is_hung or table.disk_state == DISK_OFFLINE:
            return LogDirResult(ErrorCode.KAFKA_STORAGE_ERROR, disk.path)
        counters = read_counters(self._layout, f"log-writer@{disk.name}")
        values = counters.values if counters is not None else {}
        total = values.get("disk.total_bytes") or UNKNOWN_BYTES  # 0: not counted yet
        usable = values.get("disk.free_bytes", UNKNOWN_BYTES) if total != UNKNOWN_BYTES else UNKNOWN_BYTES
        return LogDirResult(ErrorCode.NONE, disk.path, self._topics(disk.name, table, request), total, usable)

    def _topics(self, disk: str, table: PartitionTableReader, request: DescribeLogDirsRequest) -> tuple[LogDirTopic, ...]:
        wanted = None if request.topics is None else {(topic.topic, partition) for topic in request.topics for partition in topic.partitions}
        topics_by_id = self._view.image.topics_by_id
        found: dict[str, list[LogDirPartition]] = {}
        for index, row in table.rows():
            topic = topics_by_id.get(TopicId(row.topic_id))
            if topic is None or (wanted is not None and (topic.name, row.partition) not in wanted):
                continue
            lag = max(0, row.high_watermark - row.log_end_offset)
            found.setdefault(topic.name, []).append(LogDirPartition(row.partition, table.sealed_bytes(index) + row.active_position, lag))
        for move in read_moves(moves_file(self._layout, disk)):
            if self._is_moving_to(disk, move) and (wanted is None or (move.topic, move.partition) in wanted):
                found.setdefault(move.topic, []).append(LogDirPartition(move.partition, max(0, move.size_bytes), move.offset_lag, True))
        return tuple(LogDirTopic(name, tuple(sorted(partitions))) for name, partitions in sorted(found.items()))

    def _is_moving_to(self, disk: str, move: MoveProgress) -> bool:
        """A report may name what has arrived, or was taken back, since it was written."""
        topic = self._view.image.topics.get(move.topic)
        if topic is None or str(topic.topic_id) != move.topic_id or not 0 <= move.partition < len(topic.partitions):
            return False
        return topic.partitions[move.partition].moving_to == disk
