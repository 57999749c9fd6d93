"""A box that install.sh has installed, under systemd: what it looks like, and what happens as its processes, disks and machine come and go under load."""

from __future__ import annotations

import errno
import http.client
import json
import os
import socket
import threading
import time
from typing import NamedTuple

import pytest
from confluent_kafka import Consumer, TopicPartition

from appliance.senders.old_table import tables_text
from appliance.storage.page_cache import has_cachestat
from lab.installed_box import DISKS, HTTP, INGEST, KAFKA, SYSLOG, InstalledBox, why_not_installed
from lab.raw_client import RawClient
from lab.running_box import eventually, listener
from lab.systemd_box import why_not
from tests.faults.hurt_box import KAFKA_STORAGE_ERROR, NOT_LEADER_OR_FOLLOWER, batch
from tests.systemd.load_on_box import load_on
from tests.unit.runtime.test_unit_files import EXPOSURE_MAX, FACES_NETWORK, READ_FROM_OTHER_MACHINES, kind_of

REASON = why_not() or why_not_installed()
pytestmark = [
    pytest.mark.system,
    pytest.mark.slow,
    pytest.mark.skipif(bool(REASON), reason=REASON),
    # kafka-python reads its schemas in a way that Python 3.11 and 3.12 call deprecated.
    pytest.mark.filterwarnings("ignore:(read_text|open_text) is deprecated:DeprecationWarning"),
]

WRITABLE = ["/run/millrace", "/var/lib/millrace", *DISKS, "/dev/shm", "/tmp", "/var/tmp"]
TOLD_SECONDS = 5.0
DEEP_ROUNDS = 5
WAITED_SECONDS = 1.0
"""A request to a frozen disk waits until the other processes know of it, which takes seconds."""


def test_every_unit_serves_says_how_it_is_and_runs_with_few_rights(installed: InstalledBox) -> None:
    installed.await_all_active()
    assert installed.box.output("systemctl list-units --failed --no-legend --plain 'millrace*'") == ""
    assert installed.box.unit("millrace.target")["ActiveState"] == "active"
    for unit in installed.services():
        properties = installed.box.unit(unit, "User", "StatusText", "NRestarts", "Type", "WatchdogUSec")
        assert properties["StatusText"], unit
        user = "millrace-net" if kind_of(unit) in FACES_NETWORK else "millrace"
        assert (properties["User"], properties["NRestarts"], properties["Type"]) == (user, "0", "notify"), unit
        assert properties["WatchdogUSec"] not in ("0", "infinity"), unit
        exposure = installed.box.output(f"systemd-analyze security --no-pager {unit} | sed -n 's/.*exposure level.*: \\([0-9.]*\\) .*/\\1/p'")
        assert float(exposure) <= EXPOSURE_MAX / 10, unit
    states = {process["name"]: process["state"] for process in installed.status()["processes"]}
    assert len(states) == len(installed.services()) and set(states.values()) == {"serving"}


def test_a_process_that_is_taken_over_executes_no_file_of_its_own_connects_nowhere_and_sees_no_secret(installed: InstalledBox) -> None:
    """Root enters the namespaces of each process: what it cannot do there, user millrace cannot."""
    installed.await_all_active()
    host_network = installed.box.output("readlink /proc/1/ns/net")
    secret = installed.box.output("ls /var/lib/millrace/zookeeper.secret")
    box_file = installed.box.output("ls /run/millrace/*/box.json")
    sees_network, sees_secret, writes_box = set(), set(), set()
    writes = {place: set() for place in ("/var/lib/millrace", "/var/lib/millrace/ingest", DISKS[0])}
    for unit, pid in sorted(installed.pids().items(), key=lambda found: kind_of(found[0]) == "supervisor"):  # its new file is writable for all
        enter = f"nsenter --target {pid} --mount --"
        for place in WRITABLE:
            planted = installed.box.run(f"{enter} sh -c 'test ! -w {place} && exit 126; cp /bin/true {place}/planted && {place}/planted'", check=False)
            assert planted.returncode == 126, (unit, place, planted)
        for place, kinds in writes.items():
            if installed.box.run(f"{enter} touch {place}/planted", check=False).returncode == 0:
                kinds.add(unit if "log-writer" in unit else kind_of(unit))
        if installed.box.output(f"readlink /proc/{pid}/ns/net") == host_network:
            sees_network.add(kind_of(unit))
        if installed.box.output(f"{enter} stat -c %s {secret}") != "0":
            sees_secret.add(kind_of(unit))
        replace = f"test -w {box_file} && cp -p {box_file} {box_file}.other && mv {box_file}.other {box_file}"
        if installed.box.run(f"{enter} sh -c '{replace}'", check=False).returncode == 0:
            writes_box.add(kind_of(unit))
    installed.box.run(f"rm -f {' '.join(f'{place}/planted' for place in (*WRITABLE, *writes))}")
    log_writers = {"millrace-log-writer@d0.service", "millrace-log-writer@d1.service"}
    of_storage = {"supervisor", "zookeeper", "controller", *log_writers}
    assert list(writes.values()) == [of_storage, of_storage | {"ingest"}, {"supervisor", "millrace-log-writer@d0.service"}]
    assert sees_network == {"console", "ingest"}
    assert sees_secret == {"supervisor", "zookeeper", "controller"}
    assert writes_box == {"supervisor"}


