"""Requests for many partitions decode with kio, replies of kio are understood, and a server without
acks=all is asked again.
"""

from __future__ import annotations

import socket
import struct
import threading
import time

from kio.schema.errors import ErrorCode
from kio.schema.metadata.v1.response import MetadataResponse, MetadataResponseBroker, MetadataResponsePartition, MetadataResponseTopic
from kio.schema.produce.v9.response import BatchIndexAndErrorMessage, PartitionProduceResponse, ProduceResponse, TopicProduceResponse
from kio.schema.types import BrokerId, TopicName
from kio.static.primitive import i32, i64

from appliance.records.batch import read_batch_header
from lab.kio_adapter import decode_request, encode_response_frame
from lab.running_box import eventually
from loadtest.beside_kafka.many_partitions import PACE_SECONDS, PartitionsProbe
from loadtest.generators.produce_frame import API_VERSION
from loadtest.generators.produce_many import API_KEY_METADATA, CLIENT_ID, METADATA_VERSION, ManyProduces, error_codes, leaders

PRODUCE_HEADER_BYTES = 4 + 2 + 2 + 4 + 2 + len(CLIENT_ID) + 1
METADATA_HEADER_BYTES = PRODUCE_HEADER_BYTES - 1
REFUSED = ErrorCode.not_leader_or_follower


def produce_reply(codes: dict[int, ErrorCode]) -> bytes:
    """With words beside an error, as brokers may add them."""
    words = (BatchIndexAndErrorMessage(batch_index=i32(0), batch_index_error_message="no"),)
    rows = tuple(
        PartitionProduceResponse(index=i32(partition), error_code=code, base_offset=i64(7), record_errors=words, error_message="not here")
        if code.value
        else PartitionProduceResponse(index=i32(partition), error_code=code, base_offset=i64(7), record_errors=())
        for partition, code in codes.items()
    )
    return encode_response_frame(0, ProduceResponse(responses=(TopicProduceResponse(name=TopicName("spread"), partition_responses=rows),)))


def metadata_reply(addresses: dict[int, tuple[str, int]], leading: dict[int, int]) -> bytes:
    brokers = tuple(MetadataResponseBroker(node_id=BrokerId(number), host=host, port=i32(port), rack="r") for number, (host, port) in addresses.items())
    replicas = tuple(map(BrokerId, addresses))
    partitions = tuple(
        MetadataResponsePartition(
            error_code=ErrorCode.none, partition_index=i32(partition), leader_id=BrokerId(leader), replica_nodes=replicas, isr_nodes=replicas[:1]
        )
        for partition, leader in leading.items()
    )
    topic = MetadataResponseTopic(error_code=ErrorCode.none, name=TopicName("spread"), is_internal=False, partitions=partitions)
    return encode_response_frame(0, MetadataResponse(brokers=brokers, controller_id=BrokerId(1), topics=(topic,)))


def test_a_request_has_a_record_for_each_partition_and_wants_all_replicas() -> None:
    frame = ManyProduces("spread").frame([3, 200, 1999])
    assert struct.unpack_from(">i", frame)[0] == len(frame) - 4
    request = decode_request(0, API_VERSION, frame[PRODUCE_HEADER_BYTES:])
    assert request.acks == -1 and request.topic_data[0].name == "spread"
    rows = request.topic_data[0].partition_data
    assert [row.index for row in rows] == [3, 200, 1999]
    assert all(read_batch_header(bytes(row.records)).records_count == 1 for row in rows)


def test_the_question_for_leaders_names_the_topic() -> None:
    request = decode_request(API_KEY_METADATA, METADATA_VERSION, ManyProduces("spread").metadata_frame()[METADATA_HEADER_BYTES:])
    assert [topic.name for topic in request.topics] == ["spread"]


def test_each_partition_has_its_error_code() -> None:
    codes = {partition: REFUSED if partition % 3 else ErrorCode.none for partition in range(300)}
    assert error_codes(produce_reply(codes)[4:]) == {partition: code.value for partition, code in codes.items()}


def test_leaders_are_found_with_their_addresses_and_no_leader_is_minus_one() -> None:
    found = leaders(metadata_reply({1: ("one", 9092), 2: ("two", 9093)}, {0: 2, 1: -1, 2: 1})[4:])
    assert found.addresses == {1: ("one", 9092), 2: ("two", 9093)} and found.by_partition == {0: 2, 1: -1, 2: 1}


class _Broker(threading.Thread):
    """Leads two partitions; refuses the second while `refuses`."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.refuses = False

    def run(self) -> None:
        while True:
            try:
                connection, _ = self.listening.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            while head := connection.recv(4, socket.MSG_WAITALL):
                request = connection.recv(struct.unpack(">i", head)[0], socket.MSG_WAITALL)
                if struct.unpack_from(">h", request)[0] == API_KEY_METADATA:
                    connection.sendall(metadata_reply({1: self.listening.getsockname()}, {0: 1, 1: 1}))
                else:
                    connection.sendall(produce_reply({0: ErrorCode.none, 1: REFUSED if self.refuses else ErrorCode.none}))


def test_a_partition_that_is_refused_pauses_until_it_is_acknowledged_again() -> None:
    broker = _Broker()
    broker.start()
    probe = PartitionsProbe([broker.listening.getsockname()], "spread", range(2))
    try:
        probe.await_news_of_all(10.0)
        broker.refuses = True
        refused = probe.begin()
        eventually(lambda: time.monotonic() > refused + 3 * PACE_SECONDS, "it was refused for a while")
        assert not probe.has_news_of_all(refused + 2.5 * PACE_SECONDS)
        broker.refuses = False
        probe.await_news_of_all(10.0)
        fast, slow = probe.pauses()
        assert slow == probe.longest() >= 3 * PACE_SECONDS and fast < slow
    finally:
        probe.stop()
        broker.listening.close()
