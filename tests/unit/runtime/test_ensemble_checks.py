"""What is looked at before a box takes part in an ensemble of the boxes' own."""

from __future__ import annotations

import socket

import pytest

from appliance.base.zookeeper_member import ZooKeeperMember, read_members
from appliance.runtime.ensemble_checks import member_problems, peer_warnings

MEMBERS = read_members(["1=10.0.0.1", "2=10.0.0.2", "3=10.0.0.3"])[0]


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [sock.getsockname()[1] for sock in sockets]
    for sock in sockets:
        sock.close()
    return ports


def test_a_member_on_free_ports_of_this_machine_is_no_problem() -> None:
    assert member_problems(ZooKeeperMember(1, "127.0.0.1", *free_ports(3))) == []


def test_a_port_that_is_taken_is_named_with_what_it_is_for() -> None:
    client, election = free_ports(2)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        member = ZooKeeperMember(1, "127.0.0.1", client, taken.getsockname()[1], election)
        (problem,) = member_problems(member)
        assert f"port {member.peer_port} for the other members, which is taken" in problem
        assert member_problems(member, is_running=True) == []


def test_a_member_elsewhere_is_a_wrong_broker_id() -> None:
    (problem,) = member_problems(ZooKeeperMember(2, "198.51.100.77"))
    assert "this box, 2, is 198.51.100.77, which is no address of this machine" in problem and "--broker-id" in problem


def test_a_name_that_does_not_resolve_is_a_problem() -> None:
    (problem,) = member_problems(ZooKeeperMember(2, "no-such-host.invalid"))
    assert "does not resolve" in problem


@pytest.mark.parametrize(
    ("listen", "advertise", "warned"), [("127.0.0.1", "127.0.0.1", ["--listen", "--advertise"]), ("0.0.0.0", "localhost", ["--advertise"])]
)
def test_a_box_that_its_peers_cannot_use_is_warned_of(listen: str, advertise: str, warned: list[str]) -> None:
    assert [warning.split()[0] for warning in peer_warnings(MEMBERS, 1, listen, advertise)] == warned


def test_addresses_of_the_network_and_boxes_without_peers_are_fine() -> None:
    assert peer_warnings(MEMBERS, 1, "0.0.0.0", "10.0.0.1") == []
    assert peer_warnings(MEMBERS[:1], 1, "127.0.0.1", "127.0.0.1") == []
    assert peer_warnings([], 1, "127.0.0.1", "127.0.0.1") == []
    assert peer_warnings(read_members([f"{n}=127.0.0.1:{n}1:{n}2:{n}3" for n in (1, 2, 3)])[0], 1, "127.0.0.1", "127.0.0.1") == []
