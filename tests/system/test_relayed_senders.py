"""Relays that others wrote, over TLS with client certificates and over RELP: what they were given is stored, to the line."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from confluent_kafka import Consumer, TopicPartition
from relppy.client import RelpTCPClient, RelpTlsClient

from lab.certificates import Authority, Certificate
from lab.real_zookeeper import free_port
from lab.running_box import Address, RunningBox, eventually, listener

pytestmark = [pytest.mark.system, pytest.mark.slow]

LINES = 3_000
LOGGEN_COUNT = re.compile(r"count=(\d+)")


class Site(NamedTuple):
    """A box with its listeners, and the certificates of its senders."""

    box: RunningBox
    authority: Authority
    server: Certificate
    client: Certificate


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, start_shared: Callable[..., RunningBox]) -> Iterator[Site]:
    directory = tmp_path_factory.mktemp("site")
    authority = Authority(directory)
    server, client = authority.sign("localhost", "DNS:localhost"), authority.sign("relay.example.com")
    own = {"certificate": str(server.certificate), "private_key": str(server.private_key)}
    checked = {**own, "client_ca": str(authority.certificate), "client_names": "*.example.com"}
    proxied = {"proxy": "required", "proxy_from": "127.0.0.0/8"}
    listeners = [
        listener("tls", "syslog", "tls", topic="tls", **checked),
        listener("open", "syslog", "tls", topic="open", **own),
        listener("relp", "relp", topic="relp"),
        listener("relptls", "relp", "tls", topic="relptls", **checked),
        listener("proxied", "syslog", topic="proxied", **proxied),
        listener("proxytls", "syslog", "tls", topic="proxytls", **proxied, **own),
        listener("odd", "syslog", topic="odd", key="app", time_zone="Asia/Tokyo", max_message_bytes=600),
    ]
    box = start_shared(directory / "box", settings={"ingest.syslog.partitions": 2}, senders={"listener": listeners})
    yield Site(box, authority, server, client)
    box.stop()
    assert box.leftovers() == []


def read(box: RunningBox, topic: str) -> list[dict[str, Any]]:
    """The documents in a topic, each with its key and headers."""
    consumer = Consumer({"bootstrap.servers": box.bootstrap, "group.id": "test", "enable.auto.commit": False, "fetch.wait.max.ms": 50})
    try:
        partitions = consumer.list_topics(topic, 10).topics[topic].partitions
        starts = [TopicPartition(topic, partition, 0) for partition in partitions]
        wanted = sum(consumer.get_watermark_offsets(start, 10)[1] for start in starts)
        consumer.assign(starts)
        found: list[dict[str, Any]] = []
        deadline = time.monotonic() + 60
        while len(found) < wanted:
            assert time.monotonic() < deadline, f"{len(found)} of {wanted} records of {topic} came"
            for message in consumer.consume(1000, 0.1):
                value = message.value()
                assert message.error() is None and value is not None
                found.append({**json.loads(value), "key": message.key(), "headers": dict(message.headers() or [])})
        return found
    finally:
        consumer.close()


def texts(box: RunningBox, topic: str, word: str) -> Counter[str]:
    return Counter(value["message"].strip() for value in read(box, topic) if word in value["message"])


def stored(box: RunningBox, listener: str) -> int:
    return box.counters("ingest@0").values.get(f'ingest.stored{{listener="{listener}"}}', 0)


def _has_stored(box: RunningBox, listener: str, count: int) -> bool:
    return stored(box, listener) >= count


@contextmanager
def daemon(arguments: list[str], directory: Path) -> Iterator[None]:
    with open(directory / "daemon.log", "wb") as log:
        process = subprocess.Popen(arguments, cwd=directory, stdout=log, stderr=log)
    try:
        yield
    finally:
        process.terminate()
        process.wait(20)


def feed(port: int, word: str, count: int) -> socket.socket:
    """Numbered lines to a relay's entrance, as soon as it is there. The connection is the caller's to close."""

    def connect() -> socket.socket | None:
        try:
            return socket.create_connection(("127.0.0.1", port), 10)
        except OSError:
            return None

    sender: socket.socket = eventually(connect, f"{word} takes lines")
    sender.sendall(b"".join(b"<29>Jan  5 12:00:00 sender prog[7]: %b-%d\n" % (word.encode(), number) for number in range(count)))
    return sender


def expected(word: str, count: int = LINES) -> Counter[str]:
    return Counter(f"{word}-{number}" for number in range(count))


def rsyslog(site: Site, directory: Path, entrance: int, actions: str) -> list[str]:
    (directory / "rsyslog.conf").write_text(f"""
global(workDirectory="{directory}" defaultNetstreamDriverCAFile="{site.authority.certificate}"
       defaultNetstreamDriverCertFile="{site.client.certificate}" defaultNetstreamDriverKeyFile="{site.client.private_key}")
