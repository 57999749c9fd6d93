"""What clients create by naming it has a bound: topics, partitions, groups, members, transactional ids, topic expressions; and names act on no
terminal. One real box with small bounds."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from appliance.base.errors import ErrorCode, RequestRefused
from appliance.client.address import Address
from appliance.client.admin import create_topic
from appliance.client.cluster import ClusterClient
from appliance.cluster.metadata_image import read_image
from appliance.protocol import consumer_group_apis, group_apis
from appliance.records.builder import BatchBuilder
from lab import kio_adapter
from lab.raw_client import METADATA, METADATA_VERSION
from lab.raw_coordination import RawCoordination
from lab.running_box import RunningBox, environment, eventually, start_box

pytestmark = [pytest.mark.system, pytest.mark.slow]

MIB = 1 << 20
LONG_TOPICS = 12
HOSTILE_PATTERNS = ["(?:[ab]{0,39}){0,39}x", "(.*a.{200})?(.*b.{200})?(.*a.{200})?.*x", f"[{'ab' * 450}]{{1000}}", "(a?){500}a{500}"]
ROUNDS = 6
TOPICS_MAX, PARTITIONS_MAX, GROUPS_MAX, IDS_MAX = LONG_TOPICS + 6, LONG_TOPICS + 30, 60, 3
REFUSED = int(ErrorCode.POLICY_VIOLATION)
SETTINGS = {
    "max.topics": TOPICS_MAX,
    "max.partitions.per.box": PARTITIONS_MAX,
    "max.groups": GROUPS_MAX,
    "max.transactional.ids": IDS_MAX,
    "group.max.size": 2,
    "coordinator.heap.bytes": 64 * MIB,
    "group.consumer.regex.max": 8,
    "offsets.topic.num.partitions": 1,
    "transaction.state.log.num.partitions": 1,
    "acceptor.arena.bytes": 16 * MIB,
    "socket.request.max.bytes": 8 * MIB,
    "disk.budget.bytes": 8 * MIB,
    "ingest.arena.bytes": 8 * MIB,
}


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBox]:
    running = start_box(tmp_path_factory.mktemp("box"), disks=1, settings=SETTINGS)
    with closing(ClusterClient([Address(*running.kafka)])) as cluster:
        chosen = random.Random(1)
        for _ in range(LONG_TOPICS):
            create_topic(cluster, "".join(chosen.choice("ab") for _ in range(249)), partitions=1, replication_factor=1)
    client = RawCoordination(running.kafka)
    eventually(lambda: client.find_coordinators("bystander") == [0, 0], "the box coordinates groups")
    eventually(lambda: client.committed("bystander", "ab")[0] == 0, "the group is loaded")
    client.close()
    yield running
    running.stop()


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as opened:
        yield opened


def batch(value: bytes) -> bytes:
    builder = BatchBuilder()
    builder.append(1_700_000_000_000, None, value)
    return builder.build()


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
        for number, pattern in enumerate(HOSTILE_PATTERNS * ROUNDS):
            codes.append(join_by_pattern(hostile, f"hostile-{number}", pattern).error_code)

    attacker = threading.Thread(target=attack)
    attacker.start()
    waited = []
    while attacker.is_alive() or not waited:
        began = time.monotonic()
        assert bystander.committed("bystander", "ab")[0] == 0
        waited.append(time.monotonic() - began)
    attacker.join()
    assert set(codes) <= {0, int(ErrorCode.INVALID_REGULAR_EXPRESSION)} and len(codes) == ROUNDS * len(HOSTILE_PATTERNS)
    assert coordinator_cpu(box) - before < 1.5 and max(waited) < 5, (coordinator_cpu(box) - before, max(waited), codes)


def test_expressions_beyond_the_bound_are_refused_and_counted(box: RunningBox, stack: ExitStack) -> None:
    client = stack.enter_context(closing(RawCoordination(box.kafka)))
    answers = [join_by_pattern(client, f"many-{number}", f"ab.*|x{number}") for number in range(9)]
    assert answers[-1].error_code == ErrorCode.INVALID_REGULAR_EXPRESSION and "regular expressions" in answers[-1].error_message
    assert box.counters("coordinator").values['coordinator.refused{bound="regexes"}'] >= 1


def refused(box: RunningBox, process: str, bound: str) -> int:
    return int(box.counters(process).values[f'{process}.refused{{bound="{bound}"}}'])


def test_members_of_one_group_end_at_the_bound(box: RunningBox, stack: ExitStack) -> None:
    client = stack.enter_context(closing(RawCoordination(box.kafka)))
    codes = []
    for _ in range(3):
        client.send_join("crowd")
        codes.append(client.receive_join().error_code)
    assert codes == [int(ErrorCode.MEMBER_ID_REQUIRED)] * 2 + [int(ErrorCode.GROUP_MAX_SIZE_REACHED)]
    assert refused(box, "coordinator", "members") == 1


def test_transactional_ids_end_at_the_bound(box: RunningBox, stack: ExitStack) -> None:
    client = stack.enter_context(closing(RawCoordination(box.kafka)))
    eventually(lambda: client.init_producer("producer-0").error_code == 0, "the transaction coordinator serves")
    codes = [client.init_producer(f"producer-{number}").error_code for number in range(IDS_MAX + 2)]
    assert codes == [0] * IDS_MAX + [REFUSED] * 2 and refused(box, "coordinator", "transactional_ids") == 2


def test_partitions_end_at_the_bound_and_say_how_many_there_are(box: RunningBox) -> None:
    with closing(ClusterClient([Address(*box.kafka)])) as cluster, pytest.raises(RequestRefused, match=r"broker 1 has \d+ and max\.partitions\.per\.box is 42"):
        create_topic(cluster, "wide", partitions=30, replication_factor=1)
    assert refused(box, "controller", "partitions") == 1


def test_topics_by_metadata_requests_end_at_the_bound(box: RunningBox, stack: ExitStack) -> None:
    client = stack.enter_context(closing(RawCoordination(box.kafka)))
    client.send_metadata([f"made-{number}" for number in range(40)], creates=True)
    answer = kio_adapter.decode_response(METADATA, METADATA_VERSION, client.receive()[1])
    codes = [int(topic.error_code) for topic in answer.topics]
    image = read_image(box.layout.image_file)
    assert image is not None
    created = [name for name in image.topics if name.startswith("made-")]
    assert 0 < len(created) and sum(not topic.is_internal for topic in image.topics.values()) == TOPICS_MAX
    assert codes.count(REFUSED) == 40 - len(created) == refused(box, "controller", "topics")
    assert client.produce("made-0", 0, batch(b"served")).error_code == 0


def test_a_group_id_acts_on_no_terminal_and_forges_no_row(box: RunningBox, stack: ExitStack) -> None:
    client = stack.enter_context(closing(RawCoordination(box.kafka)))
    assert client.commit("evil\x1b[31m\x1b]0;title\x07\nfake-group  Stable  \u202e", "syslog", 0) == 0
    command = [sys.executable, "-P", "-m", "appliance.command.main", "group", "list", "--bootstrap", box.bootstrap]

    def output(*options: str) -> str:
        return subprocess.run([*command, *options], env=environment(), capture_output=True, text=True, timeout=60, check=True).stdout

    shown = output()
    assert "evil\\x1b[31m\\x1b]0;title\\x07\\x0afake-group  Stable  \\u202e" in shown
    assert all(character.isprintable() or character == "\n" for character in shown) and not any(line.startswith("fake-group") for line in shown.splitlines())
    listed = json.loads(output("--json"))
    assert any(group["group_id"].startswith("evil\x1b[31m") for group in listed)


def test_groups_by_commits_end_at_the_bound(box: RunningBox, stack: ExitStack) -> None:
    client = stack.enter_context(closing(RawCoordination(box.kafka)))
    codes = [client.commit(f"group-{number}", "syslog", 0) for number in range(GROUPS_MAX + 1)]
    assert codes[0] == 0 and codes[-1] == REFUSED and sorted(codes) == codes and codes.count(REFUSED) == refused(box, "coordinator", "groups")
    assert client.commit("group-0", "syslog", 1) == 0


def test_members_and_offsets_end_at_the_memory_of_the_coordinator(box: RunningBox, stack: ExitStack) -> None:
    """After the test above: the groups are there."""
    client = stack.enter_context(closing(RawCoordination(box.kafka)))
    question, metadata = group_apis.JOIN_GROUP_REQUEST, bytes(3 * MIB)
    for number in range(1, 40):
        joining = stack.enter_context(closing(RawCoordination(box.kafka)))
        request = group_apis.JoinGroupRequest(f"group-{number}", 30_000, 30_000, "", None, "any", (group_apis.JoinGroupProtocol("any", metadata),))
        asked = box.counters("coordinator").values["coordinator.requests"]
        joining.send(question.api.key, 3, question.encode(3, request))
        eventually(lambda asked=asked: box.counters("coordinator").values["coordinator.requests"] > asked, "it has come")  # type: ignore[misc]
        eventually(lambda: client.committed("group-0", "syslog")[0] == 0, "the coordinator answers")
        if refused(box, "coordinator", "memory"):
            break
    assert refused(box, "coordinator", "memory") and number <= 22, "a member has 3 MiB, the coordinator 64"
    image = read_image(box.layout.image_file)
    assert image is not None
    others = list(range(number + 1, 40))

    def commit_is_refused() -> bool:
        """Behind another member: the memory is looked at now and then, and what a refused member took for a moment is free at the next look."""
        assert others, "each time there was memory for an offset"
        other = others.pop()
        joining = stack.enter_context(closing(RawCoordination(box.kafka)))
        asked = box.counters("coordinator").values["coordinator.requests"]
        joining.send(question.api.key, 3, question.encode(3, request._replace(group_id=f"group-{other}")))
        eventually(lambda: box.counters("coordinator").values["coordinator.requests"] > asked, "it has come")
        return client.commit(f"group-{other + 20}", max(image.topics, key=len), 0) == REFUSED

    eventually(commit_is_refused, "another offset is refused")
    assert client.commit("group-0", "syslog", 2) == 0


def test_the_size_of_zookeepers_tree_is_known(box: RunningBox) -> None:
    def values() -> list[int]:
        found = box.counters("zookeeper").values
        return [found.get(f"zookeeper.{name}", 0) for name in ("znodes", "tree_bytes", "heap_bytes")]

    eventually(lambda: values()[0] > 6 * LONG_TOPICS, "ZooKeeper is asked again, twice in the time of the watchdog", 40)
    znodes, tree_bytes, heap_bytes = values()
    assert 500 * znodes < tree_bytes < 2_000 * znodes and heap_bytes == 64 << 20
