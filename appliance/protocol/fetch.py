"""Fetch 0-17: requests of consumers and followers, and responses whose records may be ranges of files.

The acceptor calls it for each fetch. Hot: a request or response of one partition costs 3-4 µs. A response is
a list of pieces, because records are sent by sendfile: bytes of ours, and between them the caller's own
objects, of which only `size_bytes` is used. Versions differ in the layouts `_HEAD…` and `_PARTITION…`: from 4
there are transactions, from 7 sessions, from 11 racks, from 12 compact lengths, from 13 topic ids instead of
names, from 15 the replica's id in a tag, from 17 its directory, which only followers send and which is not
used here. A follower that received a damaged batch reports it in a tag of our own (`DAMAGE_TAG`), which other
brokers skip.
Weak spot: partitions are in the order of the request; the caller decides which ones a session leaves out.
"""

from collections.abc import Sequence
from struct import Struct
from typing import Final, NamedTuple, Protocol, TypeAlias, cast

from appliance.base.errors import ErrorCode, ProtocolViolation
from appliance.base.model import NO_LEADER_EPOCH, NO_OFFSET, NO_TOPIC_ID, LeaderEpoch, Offset, ProducerId, TopicId
from appliance.protocol.leader_hints import CurrentLeader, NodeEndpoint, write_current_leader, write_node_endpoints
from appliance.protocol.wire import (
    INT32,
    MALFORMED,
    NO_TAGGED_FIELDS,
    UUID_SIZE,
    Buffer,
    malformed,
    read_compact_count,
    read_compact_nullable_string,
    read_compact_string,
    read_count,
    read_string,
    read_tagged_fields,
    require_count,
    skip_tagged_fields,
    truncated,
    write_compact_count,
    write_compact_string,
    write_count,
    write_string,
    write_tagged_fields,
    write_uvarint,
)

FLEXIBLE_SINCE: Final = 12
TOPIC_IDS_SINCE: Final = 13
MAGIC_2_SINCE: Final = 4
"""Before it records are message sets of magic 0 (to version 1) or 1."""
_THROTTLE_SINCE: Final = 1
_MAX_BYTES_SINCE: Final = 3
_LOG_START_OFFSET_SINCE: Final = 5
_STORAGE_ERROR_SINCE: Final = 6
_SESSIONS_SINCE: Final = 7
_LEADER_EPOCH_SINCE: Final = 9
_RACK_SINCE: Final = 11
FOLLOWER_FETCH_SINCE: Final = _RACK_SINCE
"""From here on consumers say where they are, and may be sent to a follower (KIP-392)."""
_REPLICA_STATE_SINCE: Final = 15
NODE_ENDPOINTS_SINCE: Final = 16

READ_UNCOMMITTED: Final = 0
READ_COMMITTED: Final = 1
CONSUMER_REPLICA_ID: Final = -1
NO_SESSION_EPOCH: Final = -1


class FetchPartition(NamedTuple):
    """One partition a client wants to read. `topic` is '' where the version names topics by id, `topic_id` zero where by name."""

    topic: str
    topic_id: TopicId
    partition: int
    current_leader_epoch: LeaderEpoch
    fetch_offset: Offset
    last_fetched_epoch: LeaderEpoch
    log_start_offset: Offset
    max_bytes: int
    damaged_offset: Offset = NO_OFFSET
    """What was sent from there on to this follower was damaged."""


class ForgottenPartition(NamedTuple):
    """One partition that leaves the session."""

    topic: str
    topic_id: TopicId
    partition: int


class FetchRequest(NamedTuple):
    """A fetch of any version; what a version does not carry has Kafka's default."""

    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    isolation_level: int
    session_id: int
    session_epoch: int
    replica_id: int
    replica_epoch: int
    rack: str
    cluster_id: str | None
    partitions: list[FetchPartition]
    forgotten: list[ForgottenPartition]


# ---- the request

