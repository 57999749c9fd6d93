"""Today's tree reads what each release stored (`releases/`, made by capture_release.py).

Log directories, state topics, the replay journal, the ingest table, settings and systemd units are
read without a box. The system test starts a box on a copy of each archive; librdkafka and
kafka-python read what they read then, and go on.
"""

from __future__ import annotations

import json
import socket
import tomllib
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as Place
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from appliance.base.clock import ManualClock
from appliance.base.model import TopicPartition
from appliance.base.settings import OLD_TABLE_SETTING, read_settings_file, resolve_settings
from appliance.records.control_batch import read_end_transaction_marker
from appliance.records.record import iterate_records
from appliance.storage.checkpoints import LOG_START_OFFSETS, RECOVERY_POINTS
from appliance.storage.log import Log
from appliance.storage.log_config import LogConfig
from appliance.storage.log_directory import LogDirectory
from appliance.storage.recovery import CLEAN, Unclean
from lab.foreign_clients import Read, open_client
from lab.raw_coordination import RawCoordination
from lab.running_box import RunningBox, eventually
from services.coordinator.groups.group_records import FORMATS, OFFSET_COMMIT
from services.coordinator.state.state_format import StateFormat, version_of
from services.coordinator.transactions.transaction import STATE_NAMES
from services.coordinator.transactions.transaction_records import decode_transaction, decode_transaction_key
from tests.support.release_contents import (
    RELEASES,
    SECONDS,
    STATE_TOPICS,
    describe_groups,
    describe_topics,
    describe_transactions,
    describe_zookeeper_offsets,
    dynamic_broker_configs,
    group_offsets,
    listening_anywhere,
    offsets_of,
    records_of_json,
    topic_configs,
    unpack,
)
from tests.support.release_files import count_journal_records, describe_table, plan_of_files
from tests.support.release_writings import stored_counts
from tests.support.stored_records import stored_batches_of, stored_records

pytestmark = pytest.mark.own_zookeeper  # the stored directories have its files

VERSIONS = sorted(path.name for path in RELEASES.iterdir())
ENDS = ("stopped", "killed")
UNDER_LOAD = {"load", "transactions-under-load", "named"}
RECORD_BYTES_MAX = 10_000_000

TABLE_DIFFERENCES: dict[str, dict[str, tuple[str, str, str]]] = {
    "0.1.0": {"syslog-tcp": ("proxy", "v1", "no")},  # a sender could claim any source address
}
"""By release and listener: a key, its value then, its value today."""

