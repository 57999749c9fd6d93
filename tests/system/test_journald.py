"""A real journald, on a /run of its own: what it makes of our datagrams, asked by journalctl."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from appliance.command.logs import event_of

JOURNALD = "/lib/systemd/systemd-journald"
ROOT = Path(__file__).parent.parent.parent

# In mount namespaces of its own: journald's paths are fixed. Its settings are the directory's that is mounted over /etc/systemd.
SCRIPT = """
set -e
mount -t tmpfs tmpfs /run && mkdir -p /run/systemd/journal /run/log/journal
mount -t tmpfs tmpfs /etc/systemd
printf '[Journal]\\nStorage=volatile\\nReadKMsg=no\\nAudit=no\\nRateLimitBurst=0\\nForwardToSyslog=no\\nForwardToWall=no\\n' > /etc/systemd/journald.conf
"$0" 2>/dev/null & journald=$!
until [ -S /run/systemd/journal/socket ]; do kill -0 $journald; sleep 0.02; done
"$1" -P -c "$2"
journalctl --sync
journalctl --directory=/run/log/journal --all --output=json --no-pager
kill $journald; wait $journald || true
"""

SPEAKER = """
import os
found = os.fstat(2)
os.environ["JOURNAL_STREAM"] = f"{found.st_dev}:{found.st_ino}"
from appliance.base.logging import logger_from_environment
log = logger_from_environment("log-writer@d0")
log.critical("orders-7 is damaged\\n  and this is why", topic="orders", partition=7, disk="d0")
log._journal._socket.setblocking(True)  # this journald has a queue of ten; systemd gives the real one 512
log.info("x" * 1_000_000)
for number in range(1000):
    log.notice(f"line {number}")
log.close()
"""


@pytest.fixture(scope="module")
def entries() -> list[dict[str, Any]]:
    if os.getuid() or not os.path.exists(JOURNALD) or shutil.which("unshare") is None:
        pytest.skip("needs root and systemd-journald")
    unshare = "unshare --mount --propagation slave --pid --mount-proc --fork --kill-child".split()
    command = [*unshare, "bash", "-c", SCRIPT, JOURNALD, sys.executable, SPEAKER]
    answer = subprocess.run(command, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=60, check=True)
    found = [json.loads(line) for line in answer.stdout.splitlines()]
    return [entry for entry in found if entry.get("SYSLOG_IDENTIFIER") == "millrace-log-writer@d0"]


@pytest.mark.system
def test_an_event_of_several_lines_is_one_entry_with_its_fields(entries: list[dict[str, Any]]) -> None:
    first = entries[0]
    assert first["MESSAGE"] == "orders-7 is damaged\n  and this is why"
    assert (first["PRIORITY"], first["_TRANSPORT"]) == ("2", "journal")
    assert {name: value for name, value in first.items() if name.startswith("MILLRACE_")} == {
        "MILLRACE_PROCESS": "log-writer@d0",
        "MILLRACE_TOPIC": "orders",
        "MILLRACE_PARTITION": "7",
        "MILLRACE_DISK": "d0",
    }


@pytest.mark.system
def test_millrace_logs_reads_it_as_it_was_logged(entries: list[dict[str, Any]]) -> None:
    event = event_of(entries[0])
    assert event is not None and event.time_us > 0
    fields = {"topic": "orders", "partition": "7", "disk": "d0"}
    assert event[1:] == ("log-writer@d0", 2, "", "orders-7 is damaged\n  and this is why", fields)


@pytest.mark.system
def test_what_is_too_long_for_a_datagram_is_stored_whole(entries: list[dict[str, Any]]) -> None:
    assert len(entries[1]["MESSAGE"]) == 1_000_000


@pytest.mark.system
def test_of_a_thousand_equal_lines_some_are_stored_and_the_rest_is_counted(entries: list[dict[str, Any]]) -> None:
    texts = [entry["MESSAGE"] for entry in entries[2:]]
    assert texts[:50] == [f"line {number}" for number in range(50)]
    assert texts[50:] == ["line 999 (… and 949 more like this one)"] and entries[-1]["MILLRACE_LINES_UNTOLD"] == "949"
