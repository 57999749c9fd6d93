"""`millrace load` with a real box and a real Spark: rows in the result against the log, none lost
and none twice, whichever process is killed.
"""

from __future__ import annotations

import faulthandler
import json
import os
import random
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from appliance.base.clock import SystemClock
from appliance.client.address import Address
from appliance.command.main import main
from appliance.pipeline.cluster_access import ClusterAccess, ReadPath
from appliance.pipeline.load_directory import LoadDirectory
from appliance.pipeline.load_manifest import CommitDone, Plan
from appliance.pipeline.load_run import LoadOrder, load_directory, look
from appliance.pipeline.load_survey import LoadRequest
from appliance.pipeline.load_task import SparkTasks
from appliance.pipeline.loader import LoadRules
from appliance.pipeline.offset_range import OffsetRange
from appliance.runtime.spawning import die_with_parent
from lab.real_postgres import find_postgres, running_postgres
from lab.running_box import RunningBox, environment, eventually
from lab.spark_session import why_no_spark
from tests.support.load_world import rows_of, table_of

pytestmark = [pytest.mark.own_zookeeper, pytest.mark.system, pytest.mark.skipif(bool(why_no_spark()), reason=why_no_spark())]
COMMAND = [sys.executable, "-P", "-c", "from appliance.command.main import main; main()", "load"]
DEEP = bool(os.environ.get("MILLRACE_DEEP"))
KILLS = 20 if DEEP else 1
START_SECONDS = 110.0
"""How long Spark's start may take where every processor has other things to do."""
HOUR_MS = 3_600_000
START_MS = 1_763_787_600_000


def make_topic(box: RunningBox, name: str, partitions: int, **config: str) -> None:
    admin = AdminClient({"bootstrap.servers": box.bootstrap})
    for future in admin.create_topics([NewTopic(name, partitions, 1, config=config)]).values():
        future.result(30)


def produce(box: RunningBox, topic: str, start: int, count: int, partitions: int, **options: Any) -> None:
    """Records over some hours of the calendar, in small batches of every codec."""
    codecs = ("none", "lz4", "zstd", "gzip", "snappy")
    for number, codec in enumerate(codecs):
        producer = Producer({"bootstrap.servers": box.bootstrap, "compression.type": codec, "linger.ms": 5, **options})
        for each in range(start + number, start + count, len(codecs)):
            time_ms = START_MS + each % 2 * HOUR_MS
            while True:
                try:
                    producer.produce(topic, b"value-%d" % each, b"key-%d" % each, partition=each % partitions, timestamp=time_ms)
                    break
                except BufferError:
                    producer.poll(0.05)
        assert producer.flush(60) == 0


def produce_aborted(box: RunningBox, topic: str, partitions: int) -> None:
    """Aborted records, and markers among the others."""
    producer = Producer({"bootstrap.servers": box.bootstrap, "transactional.id": f"aborted-{topic}"})
    producer.init_transactions(30)
    for end in (producer.abort_transaction, producer.commit_transaction):
        producer.begin_transaction()
        for number in range(20):
            producer.produce(topic, b"committed" if end == producer.commit_transaction else b"aborted", partition=number % partitions, timestamp=START_MS)
        producer.flush(30)
        end(30)