module(load="imtcp")
module(load="omrelp" tls.tlslib="openssl")
input(type="imtcp" address="127.0.0.1" port="{entrance}" ruleset="out")
ruleset(name="out" queue.type="LinkedList" queue.size="100000") {{ {actions} }}
""")
    return [_need("rsyslogd"), "-n", "-f", str(directory / "rsyslog.conf"), "-i", str(directory / "pid")]


def _need(command: str) -> str:
    path = shutil.which(command)
    assert path, f"{command} is not there; ./install.sh test unpacks it under .venv/peers"
    return path


def test_rsyslog_over_tls_with_its_certificate_and_over_relp_with_and_without_tls(site: Site, tmp_path: Path) -> None:
    entrance, box = free_port(), site.box
    tls, relp, relp_tls = (box.sender(name) for name in ("tls", "relp", "relptls"))
    own = 'template="RSYSLOG_SyslogProtocol23Format" queue.type="LinkedList" queue.size="100000" action.resumeRetryCount="-1"'
    files = f'tls.caCert="{site.authority.certificate}" tls.myCert="{site.client.certificate}" tls.myPrivKey="{site.client.private_key}"'
    peer = 'StreamDriver="ossl" StreamDriverMode="1" StreamDriverAuthMode="x509/name" StreamDriverPermittedPeers="localhost"'
    actions = f"""
  action(type="omfwd" target="127.0.0.1" port="{tls.port}" protocol="tcp" TCP_Framing="octet-counted" {peer} {own})
  action(type="omrelp" target="127.0.0.1" port="{relp.port}" {own})
  action(type="omrelp" target="127.0.0.1" port="{relp_tls.port}" tls="on" {files} tls.authmode="name" tls.permittedpeer=["localhost"] {own})
"""
    listeners = {"tls": "tls", "relp": "relp", "relptls": "relp"}
    before = {name: stored(box, name) for name in listeners}
    with daemon(rsyslog(site, tmp_path, entrance, actions), tmp_path), feed(entrance, "rsyslog", LINES):
        for name in listeners:
            eventually(partial(_has_stored, box, name, before[name] + LINES), f"rsyslog's lines are stored by {name}")
    for name, transport in listeners.items():
        assert texts(box, name, "rsyslog") == expected("rsyslog")
        assert {value["headers"]["transport"] for value in read(box, name) if "rsyslog" in value["message"]} == {transport.encode()}
    values = box.counters("ingest@0").values
    assert values['ingest.acknowledged{listener="relp"}'] == LINES


def test_syslog_ng_over_tls_in_both_framings(site: Site, tmp_path: Path) -> None:
    entrance, port = free_port(), site.box.sender("tls").port
    own = (
        f'key-file("{site.client.private_key}") cert-file("{site.client.certificate}") ca-file("{site.authority.certificate}") peer-verify(required-untrusted)'
    )
    (tmp_path / "syslog-ng.conf").write_text(f"""@version: 3.38