_HEAD_0: Final = Struct(">iii")
"""replica id, max wait, min bytes"""
_HEAD_3: Final = Struct(">iiii")
"""… max bytes"""
_HEAD_4: Final = Struct(">iiiib")
"""… isolation level"""
_HEAD_7: Final = Struct(">iiiibii")
"""… session id, session epoch"""
_HEAD_15: Final = Struct(">iiibii")
"""… without the replica id"""
_NO_MAX_BYTES: Final = 2**31 - 1
_REPLICA_STATE: Final = Struct(">iq")
DAMAGE_TAG: Final = 19_794
"""Of a partition, ours: an offset. Kafka counts its tags from 0."""
DAMAGED_OFFSET: Final = Struct(">q")
_CLUSTER_ID_TAG: Final = 0
_REPLICA_STATE_TAG: Final = 1

_PARTITION_4: Final = Struct(">iqi")
"""partition, fetch offset, max bytes"""
_PARTITION_5: Final = Struct(">iqqi")
"""partition, fetch offset, log start offset, max bytes"""
_PARTITION_9: Final = Struct(">iiqqi")
"""partition, current leader epoch, fetch offset, log start offset, max bytes"""
_PARTITION_12: Final = Struct(">iiqiqi")
"""partition, current leader epoch, fetch offset, last fetched epoch, log start offset, max bytes"""
assert _PARTITION_12.size == _PARTITION_9.size + 4 == _PARTITION_5.size + 8 == _PARTITION_4.size + 16

_unpack_partition_12 = _PARTITION_12.unpack_from
_COMPACT_PARTITION_SIZE_MIN: Final = _PARTITION_12.size + 1
_COMPACT_TOPIC_SIZE_MIN: Final = 1 + 1 + 1
_COMPACT_TOPIC_BY_ID_SIZE_MIN: Final = UUID_SIZE + 1 + 1
_TOPIC_SIZE_MIN: Final = 2 + 4


def decode_fetch(buffer: Buffer, position: int, limit: int, version: int) -> FetchRequest:
    """The request whose fields lie in `buffer[position:limit]`."""
    try:
        if version >= FLEXIBLE_SINCE:
            request, position = _decode_flexible(buffer, position, limit, version)
        else:
            request, position = _decode_plain(buffer, position, limit, version)
    except MALFORMED as error:
        raise malformed("Fetch", version, error) from error
    if position > limit:
        raise truncated("Fetch", version, position, limit)
    return request


def _decode_flexible(buffer: Buffer, position: int, limit: int, version: int) -> tuple[FetchRequest, int]:
    replica_id = CONSUMER_REPLICA_ID
    replica_epoch = -1
    cluster_id = None
    if version >= _REPLICA_STATE_SINCE:
        max_wait_ms, min_bytes, max_bytes, isolation_level, session_id, session_epoch = _HEAD_15.unpack_from(buffer, position)
        position += _HEAD_15.size
    else:
        replica_id, max_wait_ms, min_bytes, max_bytes, isolation_level, session_id, session_epoch = _HEAD_7.unpack_from(buffer, position)
        position += _HEAD_7.size
    by_id = version >= TOPIC_IDS_SINCE
    partitions: list[FetchPartition] = []
    topic_count, position = read_compact_count(buffer, position, limit, _COMPACT_TOPIC_BY_ID_SIZE_MIN if by_id else _COMPACT_TOPIC_SIZE_MIN)
    for _ in range(require_count(topic_count, position)):
        topic, topic_id, position = _read_topic(buffer, position, limit, by_id)
        partition_count, position = read_compact_count(buffer, position, limit, _COMPACT_PARTITION_SIZE_MIN)
        for _ in range(require_count(partition_count, position, len(partitions))):
            # The fields of FetchPartition stand in the order of the wire.
            partitions.append(FetchPartition(topic, topic_id, *_unpack_partition_12(buffer, position)))
            position += _PARTITION_12.size
            position = _read_partition_tags(buffer, position, limit, partitions) if buffer[position] else position + 1
        position = skip_tagged_fields(buffer, position, limit) if buffer[position] else position + 1
    forgotten, position = _read_forgotten_flexible(buffer, position, limit, by_id)
    rack, position = read_compact_string(buffer, position, limit)
    if buffer[position]:
        replica_id, replica_epoch, cluster_id, position = _read_request_tags(buffer, position, limit, replica_id)
    else:
        position += 1
    request = FetchRequest(
        max_wait_ms, min_bytes, max_bytes, isolation_level, session_id, session_epoch, replica_id, replica_epoch, rack, cluster_id, partitions, forgotten
    )
    return request, position