def test_a_process_that_reads_from_other_machines_reaches_into_no_other_process(installed: InstalledBox) -> None:
    """By /proc/PID/root or mem a process would leave its mount namespace: of the controller it would read the secret, of a log-writer write segments."""
    installed.await_all_active()
    user, group = installed.box.output("id -u millrace"), installed.box.output("id -g millrace")
    pids = {kind_of(unit): pid for unit, pid in installed.pids().items()}
    users = {kind: installed.box.output("id -u millrace-net") if kind in FACES_NETWORK else user for kind in pids}
    looks = {}
    own = installed.box.output("readlink /proc/1/ns/user")
    for kind, pid in pids.items():
        namespaces = "--mount" if installed.box.output(f"readlink /proc/{pid}/ns/user") == own else "--mount --user"
        for other in {"controller", "log-writer", "console"} - {kind}:
            become = f"setpriv --clear-groups nsenter --target {pid} {namespaces} -- setpriv --reuid {users[kind]} --regid {group} --keep-groups"
            assert installed.box.output(f"{become} id -g") == group
            looks[kind, other] = installed.box.run(f"{become} cat /proc/{pids[other]}/environ", check=False).returncode == 0
    assert not [pair for pair, seen in looks.items() if seen and pair[0] in READ_FROM_OTHER_MACHINES]
    assert looks["log-reader", "log-writer"] and not looks["log-writer", "controller"], "so much for processes of the same user namespace"
    order = "from appliance.command.disk import order_disk; from appliance.base.layout import BoxLayout; order_disk(BoxLayout(sys.argv[1]), 'remove', 'd0', '')"
    command = f'/opt/millrace/current/.venv/bin/python -c "import sys; {order}" /run/millrace/*'
    given = installed.box.run(f"setpriv --reuid {user} --regid {group} --clear-groups {command}", check=False)
    assert given.returncode and "only root may change the disks and settings" in given.stderr


AS_A_PROCESS = """
import json, os, signal, socket, sys
runtime, log, log_writer = sys.argv[1], sys.argv[2], int(sys.argv[3])


def can(call, *arguments):
    try:
        call(*arguments)
    except OSError:
        return False
    return True


def writes(directory):
    os.close(os.open(directory, os.O_TMPFILE | os.O_RDWR))


def connects(name):
    with socket.socket(socket.AF_UNIX) as connected:
        connected.connect(f"{runtime}/{name}")


shared = [f"/dev/shm/{name}" for name in os.listdir("/dev/shm")]
table = next(path for path in shared if ".table.d0." in path)
print(json.dumps({
    "reads log": can(open, log), "reads table": can(open, table), "connects": can(connects, "log-writer@d0.sock"),
    "reads secret": can(open, "/var/lib/millrace/zookeeper.secret"), "reads session": can(open, f"{runtime}/zookeeper.session"),
    "reads ZooKeeper's data": can(os.listdir, "/var/lib/millrace/zookeeper/data"),
    "writes log": can(open, log, "r+"), "removes log": can(os.unlink, log), "renames directory": can(os.rename, os.path.dirname(log), f"{log}.moved"),
    "writes table": can(open, table, "r+"), "removes table": can(os.unlink, table),
    "writes memory of the log-reader": can(open, next(path for path in shared if ".arena.log-reader@" in path), "r+"),
    "replaces box.json": can(open, f"{runtime}/box.json", "r+"), "makes a socket": can(open, f"{runtime}/other.sock", "w"),
    "replaces the socket of the administration": can(writes, "/run/millrace") or not os.path.exists("/run/millrace/kafka.sock"),
    "orders": can(connects, "supervisor.sock"), "signals": can(os.kill, log_writer, signal.SIGCONT),
}))
"""
"""Runs in the namespaces and with the rights of a process of the box."""


