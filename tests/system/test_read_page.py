"""The examples of docs/read.md for groups and derived feeds, as they stand there."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from lab.running_box import ROOT, RunningBox, eventually

pytestmark = [pytest.mark.system, pytest.mark.slow]

PAGE = (ROOT / "docs/read.md").read_text()
LIVES, RECORDS = 2, 1_000
"""How often the program is killed while it has work, and what comes before each."""


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory, start_shared: Callable[..., RunningBox]) -> Iterator[RunningBox]:
    box = start_shared(tmp_path_factory.mktemp("read") / "box", settings={"group.initial.rebalance.delay.ms": 0})
    yield box
    box.stop()


@pytest.fixture
def started() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Programs that end with the test."""
    processes: list[subprocess.Popen[bytes]] = []
    yield processes
    for process in processes:
        process.kill()
        process.wait()


def create(box: RunningBox, topic: str, partitions: int) -> None:
    admin = AdminClient({"bootstrap.servers": box.bootstrap})
    admin.create_topics([NewTopic(topic, partitions)])[topic].result(60)


def test_a_queue_gives_each_record_to_one_consumer_and_a_topic_to_every_group(box: RunningBox, tmp_path: Path, started: list[subprocess.Popen[bytes]]) -> None:
    create(box, "jobs", 2)
    queue, topic = re.findall(r"^(kcat .* -G \w+ jobs) +#", PAGE, re.MULTILINE)
    for name, command in (("first", queue), ("second", queue), ("other", topic)):
        with (tmp_path / name).open("wb") as output, (tmp_path / f"{name}.said").open("wb") as said:
            started.append(subprocess.Popen(command.replace("box:9092", box.bootstrap).split(), stdout=output, stderr=said))

    def partitions(name: str) -> str:
        return (re.findall(r"assigned: (.*)", (tmp_path / f"{name}.said").read_text()) or [""])[-1]

    eventually(lambda: {partitions("first"), partitions("second")} == {"jobs [0]", "jobs [1]"} and "jobs [1]" in partitions("other"), "members have partitions")
    producer = Producer({"bootstrap.servers": box.bootstrap})
    for number in range(20):
        producer.produce("jobs", str(number), partition=number % 2)
    assert producer.flush(60) == 0
    even, odd = ([str(number) for number in range(first, 20, 2)] for first in (0, 1))

    def received(name: str) -> list[str]:
        return (tmp_path / name).read_text().split()

    eventually(lambda: sorted([received("first"), received("second")]) == sorted([even, odd]), "each record came to one member")
    eventually(lambda: sorted(received("other")) == sorted(even + odd), "every record came to the other group")


def test_the_derived_feed_has_each_record_once_though_its_program_is_killed(box: RunningBox, tmp_path: Path, started: list[subprocess.Popen[bytes]]) -> None:
    create(box, "orders", 2)
    create(box, "loud-orders", 1)
    (example,) = re.findall(r"```python\n(from confluent_kafka.*?)```", PAGE, re.DOTALL)
    program = tmp_path / "program.py"
    program.write_text(example.replace("box:9092", box.bootstrap).replace("consume(500", "consume(20"))  # many transactions
    producer = Producer({"bootstrap.servers": box.bootstrap})

    def copied() -> list[str]:
        words = ["kcat", "-b", box.bootstrap, "-t", "loud-orders", "-C", "-o", "beginning", "-e", "-q", "-X", "isolation.level=read_committed"]
        return subprocess.run(words, check=True, capture_output=True, text=True, timeout=60).stdout.splitlines()

    def run_until(wanted: int) -> None:
        """Start the program, and kill it once so many records are copied."""
        started.append(subprocess.Popen([sys.executable, "-P", program]))
        eventually(lambda: len(copied()) >= wanted, f"{wanted} records are copied")
        started[-1].kill()
        started[-1].wait()

    for life in range(LIVES):
        for number in range(life * RECORDS, (life + 1) * RECORDS):
            producer.produce("orders", f"order {number}", key=str(number))
        assert producer.flush(60) == 0
        run_until(len(copied()) + 1)
    run_until(LIVES * RECORDS)
    assert sorted(copied()) == sorted(f"ORDER {number}" for number in range(LIVES * RECORDS))