def _read_partition_tags(buffer: Buffer, position: int, limit: int, partitions: list[FetchPartition]) -> int:
    """The next position; what is said goes into the last of `partitions`."""
    fields, position = read_tagged_fields(buffer, position, limit)
    start, end = fields.get(DAMAGE_TAG, (0, 0))
    if end - start == DAMAGED_OFFSET.size:
        partitions[-1] = partitions[-1]._replace(damaged_offset=DAMAGED_OFFSET.unpack_from(buffer, start)[0])
    return position


def _read_topic(buffer: Buffer, position: int, limit: int, by_id: bool) -> tuple[str, TopicId, int]:
    if not by_id:
        topic, position = read_compact_string(buffer, position, limit)
        return topic, NO_TOPIC_ID, position
    end = position + UUID_SIZE
    if end > limit:
        raise ProtocolViolation("truncated-request", f"topic id at byte {position} of a Fetch whose frame ends at byte {limit}")
    # Sixteen bytes are certain here; TopicId() would check again.
    return "", bytes.__new__(TopicId, buffer[position:end]), end


def _read_forgotten_flexible(buffer: Buffer, position: int, limit: int, by_id: bool) -> tuple[list[ForgottenPartition], int]:
    forgotten: list[ForgottenPartition] = []
    topic_count, position = read_compact_count(buffer, position, limit, _COMPACT_TOPIC_BY_ID_SIZE_MIN if by_id else _COMPACT_TOPIC_SIZE_MIN)
    for _ in range(require_count(topic_count, position)):
        topic, topic_id, position = _read_topic(buffer, position, limit, by_id)
        partition_count, position = read_compact_count(buffer, position, limit, 4)
        for _ in range(require_count(partition_count, position, len(forgotten))):
            forgotten.append(ForgottenPartition(topic, topic_id, INT32.unpack_from(buffer, position)[0]))
            position += 4
        position = skip_tagged_fields(buffer, position, limit)
    return forgotten, position


def _read_request_tags(buffer: Buffer, position: int, limit: int, replica_id: int) -> tuple[int, int, str | None, int]:
    """replica id, replica epoch, cluster id, next position"""
    replica_epoch = -1
    cluster_id = None
    fields, position = read_tagged_fields(buffer, position, limit)
    if _CLUSTER_ID_TAG in fields:
        start, end = fields[_CLUSTER_ID_TAG]
        cluster_id, _ = read_compact_nullable_string(buffer, start, end)
    if _REPLICA_STATE_TAG in fields:
        start, end = fields[_REPLICA_STATE_TAG]
        if end - start < _REPLICA_STATE.size:
            raise ProtocolViolation("truncated-request", f"replica state of {end - start} bytes in a Fetch, {_REPLICA_STATE.size} are needed")
        replica_id, replica_epoch = _REPLICA_STATE.unpack_from(buffer, start)
    return replica_id, replica_epoch, cluster_id, position


