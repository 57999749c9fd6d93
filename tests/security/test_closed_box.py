"""From an open box to a closed one: the commands and settings of docs/security.md, run on a real box, and what is closed then.

Weak: of `units apply` and `systemctl restart` no systemd sees anything; this starts the box instead.
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing
from http.client import HTTPConnection, HTTPSConnection
from pathlib import Path
from ssl import create_default_context
from urllib.parse import urlencode

import pytest

from appliance.base.settings import load_box
from appliance.client.address import Address
from appliance.client.connection import ClientConnection
from appliance.client.errors import BrokerUnreachable, ConnectionLost
from appliance.client.messages import METADATA
from appliance.client.security import ClientSecurity
from appliance.protocol.metadata import MetadataRequest
from lab.real_kafka import JVM, class_path, java, skip_without_kafka
from lab.running_box import ROOT, RunningBox, environment, eventually, start_box

pytestmark = [pytest.mark.system, pytest.mark.slow]
SECONDS = 60
PASSWORDS = {"anna": "correct horse battery staple", "alice": "a bicycle of blue glass"}
SECRET = "of-the-web-server"


def blocks_of_the_page() -> dict[str, str]:
    """By their language: commands (sh), settings (toml), options of Kafka's tools (properties)."""
    section = (ROOT / "docs" / "security.md").read_text().partition("## From an open box to a closed one\n")[2].partition("\n## ")[0]
    return dict(re.findall(r"```(\w+)\n(.*?)```", section, re.DOTALL))