def await_audit(installed: InstalledBox, event: str, words: str) -> None:
    """An entry of the journal comes a moment after the answer."""
    eventually(lambda: words in installed.box.output(f"journalctl -o cat MILLRACE_AUDIT=audit.{event}"), words)


def test_processes_that_face_the_network_serve_and_can_do_nothing_to_logs_secrets_and_log_writers(installed: InstalledBox) -> None:
    installed.await_all_active()
    installed.millrace("topic", "create", "of-two-users")
    text = installed.box.output("seq 100 | millrace send of-two-users >&2; millrace topic tail of-two-users --from-beginning --max 2 --no-follow")
    assert text.split() == ["1", "2"], "produce and fetch"
    installed.box.run("logger -n 127.0.0.1 -P 514 -d --rfc5424 'by two users'")
    eventually(lambda: "by two users" in installed.box.output("millrace search 'two users'"), "syslog and search")
    assert installed.status()["processes"] and "syslog-udp" in installed.millrace("ingest", "status").stdout
    become_user = "setpriv --reuid {0} --regid {0} --clear-groups"
    installed.box.run(f"{become_user.format('millrace')} millrace topic create of-the-other-user")
    for principal, topic in (("User:local:0", "of-two-users"), ("User:local:millrace", "of-the-other-user")):
        await_audit(installed, "topic.created", f"audit.topic.created: {principal} from 127.0.0.1 (listener local): topic {topic}: done")
        assert f"topic {topic}: done" in installed.millrace("logs", "--json", "--event", "audit.topic.*").stdout
    assert "log-writer@d0" in installed.millrace("logs", "--process", "log-writer@d0", "--disk", "d0").stdout
    assert installed.box.run(f"{become_user.format('nobody').replace('--regid nobody', '--regid nogroup')} millrace topic list", check=False).returncode != 0
    log = installed.box.output("ls /srv/d?/of-two-users-0/*.log")
    runtime, group = installed.box.output("echo /run/millrace/*/").rstrip("/"), installed.box.output("id -g millrace")
    users = {
        kind: installed.box.output(f"id -u {user}") for kind, user in (("acceptor", "millrace-net"), ("ingest", "millrace-net"), ("controller", "millrace"))
    }
    pids = {kind_of(unit): pid for unit, pid in installed.pids().items()}
    found = {}
    for kind, user in users.items():
        enter = f"setpriv --clear-groups nsenter --target {pids[kind]} --mount {'--user' if kind in FACES_NETWORK else ''}"
        become = f"-- setpriv --reuid {user} --regid {group} --keep-groups"
        words = [*enter.split(), *become.split(), "/opt/millrace/current/.venv/bin/python", "-c", AS_A_PROCESS, runtime, log, str(pids["log-writer"])]
        found[kind] = {name for name, possible in json.loads(installed.box.output(words)).items() if possible}
    assert found["acceptor"] == found["ingest"] == {"reads log", "reads table", "connects"}
    rights = {"reads secret", "reads session", "signals", "writes table", "orders", "replaces the socket of the administration"}
    assert rights <= found["controller"], "so much for the other user"


def test_the_console_shows_the_memory_of_every_process(installed: InstalledBox) -> None:
    """It sees none of them in /proc: each publishes its own."""
    installed.await_all_active()
    for name in ("millrace_process_resident_bytes", "millrace_process_pss_bytes"):
        eventually(lambda name=name: sum(value > 1 << 20 for value in installed.metric_values(name)) >= len(installed.services()), f"{name} of all")