def _decode_plain(buffer: Buffer, position: int, limit: int, version: int) -> tuple[FetchRequest, int]:
    session_id, session_epoch = 0, NO_SESSION_EPOCH
    if version >= _SESSIONS_SINCE:
        replica_id, max_wait_ms, min_bytes, max_bytes, isolation_level, session_id, session_epoch = _HEAD_7.unpack_from(buffer, position)
        position += _HEAD_7.size
    elif version >= MAGIC_2_SINCE:
        replica_id, max_wait_ms, min_bytes, max_bytes, isolation_level = _HEAD_4.unpack_from(buffer, position)
        position += _HEAD_4.size
    else:
        isolation_level = READ_UNCOMMITTED
        replica_id, max_wait_ms, min_bytes, max_bytes, position = _read_old_head(buffer, position, version)
    layout = _PARTITION_9 if version >= _LEADER_EPOCH_SINCE else _PARTITION_5 if version >= _LOG_START_OFFSET_SINCE else _PARTITION_4
    partitions: list[FetchPartition] = []
    topic_count, position = read_count(buffer, position, limit, _TOPIC_SIZE_MIN)
    for _ in range(require_count(topic_count, position)):
        topic, position = read_string(buffer, position, limit)
        partition_count, position = read_count(buffer, position, limit, layout.size)
        for _ in range(require_count(partition_count, position, len(partitions))):
            fields = layout.unpack_from(buffer, position)
            position += layout.size
            if layout is _PARTITION_9:
                partition, leader_epoch, fetch_offset, log_start_offset, partition_max_bytes = fields
            elif layout is _PARTITION_5:
                leader_epoch = -1
                partition, fetch_offset, log_start_offset, partition_max_bytes = fields
            else:
                leader_epoch = log_start_offset = -1
                partition, fetch_offset, partition_max_bytes = fields
            partitions.append(FetchPartition(topic, NO_TOPIC_ID, partition, leader_epoch, fetch_offset, NO_LEADER_EPOCH, log_start_offset, partition_max_bytes))
    forgotten: list[ForgottenPartition] = []
    if version >= _SESSIONS_SINCE:
        forgotten, position = _read_forgotten_plain(buffer, position, limit)
    rack = ""
    if version >= _RACK_SINCE:
        rack, position = read_string(buffer, position, limit)
    request = FetchRequest(max_wait_ms, min_bytes, max_bytes, isolation_level, session_id, session_epoch, replica_id, -1, rack, None, partitions, forgotten)
    return request, position


def _read_old_head(buffer: Buffer, position: int, version: int) -> tuple[int, int, int, int, int]:
    """replica id, max wait, min bytes, max bytes, next position"""
    if version >= _MAX_BYTES_SINCE:
        replica_id, max_wait_ms, min_bytes, max_bytes = _HEAD_3.unpack_from(buffer, position)
        return replica_id, max_wait_ms, min_bytes, max_bytes, position + _HEAD_3.size
    replica_id, max_wait_ms, min_bytes = _HEAD_0.unpack_from(buffer, position)
    return replica_id, max_wait_ms, min_bytes, _NO_MAX_BYTES, position + _HEAD_0.size


def _read_forgotten_plain(buffer: Buffer, position: int, limit: int) -> tuple[list[ForgottenPartition], int]:
    forgotten: list[ForgottenPartition] = []
    topic_count, position = read_count(buffer, position, limit, _TOPIC_SIZE_MIN)
    for _ in range(require_count(topic_count, position)):
        topic, position = read_string(buffer, position, limit)
        partition_count, position = read_count(buffer, position, limit, 4)
        for _ in range(require_count(partition_count, position, len(forgotten))):
            forgotten.append(ForgottenPartition(topic, NO_TOPIC_ID, INT32.unpack_from(buffer, position)[0]))
            position += 4
    return forgotten, position


# ---- the response


class RecordsRange(Protocol):
    """Records that the caller sends itself: a range of a file, or a slot of an arena."""

    @property
    def size_bytes(self) -> int: ...


FetchPiece: TypeAlias = bytes | memoryview | RecordsRange
"""bytes of ours, or the caller's records, in the order in which they must leave."""


class AbortedTransaction(NamedTuple):
    """A transaction whose records a read_committed consumer must skip."""

    producer_id: ProducerId
    first_offset: Offset


class EpochEndOffset(NamedTuple):
    """Where the leader's log of `leader_epoch` ends: a follower that has more of it diverged."""

    leader_epoch: LeaderEpoch
    end_offset: Offset


class FetchPartitionResult(NamedTuple):
    """What one partition answers.

    `topic` matters before v13, `topic_id` from v13 on. `aborted_transactions` is None for read_uncommitted and a sequence, perhaps
    empty, for read_committed. `records` None or empty sends no records.
    """

    topic: str
    topic_id: TopicId
    partition: int
    error_code: int = 0
    high_watermark: Offset = NO_OFFSET
    last_stable_offset: Offset = NO_OFFSET
    log_start_offset: Offset = NO_OFFSET
    records: bytes | memoryview | RecordsRange | None = None
    aborted_transactions: Sequence[AbortedTransaction] | None = None
    preferred_read_replica: int = -1
    diverging_epoch: EpochEndOffset | None = None
    current_leader: CurrentLeader | None = None


