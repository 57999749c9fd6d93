"""The commands of README.md, as they stand there and in their order, on a real box.

Only addresses and the path of the command are replaced by those of the box. Weak spot: `./install.sh run` and `test` themselves are not run.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys

import pytest

from lab.running_box import ROOT, RunningBox, environment

pytestmark = [pytest.mark.own_zookeeper, pytest.mark.system, pytest.mark.slow]

MILLRACE = f"{shlex.quote(sys.executable)} -P -m appliance.command.main"
OUTPUT_OF = {
    "topic tail syslog": r'^\{"time":"\d{4}-.*"message":"disk d3 is warm"\}$',
    "/ingest/syslog": r'^\{"received":1,"stored":1,"rejected":0\}',
    "millrace send": r"sent 1,000 records",
    "topic tail numbers": r"^1\n2\n3\n$",
    "millrace status": r"^log-writer@d0 +\d+ +serving .*^numbers +1 +1,000 .*^syslog +4 +2 .*ok$",
    "topic list": r"^numbers +1 .*^syslog +4 ",
    "ingest status": r"2 received = 2 stored \+ 0 duplicate \+ 0 lost \+ 0 in flight",
    "/readyz": r'^\{"status":"ready"',
}
"""What each command shows, by a part of it."""


def commands() -> list[str]:
    blocks = re.findall(r"^```sh\n(.*?)^```", (ROOT / "README.md").read_text(), re.DOTALL | re.MULTILINE)
    return [line for block in blocks for line in block.splitlines()]


def on(box: RunningBox, command: str) -> str:
    """The command with the addresses of this box instead of the default ones."""
    for default, address in {"-P 5514": f"-P {box.syslog.port}", "127.0.0.1:8081": str(box.ingest), "127.0.0.1:8080": str(box.http)}.items():
        command = command.replace(default, address)
    return command.replace(".venv/bin/millrace", MILLRACE)


def test_the_commands_of_the_readme_work_in_their_order(box: RunningBox) -> None:
    shown = []
    for command in commands():
        variables = environment() | {"MILLRACE_DATA": str(box.disks[0])}
        script = ["bash", "-o", "pipefail", "-c", on(box, command)]
        done = subprocess.run(script, env=variables, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, f"{command}: {done.stderr}"
        expected = [pattern for part, pattern in OUTPUT_OF.items() if part in command]
        shown += expected
        for pattern in expected:
            assert re.search(pattern, done.stdout + done.stderr, re.DOTALL | re.MULTILINE), f"{command}: {done.stdout}{done.stderr}"
    assert shown == list(OUTPUT_OF.values()), "a command that the README no longer has"
