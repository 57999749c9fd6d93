"""A box's ZooKeeper against other users of the machine: what they could do in release 0.1.0, done again."""

from __future__ import annotations

import socket
import stat
import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, NewTopic
from kazoo.client import KazooClient
from kazoo.exceptions import KazooException, NoAuthError, QuotaExceededError
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.security import OPEN_ACL_UNSAFE, make_digest_acl

from appliance.base.zookeeper_access import USER, ZooKeeperAccess, open_tree_mark, secret_path
from lab.real_zookeeper import RealZooKeeper
from lab.running_box import RunningBox, eventually, start_box
from lab.zookeeper_clients import Credentials, auth_of, zookeeper_client
from lab.zookeeper_clients import zookeeper_session as client
from services.controller.zookeeper.tree_protection import marker_path

pytestmark = [pytest.mark.own_zookeeper, pytest.mark.system]

Start = Callable[..., RunningBox]
STRANGERS: dict[str, Credentials] = {
    "nothing": [],
    "a password of its own": [("digest", "stranger:secret")],
    "our name": [("digest", f"{USER}:guess")],
}
AT_ONCE = 50
"""Nodes that are created by one request; one request each takes twenty seconds."""
PATHS = ("/", "/config/topics/events", "/controller", "/consumers")
ATTEMPTS: dict[str, Callable[[KazooClient, str], object]] = {
    "create": lambda session, path: session.create(f"{path.rstrip('/')}/stranger", b"x"),
    "set": lambda session, path: session.set(path, b'{"version":1,"config":{"retention.ms":"1"}}'),
    "delete": lambda session, path: session.delete(path),
    "open": lambda session, path: session.set_acls(path, OPEN_ACL_UNSAFE),
    "read": lambda session, path: session.get(path),
    "watch": lambda session, path: session.exists(path, watch=lambda _event: None),
    "list": lambda session, path: session.get_children(path),
}


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBox]:
    box = start_box(tmp_path_factory.mktemp("shared"))
    create_topic(box, "events")
    yield box
    assert box.stop() == 0


def create_topic(box: RunningBox, name: str) -> None:
    """Retried while the box has lost its ZooKeeper session, which changes nothing: the flood of a test may cost it that for seconds."""
    admin = AdminClient({"bootstrap.servers": box.bootstrap})

    def is_created() -> bool:
        try:
            admin.create_topics([NewTopic(name, 2)])[name].result(60)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.REQUEST_TIMED_OUT:
                raise
            return False
        return True

    eventually(is_created, f"topic {name} is created", 60)


def own(box: RunningBox) -> Credentials:
    return auth_of(box.box.state_directory)


def admitted(box: RunningBox, auth: Credentials, attempt: Callable[[KazooClient], object]) -> bool:
    """Whether a session with these credentials gets an answer that is no refusal (and, where it
    counts something, not 0).
    """
    session = zookeeper_client(box.box.zookeeper, auth)
    try:
        session.start(2)
        return attempt(session) != 0
    except (KazooException, KazooTimeoutError):
        return False
    finally:
        session.stop()
        session.close()


def tree_of(session: KazooClient) -> list[str]:
    found = ["/"]
    for path in found:
        found += [f"{path.rstrip('/')}/{name}" for name in session.get_children(path)]
    return found


def open_nodes(box: RunningBox) -> list[str]:
    """Nodes that a session with other credentials can change."""
    with client(box.box.zookeeper, own(box)) as session:
        acls = {path: session.get_acls(path)[0] for path in tree_of(session)}
    return [path for path, acl in acls.items() if any(entry.id.scheme == "world" and entry.perms & ~1 for entry in acl)]


def protected(box: RunningBox) -> bool:
    """Whether every node has its ACL, and the box has nothing more to do about it."""
    with client(box.box.zookeeper, own(box)) as session:
        is_marked = session.exists(marker_path(box.box.broker_id)) is not None
    return is_marked and open_nodes(box) == [] and not Path(open_tree_mark(box.box.state_directory)).exists()


@pytest.mark.parametrize("auth", STRANGERS.values(), ids=STRANGERS)
def test_a_local_user_without_the_secret_changes_nothing(shared: RunningBox, auth: Credentials) -> None:
    eventually(lambda: protected(shared), "every node has an ACL")
    with client(shared.box.zookeeper, own(shared)) as owner:
        before = {path: owner.get(path)[0] for path in tree_of(owner)}
        succeeded = []
        for path in PATHS:
            for name, attempt in ATTEMPTS.items():
                if admitted(shared, auth, lambda session, path=path, attempt=attempt: attempt(session, path)):  # type: ignore[misc]
                    succeeded.append((name, path))
        assert succeeded == []
        assert {path: owner.get(path)[0] for path in tree_of(owner)} == before


