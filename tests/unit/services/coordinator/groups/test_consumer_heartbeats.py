"""ConsumerGroupHeartbeat: joining, epochs, giving up before getting, static members, leaving, silence."""

from __future__ import annotations

from typing import Any

import pytest

from appliance.base.errors import ErrorCode
from appliance.base.model import TopicId
from appliance.protocol.consumer_group_apis import LEAVE_FOR_A_WHILE
from services.coordinator.groups.consumer_assignors import ASSIGNORS, Subscriber
from services.coordinator.groups.consumer_heartbeats import SUBSCRIPTION_CHARACTERS_MAX
from services.coordinator.groups.ports import NAME_COST, NameBound
from tests.support.consumer_world import EVERYTHING, ConsumerWorld, NewReader

SESSION_MS = 45_000


def two_members() -> tuple[ConsumerWorld, NewReader, NewReader]:
    world = ConsumerWorld()
    a, b = NewReader(world, "a"), NewReader(world, "b")
    world.run(a)
    world.run(a, b)
    return world, a, b


# ---- what a request says by itself


@pytest.mark.parametrize(
    ("how", "error"),
    [
        ({"group": ""}, ErrorCode.INVALID_REQUEST),
        ({"instance_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"rack_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"epoch": -3}, ErrorCode.INVALID_REQUEST),
        ({"member_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"member_id": "", "epoch": 1, "version": 0}, ErrorCode.INVALID_REQUEST),
        ({"epoch": LEAVE_FOR_A_WHILE}, ErrorCode.INVALID_REQUEST),
        ({"rebalance_timeout_ms": -1}, ErrorCode.INVALID_REQUEST),
        ({"owned": [("syslog", 0)]}, ErrorCode.INVALID_REQUEST),
        ({"server_assignor": "sticky"}, ErrorCode.UNSUPPORTED_ASSIGNOR),
        ({"subscribed_topic_regex": "a(?=b)"}, ErrorCode.INVALID_REGULAR_EXPRESSION),
        ({"epoch": 1}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"epoch": -1}, ErrorCode.UNKNOWN_MEMBER_ID),
    ],
)
def test_a_request_that_cannot_be_is_refused_and_leaves_no_group(how: dict[str, Any], error: ErrorCode) -> None:
    world = ConsumerWorld()
    assert world.told(**how).error_code == error
    assert not world.log.batches and not world.list_groups().groups


def test_a_join_says_which_topics_or_is_refused() -> None:
    world = ConsumerWorld()
    told = world.beat(topics=None, subscribed_topic_regex=None)
    assert told.only.error_code == ErrorCode.INVALID_REQUEST


# ---- members and epochs


def test_the_first_member_has_everything_in_epoch_one_when_the_log_has_it() -> None:
    world = ConsumerWorld()
    told = world.beat("a")
    assert not told, "nothing is said before it is in the log"
    world.settle()
    response = told.only
    assert (response.member_id, response.member_epoch, response.heartbeat_interval_ms) == ("a", 1, 5_000)
    assert world.places(response) == EVERYTHING
    assert world.describe_consumer().group_state == "Stable"


def test_before_version_one_the_member_id_is_ours() -> None:
    world = ConsumerWorld()
    response = world.told("", version=0)
    assert response.member_id == "id1" and response.member_epoch == 1


def test_a_heartbeat_with_nothing_new_is_answered_at_once_and_without_an_assignment() -> None:
    world, a, _ = two_members()
    batches = world.log.batches
    response = world.beat("a", a.epoch).only
    assert (response.error_code, response.member_epoch, response.assignment) == (0, a.epoch, None)
    assert world.log.batches == batches


def test_a_full_request_receives_its_assignment_again() -> None:
    world, a, _ = two_members()
    response = world.beat("a", a.epoch, topics=["syslog"], owned=a.holds, rebalance_timeout_ms=60_000).only
    assert world.places(response) == a.holds


def test_no_member_gets_a_partition_before_another_has_revoked_it() -> None:
    world = ConsumerWorld()
    a, b = NewReader(world, "a"), NewReader(world, "b")
    world.run(a)
    joined = world.told("b")
    assert joined.member_epoch == 2 and world.places(joined) == frozenset()
    assert world.describe_consumer().group_state == "Reconciling"
    asked = world.told("a", 1)
    assert asked.member_epoch == 1 and len(world.places(asked)) == 2, "it stays in its epoch until it has given up"
    kept = world.places(asked)
    assert world.told("b", 2).assignment is None
    assert world.told("a", 1).member_epoch == 1, "it has not said so"
    assert world.told("a", 1, owned=kept).member_epoch == 2
    assert world.places(world.told("b", 2)) == EVERYTHING - kept
    assert world.describe_consumer().group_state == "Stable"
    del b


def test_a_second_change_while_a_member_gives_up_is_the_next_step() -> None:
    world = ConsumerWorld()
    subscribers = [NewReader(world, name) for name in "abcd"]
    world.run(subscribers[0])
    world.told("b")
    asked = world.told("a", 1)
    world.told("c")
    world.told("d")
    kept = world.places(asked)
    second = world.told("a", 1, owned=kept)
    assert second.member_epoch == 2 and len(world.places(second)) == 1, "one epoch on, and more to give up"
    assert world.told("a", 2, owned=world.places(second)).member_epoch == 4


@pytest.mark.parametrize("epoch", [7, 1])
def test_a_wrong_epoch_is_fenced_and_the_member_may_join_again(epoch: int) -> None:
    world, a, b = two_members()
    assert world.told("a", epoch).error_code == ErrorCode.FENCED_MEMBER_EPOCH
    again = world.told("a")
    assert again.error_code == 0 and world.places(again) == a.holds and not a.holds & b.holds


def test_the_epoch_before_is_taken_from_whom_the_last_answer_did_not_reach() -> None:
    world = ConsumerWorld()
    world.told("a")
    world.told("b")
    kept = world.places(world.told("a", 1))
    assert world.told("a", 1, owned=kept).member_epoch == 2
    assert world.told("a", 1, owned=kept).member_epoch == 2
    assert world.told("a", 1, owned=EVERYTHING).error_code == ErrorCode.FENCED_MEMBER_EPOCH, "it has what is not its own"


def test_another_subscription_is_another_assignment() -> None:
    world, a, b = two_members()
    response = world.told("a", a.epoch, topics=["audit"])
    assert response.member_epoch == a.epoch and world.places(response) == frozenset(), "it gives up first"
    response = world.told("a", a.epoch, owned=())
    assert world.places(response) == {("audit", 0), ("audit", 1)}
    world.run(b)
    assert b.holds == EVERYTHING


@pytest.mark.parametrize("size", [5, 249])
def test_the_names_that_a_member_subscribes_to_are_bounded(size: int) -> None:
    world = ConsumerWorld()
    names = [f"{number:0{size}}" for number in range(SUBSCRIPTION_CHARACTERS_MAX // (size + NAME_COST) + 1)]
    assert world.told("a", topics=names).error_code == ErrorCode.INVALID_REQUEST
    assert world.told("a", topics=names[1:]).error_code == 0


def test_a_group_is_full_for_new_members_only() -> None:
    world = ConsumerWorld(group_consumer_max_size=1)
    assert world.told("a").error_code == 0
    assert world.told("b").error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert world.told("a", 1).error_code == 0
    assert world.refused == [NameBound.MEMBERS]


def test_a_further_group_is_refused_and_a_member_of_a_group_that_exists_joins() -> None:
    world = ConsumerWorld(max_groups=1)
    assert world.told("a").error_code == 0
    assert world.told("a", group="other").error_code == ErrorCode.POLICY_VIOLATION and world.refused == [NameBound.GROUPS]
    assert world.told("b").error_code == 0


def test_most_members_choose_the_assignor() -> None:
    world = ConsumerWorld()
    world.topics.set_count("audit", 4)
    a = NewReader(world, "a", ["syslog", "audit"], server_assignor="range")
    b = NewReader(world, "b", ["syslog", "audit"], server_assignor="range")
    c = NewReader(world, "c", ["syslog", "audit"], server_assignor="uniform")
    world.run(a, b)
    assert {partition for _, partition in a.holds} == {0, 1} and len(a.holds) == 4
    assert world.describe_consumer().assignor_name == "range"
    world.run(a, b, c)
    assert world.describe_consumer().assignor_name == "range"
    a.leave()
    b.leave()
    world.run(c)
    assert world.describe_consumer().assignor_name == "uniform"


# ---- topics


def test_a_topic_that_appears_grows_or_vanishes_is_assigned_anew() -> None:
    world = ConsumerWorld()
    a = NewReader(world, "a", ["syslog", "later"])
    world.run(a)
    world.topics.set_count("later", 1)
    world.run(a)
    assert a.holds == EVERYTHING | {("later", 0)}
    world.topics.set_count("later", 2)
    world.run(a)
    assert ("later", 1) in a.holds
    epoch = world.describe_consumer().group_epoch
    world.topics.set_count("audit", 9)
    world.run(a)
    assert world.describe_consumer().group_epoch == epoch, "no member reads that"
    world.topics.set_count("later", 0)
    world.run(a)
    assert a.holds == EVERYTHING and world.describe_consumer().group_epoch == epoch + 1


def test_a_topic_that_is_made_anew_is_another_one() -> None:
    world = ConsumerWorld()
    a = NewReader(world, "a")
    world.run(a)
    world.topics.set_count("syslog", 0)
    world.topics.set_count("syslog", 4)
    asked = world.told("a", a.epoch)
    assert world.places(asked) == frozenset()
    a.holds = frozenset()
    world.run(a)
    assert a.holds == EVERYTHING


def test_a_regular_expression_takes_topics_that_come_later() -> None:
    world = ConsumerWorld()
    a = NewReader(world, "a", (), subscribed_topic_regex="sys.*|new-[0-9]+")
    world.run(a)
    assert a.holds == EVERYTHING
    world.topics.set_count("new-1", 1)
    world.topics.set_count("old-1", 1)
    world.run(a)
    assert a.holds == EVERYTHING | {("new-1", 0)}
    member = world.describe_consumer().members[0]
    assert (member.subscribed_topic_names, member.subscribed_topic_regex) == ((), "sys.*|new-[0-9]+")
    world.restart()
    world.run(a)
    assert a.holds == EVERYTHING | {("new-1", 0)}
    response = world.told("a", a.epoch, topics=["audit"], subscribed_topic_regex="")
    assert response.error_code == 0 and world.describe_consumer().members[0].subscribed_topic_regex is None


# ---- the end of members


def test_what_a_member_leaves_behind_goes_to_the_others() -> None:
    world, a, b = two_members()
    response = a.leave()
    assert (response.error_code, response.member_id, response.member_epoch) == (0, "a", -1)
    assert world.told("a", 2).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    world.run(b)
    assert b.holds == EVERYTHING
    b.leave()
    group = world.describe_consumer()
    assert (group.group_state, group.members) == ("Empty", ())
    assert world.told("c").member_epoch > group.group_epoch


def test_a_silent_member_is_out_after_its_session() -> None:
    world, a, b = two_members()
    world.pass_ms(SESSION_MS - 1)
    b.step()
    assert len(world.describe_consumer().members) == 2
    world.pass_ms(1)
    assert [member.member_id for member in world.describe_consumer().members] == ["b"]
    assert world.told("a", a.epoch).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    world.run(b)
    assert b.holds == EVERYTHING


def test_a_member_that_does_not_give_up_is_out_after_its_rebalance_time_out() -> None:
    world = ConsumerWorld()
    a, b = NewReader(world, "a", rebalance_timeout_ms=20_000), NewReader(world, "b")
    world.run(a)
    b.step()
    world.told("a", 1)
    for _ in range(3):
        world.pass_ms(6_000)
        assert world.told("a", 1).error_code == 0
        b.step()
    world.pass_ms(2_000)
    assert world.told("a", 1).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    world.run(b)
    assert b.holds == EVERYTHING


def test_a_heartbeat_that_waits_for_the_log_keeps_its_member_in() -> None:
    world, a, b = two_members()
    world.pass_ms(SESSION_MS - 2_000)
    waiting = world.beat("c")
    told = world.beat("a", a.epoch)
    world.pass_ms(2_000, settles=False)
    world.settle()
    assert waiting.only.error_code == 0 and told.only.error_code == 0
    assert {member.member_id for member in world.describe_consumer().members} == {"a", "c"}, "only b was silent"
    del b


# ---- static members


def test_a_static_member_that_left_for_a_while_comes_back_to_what_it_had() -> None:
    world = ConsumerWorld()
    a, b = NewReader(world, "a", instance_id="one"), NewReader(world, "b")
    world.run(a, b)
    had, epoch = a.holds, world.describe_consumer().group_epoch
    assert world.told("x", instance_id="one").error_code == ErrorCode.UNRELEASED_INSTANCE_ID
    left = a.leave(LEAVE_FOR_A_WHILE)
    assert (left.error_code, left.member_epoch) == (0, LEAVE_FOR_A_WHILE)
    b.step()
    assert not b.holds & had, "it will be back"
    world.restart()
    again = world.told("next", instance_id="one")
    assert world.places(again) == had and world.describe_consumer().group_epoch == epoch
    assert world.told("a", 2, instance_id="one").error_code == ErrorCode.FENCED_INSTANCE_ID
    assert world.told("a", -1, instance_id="one").error_code == ErrorCode.FENCED_INSTANCE_ID
    assert world.told("next", 2, instance_id="two").error_code == ErrorCode.UNKNOWN_MEMBER_ID
    world.told("next", -1, instance_id="one")
    world.run(b)
    assert b.holds == EVERYTHING


def test_a_static_member_that_stays_away_is_out_after_its_session() -> None:
    world = ConsumerWorld()
    a, b = NewReader(world, "a", instance_id="one"), NewReader(world, "b")
    world.run(a, b)
    a.leave(LEAVE_FOR_A_WHILE)
    world.pass_ms(SESSION_MS // 2)
    b.step()
    world.pass_ms(SESSION_MS // 2)
    world.run(b)
    assert b.holds == EVERYTHING


def test_a_static_member_may_repeat_its_join() -> None:
    world = ConsumerWorld()
    first = world.told("a", instance_id="one")
    again = world.told("a", instance_id="one")
    assert again.error_code == 0 and world.places(again) == world.places(first) == EVERYTHING


def test_without_memory_no_member_comes_and_none_subscribes_to_more() -> None:
    world = ConsumerWorld()
    epoch = world.told("a").member_epoch
    world.coordinator.directory.has_memory = lambda: False
    for told in (world.beat("b"), world.beat("a", epoch, topics=["syslog", "more"], owned=())):
        assert told.only.error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert world.refused == [NameBound.MEMORY] * 2
    assert world.told("a", epoch, topics=["syslog"], owned=()).error_code == world.told("a").error_code == ErrorCode.NONE


class Unsearched(tuple[TopicId, ...]):
    """Topics of a subscription, in which nothing looks for one."""

    def __contains__(self, _topic: object) -> bool:
        raise AssertionError("a subscription was searched")


@pytest.mark.parametrize("name", ASSIGNORS)
def test_an_assignor_looks_once_at_each_topic_of_a_subscription(name: str) -> None:
    one, two = TopicId(b"1" * 16), TopicId(b"2" * 16)
    members = [Subscriber("a", None, Unsearched((one, two)), frozenset({(one, 0)})), Subscriber("b", None, Unsearched((two,)), frozenset())]
    targets = ASSIGNORS[name](members, {one: 1, two: 1})
    assert targets["a"] | targets["b"] == {(one, 0), (two, 0)} and (one, 0) in targets["a"]