options {{ keep-hostname(yes); use-dns(no); stats-freq(0); }};
source s_in {{ network(ip("127.0.0.1") port({entrance}) transport("tcp") log-iw-size(10000)); }};
destination d_5424 {{ syslog("127.0.0.1" persist-name("d5424") port({port}) transport("tls") tls({own}) log-fifo-size(50000)); }};
destination d_3164 {{ network("127.0.0.1" persist-name("d3164") port({port}) transport("tls") tls({own}) log-fifo-size(50000)); }};
log {{ source(s_in); destination(d_5424); destination(d_3164); }};
""")
    names = {option: str(tmp_path / name) for option, name in (("-f", "syslog-ng.conf"), ("-R", "persist"), ("-c", "control"), ("-p", "pid"))}
    before = stored(site.box, "tls")
    with daemon([_need("syslog-ng"), "-F", *[part for pair in names.items() for part in pair]], tmp_path), feed(entrance, "ng", LINES):
        eventually(lambda: stored(site.box, "tls") - before >= 2 * LINES, "syslog-ng's lines are stored twice")
    assert texts(site.box, "tls", "ng-") == expected("ng") + expected("ng")


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
def test_relppy_is_answered_for_every_line(site: Site, tls: bool) -> None:
    name = "relptls" if tls else "relp"
    address = tuple(site.box.sender(name))
    if tls:
        client = RelpTlsClient(address, context=_client_context(site), server_hostname="localhost")
    else:
        client = RelpTCPClient(address)
    answers = [client.send_command(b"syslog", b"<13>1 - host relppy - - - relppy-%d" % number) for number in range(300)]
    assert {answer.result(60) for answer in answers} == {b"200 OK"}
    client.close()
    assert texts(site.box, name, "relppy") == expected("relppy", 300)


def relp_session(address: Address, *lines: bytes, end: bytes = b"") -> bytes:
    """What a sender hears that brings these lines, and leaves when each is answered; `end` is sent with them."""
    offers = b"relp_version=0\ncommands=syslog"
    frames = [b"1 open %d %b\n" % (len(offers), offers)]
    frames += [b"%d syslog %d %b\n" % (number, len(line), line) for number, line in enumerate(lines, 2)]
    heard = b""
    with socket.create_connection(address, 10) as sender:
        sender.sendall(b"".join(frames) + end)
        while heard.count(b"200 OK") <= len(lines) or (end and b"serverclose" not in heard):
            received = sender.recv(65536)
            assert received, heard
            heard += received
    return heard


def test_lines_that_repeat_themselves_over_sessions_are_stored_each_time(site: Site) -> None:
    """Every sender has all answers when it leaves, with a `close` or without: nothing of it is a replay."""
    address, line = site.box.sender("relp"), b"<13>1 - again cron - - - again-%b"
    for _ in range(3):
        relp_session(address, line % b"start", line % b"done")
        relp_session(address, line % b"beat")
    with socket.create_connection(address, 10) as leaving:  # one that breaks off: what its host sends next is looked at, and held back
        leaving.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        broken = line % b"broken"
        leaving.sendall(b"1 open 16 commands=syslog\n\n" + b"2 syslog %d %b\n" % (len(broken), broken))
        eventually(lambda: texts(site.box, "relp", "again-broken"), "the line that is broken off is stored")
    for _ in range(2):
        assert b"4 rsp 0" in relp_session(address, line % b"last", line % b"words", end=b"4 close 0\n")
    wanted = {"again-start": 3, "again-done": 3, "again-beat": 3, "again-broken": 1, "again-last": 2, "again-words": 2}
    assert texts(site.box, "relp", "again-") == wanted


def _client_context(site: Site) -> Any:
    import ssl

    context = ssl.create_default_context(cafile=str(site.authority.certificate))
    context.load_cert_chain(site.client.certificate, site.client.private_key)
    return context


def _loggen(address: Address, *options: str) -> int:
    command = [_need("loggen"), "-s", "300", "-I", "1", "-r", "5000", *options, address.host, str(address.port)]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    return int(LOGGEN_COUNT.findall(finished.stdout + finished.stderr)[-1])


@pytest.mark.parametrize(
    ("listener", "options"),
    [("open", ["-U"]), ("open", ["-U", "-P"]), ("proxied", ["-i", "-S", "-H"]), ("proxytls", ["-U", "-H", "--proxied-tls-passthrough"])],
    ids=["tls", "tls-octets", "proxy", "proxy-tls"],
)
def test_loggen_and_every_line_is_stored(site: Site, listener: str, options: list[str]) -> None:
    before = stored(site.box, listener)
    sent = _loggen(site.box.sender(listener), *options)
    sent += "--proxied-tls-passthrough" in options  # loggen then says its header in front of TLS, and once more inside of it
    eventually(lambda: stored(site.box, listener) - before == sent, f"loggen's {sent} lines are stored")
    if "-H" in options:
        sources = {value["headers"]["proxied_source"] for value in read(site.box, listener)}
        assert len(sources) == 1 and b":" in sources.pop()


def test_what_a_listener_says_of_its_senders_holds_for_them_alone(site: Site) -> None:
    with socket.create_connection(site.box.sender("odd")) as sender:
        sender.sendall(b"<13>Jan  5 12:00:00 host smartd[7]: tokyo\n<13>Jan  5 12:00:00 host smartd[7]: long " + b"x" * 1000 + b"\n")
        eventually(lambda: stored(site.box, "odd") == 2, "both lines are stored")
    short, long = sorted(read(site.box, "odd"), key=lambda value: len(value["message"]))
    assert short["time"].endswith("-01-05T03:00:00.000Z") and short["key"] == b"smartd"
    assert long["headers"]["truncated"] == b"true" and len(long["message"]) < 600
    assert int(short["headers"]["arrival_ms"]) > 0  # beside the sender's time: its clock's error stays visible


def test_strangers_store_nothing_and_are_counted(site: Site) -> None:
    with socket.create_connection(site.box.sender("tls")) as sender:
        sender.sendall(b"<13>plaintext\n")
        eventually(lambda: site.box.counters("ingest@0").values.get('ingest.closed{reason="tls-plaintext"}') == 1, "plaintext on a TLS port is counted")
    assert "speaks plaintext where TLS is expected" in site.box.messages
    assert not texts(site.box, "tls", "plaintext")


def test_a_new_certificate_is_used_while_an_old_connection_stays_open(site: Site, tmp_path: Path) -> None:
    import ssl

    context = ssl.create_default_context(cafile=str(site.authority.certificate))
    address = site.box.sender("open")
    before = stored(site.box, "open")
    with context.wrap_socket(socket.create_connection(address), server_hostname="localhost") as old:
        old.sendall(b"<13>before\n")
        renewed = site.authority.sign("renewed", "DNS:localhost")
        os.replace(renewed.private_key, site.server.private_key)
        os.replace(renewed.certificate, site.server.certificate)

        def common_name() -> str:
            try:
                with context.wrap_socket(socket.create_connection(address), server_hostname="localhost") as new:
                    certificate: dict[str, Any] = dict(new.getpeercert() or {})
                    return str(certificate["subject"][0][0][1])
            except (ssl.SSLError, OSError):
                return ""

        pid = site.box.pid("ingest@0")
        os.kill(pid, signal.SIGHUP)  # the usual reload signal has no effect
        eventually(lambda: common_name() == "renewed", "new connections get the new certificate")
        assert site.box.pid("ingest@0") == pid
        old.sendall(b"<13>after\n")
        eventually(lambda: stored(site.box, "open") - before == 2, "the old connection stays open")
