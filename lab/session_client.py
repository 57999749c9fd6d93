"""Fetches of sessions at any version, and the epoch and old-style look-ups, by kio over `RawClient`'s socket; bytes by hand where kio has no schema."""

from __future__ import annotations

import datetime
import struct
import uuid
from collections.abc import Sequence
from typing import Any, NamedTuple

from lab import kio_adapter
from lab.protocol_messages import kio_element, kio_message
from lab.raw_client import FETCH, LIST_OFFSETS, RawClient

OFFSET_FOR_LEADER_EPOCH = 23
FLEXIBLE_FETCH = 12
TOPIC_IDS_FETCH = 13


class Wanted(NamedTuple):
    """One partition of a fetch."""

    topic: str
    partition: int
    offset: int = 0
    leader_epoch: int = -1
    last_fetched_epoch: int = -1
    max_bytes: int = 1 << 20


class Part(NamedTuple):
    """One partition of an answer."""

    topic: Any
    partition: int
    error_code: int
    high_watermark: int
    records: bytes
    diverging: tuple[int, int]


class Answer(NamedTuple):
    error_code: int
    session_id: int
    parts: tuple[Part, ...]

    @property
    def partitions(self) -> list[int]:
        return [part.partition for part in self.parts]


class SessionClient(RawClient):
    """Speaks Fetch at `version`; `topic_ids` names topics from version 13 on."""

    version = 12
    topic_ids: dict[str, bytes] = {}

    def send_session_fetch(
        self,
        session_id: int,
        session_epoch: int,
        wanted: Sequence[Wanted],
        forgotten: Sequence[Wanted] = (),
        max_wait_ms: int = 0,
        min_bytes: int = 1,
        **more: int,
    ) -> None:
        version = self.version
        request_class = kio_adapter.request_class(FETCH, version)
        topic_class = kio_element(request_class, "topics")
        topics = tuple(kio_message(topic_class, **self._name(part.topic), partitions=(self._partition(topic_class, part),)) for part in wanted)
        forgotten_class = kio_element(request_class, "forgotten_topics_data")
        gone = tuple(kio_message(forgotten_class, **self._name(part.topic), partitions=(part.partition,)) for part in forgotten)
        values: dict[str, Any] = {"replica_id": -1, "isolation_level": 0, "max_bytes": 50 << 20, "rack_id": "", **more}
        request = kio_message(
            request_class,
            max_wait=datetime.timedelta(milliseconds=max_wait_ms),
            min_bytes=min_bytes,
            session_id=session_id,
            session_epoch=session_epoch,
            topics=topics,
            forgotten_topics_data=gone,
            **values,
        )
        body = kio_adapter.encode(request)
        self.send(FETCH, version, b"\0" + body if version >= FLEXIBLE_FETCH else body)

    def receive_session_fetch(self) -> Answer:
        body = self.receive()[1]
        answer = kio_adapter.decode_response(FETCH, self.version, body[1:] if self.version >= FLEXIBLE_FETCH else body)
        parts = []
        for topic in answer.responses:
            for part in topic.partitions:
                end = getattr(part, "diverging_epoch", None)
                diverging = (end.epoch, end.end_offset) if end is not None else (-1, -1)
                name = topic.topic_id.bytes if self.version >= TOPIC_IDS_FETCH else topic.topic
                parts.append(Part(name, part.partition_index, int(part.error_code), part.high_watermark, bytes(part.records or b""), diverging))
        return Answer(int(answer.error_code), answer.session_id, tuple(parts))

    def session_fetch(self, session_id: int, session_epoch: int, wanted: Sequence[Wanted], forgotten: Sequence[Wanted] = (), **options: int) -> Answer:
        self.send_session_fetch(session_id, session_epoch, wanted, forgotten, **options)
        return self.receive_session_fetch()

    def _name(self, topic: str) -> dict[str, Any]:
        return {"topic": topic} if self.version < TOPIC_IDS_FETCH else {"topic_id": uuid.UUID(bytes=self.topic_ids[topic])}

    def _partition(self, topic_class: Any, part: Wanted) -> Any:
        return kio_message(
            kio_element(topic_class, "partitions"),
            partition=part.partition,
            current_leader_epoch=part.leader_epoch,
            fetch_offset=part.offset,
            last_fetched_epoch=part.last_fetched_epoch,
            log_start_offset=-1,
            partition_max_bytes=part.max_bytes,
        )

    def list_offset_and_epoch(self, topic: str, partition: int, timestamp: int) -> tuple[int, int, int, int]:
        """(error code, offset, timestamp, leader epoch) by ListOffsets 8."""
        request_class = kio_adapter.request_class(LIST_OFFSETS, 8)
        topic_class = kio_element(request_class, "topics")
        wanted = kio_message(kio_element(topic_class, "partitions"), partition_index=partition, current_leader_epoch=-1, timestamp=timestamp)
        request = kio_message(request_class, replica_id=-1, isolation_level=0, topics=(topic_class(name=topic, partitions=(wanted,)),))
        self.send(LIST_OFFSETS, 8, b"\0" + kio_adapter.encode(request))
        result = kio_adapter.decode_response(LIST_OFFSETS, 8, self.receive()[1][1:]).topics[0].partitions[0]
        return int(result.error_code), result.offset, int(result.timestamp), result.leader_epoch

    def list_old_style(self, topic: str, partition: int, timestamp: int, most: int) -> list[int]:
        """The offsets of a ListOffsets 0."""
        name = topic.encode()
        self.send(LIST_OFFSETS, 0, struct.pack(f">iih{len(name)}siiqi", -1, 1, len(name), name, 1, partition, timestamp, most))
        _, body = self.receive()
        position = 4 + 2 + len(name) + 4
        found, error_code, count = struct.unpack_from(">ihi", body, position)
        assert (found, error_code) == (partition, 0)
        return list(struct.unpack_from(f">{count}q", body, position + 10))

    def epoch_end(self, topic: str, partition: int, leader_epoch: int, version: int = 4, current_leader_epoch: int = -1) -> tuple[int, int, int]:
        """(error code, leader epoch, end offset); the epoch is -1 in version 0, which does not tell it."""
        if version < 2:
            name = topic.encode()
            self.send(OFFSET_FOR_LEADER_EPOCH, version, struct.pack(f">ih{len(name)}siii", 1, len(name), name, 1, partition, leader_epoch))
            body = self.receive()[1][4 + 2 + len(name) + 4 :]
            if version == 0:
                error_code, _, end_offset = struct.unpack(">hiq", body)
                return error_code, -1, end_offset
            error_code, _, found, end_offset = struct.unpack(">hiiq", body)
            return error_code, found, end_offset
        request_class = kio_adapter.request_class(OFFSET_FOR_LEADER_EPOCH, version)
        topic_class = kio_element(request_class, "topics")
        wanted = kio_message(kio_element(topic_class, "partitions"), partition=partition, current_leader_epoch=current_leader_epoch, leader_epoch=leader_epoch)
        body = kio_adapter.encode(kio_message(request_class, replica_id=-1, topics=(kio_message(topic_class, topic=topic, partitions=(wanted,)),)))
        self.send(OFFSET_FOR_LEADER_EPOCH, version, b"\0" + body if version >= 4 else body)
        reply = self.receive()[1]
        result = kio_adapter.decode_response(OFFSET_FOR_LEADER_EPOCH, version, reply[1:] if version >= 4 else reply).topics[0].partitions[0]
        return int(result.error_code), result.leader_epoch, result.end_offset
