"""Members of the boxes' own ZooKeeper ensemble, as settings have them."""

from __future__ import annotations

import pytest

from appliance.base.zookeeper_member import ZooKeeperMember, connect_string, in_words, parse_member, read_members

THREE = ["1=10.0.0.1", "2=10.0.0.2", "3=10.0.0.3"]


def test_a_member_is_a_number_and_an_address_and_has_zookeepers_ports() -> None:
    members, problems = read_members(THREE)
    assert problems == []
    assert members[1] == ZooKeeperMember(2, "10.0.0.2", 2181, 2888, 3888)


def test_ports_may_be_given_the_clients_alone_or_all_three() -> None:
    members, problems = read_members(["1=a.example:2191", "2=b.example:2181:2999:3999", "3=[fd00::3]:2181"])
    assert problems == []
    assert [member.text for member in members] == ["1=a.example:2191:2888:3888", "2=b.example:2181:2999:3999", "3=[fd00::3]"]
    assert members[2].plain_host == "fd00::3"


def test_what_is_written_is_what_is_read() -> None:
    for member in read_members(THREE)[0]:
        assert parse_member(member.text) == member


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        (["10.0.0.1"], "a member is written ID=HOST"),
        (["1=a b"], "a member is written ID=HOST"),
        (["1=a:2181:2888"], "a member is written ID=HOST"),
        (["0=a"], "from 1 to 255"),
        (["256=a"], "from 1 to 255"),
        (["1=a:70000"], "a port must be from 1 to 65535"),
        (["1=a", "1=b", "3=c"], "names member 1 twice"),
        (["1=a", "2=a", "3=c"], "gives a:2181 to two things"),
        (["1=a:2181:2181:3888"], "gives a:2181 to two things"),
        (["1=a", "2=b"], "names 2 members; an ensemble has 1, 3, 5 or 7"),
        ([f"{number}=h{number}" for number in range(1, 5)], "names 4 members"),
    ],
)
def test_what_cannot_be_an_ensemble_is_refused_in_words(texts: list[str], words: str) -> None:
    problems = read_members(texts)[1]
    assert any(words in problem for problem in problems), problems


def test_everything_that_is_wrong_is_said_at_once() -> None:
    assert len(read_members(["x", "0=a", "1=b:99999"])[1]) == 3


def test_a_box_asks_its_own_member_first() -> None:
    members = read_members(THREE)[0]
    assert connect_string(members, 2) == "10.0.0.2:2181,10.0.0.1:2181,10.0.0.3:2181"
    assert connect_string(members, 7) == "10.0.0.1:2181,10.0.0.2:2181,10.0.0.3:2181"


def test_members_are_named_as_people_do() -> None:
    assert [in_words([2]), in_words([1, 3]), in_words([1, 2, 3])] == ["member 2", "members 1 and 3", "members 1, 2 and 3"]
