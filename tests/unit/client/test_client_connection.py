from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from appliance.client import messages
from appliance.client.address import Address
from appliance.client.cluster import read_metadata
from appliance.client.connection import ClientConnection
from appliance.client.errors import BrokerUnreachable, ConnectionLost, ReplyTimedOut, VersionUnsupported
from appliance.protocol.metadata import MetadataRequest
from appliance.protocol.topic_apis import CreateTopicsRequest
from tests.unit.client.fake_kafka_broker import TOPIC, FakeKafkaBroker, HangUp, encode_response


@pytest.fixture
def broker() -> Iterator[FakeKafkaBroker]:
    made = FakeKafkaBroker()
    yield made
    made.close()


@pytest.fixture
def connection(broker: FakeKafkaBroker) -> Iterator[ClientConnection]:
    made = ClientConnection(broker.address)
    yield made
    made.close()


def listen_once(serve: Callable[[socket.socket], None]) -> Address:
    """Something that is no broker: `serve` has the only connection."""
    listening = socket.create_server(("127.0.0.1", 0))

    def run() -> None:
        accepted, _ = listening.accept()
        listening.close()
        with accepted:
            serve(accepted)

    address = Address("127.0.0.1", listening.getsockname()[1])
    threading.Thread(target=run, daemon=True).start()
    return address


def test_the_newest_version_both_speak_is_used(broker: FakeKafkaBroker) -> None:
    broker.max_versions[messages.METADATA] = 5
    connection = ClientConnection(broker.address)
    assert connection.version_of(messages.METADATA) == 5
    assert read_metadata(connection, None).topics[TOPIC].partitions[0].leader == 1
    connection.close()


def test_a_response_that_is_larger_than_wanted_ends_the_connection(broker: FakeKafkaBroker) -> None:
    cluster = broker.cluster(response_bytes_max=400)
    assert cluster.metadata(None).topics
    with pytest.raises(BrokerUnreachable, match="announces a frame of"):
        cluster.metadata(["x" * 100] * 10)


def test_a_broker_that_knows_only_old_version_questions_is_asked_again_in_its_words(broker: FakeKafkaBroker) -> None:
    broker.max_versions[messages.API_VERSIONS] = 0
    connection = ClientConnection(broker.address)
    assert connection.version_of(messages.METADATA) == messages.METADATA.version_max
    connection.close()


def test_a_listener_that_answers_like_one_with_tls_is_called_that() -> None:
    """OpenSSL's server answers a request in clear text by an alert, or closes at once, which resets the connection."""

    def reset(accepted: socket.socket) -> None:
        accepted.recv(1)  # the rest is unread at the close

    for serve in (reset, lambda accepted: accepted.sendall(bytes.fromhex("15030300020246"))):
        with pytest.raises(BrokerUnreachable, match=r"listener with TLS .*--command-config FILE .*security.protocol=SSL"):
            ClientConnection(listen_once(serve))


def test_an_api_that_is_not_offered_is_named(broker: FakeKafkaBroker) -> None:
    del broker.max_versions[messages.CREATE_TOPICS]
    connection = ClientConnection(broker.address)
    with pytest.raises(VersionUnsupported, match=r"CreateTopics versions none, this client speaks 4-7"):
        connection.send(messages.CREATE_TOPICS, CreateTopicsRequest(()))
    connection.close()


def test_responses_to_pipelined_requests_come_in_the_order_of_the_requests(connection: ClientConnection) -> None:
    sent = [connection.send(messages.METADATA, MetadataRequest(None)) for _ in range(10)]
    assert connection.under_way == 10
    assert [connection.receive().correlation_id for _ in sent] == sent
    assert connection.under_way == 0


def test_an_answer_to_another_question_ends_the_connection(broker: FakeKafkaBroker, connection: ClientConnection) -> None:
    broker.answers[messages.METADATA] = lambda request: encode_response(messages.METADATA, 12, 4711, broker.metadata(request))
    with pytest.raises(ConnectionLost, match="4711"):
        read_metadata(connection, None)
    assert not connection.is_open


@pytest.mark.parametrize("size", [-1, 3, 0x7FFFFFFF])
def test_an_impossible_frame_size_ends_the_connection(broker: FakeKafkaBroker, connection: ClientConnection, size: int) -> None:
    broker.answers[messages.METADATA] = lambda request: struct.pack(">i", size)
    with pytest.raises(ConnectionLost, match=f"frame of {size} bytes"):
        read_metadata(connection, None)
    assert not connection.is_open


def test_a_broker_that_does_not_answer_is_given_up_after_the_timeout(broker: FakeKafkaBroker, connection: ClientConnection) -> None:
    broker.answers[messages.METADATA] = lambda request: None
    connection.send(messages.METADATA, MetadataRequest(None))
    with pytest.raises(ReplyTimedOut, match="did not answer in time"):
        connection.receive(timeout_ms=20)
    assert not connection.is_open


def test_a_broker_that_hangs_up_is_named(broker: FakeKafkaBroker, connection: ClientConnection) -> None:
    def hang_up(request: object) -> None:
        raise HangUp

    broker.answers[messages.METADATA] = hang_up
    with pytest.raises(ConnectionLost, match=str(broker.address.port)):
        read_metadata(connection, None)
    with pytest.raises(ConnectionLost, match="closed"):
        read_metadata(connection, None)


def test_the_error_of_a_refused_connection_names_the_address() -> None:
    unused = socket.create_server(("127.0.0.1", 0))
    address = Address("127.0.0.1", unused.getsockname()[1])
    unused.close()
    with pytest.raises(BrokerUnreachable, match=f"no broker at {address}: connection refused"):
        ClientConnection(address)


def test_a_web_server_is_not_taken_for_a_broker() -> None:
    address = listen_once(lambda accepted: accepted.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n"))
    with pytest.raises(BrokerUnreachable, match="does not speak Kafka"):
        ClientConnection(address)


def test_a_server_that_closes_the_connection_at_once_is_not_a_broker() -> None:
    with pytest.raises(BrokerUnreachable, match="no Kafka broker answers"):
        ClientConnection(listen_once(lambda accepted: None))


def test_a_unix_socket_whose_queue_stays_full_is_given_up(tmp_path: Path) -> None:
    """A blocking connect() would wait as long as its acceptor is stopped."""
    path, waiting = str(tmp_path / "kafka.sock"), []
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(path)
        listening.listen(0)
        while True:
            waiting.append(socket.socket(socket.AF_UNIX))
            waiting[-1].setblocking(False)
            if waiting[-1].connect_ex(path):
                break
        with pytest.raises(BrokerUnreachable, match="did not answer in time"):
            ClientConnection(Address(path, 0), connect_timeout_ms=50)
    for each in waiting:
        each.close()


def test_a_user_whom_the_unix_socket_refuses_reads_why(tmp_path: Path) -> None:
    path = str(tmp_path / "kafka.sock")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(path)
        listening.listen()

        def refuse() -> None:
            for _ in range(2):
                listening.accept()[0].close()

        thread = threading.Thread(target=refuse, daemon=True)
        thread.start()
        with pytest.raises(BrokerUnreachable, match="does not admit this user"):
            ClientConnection(Address(path, 0))
        thread.join()
