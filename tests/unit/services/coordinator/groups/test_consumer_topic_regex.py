"""Topics by regular expression: RE2's syntax, and bounds on memory, on expressions and on steps in a slice of time."""

from __future__ import annotations

import pytest

from appliance.base.errors import ErrorCode
from services.coordinator.groups.consumer_topic_regex import SLICE_INTERVAL_MS, STEPS_A_SLICE, UnusableRegex, compile_regex
from services.coordinator.groups.ports import NameBound
from tests.support.consumer_world import EVERYTHING, ConsumerWorld, NewReader
from tests.support.group_world import GROUP

LARGE = "(?:[a-z]{0,30}){0,30}[-0-9]*"
"""About 1,800 instructions."""
HOSTILE = ["(?:[ab]{1,30}){1,30}" * 8, r"(\pL{0,50}){0,19}", r"[^a]{1000}[^b]{1000}", "x" * 1_001, "a{1001}", "((a{100}){100}){100}"]


def add_long_topics(world: ConsumerWorld, count: int) -> set[str]:
    names = {f"{'n' * 240}-{number:03}" for number in range(count)}
    for name in names:
        world.topics.set_count(name, 1)
    return names


@pytest.mark.parametrize(
    ("pattern", "matching"),
    [
        ("syslog", {"syslog"}),
        ("sys", set()),
        (".*", {"syslog", "audit", "__consumer_offsets"}),
        ("a.*|s[a-z]+", {"syslog", "audit"}),
        ("^(?i)AUDIT$", {"audit"}),
        (r"\w{5}", {"audit"}),
        (r"(?P<prefix>sys)(?:log)?", {"syslog"}),
        (r"\pL+", {"syslog", "audit"}),
        (r"\Q__consumer\E_.*", {"__consumer_offsets"}),
    ],
)
def test_the_expression_matches_whole_names_of_all_topics_as_in_kafka(pattern: str, matching: set[str]) -> None:
    world = ConsumerWorld()
    world.topics.set_count("__consumer_offsets", 1)
    a = NewReader(world, "a", (), subscribed_topic_regex=pattern)
    world.run(a)
    assert {topic for topic, _ in a.holds} == matching


@pytest.mark.parametrize("pattern", ["a(?=b)", r"(a)\1", "(", "a**{2", "[b-a]", "\ud800", *HOSTILE])
def test_an_expression_that_is_invalid_or_too_large_is_refused_with_the_reason(pattern: str) -> None:
    with pytest.raises(UnusableRegex, match="SubscribedTopicRegex"):
        compile_regex(pattern)


def test_a_refused_expression_gives_the_member_kafkas_error() -> None:
    world = ConsumerWorld()
    response = world.told("a", subscribed_topic_regex="a(?=b)")
    assert response.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION
    assert response.error_message is not None and response.error_message.startswith("SubscribedTopicRegex `a(?=b)` is not a valid regular expression: ")


