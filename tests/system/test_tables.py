"""A real box keeps topics as tables: what deltalake and pyiceberg read equals what was acknowledged to producers, whatever is killed."""

from __future__ import annotations

import itertools
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic
from deltalake import DeltaTable
from pyiceberg.table import StaticTable

from lab.real_zookeeper import RealZooKeeper
from lab.running_box import RunningBox, environment, eventually, start_box
from services.tabler.topic_table import has_commit

pytestmark = [pytest.mark.system, pytest.mark.slow]

SECONDS = 150.0
"""The tabler goes after every other process of a busy machine."""
Stored = dict[tuple[int, int], bytes]
"""Value of each acknowledged record by partition and offset."""


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory, start_shared: Callable[..., RunningBox]) -> Iterator[RunningBox]:
    directory = tmp_path_factory.mktemp("tables")
    (directory / "srv").mkdir()
    started = start_shared(directory / "box", disks=1, settings={"tables.locations": str(directory / "srv"), "num.partitions": 2})
    yield started
    assert started.stop() == 0
    assert started.leftovers() == []


@pytest.fixture
def location(box: RunningBox) -> Path:
    return box.directory.parent / "srv"


def alter(box: RunningBox, topic: str, **configs: str) -> None:
    entries = [ConfigEntry(f"millrace.table.{name}", value, incremental_operation=AlterConfigOpType.SET) for name, value in configs.items()]
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=entries)
    admin = AdminClient({"bootstrap.servers": box.bootstrap})
    admin.incremental_alter_configs([resource])[resource].result(30)


def create(box: RunningBox, topic: str, location: Path | str | None, schema: str = "records", form: str = "delta") -> None:
    config = {"millrace.table.format": form, "millrace.table.location": str(location), "millrace.table.interval.ms": "1000"} if location else {}
    config |= {"millrace.table.schema": schema} if location else {}
    admin = AdminClient({"bootstrap.servers": box.bootstrap})
    admin.create_topics([NewTopic(topic, 2, 1, config=config)])[topic].result(30)


def produce(box: RunningBox, topic: str, values: list[bytes], stored: Stored, end: str = "", **config: Any) -> None:
    """Produce; in a transaction if `end` says how it ends: `commit` or `abort`."""

    def on_delivery(error: Any, message: Message) -> None:
        if error is None and end != "abort":
            stored[message.partition(), message.offset()] = message.value()

    producer = Producer({"bootstrap.servers": box.bootstrap, "linger.ms": 5, **config, **({"transactional.id": f"{topic}-{end}"} if end else {})})
    if end:
        producer.init_transactions(30)
        producer.begin_transaction()
    for number, value in enumerate(values):
        producer.produce(topic, value, partition=number % 2, on_delivery=on_delivery)
    assert producer.flush(30) == 0
    if end:
        (producer.abort_transaction if end == "abort" else producer.commit_transaction)(30)


def millrace(box: RunningBox, *arguments: str) -> str:
    command = [sys.executable, "-P", "-m", "appliance.command.main", *arguments]
    settings = environment() | {"MILLRACE_DATA": str(box.disks[0])}
    return subprocess.run(command, env=settings, capture_output=True, text=True, timeout=60, check=True).stdout


def query(box: RunningBox, sql: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in millrace(box, "query", sql, "--json").splitlines()]


def rows(table: Path, box: RunningBox | None = None) -> list[dict[str, Any]]:
    if box and (metadata := (shown(box, table.name).get("metadata") or [""])[0]):
        return list(StaticTable.from_metadata(metadata).scan().to_arrow().to_pylist())
    return DeltaTable(table).to_pyarrow_table().to_pylist() if has_commit(str(table)) else []


def shown(box: RunningBox, topic: str) -> dict[str, Any]:
    """What the tabler shows of a table; nothing if it shows no such table."""
    tables: list[dict[str, Any]] = json.loads(Path(box.layout.tables_file).read_bytes())["tables"]
    return next((table for table in tables if table["topic"] == topic), {})


def read_all(servers: str, topic: str, partitions: int) -> Stored:
    """What a consumer reads of a topic to which nothing comes any more."""
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "reader", "enable.auto.commit": False})
    ends = {number: consumer.get_watermark_offsets(TopicPartition(topic, number), 60)[1] for number in range(partitions)}
    consumer.assign([TopicPartition(topic, number, 0) for number in ends])
    found: Stored = {}
    while len(found) < sum(ends.values()):
        message = consumer.poll(60)
        assert message is not None and message.error() is None
        found[message.partition(), message.offset()] = message.value()
    consumer.close()
    return found


