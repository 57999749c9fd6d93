"""What a client creates or computes by naming it has a bound: topic expressions, against one real box with small bounds."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from appliance.base.errors import ErrorCode
from appliance.client.address import Address
from appliance.client.admin import create_topic
from appliance.client.cluster import ClusterClient
from appliance.protocol import consumer_group_apis
from lab.raw_coordination import RawCoordination
from lab.running_box import RunningBox, eventually, start_box

pytestmark = [pytest.mark.system, pytest.mark.slow]

MIB = 1 << 20
LONG_TOPICS = 12
HOSTILE_PATTERNS = ["([ab]{0,30}){0,30}" * 3, "(?:[0-9a-f]?[0-9a-z]?){99}.*", f"[{'ab' * 450}]{{1000}}", "(a?){500}a{500}"]
SETTINGS = {"group.consumer.regex.max": 8, "offsets.topic.num.partitions": 1, "acceptor.arena.bytes": 16 * MIB, "ingest.arena.bytes": 8 * MIB}


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBox]:
    running = start_box(tmp_path_factory.mktemp("box"), disks=1, settings=SETTINGS)
    with closing(ClusterClient([Address(*running.kafka)])) as cluster:
        for number in range(LONG_TOPICS):
            create_topic(cluster, f"{'ab' * 120}{number:03}", partitions=1, replication_factor=1)
    client = RawCoordination(running.kafka)
    eventually(lambda: client.find_coordinators("bystander") == [0, 0], "the box coordinates groups", 30)
    eventually(lambda: client.committed("bystander", "ab")[0] == 0, "the group is loaded", 30)
    client.close()
    yield running
    running.stop()


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as opened:
        yield opened


def coordinator_cpu(box: RunningBox) -> float:
    """In seconds, since its start."""
    fields = Path(f"/proc/{box.pid('coordinator')}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def join_by_pattern(client: RawCoordination, group: str, pattern: str) -> Any:
    request = consumer_group_apis.ConsumerGroupHeartbeatRequest(
        group, f"member-{group}", 0, rebalance_timeout_ms=60_000, subscribed_topic_regex=pattern, topic_partitions=()
    )
    question, reply = consumer_group_apis.CONSUMER_GROUP_HEARTBEAT_REQUEST, consumer_group_apis.CONSUMER_GROUP_HEARTBEAT_RESPONSE
    sent = client.send(question.api.key, 1, b"\0" + question.encode(1, request))
    received, answer = client.receive()
    assert received == sent
    return reply.decode(answer, 1, len(answer), 1)


def test_hostile_topic_expressions_take_little_of_the_coordinator_and_delay_no_other_client(box: RunningBox, stack: ExitStack) -> None:
    hostile = stack.enter_context(closing(RawCoordination(box.kafka)))
    bystander = stack.enter_context(closing(RawCoordination(box.kafka)))
    before = coordinator_cpu(box)
    codes: list[int] = []

    def attack() -> None:
        for number, pattern in enumerate(HOSTILE_PATTERNS * 2):
            codes.append(join_by_pattern(hostile, f"hostile-{number}", pattern).error_code)

    attacker = threading.Thread(target=attack)
    attacker.start()
    waited = []
    while attacker.is_alive() or not waited:
        began = time.monotonic()
        assert bystander.committed("bystander", "ab")[0] == 0
        waited.append(time.monotonic() - began)
    attacker.join()
    assert set(codes) <= {0, int(ErrorCode.INVALID_REGULAR_EXPRESSION)} and len(codes) == 2 * len(HOSTILE_PATTERNS)
    assert coordinator_cpu(box) - before < 1.5 and max(waited) < 2, (coordinator_cpu(box) - before, max(waited), codes)


def test_expressions_beyond_the_bound_are_refused_and_counted(box: RunningBox, stack: ExitStack) -> None:
    client = stack.enter_context(closing(RawCoordination(box.kafka)))
    answers = [join_by_pattern(client, f"many-{number}", f"ab.*|x{number}") for number in range(9)]
    assert answers[-1].error_code == ErrorCode.INVALID_REGULAR_EXPRESSION and "regular expressions" in answers[-1].error_message
    assert box.counters("coordinator").values['coordinator.refused{bound="regexes"}'] >= 1