def test_a_large_expression_is_resolved_in_slices_and_delays_no_small_one() -> None:
    world = ConsumerWorld()
    size = compile_regex(LARGE).programsize
    names = add_long_topics(world, 3 * STEPS_A_SLICE // (size * 244))
    large = NewReader(world, "large", (), group="large", subscribed_topic_regex=LARGE)
    large.step()
    assert large.epoch == 1 and not large.holds, "it has joined, and waits for its topics"
    small = NewReader(world, "small", (), subscribed_topic_regex="sys.*")
    small.step()
    world.pass_ms(SLICE_INTERVAL_MS)
    small.step()
    assert small.holds == EVERYTHING
    large.step()
    assert not large.holds
    world.pass_ms(10 * SLICE_INTERVAL_MS)
    large.step()
    assert {topic for topic, _ in large.holds} == names | {"syslog", "audit"}


def test_members_keep_their_partitions_while_a_new_coordinator_resolves_their_expression() -> None:
    world = ConsumerWorld()
    add_long_topics(world, 3 * STEPS_A_SLICE // (compile_regex(LARGE).programsize * 244))
    a = NewReader(world, "a", (), subscribed_topic_regex=LARGE)
    for _ in range(3):
        a.step()
        world.pass_ms(10 * SLICE_INTERVAL_MS)
    held, epoch = a.holds, a.epoch
    assert len(held) > len(EVERYTHING)
    world.restart()
    world.topics.set_count("new", 1)
    a.step()
    assert (a.holds, a.epoch) == (held, epoch)
    b = NewReader(world, "b", ("audit",))
    b.step()
    a.step()
    assert a.holds <= held and {topic for topic, _ in a.holds} >= {topic for topic, _ in held} - {"audit"}
    world.pass_ms(10 * SLICE_INTERVAL_MS)
    world.run(a, b)
    assert ("new", 0) in a.holds and a.holds | b.holds == held | {("new", 0)}


def test_offsets_of_a_group_whose_expression_is_not_resolved_stay() -> None:
    world = ConsumerWorld()
    a = NewReader(world, "a", (), subscribed_topic_regex="sys.*")
    world.run(a)
    world.restart()
    hosted = world.coordinator.directory.find(GROUP)
    assert hosted is not None
    assert hosted.membership.expiry_rule() is None and hosted.membership.is_subscribed_to("audit")
    a.step()
    rule = hosted.membership.expiry_rule()
    assert rule is not None and rule.spared_topics == {"syslog"} and not hosted.membership.is_subscribed_to("audit")


def test_more_expressions_than_the_bound_are_refused_and_counted_until_members_have_left() -> None:
    world = ConsumerWorld(group_consumer_regex_max=2)
    a = NewReader(world, "a", (), subscribed_topic_regex="a.*")
    b = NewReader(world, "b", (), subscribed_topic_regex="s.*")
    world.run(a, b)
    response = world.told("c", subscribed_topic_regex="c.*")
    assert response.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION and world.refused == [NameBound.REGEXES]
    assert world.told("c", subscribed_topic_regex="s.*").error_code == ErrorCode.NONE, "members share an expression"
    a.leave()
    world.pass_ms(1_000)
    assert world.told("d", subscribed_topic_regex="c.*").error_code == ErrorCode.NONE


def test_results_over_very_many_topics_are_bounded_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.coordinator.groups.consumer_topic_regex.RESULT_TOPICS_MAX", 5)
    world = ConsumerWorld()
    assert world.told("a", subscribed_topic_regex=".*").error_code == ErrorCode.NONE
    assert world.told("b", subscribed_topic_regex=".+").error_code == ErrorCode.NONE
    assert world.told("c", subscribed_topic_regex=".{1,}").error_code == ErrorCode.INVALID_REGULAR_EXPRESSION


def test_a_stored_expression_beyond_the_bound_loads_and_matches_nothing_new() -> None:
    world = ConsumerWorld(group_consumer_regex_max=2)
    a = NewReader(world, "a", (), subscribed_topic_regex="s.*")
    b = NewReader(world, "b", (), subscribed_topic_regex="a.*")
    world.run(a, b)
    held = (a.holds, b.holds)
    world.settings = world.settings._replace(group_consumer_regex_max=1)
    world.restart()
    world.run(a, b)
    assert (a.holds, b.holds) == held and world.refused


def test_a_member_gets_the_topics_of_its_expression_that_it_may_see() -> None:
    world = ConsumerWorld()
    world.topics.hide("a", frozenset({"audit"}))
    a, b = (NewReader(world, name, (), subscribed_topic_regex=".*") for name in "ab")
    world.run(a, b)
    assert {topic for topic, _ in a.holds} == {"syslog"}
    assert {topic for topic, _ in b.holds} == {"syslog", "audit"}


def test_a_revocation_takes_partitions_from_the_member_although_the_group_still_reads_the_topic() -> None:
    world = ConsumerWorld()
    a, b = (NewReader(world, name, (), subscribed_topic_regex=".*") for name in "ab")
    world.run(a, b)
    held = {topic for topic, _ in a.holds}
    world.topics.hide("a", frozenset(held))
    world.run(a, b)
    assert not held & {topic for topic, _ in a.holds} and held <= {topic for topic, _ in b.holds}
    world.topics.hide("b", frozenset(held))
    world.topics.hide("a", frozenset())
    world.run(a, b)
    assert held <= {topic for topic, _ in a.holds} and not held & {topic for topic, _ in b.holds}


def test_a_member_whose_principal_is_not_known_keeps_what_it_has() -> None:
    world = ConsumerWorld()
    a = NewReader(world, "a", (), subscribed_topic_regex=".*")
    world.run(a)
    held = set(a.holds)
    world.topics.hide("a", None)
    world.run(a)
    assert set(a.holds) == held and held
