"""Prometheus's rules against a real box: faults hit its processes and its disk, and /metrics is read after each.

promtool then plays these readings to the rules, three minutes each, and reports which alerts fire; the
duration that a rule requires takes no real time.
"""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from lab.loop_disks import why_not
from lab.raw_client import RawClient
from lab.running_box import ROOT, RunningBox, eventually
from tests.faults.hurt_box import KAFKA_STORAGE_ERROR, TOPIC, HurtBox

RULES = ROOT / "systemd" / "prometheus-alerts.yml"
MINUTES = 3
WATCHED = "Process.*|WatchdogKill|Disk(Full|Offline)|StorageFailures|PartitionsNotServed"
KILLED, STOPPED = "acceptor@0", "ingest@0"
WATCHDOG_MS = 15_000
"""Less than the default. With two seconds it kills what a test beside this one keeps from a turn."""

pytestmark = [
    pytest.mark.system,
    pytest.mark.slow,
    pytest.mark.skipif(bool(why_not()), reason=why_not()),
    pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not there (./install.sh test unpacks it)"),
]


class Readings:
    """What a box's /metrics said at several moments, of what the rules look at."""

    def __init__(self, box: RunningBox) -> None:
        self._box = box
        self._wanted = set(re.findall(r"millrace_\w+", RULES.read_text()))
        self._taken: list[dict[str, str]] = []

    def read(self) -> dict[str, str]:
        with urllib.request.urlopen(f"http://{self._box.http}/metrics", timeout=10) as answer:
            lines = answer.read().decode().splitlines()
        return {series: value for series, _, value in (line.rpartition(" ") for line in lines) if series.partition("{")[0] in self._wanted}

    def take_when(self, shows: dict[str, float]) -> None:
        """The first reading in which these series have these values."""

        def reading() -> dict[str, str] | None:
            read = self.read()
            return read if all(float(read.get(series, "nan")) == value for series, value in shows.items()) else None

        self._taken.append(eventually(reading, f"/metrics shows {shows}", 20))

    def check_fired(self, expected: list[list[str]], directory: Path) -> None:
        """`expected`: for each reading, the alerts that fire as Prometheus writes them, in its last minute."""
        series = {name: None for reading in self._taken for name in reading}
        values = {name: " ".join(reading.get(name, "_") for reading in self._taken for _ in range(MINUTES)) for name in series}
        query = f'group by (alertname, process, disk, topic) (ALERTS{{alertstate="firing", alertname=~"Millrace({WATCHED})", topic=~"|{TOPIC}"}})'
        tests = [
            {"expr": query, "eval_time": f"{MINUTES * (place + 1) - 1}m", "exp_samples": [{"labels": labels, "value": 1} for labels in alerts]}
            for place, alerts in enumerate(expected)
        ]
        given = [{"series": name, "values": row} for name, row in values.items()]
        file = directory / "alerts-test.yml"  # JSON is YAML
        file.write_text(json.dumps({"rule_files": [str(RULES)], "tests": [{"interval": "1m", "input_series": given, "promql_expr_test": tests}]}))
        checked = subprocess.run(["promtool", "test", "rules", str(file)], capture_output=True, text=True, timeout=60, check=False)
        assert checked.returncode == 0, checked.stdout + checked.stderr


def test_alerts_fire_by_what_a_box_with_hurt_processes_and_a_hurt_disk_says_and_by_nothing_else(hurt_box: Callable[..., HurtBox], tmp_path: Path) -> None:
    hurt = hurt_box(settings={"watchdog.timeout.ms": WATCHDOG_MS, "log.disk.reserve.bytes": 0})
    readings = Readings(hurt.box)
    kills = f'millrace_process_watchdog_kills_total{{process="{STOPPED}"}}'
    readings.take_when({kills: 0, 'millrace_disk_state{disk="hurt",state="online"}': 1})

    hurt.box.await_restart(STOPPED, hurt.box.kill(STOPPED, signal.SIGSTOP), 60)
    for _ in range(4):
        hurt.box.await_restart(KILLED, hurt.box.kill(KILLED))
    starts = f'millrace_process_starts_total{{process="{KILLED}"}}'
    readings.take_when({kills: 1, starts: 5, f'millrace_process_serving{{process="{KILLED}"}}': 1, f'millrace_process_serving{{process="{STOPPED}"}}': 1})
    restarted = [f'{{alertname="MillraceProcessRestarts", process="{KILLED}"}}', f'{{alertname="MillraceWatchdogKill", process="{STOPPED}"}}']

    hurt.client.close()
    hurt.client = RawClient(hurt.box.kafka)  # that of before was the dead acceptor's
    ballast = hurt.disk.fill()
    eventually(lambda: hurt.produce("does not fit") == KAFKA_STORAGE_ERROR, "a client receives an error of the full disk")
    readings.take_when({'millrace_disk_state{disk="hurt",state="full"}': 1})
    full = ['{alertname="MillraceDiskFull", disk="hurt"}']
    ballast.unlink()
    hurt.await_return()

    hurt.disk.shut_down()
    hurt.seconds_until_refused(0)
    readings.take_when({'millrace_disk_state{disk="hurt",state="offline"}': 1, f'millrace_topic_partitions_not_served{{topic="{TOPIC}"}}': 1})
    offline = [f'{{alertname="Millrace{name}", disk="hurt"}}' for name in ("DiskOffline", "StorageFailures")]
    down = ['{alertname="MillraceProcessDown", process="log-writer@hurt"}', f'{{alertname="MillracePartitionsNotServed", topic="{TOPIC}"}}']
    readings.check_fired([[], restarted, [*restarted, *full], [*restarted, *offline, *down]], tmp_path)