_HEAD_RESPONSE_0: Final = Struct(">iii")
"""size, correlation id, topic count"""
_HEAD_RESPONSE_1: Final = Struct(">iiii")
"""size, correlation id, throttle time, topic count"""
_HEAD_RESPONSE_7: Final = Struct(">iiihii")
"""size, correlation id, throttle time, error code, session id, topic count"""
_HEAD_RESPONSE_12: Final = Struct(">iiBihi")
"""size, correlation id, no tagged fields in the header, throttle time, error code, session id; a compact topic count follows"""

_PARTITION_RESPONSE_0: Final = Struct(">ihq")
"""partition, error code, high watermark"""
_PARTITION_RESPONSE_4: Final = Struct(">ihqq")
"""… last stable offset"""
_PARTITION_RESPONSE_5: Final = Struct(">ihqqq")
"""… log start offset"""
_ABORTED_TRANSACTION: Final = Struct(">qq")
_DIVERGING_EPOCH: Final = Struct(">iqB")
_DIVERGING_EPOCH_TAG: Final = 0
_CURRENT_LEADER_TAG: Final = 1

_pack_partition_4 = _PARTITION_RESPONSE_4.pack
_pack_partition_5 = _PARTITION_RESPONSE_5.pack
_pack_int32 = INT32.pack
_NULL_ARRAY: Final = b"\xff\xff\xff\xff"
_COMPACT_NULL_ARRAY: Final = b"\0"


class _PieceList:
    """Pieces in the making: our bytes are gathered until records come in between."""

    __slots__ = ("gathered", "pieces", "size_bytes")

    def __init__(self) -> None:
        self.gathered: list[bytes] = []
        self.pieces: list[FetchPiece] = []
        self.size_bytes = 0

    def add_records(self, records: bytes | memoryview | RecordsRange, size_bytes: int) -> None:
        own = b"".join(self.gathered)
        self.gathered = []
        self.pieces += (own, records)
        self.size_bytes += len(own) + size_bytes

    def finish(self) -> None:
        if self.gathered:
            own = b"".join(self.gathered)
            self.pieces.append(own)
            self.size_bytes += len(own)


def encode_fetch_response(
    version: int,
    correlation_id: int,
    error_code: int,
    session_id: int,
    partitions: Sequence[FetchPartitionResult],
    throttle_time_ms: int = 0,
    node_endpoints: Sequence[NodeEndpoint] = (),
) -> list[FetchPiece]:
    """The whole frame in pieces; the size in the first counts them all. Neighbours of one topic in `partitions` share its entry."""
    out = _PieceList()
    key = 1 if version >= TOPIC_IDS_SINCE else 0
    start = topic_count = 0
    count = len(partitions)
    while start < count:
        topic = partitions[start][key]
        end = start + 1
        while end < count and partitions[end][key] == topic:
            end += 1
        topic_count += 1
        if version >= FLEXIBLE_SINCE:
            _encode_topic_flexible(out, version, partitions[start:end])
        else:
            _encode_topic_plain(out, version, partitions[start:end])
        start = end
    if version >= FLEXIBLE_SINCE:
        endpoints = [(0, write_node_endpoints(node_endpoints))] if node_endpoints and version >= NODE_ENDPOINTS_SINCE else []
        out.gathered.append(write_tagged_fields(endpoints))
    out.finish()
    head = _encode_head(version, correlation_id, throttle_time_ms, error_code, session_id, topic_count, out.size_bytes)
    pieces = out.pieces
    if pieces:
        # The first piece is always ours: a topic's name or id stands before any records.
        pieces[0] = head + cast(bytes, pieces[0])
        return pieces
    return [head]


