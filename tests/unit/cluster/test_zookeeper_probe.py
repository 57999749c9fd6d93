"""Which members of an ensemble are missing, and whether a box may be restarted meanwhile. The servers are sockets that answer as ZooKeeper does."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from appliance.base.zookeeper_member import ZooKeeperMember
from appliance.cluster.zookeeper_probe import main, missing_members, missing_words, restart_costs_majority
from tests.support.install_functions import run_functions

SERVES = b"Zookeeper version: 3.9\nMode: follower\nNode count: 5\n"
WAITS = b"This ZooKeeper instance is not currently serving requests\n"

Members = Callable[[list[bytes | None]], list[ZooKeeperMember]]


@pytest.fixture
def members() -> Iterator[Members]:
    """Members 1, 2, … that give these answers; None is one whose port is closed."""
    listening: list[socket.socket] = []

    def serve(server: socket.socket, answer: bytes) -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            with connection:
                connection.recv(4)
                connection.sendall(answer)

    def make(answers: list[bytes | None]) -> list[ZooKeeperMember]:
        made = []
        for number, answer in enumerate(answers, 1):
            server = socket.create_server(("127.0.0.1", 0))
            made.append(ZooKeeperMember(number, "127.0.0.1", server.getsockname()[1], number, 1000 + number))
            if answer is None:
                server.close()
                continue
            listening.append(server)
            threading.Thread(target=serve, args=(server, answer), daemon=True).start()
        return made

    yield make
    for server in listening:
        server.shutdown(socket.SHUT_RDWR)
        server.close()


def test_a_member_that_is_down_or_without_a_quorum_is_missing_and_named_with_its_address(members: Members) -> None:
    asked = members([SERVES, WAITS, None])
    missing = missing_members(asked)
    assert [member.member_id for member in missing] == [2, 3]
    addresses = ", ".join(member.client_address for member in asked[1:])
    assert missing_words(missing) == f"ZooKeeper: members 2 and 3 ({addresses}) do not serve; restart no other box before that is mended"
    assert missing_members(members([SERVES, SERVES, SERVES])) == [] == missing_members([])
    assert missing_words([]) == ""


@pytest.mark.parametrize(
    ("count", "own", "missing", "costs"),
    [
        (3, 1, [], False),
        (3, 1, [3], True),
        (3, 1, [2, 3], True),
        (3, 1, [1], False),  # it does not serve as it is
        (5, 1, [5], False),
        (5, 1, [4, 5], True),
        (3, 4, [3], False),  # the box runs no member
    ],
)
def test_a_restart_costs_the_majority_if_the_members_that_are_left_are_too_few(count: int, own: int, missing: list[int], costs: bool) -> None:
    assert restart_costs_majority(range(1, count + 1), own, missing) is costs


def test_a_box_alone_may_always_be_restarted(members: Members, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["1", *(member.text for member in members([SERVES]))]) == 0
    assert capsys.readouterr().out == ""


@pytest.mark.slow
def test_an_upgrade_is_refused_while_a_restart_would_cost_the_majority(members: Members, tmp_path: Path) -> None:
    def found(answers: list[bytes | None], own: int = 1, version: str = "2", options: str = "") -> list[str]:
        texts = " ".join(member.text for member in members(answers))
        pretended = f"MEMBERS=({texts}) BROKER_ID={own}; release_at() {{ echo 1; }}; tree_version() {{ echo {version}; }}"
        return run_functions(tmp_path, f"parse_options {options}; {pretended}; check_members; print_findings").lines

    (line,) = found([SERVES, SERVES, None])
    assert line.startswith("problem   cluster") and "member 3 (127.0.0.1:" in line and "has no majority" in line
    (line,) = found([SERVES, SERVES, None], version="1")
    assert line.startswith("warning   cluster"), "the same release again restarts nothing"
    (line,) = found([SERVES, SERVES, None], options="--without-majority")
    assert line.startswith("warning   cluster"), "ordered"
    assert found([SERVES, SERVES, SERVES]) == [] == found([SERVES, SERVES, None], own=3)