def log_of(box: RunningBox, topic: str, partitions: int) -> list[tuple[str, int, int, bytes | None, str]]:
    """What an independent client reads, in the form of `rows_of`."""
    options = {"bootstrap.servers": box.bootstrap, "group.id": "none", "isolation.level": "read_committed", "enable.partition.eof": True}
    consumer = Consumer({**options, "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in range(partitions)])
    found, ended = [], 0
    while ended < partitions:
        for message in consumer.consume(1000, 1.0):
            if message.error():
                ended += 1
                continue
            hour = (message.timestamp()[1] - START_MS) // HOUR_MS + 5
            found.append((topic, message.partition(), message.offset(), message.value(), f"2025-11-22 {hour}"))
    consumer.close()
    return sorted(found)


def surroundings(box: RunningBox) -> dict[str, str]:
    """A killed loader leaves Spark's output, and its files to the next."""
    return environment() | {"TMPDIR": str(box.directory)}


def run_load(box: RunningBox, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [*COMMAND, *map(str, arguments), "--data", str(box.disks[0])]
    return subprocess.run(command, env=surroundings(box), capture_output=True, text=True, timeout=START_SECONDS, check=False)


def start_load(box: RunningBox, *arguments: object) -> subprocess.Popen[bytes]:
    command = [*COMMAND, *map(str, arguments), "--data", str(box.disks[0])]
    silent: Any = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    return subprocess.Popen(command, env=surroundings(box), **silent, preexec_fn=partial(die_with_parent, os.getpid()))


def kill(process: subprocess.Popen[bytes]) -> None:
    """The driver alone; its JVM and its workers find out by themselves, and must do no harm meanwhile."""
    process.send_signal(signal.SIGKILL)
    process.wait()


def expect_exactly_once(directory: Path, expected: list[Any]) -> None:
    rows = rows_of(directory)
    assert len(set(rows)) == len(rows), "a record is there twice"
    assert rows == expected
    assert list((directory / "_millrace/staging").iterdir()) == list((directory / "_millrace/plans").iterdir()) == []


STEPS: list[Callable[[Path], bool]] = [
    lambda books: any((books / "staging").glob("*/*.staged")),  # tasks are writing
    lambda books: any((books / "manifests").glob("*.json")) and any((books / "staging").iterdir()),  # published, and on its way into sight; or the next commit
    lambda books: any((books / "plans").iterdir()),  # planned
]


def test_killed_anywhere_it_goes_on_and_every_record_is_there_once(shared_box: RunningBox, tmp_path: Path) -> None:
    faulthandler.cancel_dump_traceback_later()  # Spark is started several times; each has a limit of its own
    seed = int(os.environ.get("MILLRACE_SEED", random.randrange(1 << 32)))
    print(f"MILLRACE_SEED={seed}")
    chance = random.Random(seed)
    make_topic(shared_box, "killed", 3)
    directory = tmp_path / "table"
    books = directory / "_millrace"
    arguments = ("killed", "--to", directory)
    for number in range(KILLS):
        produce(shared_box, "killed", number * 5000, 5000, 3)  # many commits, so that it does not come to its end
        if number == 0:
            produce_aborted(shared_box, "killed", 3)
        process = start_load(shared_box, *arguments, "--commit-records", 400, "--task-records", 150)
        manifests = len(list(books.glob("manifests/*.json")))
        wanted, step = manifests + chance.randrange(4), chance.choice(STEPS)

        def is_time(step: Callable[[Path], bool] = step, wanted: int = wanted, process: subprocess.Popen[bytes] = process) -> bool:
            if process.poll() is not None:
                return True
            try:
                return len(list(books.glob("manifests/*.json"))) >= wanted and step(books)
            except FileNotFoundError:
                return False  # not made yet, or removed while we looked

        eventually(is_time, "the load is where it is to die", START_SECONDS)
        assert process.poll() is None, "it died too late"
        kill(process)
        rows = rows_of(directory)
        assert len(set(rows)) == len(rows), "a record is there twice"
        assert set(rows) <= set(log_of(shared_box, "killed", 3))
    ended = run_load(shared_box, *arguments)
    assert ended.returncode == 0, ended.stderr
    expected = log_of(shared_box, "killed", 3)
    assert len(expected) == 5000 * KILLS + 20 and not any(row[3] == b"aborted" for row in expected)
    expect_exactly_once(directory, expected)


def order_of(
    box: RunningBox, directory: Path, *topics: str, path: ReadPath = ReadPath.AUTO, decode: str | None = None, file_format: str = "parquet", **rules: Any
) -> LoadOrder:
    access = ClusterAccess((Address(*box.kafka),), read_committed=True, path=path, data_directory=str(box.disks[0]))
    return LoadOrder(topics, str(directory), access, LoadRequest(decode), LoadRules(**rules), file_format)


def load_here(order: LoadOrder, spark: Any) -> list[CommitDone]:
    """As `millrace load` does it, in the session of the tests."""
    done: list[CommitDone] = []
    load_directory(order, os.urandom(6).hex(), SystemClock(), lambda: nullcontext(SparkTasks(spark.sparkContext)), done.append)
    return done


@pytest.mark.parametrize("path", [ReadPath.SEGMENTS, ReadPath.FETCH])
def test_by_either_path_the_table_holds_what_a_client_reads(shared_box: RunningBox, spark: Any, tmp_path: Path, path: ReadPath) -> None:
    topic = f"either-{path}"
    make_topic(shared_box, topic, 2)
    produce(shared_box, topic, 0, 3000, 2)
    produce_aborted(shared_box, topic, 2)
    load_here(order_of(shared_box, tmp_path, topic, path=path, task_records=500), spark)
    produce(shared_box, topic, 3000, 100, 2)
    load_here(order_of(shared_box, tmp_path, topic, path=path, task_records=500), spark)
    expect_exactly_once(tmp_path, log_of(shared_box, topic, 2))
    assert spark.read.parquet(str(tmp_path)).where("date = '2025-11-22' and hour = 6").count() == sum(row[4].endswith(" 6") for row in rows_of(tmp_path))


def test_a_delta_table_holds_what_a_client_reads(
    shared_box: RunningBox, spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    deltalake = pytest.importorskip("deltalake", reason="deltalake is not installed")
    make_topic(shared_box, "delta", 2)
    order = order_of(shared_box, tmp_path, "delta", file_format="delta", commit_records=700, by_arrival=True)
    for start in (0, 1000):
        produce(shared_box, "delta", start, 1000, 2)
        assert len(load_here(order, spark)) == 2
    expected = log_of(shared_box, "delta", 2)
    expect_exactly_once(tmp_path, expected)
    rows = deltalake.DeltaTable(str(tmp_path)).to_pyarrow_table().to_pylist()
    assert sorted((row["topic"], row["partition"], row["offset"], row["value"], f"{row['date']} {row['hour']}") for row in rows) == expected
    again, _, said = InThisProcess(shared_box, monkeypatch, capsys).load("delta", "--to", tmp_path)
    assert again == 0, f"how the table is, need not be said again: {said}"


def test_syslog_lines_of_a_real_sender_become_columns(shared_box: RunningBox, spark: Any, tmp_path: Path) -> None:
    with socket.create_connection(shared_box.syslog) as sender:
        sender.sendall(
            b"".join(b"<%d>1 2025-11-22T05:00:00.5Z host%d app%d - - - message %d\n" % (number % 190, number % 3, number % 2, number) for number in range(500))
        )
    order = order_of(shared_box, tmp_path, "syslog", decode="syslog")
    eventually(lambda: sum(extent.end for extent in look(order).survey.extents.values()) == 500, "the lines are stored")
    load_here(order, spark)
    rows = table_of(tmp_path).select(["message", "host", "app", "severity", "hour"]).to_pylist()
    assert sorted(int(row["message"].split()[1]) for row in rows) == list(range(500))
    assert all(row["host"] == f"host{int(row['message'].split()[1]) % 3}" and row["hour"] == 5 for row in rows)


class InThisProcess:
    """The command without a process of its own, for what starts no Spark: (exit code, stdout, stderr)."""

    def __init__(self, box: RunningBox, patch: pytest.MonkeyPatch, capture: pytest.CaptureFixture[str]) -> None:
        self._box, self._patch, self._capture = box, patch, capture

    def load(self, *arguments: object) -> tuple[int, str, str]:
        self._patch.setattr(sys, "argv", ["millrace", "load", *map(str, arguments), "--data", str(self._box.disks[0])])
        with pytest.raises(SystemExit) as ended:
            main()
        said = self._capture.readouterr()
        return int(ended.value.code or 0), said.out, said.err


def test_what_is_asked_wrongly_is_said_before_spark_is_started(
    shared_box: RunningBox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    millrace = InThisProcess(shared_box, monkeypatch, capsys)
    make_topic(shared_box, "asked", 1)
    produce(shared_box, "asked", 0, 10, 1)
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos/cat.jpg").touch()
    for arguments, code, words in (
        (("nowhere", "--to", tmp_path / "a"), 1, "topic 'nowhere'"),
        (("asked", "--to", tmp_path / "photos"), 1, "is not empty, and nothing in it says that millrace load filled it (cat.jpg)"),
        (("asked", "--to", shared_box.disks[0] / "sub"), 1, "lies in a log directory of a box"),
        (("asked", "--to", "s3://bucket/x"), 2, "only directories of local or shared POSIX file systems"),
        (("asked", "--to", tmp_path / "a", "--schema", "x strin"), 2, "no type 'strin'"),
        (("asked", "--to", tmp_path / "a", "--schema", "x string"), 1, "a schema is for --decode json"),
        (("asked", "--to", tmp_path / "a", "--spark", "x"), 2, "write --spark spark.NAME=VALUE"),
    ):
        found, _, said = millrace.load(*arguments)
        assert (found, words in said) == (code, True), said
    assert not (tmp_path / "a").exists()
    dry, text, _ = millrace.load("asked", "--to", tmp_path / "a", "--dry-run")
    assert dry == 0 and "up to 10 records of 1 topic would be loaded, in 1 commit" in text
    lag = json.loads(millrace.load("asked", "--to", tmp_path / "a", "--lag", "--json")[1])
    assert (lag["lag"], lag["lost"], lag["partitions"][0]["loaded"]) == (10, 0, None)
    assert not (tmp_path / "a").exists(), "looking changes nothing"


def test_a_plan_of_a_deleted_topic_stops_no_load(shared_box: RunningBox, tmp_path: Path) -> None:
    make_topic(shared_box, "stays", 1)
    order = order_of(shared_box, tmp_path, "stays")
    directory = LoadDirectory(str(tmp_path), "earlier")
    directory.open(order.kind(look(order).survey))
    directory.keep_plan(Plan(1, (OffsetRange("gone", 0, 0, 5),)))
    directory.close()
    assert load_here(order, None) == [], "and no Spark was asked"
    assert directory.plan(1) is None


@pytest.mark.skipif(find_postgres() is None, reason="PostgreSQL is not there (./install.sh test unpacks it)")
def test_a_load_into_postgresql_that_is_killed_goes_on_and_every_record_is_there_once(shared_box: RunningBox) -> None:
    faulthandler.cancel_dump_traceback_later()  # Spark is started twice; each has a limit of its own
    pytest.importorskip("psycopg")
    make_topic(shared_box, "killed.table", 2)
    produce(shared_box, "killed.table", 0, 20_000, 2)
    with running_postgres() as postgres:
        arguments = ("killed.table", "--to", postgres.url)
        process = start_load(shared_box, *arguments, "--task-records", 300, "--by", "arrival")  # which the second run finds there

        def has_begun() -> bool:
            return process.poll() is not None or (
                postgres.ask("select to_regclass('millrace_load_positions') is not null") == [(True,)]
                and postgres.ask("select coalesce(sum(next_offset), 0) >= 1500 from millrace_load_positions") == [(True,)]
            )

        eventually(has_begun, "some rounds are done", START_SECONDS)
        assert process.poll() is None, "it died too late"
        kill(process)
        ended = run_load(shared_box, *arguments)
        assert ended.returncode == 0, ended.stderr
        rows = postgres.ask('select "partition", "offset", value from "killed.table" order by 1, 2')
        expected = [(row[1], row[2], row[3]) for row in log_of(shared_box, "killed.table", 2)]
        assert [(partition, offset, bytes(value)) for partition, offset, value in rows] == expected