def _encode_head(version: int, correlation_id: int, throttle_time_ms: int, error_code: int, session_id: int, topic_count: int, size_bytes: int) -> bytes:
    if version >= FLEXIBLE_SINCE:
        topics = write_compact_count(topic_count)
        size_bytes += _HEAD_RESPONSE_12.size - 4 + len(topics)
        return _HEAD_RESPONSE_12.pack(size_bytes, correlation_id, 0, throttle_time_ms, error_code, session_id) + topics
    if version >= _SESSIONS_SINCE:
        return _HEAD_RESPONSE_7.pack(_HEAD_RESPONSE_7.size - 4 + size_bytes, correlation_id, throttle_time_ms, error_code, session_id, topic_count)
    if version < _THROTTLE_SINCE:
        return _HEAD_RESPONSE_0.pack(_HEAD_RESPONSE_0.size - 4 + size_bytes, correlation_id, topic_count)
    return _HEAD_RESPONSE_1.pack(_HEAD_RESPONSE_1.size - 4 + size_bytes, correlation_id, throttle_time_ms, topic_count)


def _size_of(records: bytes | memoryview | RecordsRange | None) -> int:
    if records is None:
        return 0
    if isinstance(records, bytes):
        return len(records)
    if isinstance(records, memoryview):
        return records.nbytes
    return records.size_bytes


def _encode_topic_flexible(out: _PieceList, version: int, results: Sequence[FetchPartitionResult]) -> None:
    first = results[0]
    out.gathered += (first.topic_id if version >= TOPIC_IDS_SINCE else write_compact_string(first.topic), write_compact_count(len(results)))
    for result in results:
        _, _, partition, error_code, high_watermark, last_stable_offset, log_start_offset, records, aborted, replica, diverging, leader = result
        own = out.gathered
        own.append(_pack_partition_5(partition, error_code, high_watermark, last_stable_offset, log_start_offset))
        if aborted is None:
            own.append(_COMPACT_NULL_ARRAY)
        else:
            own.append(write_compact_count(len(aborted)))
            own += [_ABORTED_TRANSACTION.pack(producer_id, first_offset) + NO_TAGGED_FIELDS for producer_id, first_offset in aborted]
        size_bytes = _size_of(records)
        own += (_pack_int32(replica), write_uvarint(size_bytes + 1))
        if records is not None and size_bytes:
            out.add_records(records, size_bytes)
        if diverging is None and leader is None:
            out.gathered.append(NO_TAGGED_FIELDS)
        else:
            out.gathered.append(_partition_tags(diverging, leader))
    out.gathered.append(NO_TAGGED_FIELDS)


def _partition_tags(diverging_epoch: EpochEndOffset | None, current_leader: CurrentLeader | None) -> bytes:
    fields = []
    if diverging_epoch:
        fields.append((_DIVERGING_EPOCH_TAG, _DIVERGING_EPOCH.pack(diverging_epoch.leader_epoch, diverging_epoch.end_offset, 0)))
    if current_leader:
        fields.append((_CURRENT_LEADER_TAG, write_current_leader(current_leader)))
    return write_tagged_fields(fields)


def _encode_topic_plain(out: _PieceList, version: int, results: Sequence[FetchPartitionResult]) -> None:
    out.gathered += (write_string(results[0].topic), write_count(len(results)))
    for result in results:
        _, _, partition, error_code, high_watermark, last_stable_offset, log_start_offset, records, aborted, replica, _, _ = result
        own = out.gathered
        if error_code == ErrorCode.KAFKA_STORAGE_ERROR and version < _STORAGE_ERROR_SINCE:
            # Older clients do not know that code; this one makes them look for the leader again.
            error_code = ErrorCode.NOT_LEADER_OR_FOLLOWER
        if version >= _LOG_START_OFFSET_SINCE:
            own.append(_pack_partition_5(partition, error_code, high_watermark, last_stable_offset, log_start_offset))
        elif version >= MAGIC_2_SINCE:
            own.append(_pack_partition_4(partition, error_code, high_watermark, last_stable_offset))
        else:
            own.append(_PARTITION_RESPONSE_0.pack(partition, error_code, high_watermark))
        if version < MAGIC_2_SINCE:
            pass
        elif aborted is None:
            own.append(_NULL_ARRAY)
        else:
            own.append(write_count(len(aborted)))
            own += [_ABORTED_TRANSACTION.pack(producer_id, first_offset) for producer_id, first_offset in aborted]
        if version >= _RACK_SINCE:
            own.append(_pack_int32(replica))
        size_bytes = _size_of(records)
        own.append(_pack_int32(size_bytes))
        if records is not None and size_bytes:
            out.add_records(records, size_bytes)