@pytest.mark.parametrize("is_obstinate", [False, True])
def test_a_guessed_secret_opens_no_session(shared: RunningBox, is_obstinate: bool) -> None:
    guess = ZooKeeperAccess(USER, "guess", is_obstinate, True)
    assert not admitted(shared, guess, lambda session: session.exists("/controller"))


def test_every_node_that_a_box_creates_has_an_acl(shared: RunningBox) -> None:
    create_topic(shared, "later")
    eventually(lambda: protected(shared), "every node has an ACL")
    with client(shared.box.zookeeper, own(shared)) as session:
        assert "/config/topics/later" in tree_of(session)
        strangers = {entry.id.scheme for path in tree_of(session) for entry in session.get_acls(path)[0]} - {
            "digest",
            "sasl",
        }
        assert strangers == {"world"}  # of /zookeeper/config alone
        assert [entry.perms for entry in session.get_acls("/zookeeper/config")[0]] == [1]


def test_the_secret_is_random_private_and_in_no_command_line_or_environment(shared: RunningBox, tmp_path: Path) -> None:
    path = Path(secret_path(shared.box.state_directory))
    secret = path.read_text().strip()
    assert len(secret) == 64 and stat.S_IMODE(path.stat().st_mode) == 0o600
    for pid in (*shared.pids().values(), shared.process.pid):
        for file in ("cmdline", "environ"):
            assert secret.encode() not in Path(f"/proc/{pid}/{file}").read_bytes()
    assert secret not in Path(f"{shared.layout.runtime_directory}/box.json").read_text()
    assert secret not in shared.messages
    private = ("zoo.cfg", "jaas.conf")
    assert [stat.S_IMODE(Path(shared.box.state_directory, "zookeeper", name).stat().st_mode) for name in private] == [0o600] * 2


def test_only_three_four_letter_words_are_answered(shared: RunningBox) -> None:
    host, _, port = shared.box.zookeeper.rpartition(":")
    answers = {}
    for word in (
        "srvr",
        "ruok",
        "mntr",
        "stat",
        "conf",
        "cons",
        "dump",
        "envi",
        "wchs",
        "wchp",
        "isro",
        "gtmk",
    ):
        with socket.create_connection((host, int(port)), 5) as connection:
            connection.sendall(word.encode())
            answer = b""
            while chunk := connection.recv(4096):
                answer += chunk
            answers[word] = b"not in the whitelist" not in answer
    assert [word for word, is_answered in answers.items() if is_answered] == ["srvr", "ruok", "mntr"]


