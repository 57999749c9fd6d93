"""The comparison with real Kafka brokers runs: all brokers start, take their turns, and are gone
afterwards. Figures are not checked.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from lab.running_box import ROOT

pytestmark = pytest.mark.system


@pytest.mark.deep
@pytest.mark.parametrize("words", [["produce", "--only", "1 KB, acks=1, lz4"], ["requests"], ["restart"], ["tls"], ["quotas"]])
def test_a_short_comparison_gives_a_table_and_leaves_nothing_behind(tmp_path: Path, words: list[str]) -> None:
    if shutil.which("java") is None:
        pytest.skip("Kafka needs a Java runtime")
    options = ["--short", "--beside", "kafka3", "--beside", "kafka4", "--scratch", str(tmp_path), "--part", *words]
    command = [sys.executable, "-m", "loadtest", "beside_kafka", *options]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert ended.returncode == 0, ended.stderr
    assert "| row | Millrace | Kafka 3.9 | Kafka 4.3 | × at least |" in ended.stdout
    assert "not recorded" in ended.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.deep
@pytest.mark.parametrize("words", [["replicated", "--only", "1 KB, acks=all", "--only", "catch-up"], ["replicated_partitions"]])
def test_three_boxes_are_compared_with_three_brokers(tmp_path: Path, words: list[str]) -> None:
    if shutil.which("java") is None:
        pytest.skip("Kafka needs a Java runtime")
    command = [sys.executable, "-m", "loadtest", "beside_kafka", "--short", "--scratch", str(tmp_path), "--part", *words]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert ended.returncode == 0, ended.stderr
    assert "| row | Millrace | Kafka 3.9 | × at least |" in ended.stdout and "not recorded" in ended.stderr
    assert list(tmp_path.iterdir()) == []