Lines = tuple[str, ...]
_HEADER = "# Written by `millrace units apply` from the settings; put changes of your own into another file beside this one."
_NO_SECRETS = "InaccessiblePaths=-/var/lib/millrace/zookeeper -/var/lib/millrace/zookeeper.secret"
_NOT_EXECUTABLE = "NoExecPaths=/var/lib/millrace"
UNIT_DIFFERENCES: dict[str, dict[str, tuple[Lines, Lines]]] = {
    # Writable directories are not executable, ZooKeeper's secret is for two processes, and no process but the supervisor changes box.json.
    # Ingest and console write to a part of the state directory, a load connects to its box only, and systemd makes the socket of the administration.
    "0.1.0": {
        "millrace-.service.d/10-box.conf": ((), ("ReadOnlyPaths=-/run/millrace/d7883b4450/box.json",)),
        **{
            f"millrace-{unit}.service.d/20-settings.conf": ((), (_HEADER, "[Service]", _NO_SECRETS)) for unit in ("acceptor@", "coordinator", "replica-fetcher")
        },
        "millrace-console.service.d/20-settings.conf": (
            (),
            (
                _HEADER,
                "[Service]",
                "ReadWritePaths=-/var/lib/millrace/console",
                f"{_NOT_EXECUTABLE.replace('/var', '-/var')}/console",
                _NO_SECRETS,
            ),
        ),
        **{f"millrace-{unit}.service.d/20-settings.conf": ((), (_NOT_EXECUTABLE,)) for unit in ("controller", "zookeeper")},
        "millrace-ingest@.service.d/20-settings.conf": (
            ("ReadWritePaths=/var/lib/millrace",),
            (
                "ReadWritePaths=-/var/lib/millrace/ingest",
                f"{_NOT_EXECUTABLE.replace('/var', '-/var')}/ingest",
                _NO_SECRETS,
                "IPAddressDeny=",
                "IPAddressAllow=",
            ),
        ),
        "millrace-load.service.d/20-settings.conf": ((), (_HEADER, "[Service]", _NO_SECRETS, "IPAddressDeny=", "IPAddressAllow=")),
        "millrace-mirror@.service.d/20-settings.conf": (
            (),
            (_HEADER, "[Unit]", "ConditionPathExists=", "ConditionPathExists=/etc/millrace/mirror/%i.toml")
            + ("[Service]", f"{_NO_SECRETS} -/var/lib/millrace -/srv/disk1/d0 -/srv/disk2/d1 -/srv/disk2/d2"),
        ),
        **{f"millrace-log-reader@d{number}.service.d/20-settings.conf": ((), ("[Service]", _NO_SECRETS)) for number in range(3)},
        **{
            f"millrace-log-writer@{disk}.service.d/20-settings.conf": ((), (f"NoExecPaths=/srv/{mount}/{disk} /var/lib/millrace", _NO_SECRETS))
            for disk, mount in (("d0", "disk1"), ("d1", "disk2"), ("d2", "disk2"))
        },
        "millrace.target.d/20-settings.conf": ((), ("Wants=millrace-administration.socket",)),
        "millrace-supervisor.service.d/20-settings.conf": (
            ("Environment=MILLRACE_UNITS_FOR=7bc0aa13",),
            ("Environment=MILLRACE_UNITS_FOR=73e615c2", "ReadOnlyPaths=", f"{_NOT_EXECUTABLE} -/srv/disk1/d0 -/srv/disk2/d1 -/srv/disk2/d2"),
        ),
    },
}
"""By release and unit file: lines that it had then and has no more, lines that it has today and had not."""


