"""Groups and transactional ids frame by frame: what no client library does on purpose. Requests and replies are kio's."""

from __future__ import annotations

import dataclasses
import datetime
import struct
from typing import Any, NamedTuple

from lab import kio_adapter
from lab.protocol_messages import kio_element, kio_message
from lab.raw_transactions import RawTransactions

OFFSET_COMMIT, OFFSET_FETCH, JOIN_GROUP, HEARTBEAT, SYNC_GROUP, INIT_PRODUCER_ID, ADD_PARTITIONS, END_TXN, FIND_COORDINATOR = 8, 9, 11, 12, 14, 22, 24, 26, 10
ADD_OFFSETS, TXN_OFFSET_COMMIT = 25, 28
NEWEST_PLAIN = {
    OFFSET_COMMIT: 9,
    OFFSET_FETCH: 9,
    JOIN_GROUP: 9,
    HEARTBEAT: 4,
    SYNC_GROUP: 5,
    INIT_PRODUCER_ID: 4,
    ADD_PARTITIONS: 3,
    ADD_OFFSETS: 3,
    END_TXN: 3,
    FIND_COORDINATOR: 4,
    TXN_OFFSET_COMMIT: 3,
}
"""Flexible versions in which a client asks for one thing at a time, and adds partitions itself."""
SUBSCRIPTION = struct.pack(">hih6si", 0, 1, 6, b"joined", -1)


class Member(NamedTuple):
    error_code: int
    member_id: str
    generation_id: int
    group_leader_id: str


class Initialized(NamedTuple):
    error_code: int
    producer_id: int
    producer_epoch: int


