"""kafka-python's integration tests, as its source archive carries them, run by pytest in a process of their own against a box.

The archive lacks `test/service.py`, which starts brokers; ours says that there is one already. Owned by its caller. Weak spot: the suite's idea of a
broker's version is fixed (`KAFKA_VERSION`), and some tests judge by it alone.
"""

from __future__ import annotations

import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Final

from tests.judges.suites import KAFKA_PYTHON, TARGET, unpack

HOME = TARGET / "kafka-python"
STAMP = HOME / ".stamp"
KAFKA_VERSION: Final = "3.9"
BOX_SETTINGS: Final = {"num.partitions": 4, "group.min.session.timeout.ms": 1000, "group.initial.rebalance.delay.ms": 0}
"""The suite's brokers make topics of four partitions and take members with a session of 3 s; it names broker 0."""

_SERVICE = '''"""Stands in for what starts and stops brokers: there is one already."""

from kafka import KafkaConsumer

# A topic that a 3.0.12 consumer subscribes to while its first metadata request is under way is forgotten until the next refresh, five minutes
# later (ClusterMetadata.update_metadata sets _need_update after request_update did): the tests, which wait two seconds or thirty, would fail now and then.
KafkaConsumer.DEFAULT_CONFIG["metadata_max_age_ms"] = 100


class ExternalService:
    def __init__(self, host, port):
        self.host, self.port = host, port


class SpawnedService:
    def __init__(self, *arguments):
        raise RuntimeError("no broker is started here")
'''


def missing() -> str | None:
    """Why the suite cannot be run here; None if it can."""
    if STAMP.exists():
        return None
    return "kafka-python's integration tests are not there (PyPI; python -m tests.judges install kafka-python)"


def install() -> None:
    """Fetch it, if it is not there. SuiteMissing says why it cannot be had."""
    if STAMP.exists():
        return
    unpack(KAFKA_PYTHON, HOME, KAFKA_PYTHON.name.removesuffix(".tar.gz") + "/")
    (HOME / "test" / "__init__.py").touch()
    (HOME / "no-kafka-here").mkdir()
    STAMP.touch()


def run_module(bootstrap: str, module: str, directory: Path, seconds: float) -> dict[str, str]:
    """Every test of `test/integration/<module>.py` → "passes", "fails: why" or "skips: why". Its log is left in `directory`."""
    (HOME / "test" / "service.py").write_text(_SERVICE)
    report = directory / f"{module}.xml"
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "ZOOKEEPER"))}
    environment |= {
        "KAFKA_URI": f"kafka://{bootstrap}",
        "KAFKA_VERSION": KAFKA_VERSION,
        "KAFKA_ROOT": str(HOME / "no-kafka-here"),  # must be a directory, even where it is not used
        "PYTHONPATH": ".",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    options = ["-c", os.devnull, "--rootdir", ".", "-q", "-p", "no:cacheprovider", "-W", "ignore", f"--junitxml={report}"]
    with (directory / f"{module}.log").open("wb") as log:
        command = [sys.executable, "-m", "pytest", *options, f"test/integration/{module}.py"]
        subprocess.run(command, cwd=HOME, env=environment, stdout=log, stderr=subprocess.STDOUT, timeout=seconds, check=False)
    return results_in(ElementTree.parse(report))


def results_in(report: ElementTree.ElementTree[ElementTree.Element]) -> dict[str, str]:
    """Of a JUnit report: the first of a test's outcomes that is none of passing."""
    results: dict[str, str] = {}
    for case in report.iter("testcase"):
        outcome = next((child for child in case if child.tag in ("failure", "error", "skipped")), None)
        kind = "passes" if outcome is None else "skips" if outcome.tag == "skipped" else "fails"
        reason = "" if outcome is None else (outcome.get("message") or "").strip().splitlines()[0] if outcome.get("message") else ""
        name = case.get("name", "")
        if results.get(name, "passes") == "passes":
            results[name] = f"{kind}: {reason}" if reason else kind
    return results