class Place:
    """A box that the page closes. What differs from an installed box: its paths, its ports, and that this starts it."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.blocks = directory, blocks_of_the_page()
        self.started: list[RunningBox] = []
        self.settings = directory / "millrace.toml"
        self.settings.write_text('"host.figures.interval.ms" = 0\n')
        self.replaced = {"/etc/millrace/millrace.toml": str(self.settings), "/var/lib/millrace-tls": str(directory / "tls"), " -g millrace": "", "sudo ": ""}
        self.tools = directory / "tools"
        self.tools.mkdir()
        tool = self.tools / "kafka-configs.sh"
        tool.write_text(f'#!/bin/sh\nexec {java()} {" ".join(JVM)} -cp {class_path()} kafka.admin.ConfigCommand "$@"\n')
        tool.chmod(0o755)

    @property
    def box(self) -> RunningBox:
        return self.started[0]

    @property
    def bootstrap(self) -> str:
        (listener,) = load_box(self.box.layout).kafka_listeners
        return f"localhost:{listener.port}"

    def run(self, command: str, given: str = "") -> subprocess.CompletedProcess[str]:
        path = os.pathsep.join([str(self.tools), str(Path(sys.executable).parent), os.environ["PATH"]])
        env = {**environment(), "PATH": path, "MILLRACE_DATA": str(self.directory / "box" / "d0")}
        return subprocess.run(
            ["bash", "-euo", "pipefail", "-c", command], input=given, cwd=self.directory, env=env, capture_output=True, text=True, timeout=SECONDS, check=False
        )

    def close(self) -> list[str]:
        """Do what the page says; return its commands."""
        commands = re.sub(r"(\\|&&)\n\s+", lambda found: "" if found[1] == "\\" else "&& ", self.blocks["sh"]).splitlines()
        for command in commands:
            for word, own in self.replaced.items():
                command = command.replace(word, own)
            if "systemctl restart" in command:
                self.edit_settings()
                command = command.partition(" && ")[0]
            properties = self.blocks["properties"].replace("PASSWORD", PASSWORDS["anna"])
            (self.directory / "client.properties").write_text(properties)
            if command.startswith("kafka-configs.sh"):
                command = command.replace("logs.example.com:9092", self.bootstrap)
            name = command.rpartition(" ")[2]
            done = self.run(command.replace("logs.example.com", "localhost"), f"{PASSWORDS[name]}\n" if " user add " in command else "")
            assert done.returncode == 0, (command, done)
            if " config check " in command:
                self.started.append(start_box(self.directory / "box", disks=1, config=self.settings))
        return commands

    def edit_settings(self) -> None:
        own = {"SECRET": SECRET, "port = 8443": "port = 0", "0.0.0.0:9092": "127.0.0.1:0", "logs.example.com:9092": "localhost:0"} | self.replaced
        text = self.blocks["toml"]
        for word, instead in own.items():
            text = text.replace(word, instead)
        self.settings.write_text(self.settings.read_text() + text)

    def asks_anonymously(self, where: str, security: ClientSecurity | None = None) -> bool:
        """Whether a client without a login gets an answer."""
        host, _, port = where.rpartition(":")
        try:
            with closing(ClientConnection(Address(host, int(port)), security=security)) as connection:
                return bool(connection.request(METADATA, MetadataRequest(())).brokers)
        except (BrokerUnreachable, ConnectionLost):
            return False

    def kcat(self, user: str, password: str, *options: str, given: str = "") -> subprocess.CompletedProcess[str]:
        """As the page has it."""
        login = f"-X security.protocol=sasl_ssl -X ssl.ca.location=ca.pem -X sasl.mechanism=SCRAM-SHA-512 -X sasl.username={user}"
        assert " ".join(login.split()[:6]) in " ".join((ROOT / "docs" / "security.md").read_text().replace("\\\n", " ").split())
        return self.run(f'kcat -b {self.bootstrap} {login} -X sasl.password="{password}" {" ".join(options)}', given)

    def http(self, port: int, path: str, body: str | None = None, headers: Mapping[str, str] | None = None) -> tuple[int, str]:
        """Status, and the cookie that comes with it."""
        context = create_default_context(cafile=str(self.directory / "ca.pem"))
        plain, by_tls = HTTPConnection("127.0.0.1", port, timeout=SECONDS), HTTPSConnection("localhost", port, timeout=SECONDS, context=context)
        with closing(by_tls if port == self.box.sender("web").port else plain) as connection:
            connection.request("GET" if body is None else "POST", path, body, dict(headers or {}))
            answer = connection.getresponse()
            answer.read()
            return answer.status, (answer.getheader("Set-Cookie") or "").partition(";")[0]

    def log_in(self, password: str) -> tuple[int, str]:
        form = urlencode({"user": "anna", "password": password})
        return self.http(self.box.http.port, "/login", form, {"Content-Type": "application/x-www-form-urlencoded"})

    def counter(self, name: str) -> int:
        return int(self.box.counters("acceptor@0").values.get(name, 0))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    skip_without_kafka()
    made = Place(tmp_path_factory.mktemp("closed"))
    try:
        assert len(made.close()) == 10
        yield made
    finally:
        for box in made.started:
            box.stop()
    assert made.box.exit_code == 0 and made.box.leftovers() == []


def test_anonymous_clients_wrong_passwords_and_users_without_rights_are_refused(place: Place) -> None:
    assert [each.protocol for each in load_box(place.box.layout).kafka_listeners] == ["SASL_SSL"]
    assert not place.asks_anonymously(place.bootstrap)
    assert not place.asks_anonymously(place.bootstrap, ClientSecurity("SSL", authorities=str(place.directory / "ca.pem")))
    eventually(lambda: place.counter('acceptor.closed{reason="unauthenticated-request"}'), "the request without a login is counted")
    alice = PASSWORDS["alice"]
    eventually(lambda: place.kcat("alice", alice, "-t logs -P", given="by alice\n").returncode == 0, "the acceptor has the entries of alice")
    read = place.kcat("alice", alice, "-G readers -o beginning -X auto.offset.reset=earliest -c 1 -q logs")
    assert read.stdout == "by alice\n", read
    failed = place.counter("acceptor.authentications_failed")
    is_refused = lambda: place.kcat("alice", "guessed", "-L -m 1").returncode != 0 and place.counter("acceptor.authentications_failed") > failed  # noqa: E731
    eventually(is_refused, "a wrong password is refused and counted")
    denied = place.kcat("alice", alice, "-t syslog -P", given="no\n")
    assert denied.returncode != 0 and "authorization failed" in denied.stderr.lower(), denied


def test_the_quota_of_a_user_holds(place: Place) -> None:
    """As kcat says that sends more at a time than ten seconds may have."""
    (place.directory / "much").write_bytes((b"x" * 700_000 + b"\n") * 18)
    eventually(lambda: "throttled request" in place.kcat("alice", PASSWORDS["alice"], "-t logs -P -l much").stderr, "alice is throttled")


def test_a_sender_needs_its_token_and_writes_to_its_topic_alone(place: Place) -> None:
    port, token = place.box.sender("web").port, {"Authorization": f"Bearer {SECRET}", "Content-Type": "application/json"}
    line = '{"message":"by the web server"}'
    assert place.http(port, "/ingest/logs", line)[0] == place.http(port, "/ingest/logs", line, {**token, "Authorization": "Bearer guessed"})[0] == 401
    assert place.http(port, "/ingest/syslog", line, token)[0] == 403
    eventually(lambda: place.http(port, "/ingest/logs", line, token)[0] == 200, "ingest has the entry for its principal")
    assert place.http(place.box.ingest.port, "/ingest/logs", line)[0] == 403, "in clear text nothing is stored"
    with socket.create_connection(place.box.syslog) as sender:
        sender.sendall(b"<13>1 - host app - - - in clear text\n")
        eventually(lambda: "User:unencrypted may not write to topic syslog" in place.box.messages, "nor over TCP")


def test_a_visitor_of_the_console_reads_no_record_and_no_topic_before_the_login(place: Place) -> None:
    port, asked = place.box.http.port, {"X-Millrace": "test"}
    for path in ("/api/topics", "/api/overview", "/api/records?topic=logs", "/api/search?topic=logs&count=1", "/api/settings"):
        assert place.http(port, path, headers=asked)[0] == 401, path
    assert place.log_in("guessed")[0] == 401
    status, cookie = place.log_in(PASSWORDS["anna"])
    assert status == 303 and place.http(port, "/api/records?topic=logs", headers={**asked, "Cookie": cookie})[0] == 200