def fill(session: KazooClient, parent: str, total_bytes: int) -> int:
    """Create nodes below `parent` until one is refused; how many bytes lie in them."""
    for number in range(total_bytes // 900_000):
        try:
            session.create(f"{parent}/{number}", b"x" * 900_000)
        except KazooException:
            return number * 900_000
    return total_bytes


@pytest.mark.parametrize("auth", STRANGERS.values(), ids=STRANGERS)
def test_a_local_user_cannot_fill_the_heap(shared: RunningBox, auth: Credentials) -> None:
    eventually(lambda: protected(shared), "every node has an ACL")
    before = shared.pids()["zookeeper"]
    for parent in ("", "/consumers", "/config"):
        assert not admitted(shared, auth, lambda session, parent=parent: fill(session, parent, 60_000_000))  # type: ignore[misc]
    assert shared.pids()["zookeeper"] == before


def test_a_local_user_cannot_fill_the_heap_with_packets_that_never_come(shared: RunningBox) -> None:
    before = shared.pids()["zookeeper"]
    host, _, port = shared.box.zookeeper.rpartition(":")
    almost_a_mebibyte = struct.pack(">I", 0xFFFF0)
    with ExitStack() as connections:
        for number in range(400):
            connection = connections.enter_context(socket.socket())
            connection.bind((f"127.0.1.{1 + number % 100}", 0))
            connection.settimeout(5)
            with suppress(ConnectionError):  # there are too many
                connection.connect((host, int(port)))
                connection.sendall(almost_a_mebibyte)
    create_topic(shared, "after-the-flood")
    assert shared.pids()["zookeeper"] == before


def creates_groups(session: KazooClient, first: int) -> bool:
    """Create the next `AT_ONCE` groups; False if the quota refused them."""
    transaction = session.transaction()
    for number in range(first, first + AT_ONCE):
        transaction.create(f"/consumers/group-with-a-name-{number:05}", b"")
    return not any(isinstance(result, QuotaExceededError) for result in transaction.commit())


def test_a_consumer_that_fills_its_part_of_the_tree_is_refused_before_the_heap_is_full(start: Start) -> None:
    box = start()
    eventually(lambda: protected(box), "every node has an ACL")
    before = box.pids()["zookeeper"]
    with client(box.box.zookeeper, own(box)) as session:
        assert 2_000_000 < fill(session, "/consumers", 60_000_000) < 20_000_000
        refused_at = next((number for number in range(0, 40_000, AT_ONCE) if not creates_groups(session, number)), 0)
        assert 5_000 < refused_at
    create_topic(box, "still-possible")
    assert box.pids()["zookeeper"] == before


def test_the_tree_of_a_box_that_had_no_acls_is_protected_at_its_next_start(start: Start) -> None:
    open_box = start(settings={"zookeeper.auth.required": False})
    create_topic(open_box, "events")
    assert "/config/topics/events" in open_nodes(open_box)
    assert "the ZooKeeper tree is open" in open_box.messages
    assert open_box.stop() == 0
    box = start()
    assert "the ZooKeeper tree is open" not in box.messages[len(open_box.messages) :]
    eventually(lambda: protected(box), "every node has an ACL")
    assert box.stop() == 0
    again = start()
    with client(again.box.zookeeper, own(again)) as session:
        assert "/config/topics/events" in tree_of(session)
    assert protected(again)


def test_what_an_open_server_let_in_meanwhile_gets_its_acl_when_the_box_asks_for_the_secret_again(start: Start) -> None:
    """As after a rollback to release 0.1, which leaves the mark of a protected tree."""
    box = start()
    eventually(lambda: protected(box), "every node has an ACL")
    assert box.stop() == 0
    state = box.box.state_directory
    server = RealZooKeeper(Path(state).parent / "open", state, JAVA_TOOL_OPTIONS="-Dzookeeper.skipACL=yes")
    with client(server.connect, []) as session:
        session.create("/left-open", b"")
    server.stop()
    again = start()
    eventually(lambda: protected(again), "every node has an ACL")
    with client(again.box.zookeeper, own(again)) as session:
        assert session.exists("/left-open") is not None


def test_a_release_that_knows_no_acls_still_serves_the_tree_when_an_installation_goes_back(
    tmp_path: Path,
) -> None:
    server = RealZooKeeper(tmp_path)
    try:
        with client(server.connect, [("digest", "some:body")]) as session:
            session.create("/guarded", b"x", acl=[make_digest_acl("some", "body", all=True)])
        with client(server.connect, []) as session, pytest.raises(NoAuthError):
            session.get("/guarded")
        server.stop()
        server.start(JAVA_TOOL_OPTIONS="-Dzookeeper.skipACL=yes")  # `acl_drop_in` of install/system.sh
        with client(server.connect, []) as session:
            assert session.set("/guarded", b"y").version == 1
    finally:
        server.stop()


def test_an_ensemble_elsewhere_gets_acls_when_a_file_names_credentials_and_a_warning_when_none_does(start: Start, tmp_path: Path) -> None:
    server = RealZooKeeper(tmp_path)
    try:
        file = tmp_path / "digest"
        file.touch(0o600)
        file.write_text("logs:a-password\n")
        with_file = start(name="one", zookeeper=f"{server.connect}/one", settings={"zookeeper.digest.file": str(file)})
        create_topic(with_file, "events")
        without = start(name="two", zookeeper=f"{server.connect}/two")
        create_topic(without, "events")
        assert ["the ZooKeeper tree is open" in box.messages for box in (with_file, without)] == [False, True]
        with client(server.connect, []) as stranger:
            for name in ATTEMPTS.keys() - {"watch"}:
                with pytest.raises(NoAuthError):
                    ATTEMPTS[name](stranger, "/one/config/topics/events")
            assert "events" in stranger.get_children("/one/brokers/topics"), "old consumers read these"
            stranger.set("/two/config/topics/events", b'{"version":1,"config":{}}')
        assert with_file.stop() == 0 and without.stop() == 0
    finally:
        server.stop()
