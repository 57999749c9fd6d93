"""`millrace topic trim`: what goes is shown before it goes, and nothing else does."""

from __future__ import annotations

import io
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

from appliance.base.errors import ErrorCode, RequestRefused
from appliance.base.time_texts import moment_text
from appliance.client import messages
from appliance.client.admin import DescribedTopic
from appliance.client.cluster import TopicMetadata
from appliance.client.trims import Limit, plan_trims
from appliance.command.failures import PartlyDone, UsageProblem, exit_code
from appliance.command.topic_trim import parse_limit, trim
from appliance.protocol.offset_apis import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP
from tests.unit.client.fake_kafka_broker import TOPIC, FakeKafkaBroker

NOW_MS = 1_800_000_000_000
STARTS, ENDS = {0: 10, 1: 0}, {0: 50, 1: 30}
AT_TIME = {0: 20, 1: -1}
"""The first offset at the time that is asked about; partition 1 has only older records."""


class Broker(FakeKafkaBroker):
    """Refuses to delete from the partitions in `refusing`."""

    refusing: frozenset[int] = frozenset()

    def list_offsets(self, request: Any) -> dict[str, Any]:
        def answer(asked: Any) -> dict[str, Any]:
            found = {EARLIEST_TIMESTAMP: STARTS, LATEST_TIMESTAMP: ENDS}.get(asked.timestamp, AT_TIME)
            return {"partition_index": asked.partition_index, "error_code": 0, "timestamp": -1, "offset": found[asked.partition_index], "leader_epoch": 0}

        return {"throttle_time": 0, "topics": [{"name": TOPIC, "partitions": [answer(asked) for topic in request.topics for asked in topic.partitions]}]}

    def delete_records(self, request: Any) -> dict[str, Any]:
        def answer(asked: Any) -> dict[str, Any]:
            code = ErrorCode.POLICY_VIOLATION if asked.partition_index in self.refusing else ErrorCode.NONE
            return {"partition_index": asked.partition_index, "low_watermark": asked.offset, "error_code": int(code)}

        return {"throttle_time": 0, "topics": [{"name": topic.name, "partitions": [answer(asked) for asked in topic.partitions]} for topic in request.topics]}

    @property
    def deleted(self) -> dict[int, int]:
        return {
            asked.partition_index: asked.offset
            for name, request in self.requests
            if name == "delete_records"
            for topic in request.topics
            for asked in topic.partitions
        }


@pytest.fixture
def broker() -> Iterator[Broker]:
    made = Broker(partitions=2)
    made.answers[messages.DELETE_RECORDS] = made.delete_records
    yield made
    made.close()


def trim_all(broker: Broker, **options: Any) -> None:
    trim(TOPIC, bootstrap=str(broker.address), **{"yes": True, **options})


def test_a_time_is_another_offset_in_each_partition(broker: Broker, capsys: pytest.CaptureFixture[str]) -> None:
    trim_all(broker, before="7d")
    assert broker.deleted == {0: 20, 1: 30}
    said = capsys.readouterr().out.splitlines()
    assert [line.split() for line in said[1:3]] == [["0", "10", "20", "50", "10", "30"], ["1", "0", "30", "30", "30", "0"]]
    assert said[-1] == "trimmed topic numbers: 40 records deleted"


def test_a_dry_run_shows_the_same_and_deletes_nothing(broker: Broker, capsys: pytest.CaptureFixture[str]) -> None:
    trim_all(broker, to_high_watermark=True, dry_run=True)
    assert broker.deleted == {}
    assert capsys.readouterr().out.splitlines()[-1] == "70 records of topic numbers would go"


def test_one_partition_is_trimmed_to_an_offset_and_never_grows_back(broker: Broker, capsys: pytest.CaptureFixture[str]) -> None:
    trim_all(broker, before="11", partition=0)
    assert broker.deleted == {0: 11}
    trim_all(broker, before="3", partition=0)
    assert capsys.readouterr().out.splitlines()[-1] == "nothing goes" and broker.count_of("delete_records") == 1


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "either --before OFFSET|TIME or --to-high-watermark"),
        ({"before": "1", "to_high_watermark": True}, "either --before"),
        ({"before": "soon"}, "--before soon: write an offset, or a time: 'soon' is no time"),
        ({"before": "5"}, "each with offsets of its own; name one (--partition N)"),
        ({"before": "51", "partition": 0}, "partition 0 of topic numbers ends at offset 50"),
        ({"before": "5", "partition": 7}, "no partition 7: topic numbers has 2 partitions"),
        ({"to_high_watermark": True, "yes": False}, "no terminal to ask for confirmation; add --yes"),
    ],
)
def test_what_cannot_be_meant_deletes_nothing(broker: Broker, options: dict[str, Any], words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    with pytest.raises(UsageProblem) as problem:
        trim_all(broker, **options)
    assert words in str(problem.value) and exit_code(problem.value) == 2 and broker.deleted == {}


def test_an_internal_topic_is_called_that() -> None:
    audit = DescribedTopic(TopicMetadata("__millrace_audit", None, (), True, ErrorCode.NONE), ())
    with pytest.raises(RequestRefused, match="topic __millrace_audit is internal"):
        plan_trims(audit, Limit(), None, {})


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("answer", "deleted"), [("y\n", {0: 50, 1: 30}), ("\n", {}), ("no\n", {})])
def test_a_terminal_is_asked_for_confirmation(broker: Broker, answer: str, deleted: dict[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", Terminal(answer))
    try:
        trim_all(broker, to_high_watermark=True, yes=False)
    except UsageProblem as problem:
        assert not deleted and str(problem) == "nothing was changed"
    assert broker.deleted == deleted


def test_refused_and_trimmed_partitions_are_both_reported(broker: Broker, capsys: pytest.CaptureFixture[str]) -> None:
    broker.refusing = frozenset({1})
    with pytest.raises(PartlyDone, match="1 of 2 partitions were trimmed"):
        trim_all(broker, to_high_watermark=True)
    assert "numbers-1: could not delete records of numbers-1" in capsys.readouterr().err
    broker.refusing = frozenset({0, 1})
    with pytest.raises(RequestRefused):
        trim_all(broker, to_high_watermark=True)


def test_times_are_local_unless_they_name_a_zone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Kolkata")
    time.tzset()
    try:
        assert parse_limit("2026-11-21T15:30", False, NOW_MS) == Limit(time_ms=1_795_255_200_000)
        assert moment_text(1_795_255_200_000) == "2026-11-21T15:30:00+05:30"
    finally:
        monkeypatch.undo()
        time.tzset()
    assert parse_limit("2026-11-21T10:00Z", False, NOW_MS) == Limit(time_ms=1_795_255_200_000)
    assert parse_limit("2026-11-21T12:00+02:00", False, NOW_MS) == Limit(time_ms=1_795_255_200_000)
    assert parse_limit("90m", False, NOW_MS) == Limit(time_ms=NOW_MS - 5_400_000)
    assert parse_limit("20261121", False, NOW_MS) == Limit(offset=20_261_121)