def test_a_line_that_comes_by_syslog_is_read_by_a_kafka_client_from_the_page_cache(installed: InstalledBox) -> None:
    cold_before = installed.metric("millrace_fetch_cold_reads_total")
    with installed.box.inside():
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams, socket.create_connection(SYSLOG) as stream:
            datagrams.sendto(b"<13>1 2026-01-01T00:00:00Z host app - - - by datagram", SYSLOG)
            stream.sendall(b"<13>1 2026-01-01T00:00:00Z host app - - - by stream\n")
        consumer = Consumer({"bootstrap.servers": str(KAFKA), "group.id": "reader", "enable.auto.commit": False})
        consumer.assign([TopicPartition("syslog", partition, 0) for partition in range(4)])
    texts: set[str] = set()

    def read() -> bool:
        for message in consumer.consume(1000, 0.2):
            value = message.value()
            assert message.error() is None and value is not None
            texts.add(json.loads(value)["message"])
        return {"by datagram", "by stream"} <= texts

    try:
        eventually(read, "both lines are read")
    finally:
        consumer.close()
    if has_cachestat():  # else the growing end of a file may be taken for absent
        assert installed.metric("millrace_fetch_cold_reads_total") == cold_before, "its unit lets an acceptor ask what is in the page cache"


def test_a_changed_file_is_reloaded_by_commands_and_units(installed: InstalledBox) -> None:
    installed.await_all_active()
    installed.millrace("topic", "create", "reloaded")
    settings = "/etc/millrace/millrace.toml"
    before = installed.box.output("millrace config reload --json")
    assert json.loads(before)["needs_restart"] == {}, before
    installed.box.output(f'cp -p {settings} /tmp/settings && sed -i \'1i "log.retention.hours" = 24\\n"ingest.batch.ms" = 7\' {settings}')
    installed.box.output("systemctl reload millrace-supervisor")
    described = "millrace topic describe reloaded -o wide"
    eventually(lambda: "86400000 settings file (log.retention.hours)" in " ".join(installed.box.output(described).split()), "the topic inherits it")
    installed.await_all_active()
    installed.box.output(f"mv /tmp/settings {settings} && millrace config reload")


def test_a_search_finds_records_and_log_writers_have_summaries_made(installed: InstalledBox) -> None:
    """By processes of console and log-writer, within the limits of their units."""
    with installed.box.inside():
        client = RawClient(KAFKA)
    client.create_topic("searched", 1, segment_bytes=str(2 << 20))
    for number in range(8):
        assert client.produce("searched", 0, batch(f"n{number} {os.urandom(350_000).hex()}")).error_code == 0
    client.close()

    def found(word: str) -> int:
        return len(installed.millrace("search", word, "--topic", "searched", "--since", "2020-01-01", "--json").stdout.splitlines())

    assert (found("n2"), found("n9")) == (1, 0)
    directories = " ".join(f"{disk}/searched-0" for disk in DISKS)
    eventually(lambda: installed.box.output(f"find {directories} -name '*.summary' 2>/dev/null || true"), "a sealed segment has a summary", 60)
    assert found("n2") == 1 and not int(installed.metric("millrace_summaries_failures_total"))


def test_a_listener_is_a_socket_unit_from_the_next_start_on_and_as_long_as_it_is_in_the_settings(installed: InstalledBox) -> None:
    settings, port = "/etc/millrace/millrace.toml", 6514
    relays = tables_text({"listener": [listener("relays", "syslog", port=port, topic="relayed")]})
    installed.box.output(f"cp -p {settings} /tmp/settings && echo '{relays}' >>{settings} && millrace config check {settings}")
    installed.box.output("millrace units apply && systemctl restart millrace.target")
    installed.await_all_active()
    with installed.box.inside(), socket.create_connection((SYSLOG[0], port)) as stream:
        stream.sendall(b"<13>1 2026-01-01T00:00:00Z host app - - - by the table\n")
    stored = 'millrace ingest status --json | grep -q \'"name": "relays".*"stored": 1,\''
    eventually(lambda: installed.box.run(stored, check=False).returncode == 0, "the line is stored")
    installed.box.output(f"cp -p /tmp/settings {settings} && millrace units apply && systemctl restart millrace.target")
    installed.await_all_active()
    with installed.box.inside(), socket.socket() as stream:
        assert stream.connect_ex((SYSLOG[0], port)) == errno.ECONNREFUSED


