"""Clients that speak what brokers older than Kafka 0.11 spoke: real ones of today, which still can, and frames where no client would.

librdkafka speaks magic 0 of its own when it is configured for an old broker. The others ask for versions, and a proxy offers them old ones.
"""

from __future__ import annotations

import shutil
import struct
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from zlib import crc32

import pytest

from appliance.base.errors import ErrorCode
from appliance.protocol.apis import ApiKey
from appliance.records.batch import CODEC_MASK
from appliance.records.builder import BatchBuilder
from appliance.records.compression import Codec, compress
from appliance.records.legacy import build_message, build_message_set, open_wrapper, read_entries
from lab.foreign_clients import Client, LibRdKafka, Refused, Sent, open_client
from lab.raw_client import FETCH, PRODUCE, RawClient
from lab.running_box import RunningBox
from lab.version_proxy import KAFKA_0_10_2, NEWER_FOR, VersionProxy
from tests.support.stored_batches import stored_batches

pytestmark = [
    pytest.mark.system,
    pytest.mark.slow,
    # kafka-python reads its schemas in a way that Python 3.11 and 3.12 call deprecated.
    pytest.mark.filterwarnings("ignore:(read_text|open_text) is deprecated:DeprecationWarning"),
]

TIME = 1_700_000_000_000
SENT = [Sent(b"line %d " % number * 20, b"key %d" % number, (), TIME + number) for number in range(100)]
NULLS = [Sent(None, b"tombstone", (), TIME), Sent(b"", None, (), TIME + 1), Sent(None, None, (), TIME + 2)]
OLD_CODECS = ("none", "gzip", "snappy", "lz4")
OFFERED = {0: KAFKA_0_10_2 | {ApiKey.PRODUCE: 1, ApiKey.FETCH: 1}, 1: KAFKA_0_10_2}
"""magic → highest versions"""
WRITERS = {0: ("librdkafka", "kafka-python", "aiokafka", "kafkajs"), 1: ("librdkafka", "kafka-python", "aiokafka", "kafkajs", "kafka-clients")}
READERS = {0: ("librdkafka", "kafka-python", "aiokafka"), 1: ("librdkafka", "kafka-python", "aiokafka", "kafka-clients")}
LIBRDKAFKA_ALONE = ("lz4",)
"""In magic 0 the other clients leave the broken checksum of lz4 alone."""
SENDS_MAGIC_1 = ("kafka-python", "aiokafka")
"""or 2, with Produce 1, too: the proxy is no broker of 0.9, which would not answer ApiVersions. aiokafka knows no message sets to write any more."""
COMPRESSES_NOTHING = (0, "kafkajs")


