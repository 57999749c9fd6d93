"""Other releases over an installed one: upgraded under load, one that does not serve, back again, and taken away. Data, state and edited settings stay."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from lab.installed_box import DISKS, HTTP, KAFKA, SYSLOG, InstalledBox, copy_release, copy_sources, make_wheelhouse, why_not_installed
from lab.load import AckedProducer, StreamReader
from lab.raw_client import RawClient
from lab.running_box import eventually
from lab.systemd_box import SystemdBox, why_not
from tests.faults.hurt_box import batch
from tests.systemd.load_on_box import load_on

REASON = why_not() or why_not_installed()
pytestmark = [
    pytest.mark.system,
    pytest.mark.slow,
    pytest.mark.skipif(bool(REASON), reason=REASON),
    # kafka-python reads its schemas in a way that Python 3.11 and 3.12 call deprecated.
    pytest.mark.filterwarnings("ignore:(read_text|open_text) is deprecated:DeprecationWarning"),
]

RELEASE_0_1_0 = "4284b881c0fb4a5eba660c7b8f802973c547e912"
INSTALL_SECONDS = 900.0
REMARK = "\n# edited by the owner\n"


def other_release(installed: InstalledBox, name: str, change: Callable[[str], str]) -> str:
    """A source tree that differs in its acceptor; what install.sh --yes wants to hear of it."""
    tree = installed.sources.with_name(name)
    copy_sources(tree)
    service = tree / "services" / "acceptor" / "__main__.py"
    service.write_text(change(service.read_text()))
    return name


def with_one_user(installed: InstalledBox, name: str) -> str:
    """The source tree, as if its processes that face the network had no user of their own."""
    for unit in installed.sources.with_name(name).glob("systemd/millrace-*.service"):
        unit.write_text(unit.read_text().replace("User=millrace-net", "User=millrace").replace("UMask=0027", "UMask=0077"))
    return name


def owners(installed: InstalledBox) -> set[str]:
    """Of what ingest writes."""
    return set(installed.box.output("find /var/lib/millrace/ingest -mindepth 1 -printf '%u\\n'; stat -c %U /dev/shm/*.counters.ingest@0").split())


def release(installed: InstalledBox, link: str = "current") -> str:
    return os.path.basename(installed.box.output(f"readlink /opt/millrace/{link} || true"))


def test_a_second_installation_changes_nothing_and_a_newer_release_takes_over_under_load_and_keeps_edited_settings(installed: InstalledBox) -> None:
    first, pids = release(installed), installed.pids()
    assert "nothing had to be changed" in installed.install("--offline", "/wheelhouse").stderr
    assert installed.pids() == pids
    kept = installed.edit_settings(lambda text: text + REMARK) + REMARK
    with load_on(installed.box, "upgrade") as load:
        installed.install("--offline", "/wheelhouse", tree=other_release(installed, "second", lambda text: f"{text}\n# of the second release\n"))
        load.await_news("after the upgrade")
    assert load.lost() == 0
    assert release(installed) != first and release(installed, "previous") == first
    assert "of the second release" in installed.box.path("/opt/millrace/current/services/acceptor/__main__.py").read_text()
    assert installed.box.path("/etc/millrace/millrace.toml").read_text() == kept


def test_a_release_that_does_not_serve_leaves_the_one_before_it_in_place_and_the_owner_may_go_back_further(installed: InstalledBox) -> None:
    if not release(installed, "previous"):  # this test runs alone
        installed.install("--offline", "/wheelhouse", tree=other_release(installed, "second", lambda text: f"{text}\n# of the second release\n"))
    previous, before = release(installed, "previous"), release(installed)
    bad = other_release(installed, "bad", lambda text: text.replace('if __name__ == "__main__":', 'if __name__ == "__main__":\n    raise SystemExit(1)'))
    refused = installed.install("--offline", "/wheelhouse", "--wait", "8", tree=with_one_user(installed, bad), check=False)
    assert refused.returncode == 1, refused.stdout + refused.stderr
    assert release(installed) == before
    installed.await_all_active()
    assert all(f"gave what ingest and console write to {user}\n" in refused.stderr for user in ("millrace", "millrace-net")) and owners(installed) == {
        "millrace-net"
    }
    installed.box.run("bash /opt/millrace/current/install.sh --rollback")
    assert release(installed) == previous
    installed.await_all_active()


@pytest.mark.deep
def test_a_release_with_one_user_gets_its_files_back_and_the_next_one_takes_them_again(installed: InstalledBox) -> None:
    previous = release(installed)
    assert owners(installed) == {"millrace-net"}
    other_release(installed, "one-user", lambda text: text)
    installed.install("--offline", "/wheelhouse", tree=with_one_user(installed, "one-user"))
    assert owners(installed) == {"millrace"}
    installed.millrace("topic", "create", "closed")
    installed.box.run("seq 10 | millrace send closed")
    assert installed.box.output("stat -c %a /srv/d?/closed-0/*.log") == "600"
    installed.box.run("bash /opt/millrace/current/install.sh --rollback")
    installed.await_all_active()
    assert release(installed) == previous and owners(installed) == {"millrace-net"}
    assert installed.box.output("stat -c %a /srv/d?/closed-0/*.log") == "640"
    assert "10 records" in installed.millrace("search", "--topic", "closed").stderr
    assert "permission denied" not in installed.box.journal("-u", "millrace*", "-p", "warning", "-n", "50")


@pytest.mark.deep
def test_a_box_of_release_0_1_0_with_its_table_of_senders_becomes_this_one_under_load_and_back(tmp_path_factory: pytest.TempPathFactory) -> None:
    """What it stored is read at the same offsets, its group goes on where it was, its listener and route are in the settings."""
    sources, wheelhouse = tmp_path_factory.mktemp("sources"), tmp_path_factory.mktemp("packages") / "wheelhouse"
    if not copy_release(sources / "old", RELEASE_0_1_0):
        pytest.skip("this clone has no release 0.1.0")
    copy_sources(sources / "new")
    make_wheelhouse(wheelhouse, more=["kio", "pyspark"])
    box = SystemdBox.start(tmp_path_factory.mktemp("box"), ["ext4"] * len(DISKS), 640, [(sources, "/sources"), (wheelhouse, "/wheelhouse")], name="oldbox")
    installed = InstalledBox(box, sources / "new")
    try:
        chosen = ["--offline", "/wheelhouse", "--disks", ",".join(DISKS), "--advertise", "127.0.0.1"]
        box.run(["bash", "/sources/old/install.sh", "--yes", *chosen], seconds=INSTALL_SECONDS)
        with open(box.path("/etc/millrace/ingest.table"), "a") as table:
            table.write("listen old relp tcp 127.0.0.1:2514 acks=1\nroute listener=old -> from-relp\n")
        box.run("millrace ingest check /etc/millrace/ingest.table && millrace units apply && systemctl restart millrace.target")
        installed.await_all_active()
        with box.inside():
            before = write_before(str(KAFKA))
            # No kafka-python here: sockets of 0.1.0 are other ones, so systemd opens them anew, and it leaves refused connections unclosed.
            producer, reader = AckedProducer(str(KAFKA), "old-loaded", 1, records_a_second=500), StreamReader(str(KAFKA), "old-loaded", 1)
            producer.start()
            eventually(lambda: producer.acknowledged[0], "the producer is acknowledged")
            reader.start()
        installed.install("--offline", "/wheelhouse", seconds=INSTALL_SECONDS)
        after = time.monotonic()
        eventually(lambda: producer.has_news_since(after), "the producer is acknowledged after the upgrade")
        producer.stop()
        eventually(lambda: producer.acknowledged[0] <= reader.numbers[0], "everything acknowledged is read")
        reader.stop()
        reader.check_every_offset_once()
        assert producer.failures == []
        with box.inside():
            assert read_after(str(KAFKA)) == before and answers_relp(2514)
        box.run("bash /opt/millrace/current/install.sh --rollback", seconds=INSTALL_SECONDS)
        installed.await_all_active()
        with box.inside():
            assert read_after(str(KAFKA)) == before and answers_relp(2514)
        installed.install("--offline", "/wheelhouse", seconds=INSTALL_SECONDS)
        installed.millrace("config", "convert")
        box.run("millrace units apply && systemctl restart millrace.target")
        installed.await_all_active()
        settings = box.path("/etc/millrace/millrace.toml").read_text()
        assert "[[ingest.listener]]" in settings and "from-relp" in settings and not box.path("/etc/millrace/ingest.table").exists()
        with box.inside():
            assert read_after(str(KAFKA)) == before and answers_relp(2514)
    finally:
        box.destroy()


def answers_relp(port: int) -> bool:
    with socket.create_connection(("127.0.0.1", port), timeout=10) as relp:
        words = b"relp_version=0\nrelp_software=x\ncommands=syslog"
        relp.sendall(b"1 open %d %b\n" % (len(words), words))
        return b"200 OK" in relp.recv(1024)


def write_before(bootstrap: str) -> dict[str, list[tuple[int, bytes | None]]]:
    """What a plain and a transactional producer wrote and how far a group has come, as `read_after` finds it."""
    plain = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    for number in range(100):
        plain.produce("old-plain", b"%d" % number)
    assert plain.flush(30) == 0
    transactional = Producer({"bootstrap.servers": bootstrap, "transactional.id": "old"})
    transactional.init_transactions(30)
    for number, ends in enumerate((transactional.commit_transaction, transactional.abort_transaction, transactional.commit_transaction)):
        transactional.begin_transaction()
        transactional.produce("old-transactional", b"%d" % number)
        transactional.flush(30)
        ends(30)
    group = Consumer({"bootstrap.servers": bootstrap, "group.id": "old"})
    group.commit(offsets=[TopicPartition("old-plain", 0, 42)], asynchronous=False)
    group.close()
    return read_after(bootstrap)


def read_after(bootstrap: str) -> dict[str, list[tuple[int, bytes | None]]]:
    options = {
        "bootstrap.servers": bootstrap,
        "group.id": "old",
        "isolation.level": "read_committed",
        "enable.auto.commit": False,
        "enable.partition.eof": True,
    }
    found: dict[str, list[tuple[int, bytes | None]]] = {}
    for topic in ("old-plain", "old-transactional"):
        consumer = Consumer(options)
        consumer.assign([TopicPartition(topic, 0, 0)])
        while (message := consumer.poll(30)) is not None and message.error() is None:
            found.setdefault(topic, []).append((message.offset() or 0, message.value()))
        assert message is not None
        (committed,) = consumer.committed([TopicPartition("old-plain", 0)], 30)
        found["committed"] = [(committed.offset, None)]
        consumer.close()
    assert len(found["old-plain"]) == 100 and len(found["old-transactional"]) == 2 and found["committed"] == [(42, None)]
    return found


def test_what_is_uninstalled_is_gone_and_data_state_and_settings_stay(installed: InstalledBox) -> None:
    with installed.box.inside():
        client = RawClient(KAFKA)
    client.create_topic("kept", 1)
    eventually(lambda: client.is_served("kept", 1), "the new topic is served")
    assert client.produce("kept", 0, batch("kept")).error_code == 0
    client.close()
    installed.box.run("bash /opt/millrace/current/install.sh --uninstall --yes")
    assert installed.box.output("systemctl list-units --all --no-legend --plain 'millrace*'") == ""
    for gone in ("/opt/millrace", "/usr/local/bin/millrace", "/run/millrace", "/etc/systemd/system/millrace.target.d"):
        assert installed.box.run(["test", "!", "-e", gone], check=False).returncode == 0, gone
    assert installed.box.output("ls /etc/systemd/system /dev/shm | grep -i millrace; true") == "" and installed.processes() == []
    with installed.box.inside():
        for address in (KAFKA, SYSLOG, HTTP):
            with socket.socket() as probe:
                assert probe.connect_ex(address) != 0, address
    assert any(b"kept" in file.read_bytes() for disk in DISKS for file in installed.box.path(disk).glob("kept-0/*.log"))
    assert installed.box.run("test -d /var/lib/millrace/zookeeper && test -f /etc/millrace/millrace.toml", check=False).returncode == 0