def test_persons_log_in_to_the_console_and_act_with_their_roles(installed: InstalledBox) -> None:
    """By the socket of the administration, as the user of the console."""
    box, origin = installed.box, f"http://{HTTP}"
    kept = installed.edit_settings(lambda text: f'"http.role.viewer" = "User:vera"\n"http.role.admin" = "User:anna"\n{text}')
    box.output("systemctl restart millrace.target")
    installed.await_all_active()
    for name in ("vera", "anna"):
        box.output(f"printf '%s\n' 'pass word of {name}' >/tmp/{name}.password && millrace user add {name} --password-file /tmp/{name}.password")

    def status(*words: str) -> str:
        return box.output(["curl", "-sS", "-o", "/tmp/answer", "-w", "%{http_code}", *words])

    def log_in(name: str, password_of: str) -> str:
        return status("-c", f"/tmp/{name}.jar", "-d", f"user={name}", "--data-urlencode", f"password@/tmp/{password_of}.password", f"{origin}/login")

    assert status(f"{origin}/api/topics") == "401" and log_in("anna", "vera") == "401"
    for name, created in (("vera", "403"), ("anna", "200")):
        eventually(lambda name=name: log_in(name, name) == "303", f"{name} logs in")  # type: ignore[misc]
        jar = ["-b", f"/tmp/{name}.jar", "-H", "X-Millrace: 1"]
        token = json.loads(box.output(["curl", "-sS", *jar, f"{origin}/api/rights"]))["token"]
        topic = ["--json", json.dumps({"topic": f"of-{name}", "partitions": 1}), f"{origin}/api/topic/create"]
        assert status(*jar, *topic) == "403" and "token" in box.output("cat /tmp/answer")
        assert status(*jar, "-H", f"X-Millrace-Token: {token}", *topic) == created, box.output("cat /tmp/answer")
        assert status(*jar, f"{origin}/api/topics") == status(*jar, f"{origin}/api/groups") == "200"
    await_audit(installed, "topic.created", "audit.topic.created: User:anna from 127.0.0.1 (listener console): topic of-anna: done")
    await_audit(installed, "login.failed", "User:anna from 127.0.0.1 (listener console)")
    installed.millrace("topic", "delete", "-y", "of-anna")
    box.output("rm /tmp/*.jar /tmp/*.password /tmp/answer")
    installed.edit_settings(lambda _: kept)  # the next start of the box is another test's


def test_a_request_that_comes_again_after_a_crash_of_ingest_is_known_by_its_key(installed: InstalledBox) -> None:
    """What it knows it has written to the state directory, which its unit must let it."""

    def push() -> None:
        with installed.box.inside():
            connection = http.client.HTTPConnection(*INGEST, timeout=20)
            connection.request("POST", "/ingest/syslog", b'{"message": "once"}', {"Content-Type": "application/json", "Idempotency-Key": "one"})
            assert connection.getresponse().status == 200
            connection.close()

    def published() -> tuple[int, int]:
        listeners = json.loads(installed.box.output("millrace ingest status --json"))["listeners"]
        return next((listener["stored"], listener["duplicate"]) for listener in listeners if listener["name"] == "http")

    push()
    pid = installed.pid(unit := "millrace-ingest@0.service")
    installed.box.output(f"kill -9 {pid}")
    installed.await_active(unit, unlike=pid)
    push()
    eventually(lambda: published() == (1, 1), "it is stored once and known once")


def test_a_mirror_is_a_unit_with_a_file_and_goes_on_after_a_kill(installed: InstalledBox) -> None:
    """The box is source and target; figures are where `millrace mirror status` and node_exporter find them."""
    box, unit = installed.box, "millrace-mirror@self"
    source = '[[source]]\nname = "self"\nprefix = "copy."\ntopics = ["mirrored"]\nbootstrap.servers = "127.0.0.1:9092"\n'
    box.output("millrace topic create mirrored; seq 1 50 | millrace send mirrored; install -d /etc/millrace/mirror")
    box.path("/etc/millrace/mirror/self.toml").write_text(f'status-seconds = 1\n[target]\nbootstrap.servers = "127.0.0.1:9092"\n{source}')

    def lag() -> list[int]:
        shown = box.run(["millrace", "mirror", "status", "self", "--json"], check=False).stdout
        partitions = json.loads(shown)["sources"][0]["partitions"] if shown else []
        return [each["lag"] for each in partitions if each["position"] > 0]

    box.output("chgrp millrace-mirror /etc/millrace/mirror/self.toml; chmod 640 /etc/millrace/mirror/self.toml")
    box.output(f"systemctl start {unit}")
    eventually(lambda: lag() == [0], "the first lines are copied", 60)
    pid = box.output(f"systemctl show --property=MainPID --value {unit}").strip()
    box.output(f"systemctl kill -s KILL {unit}; seq 51 100 | millrace send mirrored")
    eventually(lambda: box.output(f"systemctl show --property=MainPID --value {unit}").strip() not in ("0", pid), "it is started again", 60)
    copied = box.output("millrace topic tail copy.mirrored --from-beginning --max 100")
    assert sorted(map(int, copied.split())) == list(range(1, 101))

    def any_user_reads_the_lag() -> bool:
        shown = box.output("setpriv --reuid=65534 --regid=65534 --clear-groups cat /run/millrace-mirror/self/status.prom || true")
        return "millrace_mirror_lag_records{" in shown

    eventually(any_user_reads_the_lag, "the figures of the new process have its partitions: what it writes at its start has none", 60)
    pid = box.output(f"systemctl show --property=MainPID --value {unit}").strip()
    groups = box.output(f"grep -E '^(Uid|Groups)' /proc/{pid}/status; id -u millrace-mirror; getent group millrace | cut -d: -f3").split()
    own, others = groups[-2:]
    assert groups[1] == own and others not in groups[:-1], "it has no right of the box's users"
    box.output(f"systemctl stop {unit}; rm -r /etc/millrace/mirror; millrace topic delete -y mirrored copy.mirrored")


