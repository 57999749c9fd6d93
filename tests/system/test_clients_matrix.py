"""What one client writes every other reads, in every codec: a topic for each writer and codec."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from appliance.records.compression import Codec
from lab.foreign_clients import CLIENTS, CODECS, CONSUMERS, Client, Sent, open_client
from lab.running_box import RunningBox
from tests.support.stored_batches import stored_batches

pytestmark = [
    pytest.mark.system,
    pytest.mark.slow,
    # kafka-python reads its schemas in a way that Python 3.11 and 3.12 call deprecated.
    pytest.mark.filterwarnings("ignore:(read_text|open_text) is deprecated:DeprecationWarning"),
]

WRITERS = (*CLIENTS, "librdkafka")
READERS = (*CONSUMERS, "librdkafka")
CANNOT_READ = {("platformatic", "snappy"): ("kafka-python", "aiokafka", "kafka-clients")}
"""(reader, codec): whose batches it fails on. These frame snappy as Java does (xerial); @platformatic/kafka 1.35 knows the bare form only."""
SENT = [Sent(b"line %d " % number * 20, b"key %d" % number, (("source", b"127.0.0.1"),), 1_700_000_000_000 + number) for number in range(200)]


@pytest.fixture(scope="module")
def written(shared_box: RunningBox) -> Iterator[dict[str, Client | str]]:
    """Every client that is here, after it has written its topics; in place of one that is not, the reason."""
    clients: dict[str, Client | str] = {}
    for name in WRITERS:
        try:
            clients[name] = open_client(name, shared_box.bootstrap)
        except pytest.skip.Exception as reason:
            clients[name] = str(reason)
    yield clients
    for client in clients.values():
        if not isinstance(client, str):
            client.close()


def _present(clients: dict[str, Client | str], name: str) -> Client:
    client = clients[name]
    if isinstance(client, str):
        pytest.skip(client)
    return client


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("writer", WRITERS)
def test_every_reader_reads_what_a_writer_wrote(shared_box: RunningBox, written: dict[str, Client | str], writer: str, codec: str) -> None:
    topic = f"by-{writer}-{codec}"
    client = _present(written, writer)
    client.create(topic)
    client.produce(topic, SENT, codec)
    assert {header.codec for header in stored_batches(shared_box, topic, 0)} == {Codec[codec.upper()]}
    readers = [one for name in READERS if not isinstance(one := written[name], str) and writer not in CANNOT_READ.get((name, codec), ())]
    # Side by side: each waits for the box and for its own process more than it works.
    with ThreadPoolExecutor(len(readers)) as pool:
        for reader, records in zip(readers, pool.map(lambda reader: reader.fetch(topic, len(SENT)), readers)):
            assert [record.offset for record in records] == list(range(len(SENT))), f"{reader.name} of {topic}"
            found = [Sent(record.value, record.key, record.headers, record.timestamp) for record in records]
            assert found == SENT, f"{reader.name} of {topic}"


def test_every_reader_reads_nulls_and_names_that_are_there_twice(written: dict[str, Client | str]) -> None:
    """Written by librdkafka, which can send them all; some of the readers could not."""
    writer = _present(written, "librdkafka")
    writer.create("nulls")
    sent = [
        Sent(None, None, (("null", None), ("empty", b"")), 1_700_000_000_000),
        Sent(b"", b"", (("twice", b"first"), ("twice", b"second")), 1_700_000_000_001),
        Sent(None, b"tombstone", (), 1_700_000_000_002),
    ]
    writer.produce("nulls", sent)
    for reader in [one for name in READERS if not isinstance(one := written[name], str)]:
        found = [Sent(record.value, record.key, record.headers, record.timestamp) for record in reader.fetch("nulls", len(sent))]
        assert found == sent, reader.name
