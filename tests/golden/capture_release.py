"""Makes `tests/golden/releases/VERSION`: the stored directories of a box, and what its clients saw.

Run by hand once for each release, at the release's commit:

    python -m tests.golden.capture_release [VERSION]

The default is the version in `appliance/__init__.py`. A directory that is committed is never made
again: `test_releases.py` opens it with every later tree. Needs what the system tests need (`python
-m lab.client_packages`) and GNU tar.

* `stopped.tar.xz`: log directories `d0`, `d1` and the state directory (with ZooKeeper's data) of a
  box that stopped in order, with one of everything (`tests/support/release_writings.py`), a live
  member in two groups, and two open transactions.
* `killed.tar.xz`: the same box, started again, loaded, and ended by SIGKILL of every process;
  copied after the death of the last one.
* `expected.json`: what clients read before the end (`stopped`), and what was acknowledged under the
  load (`killed`).
* `ingest.table`, `millrace.toml`, `units/`: a typical settings file with three disks, its table,
  and the systemd units that are planned for both.

Paths: the box runs in a neutral directory (`DIRECTORY`), and no path of the machine may be in an
archive; `check_archive` looks for it. Placements in ZooKeeper name directory ids
(`meta.properties`), not paths, so a box finds a moved log directory. `STATE/disks/CRC.json` does
name the path at which an id was last seen; for a path without such a file, any directory with the
right cluster and broker id is accepted. So an archive can be unpacked anywhere. The state directory
is needed beside both log directories: a new state directory refuses them. `STATE/zookeeper/zoo.cfg`
names paths as well, and is written again at each start.

Time: nothing of the box expires (`SETTINGS` in `tests/support/release_contents.py`), except the
members of the live groups, the replay memory of ingest and, after 25 days, the open transactions.
"""

from __future__ import annotations

import json
import lzma
import re
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from confluent_kafka.admin import AdminClient

from appliance import __version__
from lab.kafka_writings import open_reader
from lab.running_box import ROOT, RunningBox, eventually, start_box
from tests.support.release_contents import (
    RELEASES,
    SETTINGS,
    describe_groups,
    describe_topics,
    describe_transactions,
    describe_zookeeper_offsets,
    dynamic_broker_configs,
    listening_anywhere,
    records_of_json,
)
from tests.support.release_files import count_journal_records, describe_table, plan_of_files
from tests.support.release_writings import INGEST_TABLE, OPEN_VALUES, ZOOKEEPER_OFFSETS, Load, write_at_rest

DIRECTORY: Final = Path("/tmp/millrace-release")
STORED: Final = ("d0", "d1", "state")
SIZE_BYTES_MAX: Final = 1_000_000
TYPICAL_SETTINGS: Final = """\
# Settings of this box, as install.sh writes them, and some that are often changed.
"log.retention.hours" = 336
"log.flush.policy" = "ack"
"num.partitions" = 3
"broker.rack" = "cellar-1"
"disk.budget.bytes" = 33554432
"ingest.table.file" = "/etc/millrace/ingest.table"

[box]
data = ["/srv/disk1/d0", "/srv/disk2/d1", "/srv/disk2/d2"]
state = "/var/lib/millrace"
listen = "0.0.0.0"
kafka-port = 9092
syslog-port = 514
http-port = 8080
ingest-port = 8081
advertise = "box-1.example"
acceptors = 2
ingests = 2
"""


def main() -> None:
    release = RELEASES / (sys.argv[1] if len(sys.argv) > 1 else __version__)
    assert not release.exists(), f"{release} is there; what a release stored does not change"
    assert not DIRECTORY.exists(), f"{DIRECTORY} is there; remove it"
    release.mkdir(parents=True)
    try:
        (release / "ingest.table").write_text(INGEST_TABLE)
        (release / "millrace.toml").write_text(TYPICAL_SETTINGS)
        store_units(release)
        expected: dict[str, Any] = {
            "version": release.name,
            "captured_ms": int(time.time() * 1000),
            "table": describe_table(release),
        }
        expected["stopped"] = capture_stopped(release)
        expected["settings_file"] = (DIRECTORY / "millrace.toml").read_text()
        expected["killed"] = capture_killed(release)
        (release / "expected.json").write_text(json.dumps(expected, separators=(",", ":"), ensure_ascii=False) + "\n")
        size_bytes = sum(file.stat().st_size for file in release.rglob("*") if file.is_file())
        assert size_bytes < SIZE_BYTES_MAX, f"{release}: {size_bytes} bytes"
    except BaseException:
        shutil.rmtree(release)
        raise
    finally:
        shutil.rmtree(DIRECTORY, ignore_errors=True)
    print(f"{release}: {size_bytes} bytes")