class RawCoordination(RawTransactions):
    """One connection; on it the coordinator answers one request after the other."""

    def _request(self, api_key: int, **values: Any) -> Any:
        return kio_message(kio_adapter.request_class(api_key, NEWEST_PLAIN[api_key]), **values)

    def _answer_to(self, api_key: int, **values: Any) -> Any:
        return self.ask(api_key, NEWEST_PLAIN[api_key], self._request(api_key, **values))

    def find_coordinators(self, name: str) -> list[int]:
        """Error codes for a group and for a transactional id of that name; asking has the state topics made."""
        answers = [self._answer_to(FIND_COORDINATOR, key_type=key_type, coordinator_keys=(name,)).coordinators[0] for key_type in (0, 1)]
        return [int(answer.error_code) for answer in answers]

    def send_join(self, group: str, member_id: str = "", session_ms: int = 10_000, rebalance_ms: int = 60_000) -> None:
        protocol_class = kio_element(kio_adapter.request_class(JOIN_GROUP, 9), "protocols")
        request = self._request(
            JOIN_GROUP,
            group_id=group,
            member_id=member_id,
            protocol_type="consumer",
            protocols=(protocol_class(name="range", metadata=SUBSCRIPTION),),
            session_timeout=datetime.timedelta(milliseconds=session_ms),
            rebalance_timeout=datetime.timedelta(milliseconds=rebalance_ms),
        )
        self.send(JOIN_GROUP, 9, b"\0" + kio_adapter.encode(request))

    def receive_join(self) -> Member:
        answer = kio_adapter.decode_response(JOIN_GROUP, 9, self.receive()[1][1:])
        return Member(int(answer.error_code), answer.member_id, answer.generation_id, answer.leader)

    def join(self, group: str, member_id: str = "", **times: int) -> Member:
        """With an id at once: a member without one gets an id and has to join again (KIP-394)."""
        self.send_join(group, member_id, **times)
        joined = self.receive_join()
        return joined if member_id or joined.error_code != 79 else self.join(group, joined.member_id, **times)

    def sync(self, group: str, member: Member, generation_id: int | None = None) -> int:
        assignment_class = kio_element(kio_adapter.request_class(SYNC_GROUP, 5), "assignments")
        assignments = (assignment_class(member_id=member.member_id, assignment=b""),) if member.group_leader_id == member.member_id else ()
        generation_id = member.generation_id if generation_id is None else generation_id
        return int(
            self._answer_to(
                SYNC_GROUP,
                group_id=group,
                generation_id=generation_id,
                member_id=member.member_id,
                protocol_type="consumer",
                protocol_name="range",
                assignments=assignments,
            ).error_code
        )

    def heartbeat(self, group: str, member: Member) -> int:
        return int(self._answer_to(HEARTBEAT, group_id=group, generation_id=member.generation_id, member_id=member.member_id).error_code)

    def commit(self, group: str, topic: str, offset: int, member: Member | None = None) -> int:
        self.send_commit(group, topic, offset, member)
        return self.receive_commit()

    def send_commit(self, group: str, topic: str, offset: int, member: Member | None = None) -> None:
        self.send(OFFSET_COMMIT, 9, self.commit_body(group, topic, offset, member))

    def commit_body(self, group: str, topic: str, offset: int, member: Member | None = None) -> bytes:
        topic_class = kio_element(kio_adapter.request_class(OFFSET_COMMIT, 9), "topics")
        partition = kio_element(topic_class, "partitions")(partition_index=0, committed_offset=offset, committed_leader_epoch=-1, committed_metadata="")
        request = self._request(
            OFFSET_COMMIT,
            group_id=group,
            generation_id_or_member_epoch=member.generation_id if member is not None else -1,
            member_id=member.member_id if member is not None else "",
            topics=(topic_class(name=topic, partitions=(partition,)),),
        )
        return b"\0" + kio_adapter.encode(request)

    def receive_commit(self) -> int:
        answer = kio_adapter.decode_response(OFFSET_COMMIT, 9, self.receive()[1][1:])
        return int(answer.topics[0].partitions[0].error_code)

    def commit_transactional(self, group: str, topic: str, offset: int, transactional_id: str, producer: Initialized) -> int:
        topic_class = kio_element(kio_adapter.request_class(TXN_OFFSET_COMMIT, 3), "topics")
        partition = kio_message(kio_element(topic_class, "partitions"), partition_index=0, committed_offset=offset, committed_metadata="")
        answer = self._answer_to(
            TXN_OFFSET_COMMIT,
            transactional_id=transactional_id,
            group_id=group,
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            topics=(topic_class(name=topic, partitions=(partition,)),),
        )
        return int(answer.topics[0].partitions[0].error_code)

    def committed(self, group: str, topic: str, require_stable: bool = False) -> tuple[int, int]:
        """(error code, offset) of partition 0; offset −1: none."""
        group_class = kio_element(kio_adapter.request_class(OFFSET_FETCH, 9), "groups")
        topics_type: Any = next(field.type for field in dataclasses.fields(group_class) if field.name == "topics")
        wanted = topics_type.__args__[0].__args__[0]  # tuple[Topic, ...] | None
        asked = kio_message(group_class, group_id=group, topics=(wanted(name=topic, partition_indexes=(0,)),))
        answer = self._answer_to(OFFSET_FETCH, groups=(asked,), require_stable=require_stable).groups[0]
        if int(answer.error_code):
            return int(answer.error_code), -1
        found = answer.topics[0].partitions[0]
        return int(found.error_code), int(found.committed_offset)

    def init_producer(self, transactional_id: str | None, timeout_ms: int = 60_000) -> Initialized:
        timeout = datetime.timedelta(milliseconds=timeout_ms)
        answer = self._answer_to(INIT_PRODUCER_ID, transactional_id=transactional_id, transaction_timeout=timeout)
        return Initialized(int(answer.error_code), int(answer.producer_id), int(answer.producer_epoch))

    def add_partition(self, transactional_id: str, producer: Initialized, topic: str) -> int:
        topic_class = kio_element(kio_adapter.request_class(ADD_PARTITIONS, 3), "v3_and_below_topics")
        answer = self._answer_to(
            ADD_PARTITIONS,
            v3_and_below_transactional_id=transactional_id,
            v3_and_below_producer_id=producer.producer_id,
            v3_and_below_producer_epoch=producer.producer_epoch,
            v3_and_below_topics=(topic_class(name=topic, partitions=(0,)),),
        )
        return int(answer.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code)

    def add_offsets(self, transactional_id: str, producer: Initialized, group: str) -> int:
        epoch = producer.producer_epoch
        answer = self._answer_to(ADD_OFFSETS, transactional_id=transactional_id, producer_id=producer.producer_id, producer_epoch=epoch, group_id=group)
        return int(answer.error_code)

    def end_transaction(self, transactional_id: str, producer: Initialized, is_commit: bool) -> int:
        return int(
            self._answer_to(
                END_TXN, transactional_id=transactional_id, producer_id=producer.producer_id, producer_epoch=producer.producer_epoch, committed=is_commit
            ).error_code
        )

    def commit_in_zookeeper(self, group: str, topic: str, offset: int) -> int:
        """OffsetCommit 0, which kio does not know."""
        body = struct.pack(f">h{len(group)}sih{len(topic)}siiqh", len(group), group.encode(), 1, len(topic), topic.encode(), 1, 0, offset, 0)
        sent = self.send(OFFSET_COMMIT, 0, body)
        received, reply = self.receive()
        assert received == sent
        return int(struct.unpack(">h", reply[-2:])[0])

    def committed_in_zookeeper(self, group: str, topic: str) -> tuple[int, int]:
        """OffsetFetch 0, whose bodies are those of version 1."""
        request_class = kio_adapter.request_class(OFFSET_FETCH, 1)
        wanted = kio_element(request_class, "topics")(name=topic, partition_indexes=(0,))
        sent = self.send(OFFSET_FETCH, 0, kio_adapter.encode(request_class(group_id=group, topics=(wanted,))))
        received, reply = self.receive()
        assert received == sent
        found = kio_adapter.decode_response(OFFSET_FETCH, 1, reply).topics[0].partitions[0]
        return int(found.error_code), int(found.committed_offset)