@cache
def expected_of(version: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((RELEASES / version / "expected.json").read_text())
    return loaded


@pytest.fixture(params=VERSIONS)
def release(request: pytest.FixtureRequest) -> Path:
    return RELEASES / str(request.param)


@pytest.fixture(params=ENDS)
def end(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def stored(release: Path, end: str, tmp_path: Path) -> Path:
    """The directories of the archive, unpacked in a directory named `box`."""
    unpack(release / f"{end}.tar.xz", tmp_path / "box")
    return tmp_path / "box"


def open_disks(stored: Path, captured_ms: int) -> Iterator[tuple[LogDirectory, TopicPartition, Path]]:
    """Every partition with the log directory that it is in."""
    cluster_id = (stored / "state" / "cluster.id").read_text().strip()
    for disk in ("d0", "d1"):
        directory = LogDirectory.open(str(stored / disk), 1, cluster_id, ManualClock(captured_ms))
        assert directory.problems == []
        for name, found in directory.partition_directories().items():
            assert found.topic_id is not None
            yield directory, name, stored / disk / str(name)
        directory.abandon()


def open_log(directory: LogDirectory, name: TopicPartition, configs: dict[str, str], captured_ms: int) -> Log:
    topic_id = directory.partition_directories()[name].topic_id
    assert topic_id is not None
    recovery = CLEAN if directory.was_clean else Unclean(directory.checkpoints.lines[RECOVERY_POINTS].get(name, 0))
    start = directory.checkpoints.lines[LOG_START_OFFSETS].get(name, 0)
    path = f"{directory.path}/{name}"
    return Log.open(path, name, topic_id, LogConfig.from_topic_config(configs), ManualClock(captured_ms), recovery, start)


def transactions_of(directory: Path) -> tuple[set[int], int | None]:
    """Base offsets of the batches whose transaction was aborted or is open; that of the first open one."""
    open_batches: dict[int, list[int]] = {}
    hidden: set[int] = set()
    for header, raw in stored_batches_of(directory):
        if header.is_control:
            marker = read_end_transaction_marker(raw)
            ended = open_batches.pop(header.producer_id, [])
            if marker is not None and not marker.is_commit:
                hidden.update(ended)
        elif header.is_transactional:
            open_batches.setdefault(header.producer_id, []).append(header.base_offset)
    still_open = [offset for offsets in open_batches.values() for offset in offsets]
    return hidden | set(still_open), min(still_open, default=None)


def test_every_log_opens_with_exactly_the_records_that_clients_read(release: Path, end: str, stored: Path) -> None:
    expected = expected_of(release.name)
    topics, captured_ms, seen = expected["stopped"]["topics"], expected["captured_ms"], set()
    for directory, name, path in open_disks(stored, captured_ms):
        assert directory.was_clean == (end == "stopped")
        described = topics.get(name.topic, {"configs": {}, "partitions": []})
        log = open_log(directory, name, described["configs"], captured_ms)
        _, first_open = transactions_of(path)
        assert log.recovered_cut_bytes == 0
        assert log.last_stable_offset(log.log_end_offset) == (log.log_end_offset if first_open is None else first_open)
        found = [record for record in stored_records(path) if record.offset >= log.log_start_offset]
        if name.topic in topics and not (end == "killed" and name.topic in UNDER_LOAD):
            wanted = described["partitions"][name.partition]
            assert (log.log_start_offset, log.log_end_offset) == (
                wanted["log_start_offset"],
                wanted["high_watermark"],
            )
            assert found == records_of_json(wanted["records"]), name
            seen.add((name.topic, name.partition))
        log.close()
    quiet = {topic for topic in topics if end == "stopped" or topic not in UNDER_LOAD}
    assert seen == {(topic, number) for topic in quiet for number in range(len(topics[topic]["partitions"]))}


@pytest.mark.parametrize("end", ["killed"])
def test_what_was_acknowledged_before_a_kill_is_in_the_logs_after_recovery(release: Path, end: str, stored: Path) -> None:
    expected = expected_of(release.name)
    acknowledged, captured_ms = expected["killed"], expected["captured_ms"]
    found: dict[TopicPartition, list[Read]] = {}
    committed: set[bytes | None] = set()
    for directory, name, path in open_disks(stored, captured_ms):
        if name.topic in UNDER_LOAD or name.topic in acknowledged["topics"]:
            open_log(directory, name, {}, captured_ms).close()
            found[name] = stored_records(path)
        if name.topic == "transactions-under-load":
            hidden, _ = transactions_of(path)
            visible = (raw for header, raw in stored_batches_of(path) if not header.is_control and header.base_offset not in hidden)
            committed |= {record.value for raw in visible for record in iterate_records(raw, RECORD_BYTES_MAX)}
    by_offset = {(name.partition, record.offset): record.value for name, records in found.items() if name.topic == "load" for record in records}
    assert {(partition, offset): value.encode() for partition, offset, value in acknowledged["load"]}.items() <= by_offset.items()
    assert {value.encode() for value in acknowledged["transactions-under-load"]} <= committed
    messages = [json.loads(record.value or b"")["message"] for record in found[TopicPartition("named", 0)]]
    assert set(acknowledged["named"]) <= set(messages) and len(messages) == len(set(messages))
    assert set(acknowledged["topics"]) <= {name.topic for name in found}


def state_records(stored: Path, topic: str) -> list[tuple[bytes, bytes | None]]:
    """Key and value of each record of a state topic, without those of aborted and open transactions."""
    found = []
    for path in sorted(stored.glob(f"d?/{topic}-*")):
        hidden, _ = transactions_of(path)
        for header, raw in stored_batches_of(path):
            if not header.is_control and header.base_offset not in hidden:
                found += [(record.key or b"", record.value) for record in iterate_records(raw, RECORD_BYTES_MAX)]
    return found


def test_groups_and_their_offsets_are_decoded_from_the_state_topic(release: Path, end: str, stored: Path) -> None:
    by_key_version: dict[int, StateFormat[Any, Any]] = {kind.key_version: kind for kind in FORMATS}
    kinds = set()
    offsets: dict[str, dict[str, list[Any]]] = {}
    for key, value in state_records(stored, "__consumer_offsets"):
        kind = by_key_version[version_of(key)]
        decoded_key, decoded = kind.decode_key(key), None if value is None else kind.decode_value(value)
        kinds.add(kind.name)
        if kind is OFFSET_COMMIT:
            place = f"{decoded_key.topic}-{decoded_key.partition}"
            assert decoded is not None
            offsets.setdefault(decoded_key.group_id, {})[place] = [
                decoded.offset,
                decoded.metadata.rstrip("\0"),
            ]  # confluent-kafka sends a NUL
    assert kinds == {kind.name for kind in FORMATS}
    expected = expected_of(release.name)
    under_load = offsets.pop("group-under-load", None)
    assert offsets == {group_id: group["offsets"] for group_id, group in expected["stopped"]["groups"].items()}
    if end == "killed":
        assert under_load is not None and under_load["load-0"][0] in (
            expected["killed"]["group"],
            expected["killed"]["group"] + 1,
        )


def test_transactions_are_decoded_from_the_state_topic(release: Path, end: str, stored: Path) -> None:
    found: dict[str, str] = {}
    for key, value in state_records(stored, "__transaction_state"):
        transactional_id = decode_transaction_key(key)
        assert transactional_id is not None and value is not None
        found[transactional_id] = STATE_NAMES[decode_transaction(value).state]
    assert ("under-load" in found) == (end == "killed")
    found.pop("under-load", None)
    assert found == expected_of(release.name)["stopped"]["transactions"]


def test_the_replay_journal_of_ingest_is_decoded_to_its_end(release: Path, end: str, stored: Path) -> None:
    count = count_journal_records(stored)
    assert count == expected_of(release.name)[end]["journal_records"] and count > 0


def test_the_ingest_table_has_the_listeners_and_routes_that_it_had(release: Path) -> None:
    expected = expected_of(release.name)["table"]
    for listener, (key, then, today) in TABLE_DIFFERENCES.get(release.name, {}).items():
        assert expected["listeners"][listener][key] == then
        expected = {**expected, "listeners": {**expected["listeners"], listener: {**expected["listeners"][listener], key: today}}}
    assert describe_table(release) == expected


def test_the_settings_of_the_captured_box_have_no_problems(release: Path, tmp_path: Path) -> None:
    text = expected_of(release.name)["settings_file"]
    (tmp_path / "millrace.toml").write_text(text)
    file = read_settings_file(str(tmp_path / "millrace.toml"))
    settings, problems = resolve_settings(file.settings, "millrace.toml")
    assert file.problems == problems == []
    named = {name: settings[name] for name in file.settings}
    assert named | ({OLD_TABLE_SETTING: file.old_table} if file.old_table else {}) == tomllib.loads(text)


def test_the_typical_settings_plan_the_same_systemd_units_but_for_named_differences(release: Path) -> None:
    units = release / "units"
    then = {str(path.relative_to(units)): path.read_text() for path in units.rglob("*") if path.is_file()}
    today = plan_of_files(release)
    found = {name: _differences(then.get(name, ""), today.get(name, "")) for name in {*then, *today} if then.get(name) != today.get(name)}
    assert found == UNIT_DIFFERENCES.get(release.name, {})


def _differences(then: str, today: str) -> tuple[Lines, Lines]:
    """Return the lines of `then` alone, and of `today` alone, in their order."""
    before, after = then.splitlines(), today.splitlines()
    return tuple(line for line in before if line not in after), tuple(line for line in after if line not in before)


# --- a box on the stored directories


@pytest.mark.system
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:(read_text|open_text) is deprecated:DeprecationWarning")
def test_a_box_starts_on_the_stored_directories_and_clients_read_what_they_read_then_and_go_on(
    release: Path, end: str, stored: Path, start: Callable[..., RunningBox]
) -> None:
    expected = expected_of(release.name)
    table = stored / "ingest.table"
    table.write_text(listening_anywhere((release / "ingest.table").read_text()))
    box = start(by_command=True, settings={**tomllib.loads(expected["settings_file"]), OLD_TABLE_SETTING: str(table)})
    assert f"moved the table of senders {table} into " in box.messages
    check_topics(box, expected, end)
    check_with_another_client(box, expected, end)
    check_coordination(box, expected, end)
    if end == "killed":
        check_acknowledged(box, expected["killed"])
    end_open_transactions(box, expected)
    go_on(box)


def quiet_topics(expected: dict[str, Any], end: str) -> dict[str, Any]:
    """Of which everything is known."""
    return {topic: described for topic, described in expected["stopped"]["topics"].items() if end == "stopped" or topic not in UNDER_LOAD}


def check_topics(box: RunningBox, expected: dict[str, Any], end: str) -> None:
    """By librdkafka. A transaction that was open may have timed out; its abort marker takes one offset."""
    found = describe_topics(box.bootstrap)
    new = {topic for topic in found if topic in UNDER_LOAD or topic.startswith("late-")} - set(expected["stopped"]["topics"])
    assert set(found) == {*expected["stopped"]["topics"], *(new if end == "killed" else ())}
    for topic, wanted in quiet_topics(expected, end).items():
        assert found[topic]["configs"] == wanted["configs"]
        assert len(found[topic]["partitions"]) == len(wanted["partitions"])
        for number, (partition, then) in enumerate(zip(found[topic]["partitions"], wanted["partitions"], strict=True)):
            if f"{topic}-{number}" in expected["stopped"]["open_records"]:
                assert (partition["log_start_offset"], partition["records"]) == (
                    then["log_start_offset"],
                    then["records"],
                )
                assert partition["high_watermark"] - then["high_watermark"] in (0, 1)
            else:
                assert partition == then, f"{topic}-{number}"
    broker = dynamic_broker_configs(AdminClient({"bootstrap.servers": box.bootstrap}))
    assert broker == expected["stopped"]["dynamic_broker_configs"]


def check_with_another_client(box: RunningBox, expected: dict[str, Any], end: str) -> None:
    """Partition 0 of each topic by kafka-python, which has its own codecs."""
    with closing(open_client("kafka-python", box.bootstrap)) as client:
        for topic, described in quiet_topics(expected, end).items():
            then = described["partitions"][0]
            records = records_of_json(then["records"])
            assert client.fetch(topic, len(records), then["log_start_offset"]) == records, topic
            assert client.offset(topic, "earliest") == then["log_start_offset"]


def check_coordination(box: RunningBox, expected: dict[str, Any], end: str) -> None:
    """Offsets of groups of both protocols, those in ZooKeeper, and transactions that have ended."""
    stopped = expected["stopped"]
    groups = describe_groups(box.bootstrap)
    if end == "killed":
        ((place, (offset, _metadata)),) = groups.pop("group-under-load")["offsets"].items()
        assert place == "load-0" and offset in (expected["killed"]["group"], expected["killed"]["group"] + 1)
    assert groups == stopped["groups"]
    assert describe_zookeeper_offsets(box.kafka, stopped["zookeeper_offsets"]) == stopped["zookeeper_offsets"]
    found = describe_transactions(box.bootstrap)
    ended = {name: state for name, state in stopped["transactions"].items() if state != "Ongoing"}
    assert len(ended) < len(stopped["transactions"]) and {name: found[name] for name in ended} == ended


def check_acknowledged(box: RunningBox, acknowledged: dict[str, Any]) -> None:
    """What was acknowledged before the kill, at both isolation levels."""
    found = describe_topics(box.bootstrap)
    records = {(number, record.offset): record.value for number, each in enumerate(found["load"]["partitions"]) for record in records_of_json(each["records"])}
    assert {(partition, offset): value.encode() for partition, offset, value in acknowledged["load"]}.items() <= records.items()
    committed = set()
    for partition in found["transactions-under-load"]["partitions"]:
        offsets = set(partition.get("committed", [record[0] for record in partition["records"]]))
        committed |= {record.value for record in records_of_json(partition["records"]) if record.offset in offsets}
    assert {value.encode() for value in acknowledged["transactions-under-load"]} <= committed
    messages = [json.loads(record.value or b"")["message"] for record in records_of_json(found["named"]["partitions"][0]["records"])]
    assert set(acknowledged["named"]) <= set(messages) and len(messages) == len(set(messages))
    offsets_then = describe_zookeeper_offsets(box.kafka, {"oldest-under-load": ["load"]})
    assert offsets_then["oldest-under-load"]["load"] in (
        acknowledged["zookeeper"],
        acknowledged["zookeeper"] + 1,
    )
    admin = AdminClient({"bootstrap.servers": box.bootstrap})
    configs = {topic: topic_configs(admin, topic) for topic in acknowledged["topics"]}
    assert configs == {f"late-{number}": {"retention.bytes": str(10**9 + number)} for number in range(len(configs))}


def end_open_transactions(box: RunningBox, expected: dict[str, Any]) -> None:
    """A new producer with the same transactional id aborts what is open; committed reads then pass it."""
    stopped = expected["stopped"]
    then = {name for name, state in stopped["transactions"].items() if state == "Ongoing"}
    today = {name for name, state in describe_transactions(box.bootstrap).items() if state == "Ongoing"}
    for transactional_id in sorted(then | today):
        Producer({"bootstrap.servers": box.bootstrap, "transactional.id": transactional_id}).init_transactions(SECONDS)
    assert stopped["open_records"]
    found = eventually(lambda: committed_if_ended(box, stopped["open_records"]), "the markers are written")
    for name, aborted in stopped["open_records"].items():
        topic, _, number = name.rpartition("-")
        then = stopped["topics"][topic]["partitions"][int(number)]
        behind = [record[0] for record in then["records"] if record[0] > min(aborted) and record[0] not in aborted]
        assert found[name] == then["committed"] + behind, name
    assert any(found[name][-1] > max(aborted) for name, aborted in stopped["open_records"].items()), "nothing was committed behind an open transaction"
    assert group_offsets(AdminClient({"bootstrap.servers": box.bootstrap}), "copied") == stopped["groups"]["copied"]["offsets"]


def committed_if_ended(box: RunningBox, names: dict[str, list[int]]) -> dict[str, list[int]] | None:
    """Offsets of committed records by partition, when no transaction is open in any of them."""
    states = describe_transactions(box.bootstrap)
    if "Ongoing" in states.values() or "PrepareAbort" in states.values():
        return None
    topics = describe_topics(box.bootstrap)
    partitions = {name: topics[name.rpartition("-")[0]]["partitions"][int(name.rpartition("-")[2])] for name in names}
    return {name: partition.get("committed", [record[0] for record in partition["records"]]) for name, partition in partitions.items()}


def go_on(box: RunningBox) -> None:
    """Produce to every partition, commit in groups and in ZooKeeper, create a topic, send a line."""
    admin = AdminClient({"bootstrap.servers": box.bootstrap})
    admin.create_topics([NewTopic("today", 2)])["today"].result(SECONDS)
    producer = Producer({"bootstrap.servers": box.bootstrap, "enable.idempotence": True})
    places = [
        (topic, partition)
        for topic, described in admin.list_topics(timeout=SECONDS).topics.items()
        if topic not in STATE_TOPICS
        for partition in described.partitions
    ]
    before = offsets_of(admin, places, OffsetSpec.latest())
    for place in places:
        producer.produce(place[0], b"today", b"key of today", place[1])
    assert producer.flush(SECONDS) == 0
    after = offsets_of(admin, places, OffsetSpec.latest())
    assert after == {place: offset + 1 for place, offset in before.items()}
    for protocol in ("classic", "consumer"):
        commit_as_member(box, f"{protocol}-left", protocol)
    with closing(RawCoordination(box.kafka)) as raw:
        assert raw.commit_in_zookeeper("oldest", "mixed", 99) == 0
        assert raw.committed_in_zookeeper("oldest", "mixed") == (0, 99)
    send_a_line(box)


def commit_as_member(box: RunningBox, group_id: str, protocol: str) -> None:
    """A new member goes on where the group stands, and commits."""
    options: dict[str, Any] = {
        "bootstrap.servers": box.bootstrap,
        "group.id": group_id,
        "group.protocol": protocol,
        "enable.auto.commit": False,
    }
    consumer = Consumer(options)
    with closing(consumer):
        consumer.subscribe(["spread"])
        message = consumer.poll(SECONDS)
        assert message is not None and message.error() is None
        consumer.commit(offsets=[Place("spread", 0, 30, "of today")], asynchronous=False)
        (committed,) = consumer.committed([Place("spread", 0)], SECONDS)
        assert (committed.offset, committed.metadata) == (30, "of today")


def send_a_line(box: RunningBox) -> None:
    """Through a listener of the stored table."""
    before = stored_counts(box.bootstrap, ["lines"])["lines"]
    with socket.create_connection(box.sender("lines")) as sender:
        sender.sendall(b"<14>1 - host app - - - of today\n")
    eventually(lambda: stored_counts(box.bootstrap, ["lines"])["lines"] == before + 1, "the line is stored")
