from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.base.model import NO_TOPIC_ID, TopicId
from services.mirror.topic_rules import (
    RECREATED,
    CopiedTopic,
    PositionNote,
    Resumption,
    chain_of,
    is_selected,
    plan_out_of_range,
    plan_resumption,
    plan_topics,
    read_note,
    self_copy_problem,
    settings_to_set,
    write_note,
)

ID, OTHER_ID = TopicId(b"1" * 16), TopicId(b"2" * 16)


def test_patterns_are_for_whole_names_and_never_select_internal_topics() -> None:
    topics, exclude = [re.compile("app-.*"), re.compile("syslog"), re.compile("__.*")], [re.compile("app-test")]
    names = ["app-a", "app-test", "app-test-2", "my-app-a", "syslog", "syslog2", "__consumer_offsets"]
    assert [name for name in names if is_selected(name, topics, exclude)] == ["app-a", "app-test-2", "syslog"]


@pytest.mark.parametrize(
    ("prefix", "topics", "exclude", "problem"),
    [
        ("", ["a"], [], "it is the target itself; give it a prefix"),
        ("m.", [".*"], [], "it is the target itself, and its copies would be copied, too (m.a); exclude them (m\\..*)"),
        ("m.", [".*"], [r"m\..*"], None),
        ("m.", ["a|b"], [], None),
    ],
)
def test_a_cluster_is_its_own_target_only_if_its_copies_are_not_copied_again(prefix: str, topics: list[str], exclude: list[str], problem: str | None) -> None:
    compiled = ([re.compile(each) for each in several] for several in (topics, exclude))
    assert self_copy_problem(["b", "a"], prefix, *compiled) == problem


def test_topics_get_the_prefix_and_names_that_become_too_long_are_left_out() -> None:
    copied, left_out = plan_topics(["t", "x" * 249], "b.", "target", {})
    assert copied == [CopiedTopic("t", "b.t")]
    assert [each.topic for each in left_out] == ["x" * 249] and "249 characters" in left_out[0].reason


def test_what_came_from_the_target_is_not_copied_back_however_many_mirrors_are_between() -> None:
    """A copies to B, B to C; C does not copy to A, nor B to A, but both copy what they wrote themselves."""
    on_b = {"a.t": {"A": "millrace-mirror.ab.a"}}
    chain = chain_of("B", list(on_b["a.t"]))
    assert chain == ("B", "A")
    on_c = {"b.a.t": dict.fromkeys(chain, "millrace-mirror.bc.b")}
    assert [each.source for each in plan_topics(["a.t", "u"], "b.", "A", on_b)[0]] == ["u"]
    copied, left_out = plan_topics(["b.a.t", "v"], "c.", "A", on_c)
    assert [each.source for each in copied] == ["v"] and "millrace-mirror.bc.b" in left_out[0].reason
    assert [each.source for each in plan_topics(["a.t"], "b.", "C", on_b)[0]] == ["a.t"], "it did not come from C"


def test_settings_that_differ_are_set_except_those_of_one_cluster() -> None:
    source = {"retention.ms": "1", "cleanup.policy": "compact", "min.insync.replicas": "2", "message.timestamp.type": "LogAppendTime", "of.its.own": "x"}
    source |= {"millrace.table.format": "delta", "millrace.table.location": "/srv", "remote.storage.enable": "true", "log.message.timestamp.type": "x"}
    assert settings_to_set(source, {"cleanup.policy": "compact"}, frozenset({"retention.ms", "cleanup.policy", "min.insync.replicas"})) == {"retention.ms": "1"}
    assert settings_to_set(source, {}).keys() == {"retention.ms", "cleanup.policy"}


@given(st.binary(min_size=16, max_size=16), st.lists(st.text(max_size=40), max_size=5), st.lists(st.tuples(*[st.integers(0, 2**62)] * 3), max_size=4))
def test_a_note_is_read_as_it_was_written(topic_id: bytes, origins: list[str], runs: list[tuple[int, int, int]]) -> None:
    note = PositionNote(TopicId(topic_id), tuple(origins), tuple(runs))
    assert read_note(write_note(note)) == note


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "[]",
        "{}",
        '{"id":"00","from":[],"runs":[]}',
        '{"id":"' + "00" * 16 + '","from":[1],"runs":[]}',
        '{"id":1,"from":[],"runs":[]}',
        '{"id":"' + "00" * 16 + '","from":[],"runs":[[1,2]]}',
        '{"id":"' + "00" * 16 + '","from":[],"runs":[[1,2,"3"]]}',
    ],
)
def test_metadata_that_others_wrote_is_an_empty_note(text: str) -> None:
    assert read_note(text) == PositionNote()


def test_a_note_fits_into_the_metadata_of_an_offset() -> None:
    text = write_note(PositionNote(ID, tuple(f"cluster-{number:016}" for number in range(200)), ((2**62, 2**62, 2**31),) * 10))
    assert len(text) <= 4096 and read_note(text).origins[0] == "cluster-0000000000000000"


def test_a_partition_goes_on_at_its_position_unless_the_topic_is_another_one() -> None:
    assert plan_resumption(None, PositionNote(), ID) == Resumption(-1)
    assert plan_resumption(7, PositionNote(ID), ID) == plan_resumption(7, PositionNote(ID), None) == plan_resumption(7, PositionNote(), ID) == Resumption(7)
    assert plan_resumption(7, PositionNote(OTHER_ID), ID) == Resumption(0, RECREATED)
    assert plan_resumption(7, PositionNote(NO_TOPIC_ID), ID) == Resumption(7)


def test_a_position_outside_of_the_log_goes_to_its_nearest_end_and_says_what_is_missing() -> None:
    assert plan_out_of_range(5, 9, 20) == Resumption(9, "4 offsets from 5 on are deleted in the source")
    assert plan_out_of_range(30, 9, 20) == Resumption(20, "the source ends at 20, before position 30: its log was truncated")
    assert plan_out_of_range(12, 9, 20) == Resumption(12)