class OldLibRdKafka(LibRdKafka):
    """Configured for a broker of 0.9, it requests no versions and speaks those of that release."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__(bootstrap)
        self._options |= {"api.version.request": False, "broker.version.fallback": "0.9.0.1", "check.crcs": True}


@contextmanager
def old_clients(box: RunningBox, magic: int, *names: str) -> Iterator[tuple[list[VersionProxy], dict[str, Client]]]:
    """Those of the clients that are installed, each behind a proxy that offers versions of `magic`."""
    proxies = {name: VersionProxy(box.kafka, OFFERED[magic] | NEWER_FOR.get(name, {})) for name in names}
    clients: dict[str, Client] = {}
    try:
        for name, proxy in proxies.items():
            try:
                clients[name] = open_client(name, proxy.bootstrap)
            except pytest.skip.Exception:
                continue  # `test_clients_matrix.py` says what is missing
        yield list(proxies.values()), clients
    finally:
        for client in clients.values():
            client.close()
        for proxy in proxies.values():
            proxy.close()


def read_everything(client: Client, topic: str, sent: list[Sent], has_times: bool) -> None:
    records = client.fetch(topic, len(sent))
    assert [record.offset for record in records] == list(range(len(sent))), f"{client.name} of {topic}"
    assert [(record.key, record.value) for record in records] == [(one.key, one.value) for one in sent], f"{client.name} of {topic}"
    if has_times:
        assert [record.timestamp for record in records] == [one.timestamp for one in sent], f"{client.name} of {topic}"
    else:
        assert {record.timestamp for record in records} <= {-1, 0, None}, f"{client.name} of {topic}: none, as each client says it"


@pytest.mark.parametrize("magic", [0, 1])
def test_what_old_clients_write_new_and_old_ones_read(shared_box: RunningBox, magic: int) -> None:
    new = LibRdKafka(shared_box.bootstrap)
    with old_clients(shared_box, magic, *dict.fromkeys(WRITERS[magic] + READERS[magic])) as (proxies, clients):
        for writer in [name for name in WRITERS[magic] if name in clients]:
            codecs = [codec for codec in OLD_CODECS if magic or writer == "librdkafka" or codec not in LIBRDKAFKA_ALONE]
            topic = f"old-{magic}-by-{writer}"
            new.create(topic)
            for codec in codecs:
                clients[writer].produce(topic, SENT, codec)
            batches = stored_batches(shared_box, topic, 0)
            assert {batch.magic for batch in batches} == {2} and sum(batch.records_count for batch in batches) == len(codecs) * len(SENT)
            expected = {Codec[codec.upper()] for codec in codecs} if (magic, writer) != COMPRESSES_NOTHING else {Codec.NONE}
            assert {batch.codec for batch in batches} == expected
            readers = [new] + [clients[name] for name in READERS[magic] if name in clients and (magic or name == "librdkafka" or "lz4" not in codecs)]
            with ThreadPoolExecutor(len(readers)) as pool:
                has_times = magic == 1 or writer in SENDS_MAGIC_1
                reading = [pool.submit(read_everything, one, topic, SENT * len(codecs), has_times and (magic == 1 or one is new)) for one in readers]
                for one in reading:
                    one.result()
        spoken = {pair for proxy in proxies for pair in proxy.spoken if pair[0] in (ApiKey.PRODUCE, ApiKey.FETCH)}
        assert spoken == {(key, OFFERED[magic][key]) for key in (ApiKey.PRODUCE, ApiKey.FETCH)}, "they spoke what was offered, and nothing else"


@pytest.mark.parametrize("magic", [0, 1])
def test_what_a_new_client_writes_old_ones_read_without_its_headers(shared_box: RunningBox, magic: int) -> None:
    new = LibRdKafka(shared_box.bootstrap)
    topic = f"new-for-{magic}"
    new.create(topic)
    with_headers = [one._replace(headers=(("source", b"127.0.0.1"),)) for one in SENT]
    codecs = [codec for codec in OLD_CODECS if magic or codec not in LIBRDKAFKA_ALONE]
    for codec in codecs:
        new.produce(topic, with_headers, codec)
    new.produce(topic, NULLS)
    everything = SENT * len(codecs) + NULLS
    with old_clients(shared_box, magic, *READERS[0]) as (_, clients):  # starting a Java for it once is enough
        for client in clients.values():
            records = client.fetch(topic, len(everything))
            assert [(record.key, record.value) for record in records] == [(one.key, one.value) for one in everything], client.name
            assert not any(record.headers for record in records)
            for start in (1, len(SENT) + 37, len(everything) - 1):  # in the middle of a batch, plain and compressed, and the last record
                found = client.fetch(topic, len(everything) - start, start)
                assert [record.offset for record in found] == list(range(start, len(everything))), client.name


@pytest.mark.parametrize("codec", OLD_CODECS)
def test_librdkafka_configured_for_a_broker_0_9_writes_and_reads(shared_box: RunningBox, codec: str) -> None:
    old, new = OldLibRdKafka(shared_box.bootstrap), LibRdKafka(shared_box.bootstrap)
    topic = f"fallback-{codec}"
    new.create(topic)
    old.produce(topic, SENT, codec)
    new.produce(topic, SENT, codec)
    assert {batch.codec for batch in stored_batches(shared_box, topic, 0)} == {Codec[codec.upper()]}
    for reader in (old, new):
        records = reader.fetch(topic, 2 * len(SENT))
        assert [(record.key, record.value) for record in records] == [(one.key, one.value) for one in SENT * 2]
    assert [record.timestamp for record in records[len(SENT) :]] == [one.timestamp for one in SENT]


def test_kcat_of_old_reads_what_kcat_of_new_wrote_and_the_other_way_round(shared_box: RunningBox) -> None:
    assert shutil.which("kcat"), "kcat is not installed; ./install.sh test installs it"
    old = ["-X", "api.version.request=false", "-X", "broker.version.fallback=0.9.0.1", "-X", "log_level=0"]
    lines = "".join(f"line {number}\n" for number in range(30_000))
    for name, writing, reading in (("kcat-up", old, []), ("kcat-down", [], old)):
        base = ["kcat", "-q", "-b", shared_box.bootstrap, "-t", name]
        subprocess.run([*base, *writing, "-P", "-z", "snappy"], input=lines, text=True, check=True, timeout=60)
        read = subprocess.run([*base, *reading, "-C", "-o", "beginning", "-e"], capture_output=True, text=True, check=True, timeout=60)
        assert read.stdout == lines, name


def test_zstd_cannot_be_given_to_old_clients(shared_box: RunningBox) -> None:
    new = LibRdKafka(shared_box.bootstrap)
    new.create("zstd-for-old")
    new.produce("zstd-for-old", SENT, "none")
    new.produce("zstd-for-old", SENT, "zstd")
    with old_clients(shared_box, 1, "librdkafka") as (_, clients):
        read_everything(clients["librdkafka"], "zstd-for-old", SENT, has_times=True)
        with pytest.raises(Refused) as refused:
            clients["librdkafka"].fetch("zstd-for-old", 1, len(SENT))
        assert refused.value.code == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE


def test_a_topic_may_forbid_the_conversion_and_new_clients_do_not_notice(shared_box: RunningBox) -> None:
    new = LibRdKafka(shared_box.bootstrap)
    new.create("no-conversion", message_downconversion_enable="false")
    with old_clients(shared_box, 1, "librdkafka") as (_, clients):
        clients["librdkafka"].produce("no-conversion", SENT)
        read_everything(new, "no-conversion", SENT, has_times=True)
        with pytest.raises(Refused) as refused:
            clients["librdkafka"].fetch("no-conversion", 1)
        assert refused.value.code == ErrorCode.UNSUPPORTED_VERSION


@pytest.mark.parametrize("codec", ["none", "gzip"])
def test_append_time_is_set_on_records_without_a_time_and_returned_to_clients_that_can_read_it(shared_box: RunningBox, codec: str) -> None:
    new = LibRdKafka(shared_box.bootstrap)
    topic = f"stamped-{codec}"
    new.create(topic, message_timestamp_type="LogAppendTime")
    OldLibRdKafka(shared_box.bootstrap).produce(topic, SENT, codec)
    with old_clients(shared_box, 1, "librdkafka", "aiokafka") as (_, clients):
        clients["librdkafka"].produce(topic, SENT, codec)
        stamps = [(record.timestamp, record.timestamp_type) for record in new.fetch(topic, 2 * len(SENT))]
        assert {kind for _, kind in stamps} == {1} and min(stamp for stamp, _ in stamps) > TIME + 10_000
        for client in clients.values():
            assert [(record.timestamp, record.timestamp_type) for record in client.fetch(topic, 2 * len(SENT))] == stamps, client.name


# ---- what no client does on purpose


@pytest.fixture
def raw(shared_box: RunningBox) -> Iterator[RawClient]:
    client = RawClient(shared_box.kafka)
    yield client
    client.close()


def text(value: str) -> bytes:
    return struct.pack(">h", len(value)) + value.encode()


def produce(raw: RawClient, version: int, topic: str, *sets: bytes, acks: int = 1) -> list[tuple[int, ...]]:
    """Sets of partitions 0, 1, …: (partition, error code, base offset[, append time]) of each."""
    partitions = b"".join(struct.pack(">ii", index, len(one)) + one for index, one in enumerate(sets))
    body = struct.pack(">hii", acks, 10_000, 1) + text(topic) + struct.pack(">i", len(sets)) + partitions
    sent = raw.send(PRODUCE, version, body)
    if not acks:
        return []
    correlation_id, reply = raw.receive()
    assert correlation_id == sent
    start, layout = 4 + 2 + len(topic) + 4, struct.Struct(">ihqq" if version >= 2 else ">ihq")
    assert len(reply) == start + layout.size * len(sets) + (4 if version else 0)
    return [layout.unpack_from(reply, start + index * layout.size) for index in range(len(sets))]


def send_fetch(raw: RawClient, version: int, topic: str, offsets: list[int], max_wait_ms: int = 0, max_bytes: int = 1 << 20) -> int:
    partitions = b"".join(struct.pack(">iqi", index, offset, max_bytes) for index, offset in enumerate(offsets))
    head = struct.pack(">iii", -1, max_wait_ms, 1) + (struct.pack(">i", 50 << 20) if version >= 3 else b"")
    return raw.send(FETCH, version, head + struct.pack(">i", 1) + text(topic) + struct.pack(">i", len(offsets)) + partitions)


def receive_fetch(raw: RawClient, version: int) -> dict[int, tuple[int, int, bytes]]:
    """partition → (error code, high watermark, records)"""
    _, reply = raw.receive()
    position = 4 if version else 0
    (topics,) = struct.unpack_from(">i", reply, position)
    position += 4
    found = {}
    for _ in range(topics):
        position += 2 + struct.unpack_from(">h", reply, position)[0]
        (count,) = struct.unpack_from(">i", reply, position)
        position += 4
        for _ in range(count):
            partition, code, high_watermark, size = struct.unpack_from(">ihqi", reply, position)
            position += 18
            found[partition] = (code, high_watermark, reply[position : position + size])
            position += size
    assert position == len(reply)
    return found


def fetch(raw: RawClient, version: int, topic: str, *offsets: int, **options: int) -> dict[int, tuple[int, int, bytes]]:
    send_fetch(raw, version, topic, list(offsets), **options)
    return receive_fetch(raw, version)


def offsets_in(sets: bytes) -> list[int]:
    found: list[int] = []
    for entry in read_entries(sets, 0, len(sets), len(sets), tolerates_tail=False):
        found += [message.offset for message in (open_wrapper(entry) if entry.attributes & CODEC_MASK else [entry])]
    return found


def message_set(count: int, magic: int = 1, codec: Codec = Codec.NONE, value: bytes = b"value") -> bytes:
    return build_message_set(magic, codec, False, [(offset, TIME, None, value) for offset in range(count)])


def test_each_partition_of_a_request_has_its_own_end(raw: RawClient) -> None:
    raw.create_topic("apart", 6)
    broken = bytearray(message_set(1))
    broken[-1] ^= 1
    sets = (message_set(3), bytes(broken), b"", message_set(2, codec=Codec.GZIP) * 2, message_set(1, value=b"x" * 1_048_576), message_set(2, magic=0))
    codes = [ErrorCode.NONE, ErrorCode.CORRUPT_MESSAGE, ErrorCode.NONE, ErrorCode.INVALID_RECORD, ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.NONE]
    for version, turn in ((0, 0), (1, 1), (2, 2)):
        answers = produce(raw, version, "apart", *sets)
        assert [answer[:2] for answer in answers] == list(enumerate(codes))
        assert [answer[2] for answer in answers] == [3 * turn, -1, -1, -1, -1, 2 * turn]
        assert all(answer[3:] == ((-1,) if version >= 2 else ()) for answer in answers)
    found = fetch(raw, 2, "apart", *[0] * 6)
    assert [(found[index][1], len(offsets_in(found[index][2]))) for index in range(6)] == [(9, 9), (0, 0), (0, 0), (0, 0), (0, 0), (6, 6)]


def test_the_append_time_is_in_the_answer_to_produce_2(raw: RawClient) -> None:
    raw.create_topic("told", 1, message_timestamp_type="LogAppendTime")
    ((_, code, base_offset, append_time),) = produce(raw, 2, "told", message_set(2))
    assert (code, base_offset) == (0, 0) and append_time > TIME


def test_new_versions_take_no_message_sets_and_old_ones_take_batches(raw: RawClient) -> None:
    raw.create_topic("mixed", 1)
    builder = BatchBuilder()
    builder.append(TIME, None, b"value")
    assert produce(raw, 0, "mixed", builder.build()) == [(0, 0, 0)]
    raw.send_produce("mixed", 0, message_set(1))
    assert raw.receive_produce().error_code == ErrorCode.INVALID_RECORD


def test_a_failed_set_without_acks_closes_its_connection_only(shared_box: RunningBox, raw: RawClient) -> None:
    raw.create_topic("unanswered", 1)
    produce(raw, 0, "unanswered", message_set(2, magic=0), acks=0)
    other = RawClient(shared_box.kafka)
    produce(other, 0, "unanswered", struct.pack(">qi", 0, -5) + bytes(20), acks=0)
    with pytest.raises((AssertionError, ConnectionError)):
        other.receive()
    other.close()
    assert produce(raw, 0, "unanswered", message_set(1, magic=0))[0][:2] == (0, 0)
    assert fetch(raw, 0, "unanswered", 0)[0][1] == 3


def test_a_long_poll_of_an_old_client_is_answered_when_something_comes(shared_box: RunningBox, raw: RawClient) -> None:
    raw.create_topic("long-poll", 1)
    waiting = RawClient(shared_box.kafka)
    send_fetch(waiting, 1, "long-poll", [0], max_wait_ms=20_000)
    assert fetch(raw, 1, "long-poll", 0) == {0: (0, 0, b"")}
    assert produce(raw, 2, "long-poll", message_set(2))[0][1] == 0
    code, high_watermark, records = receive_fetch(waiting, 1)[0]
    assert (code, high_watermark, offsets_in(records)) == (0, 2, [0, 1])
    waiting.close()


def test_a_fetch_converts_a_bounded_piece_and_goes_on_where_it_stopped(shared_box: RunningBox, raw: RawClient) -> None:
    """One batch that is small as it lies there, and 25,000 records when it is opened."""
    raw.create_topic("pieces", 1)
    assert produce(raw, 2, "pieces", message_set(25_000, codec=Codec.GZIP))[0][1] == 0
    offset, pieces = 0, []
    while offset < 25_000:
        offsets = offsets_in(fetch(raw, 3, "pieces", offset)[0][2])
        assert offsets == list(range(offset, offset + len(offsets))) and offsets
        pieces.append(len(offsets))
        offset = offsets[-1] + 1
    assert pieces == [10_000, 10_000, 5_000]


def test_no_partition_of_an_old_consumer_starves_behind_a_full_one(raw: RawClient) -> None:
    raw.create_topic("fair", 3)
    for _ in range(2):
        assert [answer[1] for answer in produce(raw, 2, "fair", *[message_set(1, value=b"x" * 900_000)] * 3)] == [0, 0, 0]
    served = set()
    for _ in range(3):
        served |= {partition for partition, (_, _, records) in fetch(raw, 1, "fair", 0, 0, 0, max_bytes=10 << 20).items() if records}
    assert served == {0, 1, 2}


def test_a_first_batch_goes_whole_however_little_was_asked_for(raw: RawClient) -> None:
    raw.create_topic("whole", 1)
    assert produce(raw, 2, "whole", message_set(3, codec=Codec.SNAPPY, value=b"x" * 100_000))[0][1] == 0
    assert offsets_in(fetch(raw, 0, "whole", 0, max_bytes=10)[0][2]) == [0, 1, 2]


def test_bombs_and_wrong_lengths_are_errors_for_their_sender_only(raw: RawClient) -> None:
    raw.create_topic("bombs", 1)
    bomb = build_message(0, 1, Codec.GZIP, TIME, None, compress(Codec.GZIP, bytes(64 << 20)))
    assert produce(raw, 1, "bombs", bomb)[0][1] == ErrorCode.MESSAGE_TOO_LARGE
    lie = build_message(0, 0, 0, -1, b"key", b"value")
    lie = lie[:18] + struct.pack(">i", 1 << 30) + lie[22:]
    assert produce(raw, 1, "bombs", lie[:12] + struct.pack(">I", crc32(lie[16:])) + lie[16:])[0][1] == ErrorCode.INVALID_RECORD
    assert produce(raw, 1, "bombs", struct.pack(">qi", 0, -(2**31)) + bytes(40))[0][1] == ErrorCode.CORRUPT_MESSAGE
    assert produce(raw, 1, "bombs", message_set(1))[0][1:] == (0, 0)
