"""Figures of the machine: from readings to records, their schema, and what this very machine gives."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from services.console import host_schema
from services.console.host_figures import DiskCounts, HostReading, LogDirectorySpace, NetworkCounts, devices_of, host_records, read_host
from services.console.host_schema import COMMON, FIELDS, spark_schema

WALL_MS = 1_700_000_000_123
CPU = {"user": 100.0, "nice": 0.0, "system": 50.0, "idle": 800.0, "iowait": 10.0, "irq": 0.0, "softirq": 0.0, "steal": 0.0, "guest": 5.0, "guest_nice": 0.0}
MEMORY = {field.name: 1 for field in FIELDS["memory"]}
BEFORE = HostReading(
    1_000_000_000, CPU, 4, (1.0, 2.0, 3.0), MEMORY, {"sda": DiskCounts(10, 10, 1000, 1000, 5, 5, 5), "loop0": DiskCounts(1, 1, 1, 1, 1, 1, 1)},
    {"eth0": NetworkCounts(1000, 2000, 10, 20, 0, 0, 0, 0), "idle0": NetworkCounts(0, 0, 0, 0, 0, 0, 0, 0)},
)  # fmt: skip
AFTER = HostReading(
    11_000_000_000,
    CPU | {"user": 120.0, "system": 55.0, "idle": 810.0, "iowait": 15.0, "guest": 25.0},
    4,
    (1.5, 2.0, 3.0),
    MEMORY,
    {"sda": DiskCounts(110, 10, 101_000, 1000, 55, 5, 2505), "sdb": DiskCounts(9, 9, 9, 9, 9, 9, 9), "loop0": DiskCounts(2, 1, 1, 1, 1, 1, 1)},
    {"eth0": NetworkCounts(0, 12_000, 0, 120, 3, 0, 0, 0), "idle0": NetworkCounts(0, 0, 0, 0, 0, 0, 0, 0)},
)
DIRECTORIES = [
    LogDirectorySpace("d1", "/srv/d1", "sda", 70, 100),
    LogDirectorySpace("d0", "/srv/d0", "sda", 60, 100),
    LogDirectorySpace("late", "/srv/late", None, None, None),
]


def records(
    before: HostReading = BEFORE, after: HostReading = AFTER, directories: list[LogDirectorySpace] = DIRECTORIES
) -> dict[tuple[str, str], dict[str, Any]]:
    found = [json.loads(record) for record in host_records(before, after, directories, WALL_MS, "log1", 7)]
    return {(record["kind"], record["device"]): record for record in found}


def test_a_record_for_each_device_that_was_there_before_and_does_anything() -> None:
    expected = [("cpu", "all"), ("memory", "all"), ("disk", "sda"), ("log_directory", "d1"), ("log_directory", "d0"), ("network", "eth0")]
    assert list(records()) == expected, "neither a new disk, nor a loop device, nor an idle interface, nor an unmeasured directory"


def test_a_loop_device_is_recorded_if_a_log_directory_is_on_it() -> None:
    found = records(directories=[LogDirectorySpace("d0", "/srv/d0", "loop0", 1, 2)])
    assert found["disk", "loop0"]["log_directories"] == "d0" and found["disk", "sda"]["log_directories"] == ""


def test_figures_are_rates_and_shares_of_the_interval() -> None:
    found = records()
    cpu = found["cpu", "all"]
    assert (cpu["user_percent"], cpu["system_percent"], cpu["iowait_percent"], cpu["idle_percent"]) == (50.0, 12.5, 12.5, 25.0), (
        "a guest's time is not counted twice"
    )
    disk = found["disk", "sda"]
    assert (disk["read_bytes_per_second"], disk["reads_per_second"], disk["read_milliseconds"], disk["busy_percent"]) == (10_000.0, 10.0, 0.5, 25.0)
    assert (disk["writes_per_second"], disk["write_milliseconds"], disk["log_directories"]) == (0.0, 0.0, "d0,d1")
    network = found["network", "eth0"]
    assert (network["received_bytes_per_second"], network["received_packets_per_second"], network["receive_errors"]) == (1000.0, 10.0, 3)
    assert network["sent_bytes_per_second"] == 0.0, "a counter that was reset is no negative rate"
    assert found["log_directory", "d0"]["free_bytes"] == 60


def test_every_record_has_the_fields_of_its_kind_in_their_types_and_no_other() -> None:
    python_types = {host_schema.TEXT: str, host_schema.TIME: str, host_schema.WHOLE: int, host_schema.NUMBER: float}
    for (kind, _), record in records().items():
        assert record.keys() == {field.name for field in (*COMMON, *FIELDS[kind])}
        for field in (*COMMON, *FIELDS[kind]):
            assert type(record[field.name]) is python_types[field.type], field.name
        assert (record["time"], record["host"], record["broker_id"], record["interval_seconds"]) == ("2023-11-14T22:13:20.123Z", "log1", 7, 10.0)


def test_this_machine_gives_what_the_schema_says() -> None:
    found = records(read_host(1), read_host(2_000_000_000))
    assert found["memory", "all"]["total_bytes"] > found["memory", "all"]["available_bytes"] > 0
    assert found["cpu", "all"].keys() == {field.name for field in (*COMMON, *FIELDS["cpu"])}
    assert found["memory", "all"].keys() == {field.name for field in (*COMMON, *FIELDS["memory"])}


def test_a_directory_lies_on_the_device_of_the_longest_mount_point_above_it() -> None:
    number = next((entry.read_text().strip() for entry in sorted(Path("/sys/block").glob("*/dev"))), "0:0") if Path("/sys/block").exists() else "0:0"
    device = Path(f"/sys/dev/block/{number}").resolve().name if number != "0:0" else None
    mounts = "\n".join(
        (
            f"1 0 {number} / / rw - ext4 /dev/x rw",
            "2 1 0:40 / /srv rw - tmpfs tmpfs rw",
            f"3 2 {number} / /srv/with\\040blank rw - ext4 /dev/x rw",
            f"4 1 {number} / /data rw - ext4 /dev/x rw",
            "5 1 0:41 / /data rw - tmpfs tmpfs rw",
        )
    )
    paths = {"root": "/var/log", "memory": "/srv/d0", "blank": "/srv/with blank/d1", "alike": "/srvs/d2", "covered": "/data/d3"}
    assert devices_of(paths, mounts) == ({"root": device, "blank": device, "alike": device} if device is not None else {})


def test_the_page_has_the_schema() -> None:
    page = (Path(__file__).parents[4] / "docs" / "host-figures.md").read_text()
    marked = page.split("<!-- fields -->\n")[1].split("<!-- /fields -->\n")[0]
    assert marked == host_schema.schema_page(), "make its tables anew from host_schema.schema_page()"
    assert spark_schema().startswith("time TIMESTAMP, host STRING, broker_id BIGINT, kind STRING, ")