def await_table(box: RunningBox, table: Path, stored: Stored) -> list[dict[str, Any]]:
    """Wait until the table has as many rows as was acknowledged, and compare them."""
    found = eventually(lambda: (read := rows(table, box)) and len(read) >= len(stored) and read, f"{table.name} has {len(stored)} rows", SECONDS)
    values = sorted((row["partition"], row["offset"], row["value"]) for row in found)
    assert values == sorted((*place, value) for place, value in stored.items())
    return found


def test_a_client_makes_the_box_write_only_below_the_directories_of_its_settings(box: RunningBox, location: Path) -> None:
    create(box, "refused", None)
    for path, words in (("/etc", "has tables below"), (f"{location}/../box", "without .. in it"), (f"{location}x", "has tables below")):
        with pytest.raises(KafkaException, match=words):
            alter(box, "refused", format="delta", location=path)
    with pytest.raises(KafkaException, match="has tables below"):
        create(box, "refused-too", Path("/etc"))
    assert list(location.iterdir()) == []


def test_a_table_has_each_record_that_was_acknowledged_once_whatever_is_killed(box: RunningBox, location: Path) -> None:
    stored: Stored = {}
    create(box, "orders", location)
    table = location / "orders"
    for codec, end in (("none", ""), ("lz4", "commit"), ("zstd", "abort"), ("gzip", ""), ("snappy", "commit"), ("none", "abort")):
        produce(
            box, "orders", [b"%s %s %d " % (codec.encode(), end.encode(), number) * 20 for number in range(200)], stored, end, **{"compression.type": codec}
        )
        if codec in ("none", "zstd", "snappy"):
            box.await_restart("tabler", box.kill("tabler"), SECONDS)
    old = box.kill("log-writer@d0")
    box.await_restart("log-writer@d0", old)
    produce(box, "orders", [b"after the log-writer"] * 10, stored)
    await_table(box, table, stored)
    eventually(lambda: shown(box, "orders").get("lag") == 0, "the lag is gone", SECONDS)
    document = json.loads(millrace(box, "table", "describe", "orders", "--json"))
    assert (document["state"], document["lost_records"], document["problem"]) == ("ok", 0, "")


def test_an_iceberg_table_has_each_record_once_whatever_is_killed(box: RunningBox, location: Path) -> None:
    stored: Stored = {}
    create(box, "frozen", location, form="iceberg")
    for turn, end in enumerate(("", "commit", "abort", "")):
        produce(box, "frozen", [b"%d %d" % (turn, number) for number in range(100)], stored, end)
        if turn:
            box.await_restart("tabler", box.kill("tabler"), SECONDS)
    await_table(box, location / "frozen", stored)
    eventually(lambda: shown(box, "frozen").get("lag") == 0, "the lag is gone", SECONDS)
    assert query(box, 'select "partition", count(*) as n from frozen group by 1 order by 1') == [{"partition": 0, "n": 150}, {"partition": 1, "n": 150}]
    assert shown(box, "frozen")["problem"] == ""


def test_lines_of_senders_have_columns(box: RunningBox, location: Path) -> None:
    alter(box, "syslog", format="delta", location=str(location), **{"interval.ms": "1000"})
    send = [f"logger -n 127.0.0.1 -P {box.syslog.port} --tcp --rfc5424 -p daemon.err 'disk {number} is warm'" for number in range(3)]
    subprocess.run(["sh", "-c", "; ".join(send)], check=True, timeout=60)
    found = eventually(lambda: len(read := rows(location / "syslog")) == 3 and read, "the lines are in the table", SECONDS)
    assert sorted(row["message"] for row in found) == [f"disk {number} is warm" for number in range(3)]
    assert {(row["severity_name"], row["facility_name"], row["value"], row["problem"]) for row in found} == {("err", "daemon", None, None)}
    assert query(box, "select severity_name, count(*) as lines from syslog group by 1") == [{"severity_name": "err", "lines": 3}]
    (documented,) = re.findall(r"^\$ millrace query '(.*)'$", Path("docs/tables.md").read_text(), re.MULTILINE)
    assert [row["count_star()"] for row in query(box, documented)] == [3], documented


def test_fields_of_json_are_columns_and_other_records_are_in_the_table_of_bad_ones(box: RunningBox, location: Path) -> None:
    stored: Stored = {}
    create(box, "events.json", location, schema="json")
    sent = [{"user": f"u{number % 3}", "size": number, "tags": [number]} for number in range(30)]
    produce(box, "events.json", [*(json.dumps(each).encode() for each in sent), b"bad"], stored)
    eventually(lambda: shown(box, "events.json").get("records") == 31, "all records are in a table", SECONDS)
    found = query(box, 'select "user", size, tags from "events.json" order by size')
    assert found == [{"user": each["user"], "size": each["size"], "tags": json.dumps(each["tags"])} for each in sent]
    assert shown(box, "events.json")["bad_records"] == 1
    assert [row["value"] for row in rows(location / "events.json" / "_bad")] == [b"bad"]
    assert query(box, "select reason like 'not JSON%' as ok, value from \"events.json/_bad\"") == [{"ok": True, "value": "bad"}]


