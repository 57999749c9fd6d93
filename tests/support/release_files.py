"""What the settings file and the ingest table of a stored release mean, and the systemd units
planned for them.

Plain values under names of their own, so that a stored expectation outlives a renamed field. Weak
spot: certificates and TLS listeners are not in the table.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, NamedTuple

from appliance.base.layout import box_name, name_disks
from appliance.runtime.run_options import ResolvedOptions, RunOptions, resolve_options
from appliance.runtime.unit_files import plan_units, planned_box, unit_problems
from appliance.senders.listener import Listener
from appliance.senders.sender_tables import TableReading, read_tables
from appliance.senders.table_checks import box_of, read_sender_table
from services.ingest.replay.journal_records import decode_all

MOUNT_POINTS: Final = {
    "/srv/disk1/d0": "/srv/disk1",
    "/srv/disk2/d1": "/srv/disk2",
    "/srv/disk2/d2": "/srv/disk2",
}
"""Of the disks of the stored settings file."""


class SampleRecord(NamedTuple):
    """What routes look at."""

    facility: int | None = None
    severity: int | None = None
    host: str | None = None
    app: str | None = None
    tag: str | None = None
    labels: dict[str, Any] | None = None
    fields: dict[str, Any] | None = None


SAMPLES: Final = {
    "an error": SampleRecord(1, 3, "host1", "app"),
    "a notice": SampleRecord(1, 5, "host1", "app"),
    "a login": SampleRecord(4, 6, "gate", "sshd-session"),
    "a failed request": SampleRecord(labels={"job": "nginx"}, fields={"http": {"status": 500}}),
    "a request": SampleRecord(labels={"job": "nginx"}, fields={"http": {"status": 200}}),
    "a dropped one": SampleRecord(fields={"drop": "yes", "user": "ann"}),
}


def options_of_files(release: Path) -> ResolvedOptions:
    """The stored settings file, with the table beside it. Fails if it has problems."""
    options, problems = resolve_options(RunOptions(config=str(release / "millrace.toml")), 2)
    assert problems == []
    return options._replace(old_table=str(release / "ingest.table"))


def plan_of_files(release: Path) -> dict[str, str]:
    """The text of each planned unit file by its name; `units` is the list of the services."""
    options = options_of_files(release)
    disks = name_disks(options.data)
    senders = read_sender_table(options)
    assert list(senders.problems) == unit_problems(options, {"data": options.data, "state": options.state}, disks) == []
    plan = plan_units(planned_box(options, box_name(options.state), disks, senders), MOUNT_POINTS)
    return {**plan.drop_ins, "units": "".join(f"{unit}\n" for unit in plan.units)}


def describe_table(release: Path) -> dict[str, Any]:
    """Every listener, and where each sample goes from it."""
    options = options_of_files(release)
    senders = read_sender_table(options)
    assert senders.problems == ()
    reading = read_tables(senders.tables, "", box_of(options))
    sockets = [[each.name, each.is_datagram, each.address, each.port] for each in senders.sockets]
    listeners = {listener.name: _describe_listener(listener) for listener in reading.listeners}
    routes = {listener.name: _describe_routes(reading, listener) for listener in reading.listeners}
    return {
        "sockets": sockets,
        "listeners": listeners,
        "routes": routes,
        "dead_letter": reading.routes.dead_letter,
    }


def _describe_listener(listener: Listener) -> dict[str, Any]:
    return {
        "protocol": str(listener.protocol),
        "transport": str(listener.transport),
        "address": listener.address,
        "port": listener.port,
        "topic": listener.topic,
        "key": listener.key.text,
        "acks": listener.acks,
        "raw": listener.raw,
        "time-zone": listener.time_zone,
        "max-message-bytes": listener.message_bytes_max,
        "max-frame-bytes": listener.frame_bytes_max,
        "proxy": str(listener.proxy),
        "idle-seconds": listener.idle_ms_max // 1000,
    }


def _describe_routes(reading: TableReading, listener: Listener) -> dict[str, Any]:
    router = reading.router()
    return {name: [[each.topic, each.key.text, each.is_key_required] for each in router.route(sample, listener)] for name, sample in SAMPLES.items()}


def count_journal_records(directory: Path) -> int:
    """Records in the replay journals of ingest, of the kinds that are known. Raises `Damaged`."""
    return sum(sum(1 for _ in decode_all(journal.read_bytes())) for journal in sorted((directory / "state").rglob("*.journal")))