def test_no_acknowledged_record_is_lost_when_each_unit_and_the_whole_box_is_restarted_under_load(installed: InstalledBox) -> None:
    with load_on(installed.box, "restarts") as load:
        for unit in [*installed.services(), "millrace.target"] * (DEEP_ROUNDS if os.environ.get("MILLRACE_DEEP") else 1):
            started = time.monotonic()
            installed.box.run(["systemctl", "restart", unit])
            load.await_news(f"after the restart of {unit}")
            pause = load.producer.longest_silence(started, time.monotonic())
            print(f"{unit}: restarted; longest time without an acknowledgement on a partition {pause:.2f} s")
        installed.await_all_active()
    assert load.lost() == 0


def test_no_acknowledged_record_is_lost_when_every_process_is_killed_and_systemd_starts_all_of_them_again(installed: InstalledBox) -> None:
    pids = installed.pids()
    with load_on(installed.box, "deaths") as load:
        installed.box.run(["systemctl", "kill", "--kill-whom=main", "--signal=KILL", *pids])
        for unit, pid in pids.items():
            installed.await_active(unit, unlike=pid)
            assert int(installed.box.unit(unit)["NRestarts"]) >= 1
        load.await_news("after the death of everything")
        installed.await_all_active()
    assert load.lost() == 0


class Frozen(NamedTuple):
    """What a frozen disk did."""

    told_seconds: float
    """Until its request failed."""
    seconds: list[float]
    """Of each request to the other disk that was taken."""
    refusals: set[int]
    """Codes of those that were not."""
    started_again: set[str]


def freeze_and_ask(installed: InstalledBox, topic: str) -> Frozen:
    """Freeze the disk of one of two partitions, and go on producing to the other one."""
    with installed.box.inside():
        client, steady = RawClient(KAFKA), RawClient(KAFKA)
    client.create_topic(topic, 2)
    eventually(lambda: client.is_served(topic, 2), "the new topic is served")
    hurt = 0 if installed.box.path(f"{DISKS[0]}/{topic}-0").is_dir() else 1
    pids = installed.pids()

    seconds: list[float] = []
    refusals: set[int] = set()
    over = threading.Event()

    def produce_steadily() -> None:
        while not over.wait(0.005):
            started = time.monotonic()
            if code := steady.produce(topic, 1 - hurt, batch("steady")).error_code:
                refusals.add(code)
            else:
                seconds.append(time.monotonic() - started)

    others = threading.Thread(target=produce_steadily)
    installed.box.run(["fsfreeze", "--freeze", DISKS[0]])
    frozen_at = time.monotonic()
    others.start()
    try:
        client.send_produce(topic, hurt, batch("in flight"), timeout_seconds=30)
        assert client.receive_produce().error_code == KAFKA_STORAGE_ERROR
        told_seconds, answered = time.monotonic() - frozen_at, len(seconds)
        assert client.produce(topic, hurt, batch("refused")).error_code == KAFKA_STORAGE_ERROR
        assert installed.get("/healthz") == 200
        eventually(lambda: len(seconds) > answered, "requests to the other disk are answered while this one is frozen")
    finally:
        installed.box.run(["fsfreeze", "--unfreeze", DISKS[0]])
        over.set()
        others.join()
    eventually(lambda: client.produce(topic, hurt, batch("back")).error_code == 0, "the disk is served again")
    client.close()
    steady.close()
    installed.await_all_active()
    return Frozen(told_seconds, seconds, refusals, {unit for unit, pid in installed.pids().items() if pid != pids[unit]})


