"""The wall clock of a process with `lab/shifted_clock` on its path follows a file, at any time."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import time
from pathlib import Path

from lab.running_box import ROOT, environment

TELL = "import sys; from appliance.base.clock import SystemClock\nfor _ in sys.stdin: print(SystemClock().wall_ms(), flush=True)"


def test_the_wall_clock_of_a_process_jumps_and_returns(tmp_path: Path) -> None:
    file = tmp_path / "shift"
    file.write_bytes(bytes(8))
    usual = environment()
    variables = usual | {"MILLRACE_TEST_SHIFT": str(file), "PYTHONPATH": f"{ROOT}/lab/shifted_clock{os.pathsep}{usual['PYTHONPATH']}"}
    told = []
    with subprocess.Popen([sys.executable, "-P", "-c", TELL], env=variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None and process.stdout is not None
        for shift in (0, 3_600_000, -7_200_000, 0):
            with open(file, "r+b") as opened:
                opened.write(struct.pack("<q", shift))
            process.stdin.write(b"?\n")
            process.stdin.flush()
            told.append(int(process.stdout.readline()) - time.time_ns() // 1_000_000 - shift)
    assert all(abs(difference) < 60_000 for difference in told)