def start() -> RunningBox:
    """With the ports of the stored table replaced by free ones."""
    DIRECTORY.mkdir(exist_ok=True)
    table = DIRECTORY / "ingest.table"
    table.write_text(listening_anywhere(INGEST_TABLE))
    return start_box(DIRECTORY, settings={**SETTINGS, "ingest.table.file": str(table)})


def capture_stopped(release: Path) -> dict[str, Any]:
    box = start()
    opened = None
    try:
        with closing(open_reader(box.bootstrap)) as client:
            opened = write_at_rest(box, client)
        expected = describe(box)
        expected["open_records"] = {name: offsets for name, offsets in open_records(expected["topics"]).items() if offsets}
        assert box.stop() == 0, box.messages
        assert box.leftovers() == []
    finally:
        box.stop()
        if opened is not None:
            opened.close()
    store(release / "stopped.tar.xz")
    return {**expected, "journal_records": count_journal_records(DIRECTORY)}


def describe(box: RunningBox) -> dict[str, Any]:
    return {
        "topics": describe_topics(box.bootstrap),
        "groups": describe_groups(box.bootstrap),
        "zookeeper_offsets": describe_zookeeper_offsets(box.kafka, ZOOKEEPER_OFFSETS),
        "transactions": describe_transactions(box.bootstrap),
        "dynamic_broker_configs": dynamic_broker_configs(AdminClient({"bootstrap.servers": box.bootstrap})),
    }


def open_records(topics: Mapping[str, Any]) -> dict[str, list[int]]:
    """By partition, the offsets of what belongs to a transaction that stays open."""
    return {
        f"{topic}-{number}": [record.offset for record in records_of_json(partition["records"]) if record.value in OPEN_VALUES]
        for topic, described in topics.items()
        for number, partition in enumerate(described["partitions"])
    }


def capture_killed(release: Path) -> Mapping[str, Any]:
    """The load goes on while the box dies."""
    box = start()
    load = None
    try:
        load = Load(box)
        eventually(lambda: load.is_enough, f"acknowledgements of every kind: {Load.LEAST}", 60)
        box.kill_supervisor()
    finally:
        if box.exit_code is None:
            box.stop()
        if load is not None:
            load.join()
    store(release / "killed.tar.xz")
    acknowledged = load.acknowledged
    return {
        **acknowledged,
        "group": max(acknowledged["group"]),
        "zookeeper": max(acknowledged["zookeeper"]),
        "journal_records": count_journal_records(DIRECTORY),
    }


def store_units(release: Path) -> None:
    for name, text in plan_of_files(release).items():
        path = release / "units" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def store(archive: Path) -> None:
    """Sparse, and without this machine's users. ZooKeeper's messages are left out: they name the machine."""
    anonymous = ["--exclude=zookeeper.log", "--owner=0", "--group=0", "--numeric-owner"]
    plain = ["--sparse", "--sort=name", "--format=gnu"]
    command = ["tar", "-C", str(DIRECTORY), *anonymous, *plain, "-cf", "-", *STORED]
    tar = subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout
    archive.write_bytes(lzma.compress(tar, preset=9 | lzma.PRESET_EXTREME))
    check_archive(archive)


def check_archive(archive: Path) -> None:
    """Raise if a path of this machine is in it."""
    unwanted = [str(ROOT), str(ROOT.parent), f"{Path.home()}/", sys.prefix]
    pattern = re.compile(b"|".join(re.escape(each.encode()) for each in unwanted))
    with tarfile.open(archive) as stored:
        for member in stored:
            content = file.read() if (file := stored.extractfile(member)) is not None else b""
            found = pattern.search(member.name.encode() + b"\0" + content)
            assert found is None, f"{archive.name}: {member.name} names {found}"


if __name__ == "__main__":
    main()