def test_requests_to_a_frozen_disk_fail_and_others_are_answered_meanwhile(installed: InstalledBox) -> None:
    frozen = freeze_and_ask(installed, "frozen")
    assert frozen.refusals <= {KAFKA_STORAGE_ERROR, NOT_LEADER_OR_FOLLOWER}, "beside other tests the other disk may miss its deadline for a moment"
    assert {unit.partition("@")[0] for unit in frozen.started_again} <= {"millrace-log-writer", "millrace-log-reader"}


@pytest.mark.deep  # an installation of its own; of a box that is not installed, tests/faults/test_disk_faults.py measures it in each run
@pytest.mark.alone  # it measures how long other requests take
def test_requests_to_a_frozen_disk_fail_in_time_and_no_others_are_affected(installed: InstalledBox) -> None:
    frozen = freeze_and_ask(installed, "frozen-in-time")
    assert frozen.told_seconds < TOLD_SECONDS
    assert frozen.seconds and max(frozen.seconds) < WAITED_SECONDS and not frozen.refusals
    assert frozen.started_again <= {"millrace-log-writer@d0.service", "millrace-log-reader@d0.service"}


def test_edited_settings_hold_after_a_stop_and_a_start_and_a_process_that_stands_still_is_killed_in_time_and_started_again(installed: InstalledBox) -> None:
    unit = "millrace-log-reader@d0.service"
    kept = installed.edit_settings(lambda text: f'"watchdog.timeout.ms" = 2000\n{text}')
    installed.box.run("systemctl stop millrace.target 'millrace-*'")
    assert installed.processes() == []
    assert installed.box.output("ls /dev/shm") == ""
    assert installed.get("/healthz") == 0
    installed.box.run("systemctl start millrace.target")
    installed.await_all_active()
    pid = installed.pid(unit)
    installed.box.run(["systemctl", "kill", "--kill-whom=main", "--signal=STOP", unit])
    installed.await_active(unit, unlike=pid)
    eventually(lambda: "Watchdog timeout (limit 2s)" in installed.box.journal("-u", unit), "the journal has it")
    eventually(lambda: "had sent no heartbeat for" in installed.box.journal("-u", "millrace-supervisor"), "the supervisor counts it for the alarm")
    installed.edit_settings(lambda _: kept)  # the next start of the box is another test's


def test_a_disk_that_is_not_mounted_when_the_machine_starts_has_no_writer_and_the_others_serve(installed: InstalledBox) -> None:
    with installed.box.inside():
        client = RawClient(KAFKA)
    client.create_topic("absent", 2)
    eventually(lambda: client.is_served("absent", 2), "the new topic is served")
    assert {client.produce("absent", partition, batch("before")).error_code for partition in range(2)} == {0}
    client.close()
    lost = 0 if installed.box.path(f"{DISKS[1]}/absent-0").is_dir() else 1
    installed.box.run("sed -i 's|^[^#].* /srv/d1 .*|# &|' /etc/fstab")
    installed.box.reboot()
    installed.await_active("millrace-log-writer@d0.service")
    with installed.box.inside():
        client = eventually(lambda: _connected(), "the box serves")
    eventually(lambda: client.produce("absent", 1 - lost, batch("served")).error_code == 0, "the other disk is served")
    assert client.produce("absent", lost, batch("refused")).error_code != 0
    assert not installed.is_active("millrace-log-writer@d1.service") and not installed.is_active("millrace-log-reader@d1.service")
    assert list(installed.box.path(DISKS[1]).iterdir()) == []
    installed.box.run("sed -i 's|^# ||' /etc/fstab && systemctl daemon-reload && systemctl start srv-d1.mount")
    eventually(lambda: client.produce("absent", lost, batch("back")).error_code == 0, "the disk is served again")
    assert b"before" in client.fetch("absent", lost, 0).records
    client.close()
    installed.await_all_active()


def _connected() -> RawClient | None:
    try:
        return RawClient(KAFKA)
    except OSError:
        return None