def test_a_deleted_table_is_said_and_begun_again_only_when_that_is_ordered(box: RunningBox, location: Path) -> None:
    stored: Stored = {}
    create(box, "deleted", location)
    produce(box, "deleted", [b"%d" % number for number in range(10)], stored)
    table = location / "deleted"
    await_table(box, table, stored)
    shutil.rmtree(table)
    produce(box, "deleted", [b"more"], stored)
    eventually(lambda: "is gone; bring it back" in shown(box, "deleted").get("problem", ""), "it is said", SECONDS)
    failures = shown(box, "deleted")["failures"]
    box.await_restart("tabler", box.kill("tabler"), SECONDS)
    eventually(lambda: shown(box, "deleted").get("failures") > failures, "the next incarnation remembers it", SECONDS)
    assert not table.exists()
    alter(box, "deleted", format="none")
    eventually(lambda: not shown(box, "deleted"), "the topic is no table", SECONDS)
    alter(box, "deleted", format="delta")
    await_table(box, table, stored)


def test_without_a_table_the_process_gives_its_memory_back(box: RunningBox, location: Path) -> None:
    def loaded() -> bool:
        return "libarrow" in Path(f"/proc/{box.pid('tabler')}/maps").read_text()

    stored: Stored = {}
    create(box, "last", location)
    produce(box, "last", [b"record"], stored)
    await_table(box, location / "last", stored)
    assert loaded()
    for table in json.loads(Path(box.layout.tables_file).read_bytes())["tables"]:
        alter(box, table["topic"], format="none")
    old = box.pid("tabler")
    eventually(lambda: old not in box.pids().values(), "the process started again", SECONDS)
    eventually(lambda: box.status()["tabler"]["state"] == "serving", "it serves again", SECONDS)
    assert not loaded()


@pytest.mark.deep
@pytest.mark.parametrize("form", ["delta", "iceberg"])
def test_whichever_box_leads_writes_and_no_record_is_twice_or_missing(tmp_path: Path, form: str) -> None:
    """Two boxes with one location; each is killed in turn while records come in, and the other one's tabler goes on."""
    (tmp_path / "srv").mkdir()
    zookeeper = RealZooKeeper(tmp_path / "zookeeper")
    properties = tmp_path / "tables.properties"
    properties.write_text(f"uri=sqlite:///{tmp_path}/catalog.db\n")
    properties.chmod(0o600)
    settings = {"tables.locations": str(tmp_path / "srv"), "min.insync.replicas": 1, "tables.properties.file": str(properties)}

    def start(broker_id: int, port: int = 0) -> RunningBox:
        where = tmp_path / f"b{broker_id}"
        return start_box(where, disks=1, broker_id=broker_id, zookeeper=zookeeper.connect, settings=settings, kafka_port=port)

    boxes = {broker_id: start(broker_id) for broker_id in (1, 2)}
    servers = ",".join(box.bootstrap for box in boxes.values())
    stored: Stored = {}
    try:
        admin = AdminClient({"bootstrap.servers": servers})
        config = {"millrace.table.format": form, "millrace.table.location": str(tmp_path / "srv"), "millrace.table.interval.ms": "1000"}
        admin.create_topics([NewTopic("shared", 4, replica_assignment=[[1, 2], [2, 1], [1, 2], [2, 1]], config=config)])["shared"].result(30)

        def on_delivery(error: Any, message: Message) -> None:
            if error is None:
                stored[message.partition(), message.offset()] = message.value()

        producer = Producer({"bootstrap.servers": servers, "acks": "all", "enable.idempotence": True, "linger.ms": 5, "delivery.timeout.ms": 120_000})

        numbers = itertools.count()

        def send(count: int) -> None:
            for number in range(count):
                producer.produce("shared", b"%d" % next(numbers), partition=number % 4, on_delivery=on_delivery)
                producer.poll(0.002)

        for turn in range(6):
            broker_id = 1 + turn % 2
            send(500)
            boxes[broker_id].kill_supervisor()
            send(500)
            boxes[broker_id] = start(broker_id, boxes[broker_id].kafka.port)  # or the producer knows no box after two turns
            send(500)
            boxes[broker_id].kill("tabler")
        assert producer.flush(120) == 0
        log = read_all(servers, "shared", 4)
        assert len(set(log.values())) == len(log), "an idempotent producer writes nothing twice"
        assert len(stored) >= 8_000 and stored.items() <= log.items(), "records whose acknowledgement was lost are in the log, too"
        await_table(boxes[1], tmp_path / "srv" / "shared", log)
    finally:
        for box in boxes.values():
            box.stop()
        zookeeper.stop()
