"""Turns of a mirror whose target and source are scripted brokers."""

from __future__ import annotations

import re
from typing import Any

import pytest

from appliance.base.clock import ManualClock
from appliance.base.errors import ErrorCode, RequestRefused
from appliance.base.model import NO_LEADER, BrokerId, Offset, TopicPartition
from appliance.client import messages
from services.mirror.mirror import LOST, TOO_LARGE, Mirror, MirrorFenced
from services.mirror.mirror_file import ClusterOptions, MirroredSource, MirrorOptions
from services.mirror.source import COPYING, STOPPED, MirroredPartition
from services.mirror.target_topics import prepare_topics
from services.mirror.topic_rules import CopiedTopic
from tests.unit.client.fake_kafka_broker import TOPIC, FakeKafkaBroker

TOPICS_MS = 30_000


class ScriptedMirror:
    """A mirror with one partition that has no position yet."""

    def __init__(self, on_source_change: str = "continue") -> None:
        self.clock = ManualClock()
        self.broker = FakeKafkaBroker()
        self.said: list[str] = []
        cluster = ClusterOptions([self.broker.address], None)
        source = MirroredSource("a", cluster, [re.compile(".*")], [], "", "earliest", on_source_change, [])
        options = MirrorOptions("m", cluster, [source], None, True, 0, TOPICS_MS, 60_000, 5_000, "status.json")
        self.mirror = self.broker.keep(Mirror(options, self.clock, self.said.append, lambda seconds: None))
        self.source = self.mirror.sources[0]
        name = TopicPartition(TOPIC, 0)
        self.partition = self.source.partitions[name] = MirroredPartition(name, name, None)
        self.partition.leader = BrokerId(1)
        self.partition.go_to(Offset(0))
        self.end_offset, self.error = 7, 0
        self.broker.answers[messages.LIST_OFFSETS] = self.list_offsets

    def list_offsets(self, request: Any) -> dict[str, Any]:
        offset = -1 if self.error else self.end_offset
        answer = {"partition_index": 0, "error_code": self.error, "timestamp": -1, "offset": offset, "leader_epoch": 0}
        return {"throttle_time": 0, "topics": [{"name": TOPIC, "partitions": [answer]}]}

    def look_for_lost(self) -> set[MirroredPartition]:
        return self.mirror.find_lost_positions()

    def look_due_ms(self) -> int:
        """Plan the next look at the source's topics, and return in how many ms it is."""
        now_ms = self.clock.monotonic_ms()
        self.mirror.topics_due_ms["a"] = now_ms + TOPICS_MS
        self.mirror.plan_next_look(self.source, now_ms)
        return self.mirror.topics_due_ms["a"] - now_ms


SCRIPTED = ScriptedMirror
"""What the fixtures `scripted` and `strict` make."""


def test_a_partition_without_a_leader_is_looked_for_at_longer_and_longer_intervals(scripted: ScriptedMirror) -> None:
    scripted.source.is_stale = False
    assert scripted.look_due_ms() == TOPICS_MS
    scripted.partition.leader = NO_LEADER
    assert [scripted.look_due_ms() for _ in range(8)] == [500, 1_000, 2_000, 4_000, 8_000, 16_000, TOPICS_MS, TOPICS_MS]
    assert not scripted.source.is_stale
    scripted.partition.state = STOPPED
    assert scripted.look_due_ms() == TOPICS_MS, "nothing is read from it"
    scripted.partition.state = COPYING
    assert scripted.look_due_ms() == 500, "a leader was there between"


def test_the_target_is_not_asked_about_a_partition_that_stopped(strict: ScriptedMirror) -> None:
    assert strict.look_for_lost() == set()
    assert (strict.partition.state, strict.partition.problem) == (STOPPED, LOST)
    asked = len(strict.broker.requests)
    strict.look_for_lost()
    assert len(strict.broker.requests) == asked


def test_a_target_that_does_not_say_whether_it_has_records_is_asked_again_after_a_pause(scripted: ScriptedMirror) -> None:
    scripted.error = ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert scripted.look_for_lost() == {scripted.partition}
    asked = len(scripted.broker.requests)
    assert scripted.look_for_lost() == {scripted.partition} and len(scripted.broker.requests) == asked
    assert scripted.partition.needs_commit and scripted.partition.problem == ""
    scripted.error = 0
    scripted.clock.advance_ms(500)
    assert scripted.look_for_lost() == set() and scripted.partition.problem == LOST


def test_records_of_another_source_in_a_shared_target_mean_no_lost_position(scripted: ScriptedMirror) -> None:
    other = scripted.source.partitions[TopicPartition("other", 0)] = MirroredPartition(TopicPartition("other", 0), scripted.partition.target, None)
    assert scripted.look_for_lost() == set()
    assert (scripted.partition.problem, other.problem) == ("", "")


def test_a_turn_over_many_topics_reports_between_them_and_can_be_stopped_there(scripted: ScriptedMirror) -> None:
    """Each creation waits for the controller: thousands take longer than the watchdog of the unit."""
    broker, target = scripted.broker, scripted.mirror.target
    codes = [ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.TOPIC_AUTHORIZATION_FAILED]

    def create(request: Any) -> dict[str, Any]:
        topics = [{"name": each.name, "error_code": int(codes.pop()), "error_message": "no", "topic_id": None, "configs": []} for each in request.topics]
        return {"throttle_time": 0, "topics": topics}

    broker.answers[messages.CREATE_TOPICS] = create
    found = target.metadata()
    copied = [CopiedTopic(TOPIC, f"copy-{number}") for number in range(3)]
    calls: list[int] = []

    def on_progress() -> None:
        calls.append(broker.count_of("create_topics"))
        if len(calls) == 3:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        prepare_topics(target, scripted.mirror.options, {}, found, copied, on_progress)
    assert calls == [0, 1, 2]


def test_a_failure_outside_of_a_round_is_over_with_the_next_turn(scripted: ScriptedMirror) -> None:
    """With idle sources the next commit may be an hour away."""
    mirror = scripted.mirror
    mirror.on_target_failed(RequestRefused(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "it is starting"))
    assert mirror.problem == "it is starting"
    mirror.is_begun, mirror.topics_due_ms["a"], scripted.source.is_stale = True, TOPICS_MS, False
    scripted.partition.needs_commit = False
    scripted.partition.state = STOPPED
    scripted.clock.advance_ms(500)
    mirror.step()
    assert mirror.problem == "" and scripted.said == ["target: it is starting; retrying", "target: writing again"]


@pytest.mark.parametrize("code", sorted(TOO_LARGE))
def test_a_partition_whose_batch_was_too_large_is_copied_without_joining(scripted: ScriptedMirror, code: ErrorCode) -> None:
    scripted.mirror.on_target_failed(RequestRefused(ErrorCode.NOT_ENOUGH_REPLICAS, "too few"), scripted.partition)
    assert scripted.partition.joins
    scripted.mirror.on_target_failed(RequestRefused(code, "too large"), scripted.partition)
    assert not scripted.partition.joins


def test_a_mirror_that_another_one_fenced_ends(scripted: ScriptedMirror) -> None:
    with pytest.raises(MirrorFenced, match="another process runs mirror m"):
        scripted.mirror.on_target_failed(RequestRefused(ErrorCode.PRODUCER_FENCED, "fenced"))
