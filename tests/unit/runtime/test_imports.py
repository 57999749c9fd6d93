"""Every process pays for what it imports, a dozen times over: the long-lived ones stay free of what they do not need."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent.parent
HEAVY = ("numpy", "kio", "asyncio", "rich", "typer", "subprocess", "argparse", "logging", "msgspec", "kazoo", "psutil")
LEAN = (
    *(f"services.{name}.agent" for name in ("acceptor", "log_writer", "log_reader", "ingest")),
    *("services.zookeeper.zookeeper_keeper", "services.supervisor.supervisor", "services.supervisor.box_keeper"),
)


@pytest.mark.slow
@pytest.mark.parametrize("module", LEAN)
def test_a_long_lived_process_imports_nothing_heavy(module: str) -> None:
    program = f"import sys, {module}; print(*(name for name in {HEAVY!r} if name in sys.modules))"
    answer = subprocess.run([sys.executable, "-P", "-c", program], env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=True)
    assert answer.stdout.split() == []
