"""Options of `millrace run`: what wins, what is refused."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from appliance.runtime.run_options import RunOptions, python_arguments, resolve_options


def test_defaults_are_two_directories_under_var_on_loopback() -> None:
    resolved, problems = resolve_options(RunOptions(), cores=2)
    assert problems == []
    assert resolved.data == [os.path.abspath("var/d0"), os.path.abspath("var/d1")]
    assert (resolved.listen, resolved.advertise, resolved.kafka_port, resolved.syslog_port, resolved.http_port) == ("127.0.0.1", "127.0.0.1", 9092, 5514, 8080)
    assert (resolved.ingest_port, resolved.acceptors, resolved.ingests, resolved.zookeeper) == (8081, 1, 1, None)


def test_there_is_one_acceptor_for_four_cores() -> None:
    assert [resolve_options(RunOptions(), cores)[0].acceptors for cores in (1, 4, 8, 32)] == [1, 1, 2, 8]


def test_the_command_line_wins_over_the_file_and_the_file_over_defaults(tmp_path: Path) -> None:
    file = tmp_path / "m.toml"
    file.write_text('num.partitions = 7\n[box]\nkafka-port = 1111\nhttp_port = 2222\ndata = "/srv/one"\n')
    resolved, problems = resolve_options(RunOptions(config=str(file), kafka_port=3333), cores=1)
    assert problems == []
    assert (resolved.kafka_port, resolved.http_port, resolved.syslog_port) == (3333, 2222, 5514)
    assert resolved.data == ["/srv/one"]
    assert resolved.settings["num.partitions"] == 7


def test_all_wrong_options_are_named_at_once(tmp_path: Path) -> None:
    file = tmp_path / "m.toml"
    file.write_text('[box]\nkafka = 1\ndata = 3\nlisten = ["x"]\n')
    options = RunOptions(config=str(file), http_port=-1, acceptors=0, zookeeper="here", advertise="a:1/b")
    _, problems = resolve_options(options, cores=1)
    parts = ["no option kafka;", "data is 3", "listen is ['x']", "--http-port is -1", "--acceptors is 0", "--zookeeper is 'here'", "--advertise is 'a:1/b'"]
    for part in parts:
        assert any(part in problem for problem in problems), part
    assert len(problems) == len(parts)


@pytest.mark.parametrize("text", ["zk:2181", "a:1,b:2,c:3", "127.0.0.1:2181/millrace", "[::1]:2181"])
def test_connect_strings_of_zookeeper_are_accepted(text: str) -> None:
    assert resolve_options(RunOptions(zookeeper=text), 1)[1] == []


def test_one_port_cannot_serve_two_things_but_any_free_one_can_be_asked_for_twice() -> None:
    _, problems = resolve_options(RunOptions(kafka_port=5000, http_port=5000), 1)
    assert problems == ["--kafka-port and --http-port are both 5000; give each its own"]
    assert resolve_options(RunOptions(kafka_port=0, http_port=0), 1)[1] == []


@pytest.mark.parametrize(
    ("listen", "creates"),
    [("127.0.0.1", True), ("::1", True), ("localhost", True), ("127.0.0.7", True), ("0.0.0.0", False), ("::", False), ("*", False), ("10.0.0.5", False)],
)
def test_topics_are_created_automatically_on_loopback_only_unless_the_setting_says_so(listen: str, creates: bool, tmp_path: Path) -> None:
    assert resolve_options(RunOptions(listen=listen), 1)[0].settings["auto.create.topics.enable"] is creates
    file = tmp_path / "m.toml"
    for chosen in (True, False):
        file.write_text(f'auto.create.topics.enable = {str(chosen).lower()}\n[box]\nlisten = "{listen}"\n')
        assert resolve_options(RunOptions(config=str(file)), 1)[0].settings["auto.create.topics.enable"] is chosen


@pytest.mark.parametrize(("listen", "advertised"), [("0.0.0.0", "127.0.0.1"), ("::", "127.0.0.1"), ("10.0.0.5", "10.0.0.5")])
def test_the_advertised_address_is_reachable_for_clients(listen: str, advertised: str) -> None:
    assert resolve_options(RunOptions(listen=listen), 1)[0].advertise == advertised


def test_a_wildcard_is_nothing_to_advertise() -> None:
    assert "no client can connect to" in resolve_options(RunOptions(advertise="0.0.0.0"), 1)[1][0]


def test_options_survive_the_way_to_the_supervisor() -> None:
    options = RunOptions(data=["/a b", "/ü"], kafka_port=0)
    assert RunOptions.from_json(options.to_json()) == options


def test_our_packages_are_found_wherever_the_process_is_started() -> None:
    environment = {"PYTHONPATH": "/elsewhere"}
    arguments = python_arguments("services.console", environment)
    assert arguments == ["-P", "-m", "services.console"]
    first, *rest = environment["PYTHONPATH"].split(":")
    assert os.path.isdir(f"{first}/appliance") and rest == ["/elsewhere"]
    python_arguments("services.console", environment)
    assert environment["PYTHONPATH"].count(first) == 1


def test_an_ensemble_of_the_boxes_is_named_by_an_option_or_by_the_settings(tmp_path: Path) -> None:
    file = tmp_path / "m.toml"
    file.write_text('"broker.rack" = "a"\n[box]\nbroker-id = 2\nzookeeper-members = ["1=10.0.0.1", "2=10.0.0.2", "3=10.0.0.3"]\n')
    by_file, problems = resolve_options(RunOptions(config=str(file)), 1)
    assert problems == [] and by_file.own_member is not None and by_file.own_member.host == "10.0.0.2"
    assert (by_file.runs_zookeeper, by_file.is_alone, by_file.settings["broker.rack"]) == (True, False, "a")
    by_option, problems = resolve_options(RunOptions(zookeeper_members=["1=10.0.0.1,2=10.0.0.2,3=10.0.0.3"], broker_id=4, rack="b"), 1)
    assert problems == [] and by_option.zookeeper_members == by_file.zookeeper_members
    assert (by_option.own_member, by_option.runs_zookeeper, by_option.is_alone, by_option.settings["broker.rack"]) == (None, False, False, "b")


def test_an_ensemble_wants_to_know_which_box_this_is_and_to_be_the_only_one() -> None:
    _, problems = resolve_options(RunOptions(zookeeper_members=["1=a", "2=b", "3=c"], zookeeper="d:2181"), 1)
    assert len(problems) == 2
    assert any("--broker-id does not say which box this is" in problem for problem in problems)
    assert any("--zookeeper names an ensemble elsewhere" in problem for problem in problems)


def test_a_box_by_itself_has_a_private_zookeeper() -> None:
    alone = resolve_options(RunOptions(), 1)[0]
    assert (alone.runs_zookeeper, alone.is_alone, alone.own_member) == (True, True, None)
    elsewhere = resolve_options(RunOptions(zookeeper="z:2181/chroot"), 1)[0]
    assert (elsewhere.runs_zookeeper, elsewhere.is_alone) == (False, False)
