"""`millrace load` and the tabler as units of an installed release with Spark: what the services may do is enough, and the timer of the load starts it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pyarrow.dataset
import pytest
from deltalake import DeltaTable

from lab.installed_box import DISKS, InstalledBox, copy_sources, make_wheelhouse
from lab.running_box import eventually
from lab.systemd_box import SystemdBox

pytestmark = [pytest.mark.system, pytest.mark.deep, pytest.mark.alone]

LINES = 500
WAREHOUSE = "/var/lib/warehouse"


@pytest.fixture
def installed_with_spark(tmp_path: Path) -> Iterator[InstalledBox]:
    make_wheelhouse(tmp_path / "wheelhouse", with_spark=True)
    copy_sources(tmp_path / "sources/first")
    box = SystemdBox.start(
        tmp_path / "box", ["ext4"] * len(DISKS), 640, [(tmp_path / "sources", "/sources"), (tmp_path / "wheelhouse", "/wheelhouse")], name="loadbox"
    )
    installed = InstalledBox(box, tmp_path / "sources/first")
    try:
        installed.install("--pipeline", "--offline", "/wheelhouse", "--disks", ",".join(DISKS), "--advertise", "127.0.0.1")
        yield installed
        box.stop()
    finally:
        box.destroy()


def rows(installed: InstalledBox) -> list[bytes]:
    place = installed.box.path(f"{WAREHOUSE}/topic=lines")
    return sorted(pyarrow.dataset.dataset(place, format="parquet").to_table(columns=["value"]).column("value").to_pylist()) if place.exists() else []


def test_the_service_loads_and_the_timer_starts_it(installed_with_spark: InstalledBox) -> None:
    installed = installed_with_spark
    box = installed.box
    installed.await_all_active()
    lines = [b"line %04d" % number for number in range(2 * LINES)]
    produce = "millrace topic create lines; for n in $(seq {first} {last}); do printf 'line %04d\\n' $n; done | millrace send lines"
    box.output(produce.format(first=0, last=LINES - 1))
    box.path("/etc/millrace/load.conf").write_text(f'MILLRACE_LOAD="lines --to {WAREHOUSE}"\n')
    box.output(f"install -d -o millrace -g millrace {WAREHOUSE}")
    started = box.run(["systemctl", "start", "millrace-load"], check=False, seconds=120)
    assert started.returncode == 0, box.journal("-u", "millrace-load", "-n", "40")
    assert rows(installed) == lines[:LINES]
    box.output(produce.format(first=LINES, last=2 * LINES - 1))
    soon = box.path("/run/systemd/system/millrace-load.timer.d")
    soon.mkdir(parents=True)
    (soon / "soon.conf").write_text("[Timer]\nOnCalendar=\nOnCalendar=*:*:0/5\nRandomizedDelaySec=0\n")
    box.output("systemctl daemon-reload; systemctl start millrace-load.timer")
    eventually(lambda: rows(installed) == lines, "the timer's load brings the rest", 90)
    box.output("systemctl stop millrace-load.timer")


def test_the_tabler_writes_where_its_unit_lets_it(installed_with_spark: InstalledBox, tmp_path: Path) -> None:
    installed = installed_with_spark
    box = installed.box
    box.output("install -d -o millrace -g millrace /srv/tables")
    installed.edit_settings(lambda text: f'"tables.locations" = "/srv/tables"\n{text}')
    box.run("systemctl stop millrace.target 'millrace-*'")
    box.run("systemctl start millrace.target")
    installed.await_all_active()
    box.output("millrace topic create lines; for n in $(seq 500); do echo line $n; done | millrace send lines")
    box.output("millrace topic alter lines --table delta --table-location /srv/tables --set millrace.table.interval.ms=1000")
    shown = "millrace table list | tail -n 1 | awk '{print $1, $2, $3, $4}'"
    eventually(lambda: box.output(shown) == "lines ok 0 500", "the table has all lines", 90)
    copied = shutil.copytree(box.path("/srv/tables/lines"), tmp_path / "copied")  # deltalake resolves the way into the box to one of the host
    found = DeltaTable(copied).to_pyarrow_table().column("value").to_pylist()
    assert sorted(found) == sorted(b"line %d" % number for number in range(1, 501))
    pid = installed.pid("millrace-tabler.service")
    box.output("millrace topic alter lines --table none")
    installed.await_active("millrace-tabler.service", unlike=pid)
