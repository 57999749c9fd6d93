"""The tables of senders: what each key means, and that everything wrong with them is reported at once, with its table and what to do."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from appliance.base import trusted_files
from appliance.base.settings import SenderSocket
from appliance.runtime.run_options import RunOptions, SenderTable, resolve_options
from appliance.senders.conditions import RouteCondition, Subject
from appliance.senders.listener import HTTP, SYSLOG_TCP, SYSLOG_UDP, KeyKind, KeyRule, Listener, ListenerTransport, Protocol, ProxyMode, Token
from appliance.senders.router import Route
from appliance.senders.sender_tables import CONDITION_NAMES, LISTENER_KEYS, TableReading, listener_table, read_tables
from appliance.senders.table_checks import certificate_problems, machine_problems, read_sender_table
from lab.running_box import ROOT
from tests.unit.base.test_settings import make_box

# `test_old_table.py` compares it with the table of release 0.1: only keys of that release.
EXAMPLE = """
[[ingest.listener]]
name = "dmz"
protocol = "syslog"
transport = "tls"
port = 6514
topic = "dmz"
key = "app"
acks = 1
certificate = "/c.pem"
private-key = "/k.pem"
client-ca = "/ca.pem"
client-names = ["a.example", "*.b.example"]

[[ingest.listener]]
name = "relp"
protocol = "relp"
transport = "tcp"
address = "10.0.0.5"
port = 2514
max-message-bytes = 1000
time-zone = "Europe/Berlin"
idle-seconds = 5

[[ingest.listener]]
name = "fluent"
protocol = "fluent"
transport = "tcp"
address = "::1"
port = 24224
shared-key = 'a # b" c'
raw = true

[[ingest.listener]]
name = "beats"
protocol = "lumberjack"
transport = "tcp"
port = 5044
proxy = "required"
proxy-from = ["10.0.0.0/8", "192.0.2.7"]

[[ingest.listener]]
name = "gelf"
protocol = "gelf"
transport = "udp"
address = "*"
port = 12201

[[ingest.listener]]
name = "http"
token = ["one", "two"]
max-frame-bytes = 2048

[[ingest.route]]
listener = "dmz"
facility = ["auth", 10]
topic = ["security", "all"]

[[ingest.route]]
min-severity = "err"
app = "sshd*"
topic = "errors"
key = "app"
key-required = true

[[ingest.route]]
label.job = "nginx"
field.a.b = ["5*", 404, true]
topic = "web"

[ingest.default]
topic = "other"
key = "none"

[ingest.dead-letter]
topic = "ingest-dead-letter"
"""
RELP = 'name = "a", protocol = "relp", transport = "tcp", port = 1'


def tables(text: str) -> dict[str, Any]:
    return dict(tomllib.loads(text).get("ingest", {}))


def read(text: str) -> TableReading:
    return read_tables(tables(text), "m.toml", make_box(settings={"ingest.syslog.key": "host"}))


def named(reading: TableReading) -> dict[str, Listener]:
    return {listener.name: listener for listener in reading.listeners}


def test_every_table_is_understood() -> None:
    reading = read(EXAMPLE)
    assert reading.problems == []
    listeners = named(reading)
    assert list(listeners) == [SYSLOG_TCP, SYSLOG_UDP, HTTP, "dmz", "relp", "fluent", "beats", "gelf"]
    dmz = listeners["dmz"]
    assert (dmz.protocol, dmz.transport, dmz.address, dmz.port, dmz.topic, dmz.acks) == (Protocol.SYSLOG, ListenerTransport.TLS, "", 6514, "dmz", 1)
    assert (dmz.key, dmz.client_names, dmz.fd_name) == (KeyRule(KeyKind.APP), ("a.example", "*.b.example"), "ingest-dmz")
    relp = listeners["relp"]
    assert (relp.address, relp.message_bytes_max, relp.time_zone) == ("10.0.0.5", 1000, "Europe/Berlin")
    assert (relp.idle_ms_max, relp.key) == (5000, KeyRule(KeyKind.HOST))
    assert (listeners["fluent"].address, listeners["fluent"].shared_key, listeners["fluent"].raw) == ("::1", 'a # b" c', True)
    assert (listeners["beats"].proxy, listeners["beats"].proxy_from) == (ProxyMode.REQUIRED, ("10.0.0.0/8", "192.0.2.7/32"))
    assert listeners["gelf"].is_datagram and listeners["gelf"].address == "0.0.0.0"
    assert (listeners[HTTP].tokens, listeners[HTTP].frame_bytes_max, listeners[HTTP].port) == ((Token("one"), Token("two")), 2048, 8081)
    assert reading.routes.routes == (
        Route((RouteCondition(Subject("listener"), ("dmz",)), RouteCondition(Subject("facility"), (4, 10))), ("security", "all")),
        Route((RouteCondition(Subject("severity"), (3,), True), RouteCondition(Subject("app"), ("sshd*",))), ("errors",), KeyRule(KeyKind.APP), True),
        Route((RouteCondition(Subject("label", "job"), ("nginx",)), RouteCondition(Subject("field", "a.b"), ("5*", "404", "true"))), ("web",)),
    )
    assert reading.routes.default == Route((), ("other",), KeyRule(KeyKind.NONE)) and reading.routes.dead_letter == "ingest-dead-letter"
    assert reading.places["relp"] == "m.toml: [[ingest.listener]] 2"


def test_without_tables_there_are_the_built_in_listeners_and_the_topic_of_the_settings() -> None:
    reading = read_tables({}, "m.toml", make_box(settings={"ingest.syslog.topic": "lines", "ingest.syslog.key": "none"}))
    assert list(named(reading)) == [SYSLOG_TCP, SYSLOG_UDP, HTTP]
    assert reading.routes == reading.routes._replace(routes=(), default=Route((), ("lines",)), dead_letter="")
    assert named(reading)[SYSLOG_TCP].key == KeyRule(KeyKind.NONE) and named(reading)[SYSLOG_TCP].proxy is ProxyMode.NO


LISTENER_MISTAKES = {
    'name = "a", protocol = "syslog"': "transport, port missing: a listener needs a name",
    'name = "A b", protocol = "syslog", transport = "tcp", port = 1': 'name is "A b"; write at most 32 lower-case letters',
    'name = "http", port = 1': "port: http is built in, and [box] says where it listens; leave port out",
    'name = "a", protocol = "relp", transport = "tcp", port = 1, principal = "app"': 'principal is "app"; write User:NAME',
    'name = "a", protocol = "http", transport = "tcp", port = 1, token = {value = "t", principal = "*"}': "write a text in quotes or {",
    'name = "a", protocol = "smtp", transport = "tcp", port = 1': 'protocol is "smtp"; write one of syslog, relp',
    'name = "a", protocol = "relpp", transport = "tcp", port = 1': "did you mean relp?",
    'name = "a", protocol = "relp", transport = "quic", port = 1': 'transport is "quic"; write one of tcp',
    'name = "a", protocol = "relp", transport = "udp", port = 1': "transport: relp does not run over udp; choose one of tcp, tls",
    'name = "a", protocol = "relp", transport = "tcp", port = "1"': 'port is "1"; write a whole number from 0 to 65535',
    'name = "a", protocol = "relp", transport = "tcp", port = 65536': "whole number from 0 to 65535",
    'name = "a", protocol = "relp", transport = "tcp", port = true': "port is true; write a whole number",
    'name = "a", protocol = "relp", transport = "tcp", port = 1, address = "a b"': "write an address of this machine",
    'name = "a", protocol = "syslog", transport = "tcp", port = 5514': "port: 5514 is taken by listener syslog-tcp (built in)",
    f'{RELP}, topic = "a/b"': "write letters, digits",
    f'{RELP}, topic = "__x"': "belong to the box",
    f'{RELP}, key = "pid"': "write host, app, tag, none, label.NAME or field.PATH",
    f'{RELP}, key = "none", key-required = true': 'with key = "none" every record would be a dead letter',
    'name = "syslog-tcp", key-required = true, key = "none"': "name a key, or leave key-required out",
    f"{RELP}, acks = 2": "acks is 2",
    f"{RELP}, acks = true": "acks is true",
    f'{RELP}, raw = "maybe"': "write true or false",
    'name = "http", token = { value = "x", paths = ["v1/logs"] }': "token is not allowed",
    f'{RELP}, token = "x"': "token is for http, and this listener is relp",
    f'{RELP}, allow-origin = "https://a.example"': "allow-origin is for http, and this listener is relp",
    'name = "http", token = { value = "x", topic = "a" }': "token is not allowed; write a text in quotes or {",
    'name = "http", token = [{ value = "x", topics = "__x" }]': "token is not allowed",
    'name = "http", topics = ["a/*"]': "names of topics, in which * matches any characters",
    'name = "http", allow-origin = "a.example"': "write origins as https://app.example.com",
    'name = "http", allow-origin = ["https://a.example/path"]': "write origins as https://app.example.com",
    'name = "a", protocol = "fluent", transport = "tcp", port = 1, shared-key = ""': "shared-key is not allowed; write a text in quotes",
    f'{RELP}, certificate = "/x"': "certificate is for tls, and this listener is tcp",
    f"{RELP}, max-message-bytes = 5": "whole number from 480 to 8388608",
    f'{RELP}, proxy-from = "10.0.0.0/8"': 'proxy-from: no PROXY header is read here; add proxy = "yes"',
    f'{RELP}, proxy = "yes", proxy-from = "10.0.0.1/8"': "write networks as 10.1.0.0/16",
    f'{RELP}, topc = "x"': "topc is not a key of this table; the keys are name, protocol",
    f'{RELP}, topik = "x"': "did you mean topic?",
    'name = "a", protocol = "relp", transport = "tls", port = 1, certificate = "/x"': "add certificate and private-key",
    'name = "a", protocol = "relp", transport = "tls", port = 1, certificate = "/x", private-key = "/y", client-names = "a"': "checked by client-ca; add it",
}
ROUTE_MISTAKES = {
    'app = "a"': "topic is missing",
    'topic = "a"': "write it as [ingest.default]",
    'app = "a", topic = []': "topic is []; write letters",
    'app = "a", topic = ["b", "b"]': "b is there twice",
    'app = "a", topic = "__consumer_offsets"': "belong to the box",
    'app = "a", topic = ["b.c", "b_c"]': "topic: b.c and b_c differ only in '.' and '_'",
    'app = "a", topic = "b", acks = 1': "acks is not a condition",
    'app = "a", topic = "b", key-required = true, key = "none"': "every record would be a dead letter",
    'ap = "x", topic = "b"': "did you mean app?",
    'label = "x", topic = "b"': "write label.NAME = ",
    'label = {}, topic = "b"': "write label.NAME = ",
    'field.a = {}, topic = "b"': "field.a is {}; write a text",
    'severity = "loud", topic = "b"': 'severity is "loud"; write names or numbers (0 to 7): emerg',
    'severity = 8, topic = "b"': "names or numbers (0 to 7)",
    'min-severity = ["err", "info"], topic = "b"': "min-severity has several values",
    'min-severity = "err", severity = "info", topic = "b"': "would both have to match",
    'facility = "local8", topic = "b"': "did you mean local",
    'facility = [], topic = "b"': "facility is []; write names",
    'app = ["a", ""], topic = "b"': "write a text, a number, true or false",
    'app = 1979-05-27, topic = "b"': 'app is "1979-05-27"; write a text',
    'listener = "dmz", topic = "b"': "there is no listener 'dmz'",
}


@pytest.mark.parametrize("table", LISTENER_MISTAKES)
def test_a_mistake_in_a_listener_is_reported_with_its_table_and_what_to_do(table: str) -> None:
    problems = read(f'ingest.listener = [{{name = "syslog-udp", raw = true}}, {{{table}}}]').problems
    assert len(problems) == 1 and problems[0].startswith("m.toml: [[ingest.listener]] 2: ") and LISTENER_MISTAKES[table] in problems[0], problems


@pytest.mark.parametrize("table", ROUTE_MISTAKES)
def test_a_mistake_in_a_route_is_reported_with_its_table_and_what_to_do(table: str) -> None:
    problems = read(f'ingest.route = [{{app = "first", topic = "first"}}, {{{table}}}]').problems
    assert len(problems) == 1 and problems[0].startswith("m.toml: [[ingest.route]] 2: ") and ROUTE_MISTAKES[table] in problems[0], problems


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[ingest.default]\nkey = 'app'", "[ingest.default]: topic is missing"),
        ("[ingest.default]\ntopic = 'b'\nkey = 'none'\nkey-required = true", "[ingest.default]: key-required: "),
        ("[ingest.dead-letter]\ntopic = ['a', 'b']", "[ingest.dead-letter]: dead letters go to one topic"),
        ("[ingest.dead-letter]\ntopic = 'a'\nkey = 'app'", "[ingest.dead-letter]: dead letters go to one topic"),
        ("[ingest.listener]\nname = 'a'", "ingest.listener: this has not the form of a table; write [[ingest.listener]]"),
        ("[ingest]\nroute = [1]", "ingest.route: this has not the form"),
        ("[[ingest.default]]\ntopic = 'a'", "ingest.default: this has not the form of a table; write [ingest.default]"),
    ],
)
def test_a_mistake_in_the_shape_of_the_tables_is_reported(text: str, words: str) -> None:
    (problem,) = read(text).problems
    assert problem.startswith(f"m.toml: {words}")


def test_everything_wrong_is_reported_at_once_in_the_order_of_the_tables() -> None:
    problems = read(f"ingest.route = [{', '.join(f'{{{table}}}' for table in ROUTE_MISTAKES)}]").problems
    numbers = [int(re.findall(r"\[\[ingest.route\]\] (\d+): ", problem)[0]) for problem in problems]
    assert numbers == list(range(1, len(ROUTE_MISTAKES) + 1))


def test_what_is_wrong_between_tables_names_the_other_table() -> None:
    listeners = [f"{{{RELP}}}", f"{{{RELP.replace('port = 1', 'port = 2')}}}", '{name = "b", protocol = "gelf", transport = "udp", port = 1}']
    listeners += ['{name = "c", protocol = "gelf", transport = "tcp", address = "127.0.0.1", port = 1}', '{name = "http"}', '{name = "http", raw = true}']
    routes = ['{app = "x*", topic = "a"}', '{app = "x*", severity = "err", topic = "b"}']
    problems = read(f"ingest.listener = [{', '.join(listeners)}]\ningest.route = [{', '.join(routes)}]").problems
    assert [problem.removeprefix("m.toml: ") for problem in problems] == [
        "[[ingest.listener]] 2: name: listener a is in m.toml: [[ingest.listener]] 1 already; choose another name",
        "[[ingest.listener]] 4: port: 1 is taken by listener a (m.toml: [[ingest.listener]] 1); choose another",
        "[[ingest.listener]] 6: name: listener http is in m.toml: [[ingest.listener]] 5 already; choose another name",
        "[[ingest.route]] 2: no record comes here: m.toml: [[ingest.route]] 1 takes all of them; move this table before it",
    ]


def test_no_message_shows_a_secret() -> None:
    text = (
        'ingest.listener = [{name = "http", token = ["hunter2", ""]}, {name = "f", protocol = "fluent", transport = "tcp", port = 1, shared-key = ["hunter2"]}]'
    )
    problems = read(text).problems
    assert len(problems) == 2 and "hunter2" not in "".join(problems)


# -- what the machine says


def checked(tmp_path: Path, text: str) -> SenderTable:
    (tmp_path / "m.toml").write_text(text)
    return read_sender_table(resolve_options(RunOptions(config=str(tmp_path / "m.toml")), 1)[0])


def test_a_start_learns_the_sockets_and_their_tables(tmp_path: Path) -> None:
    gelf = '{name = "b", protocol = "gelf", transport = "udp", address = "127.0.0.1", port = 7}'
    table = checked(tmp_path, f"ingest.listener = [{{{RELP.replace('1', '0')}}}, {gelf}]\n")
    place = f"{tmp_path}/m.toml: [[ingest.listener]]"
    assert table.sockets == (SenderSocket("ingest-a", False, "", 0, f"{place} 1"), SenderSocket("ingest-b", True, "127.0.0.1", 7, f"{place} 2"))
    assert table.problems == () and table.certificate_check is None and len(table.tables["listener"]) == 2


def test_files_and_zones_that_do_not_exist_are_reported(tmp_path: Path) -> None:
    tls = '{name = "b", protocol = "relp", transport = "tls", port = 0, certificate = "x.pem", private-key = "/nowhere/k.pem"}'
    table = checked(tmp_path, f'ingest.listener = [{{name = "syslog-udp", time-zone = "Mars/Olympus"}}, {tls}]')
    place = f"{tmp_path}/m.toml: [[ingest.listener]]"
    assert [problem.rpartition("]] ")[2][0] for problem in table.problems] == ["1", "2", "2"] and all(p.startswith(place) for p in table.problems)
    assert all(words in "".join(table.problems) for words in ("Mars/Olympus", "write the whole path", "/nowhere/k.pem does not exist"))
    assert table.sockets == ()


@pytest.mark.slow
def test_a_key_of_another_certificate_or_that_ingest_cannot_read_is_found_before_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("one", "two"):
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-subj", "/CN=x", "-days", "1",
             "-keyout", f"{tmp_path}/{name}.key", "-out", f"{tmp_path}/{name}.pem"],
            check=True, capture_output=True,
        )  # fmt: skip
    files = {"certificate": "one.pem", "private-key": "one.key", "client-ca": "two.pem"}
    keys = "".join(f'{key} = "{tmp_path}/{file}"\n' for key, file in files.items())
    reading = read(f'[[ingest.listener]]\nname = "a"\nprotocol = "relp"\ntransport = "tls"\nport = 0\n{keys}')
    right = named(reading)["a"]
    assert reading.problems == machine_problems(reading) == [] and certificate_problems([("m.toml", right)]) == []
    wrong = right._replace(private_key=f"{tmp_path}/two.key", client_ca=f"{tmp_path}/one.key")
    key, authority = certificate_problems([("m.toml", wrong)])
    assert "do not belong together" in key and "contains no certificate" in authority
    for file, mode in (("one.key", 0o600), ("one.pem", 0o644), ("two.pem", 0o640)):
        (tmp_path / file).chmod(mode)
    monkeypatch.setattr(trusted_files, "_system_group", os.getegid)
    monkeypatch.setattr(trusted_files, "box_group", os.getegid)
    assert [problem.partition(" (")[0] for problem in certificate_problems([("m.toml", right)])] == [
        f"m.toml: user millrace-net cannot read {tmp_path}/one.key"
    ]


def test_reading_the_tables_loads_no_heavy_library() -> None:
    code = "import sys, appliance.senders.table_checks; print(*{'ssl', 'orjson', 'logging', 'subprocess', 'typer', 'difflib'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True, cwd=ROOT).stdout.strip() == ""


def test_a_token_may_have_topics_of_its_own() -> None:
    reading = read('[[ingest.listener]]\nname = "http"\ntopics = "web-*"\ntoken = ["one", { value = "two", topics = ["orders", "web-*"] }]\n')
    http = named(reading)[HTTP]
    assert reading.problems == [] and http.topics == ("web-*",)
    assert http.tokens == (Token("one"), Token("two", ("orders", "web-*")))
    limited = read('[[ingest.listener]]\nname = "http"\ntoken = { value = "t", paths = ["/v1/logs", "/loki/*"] }\n')
    assert next(listener for listener in limited.listeners if listener.name == HTTP).tokens == (Token("t", paths=("/v1/logs", "/loki/*")),)


# -- documents


def test_the_page_names_every_key_protocol_and_condition() -> None:
    page = (ROOT / "docs/senders.md").read_text()
    named = {word for line in page.splitlines() if line.startswith("| `") for word in re.findall(r"`([a-z-]+)", line.split(" | ")[0])}
    assert {*LISTENER_KEYS, *Protocol, *CONDITION_NAMES} <= named


def test_the_page_has_the_keys_of_listeners_as_they_are_read() -> None:
    page = (ROOT / "docs/senders.md").read_text()
    marked = page.split("<!-- keys -->\n")[1].split("<!-- /keys -->\n")[0]
    assert marked == listener_table(), "write between the marks: .venv/bin/python -m appliance.senders.sender_tables"
    assert all(key.meaning for key in LISTENER_KEYS.values())


@pytest.mark.parametrize("page", ["docs/send.md", "docs/senders.md"])
def test_every_table_on_the_pages_is_right(page: str) -> None:
    blocks = [block for block in re.findall(r"```toml\n(.*?)```", (ROOT / page).read_text(), re.DOTALL) if "ingest" in block]
    assert blocks
    for block in blocks:
        assert read(block).problems == [], block


def test_every_listener_that_the_page_gives_for_a_sender_is_right() -> None:
    rows = [line.split(" | ")[1] for line in (ROOT / "docs/send.md").read_text().splitlines() if line.startswith("| ") and line.count(" | ") == 2]
    listeners = [text for row in rows for text in re.findall(r"`((?:name|token) = [^`]+)`", row)]
    assert len(listeners) >= 6
    for text in listeners:
        assert read(f"ingest.listener = [{{{text}}}]").problems == [], text


def test_a_refused_default_leaves_every_record_a_destination() -> None:
    reading = read_tables({"default": {"topic": "no/topic"}}, "millrace.toml", make_box())
    assert len(reading.problems) == 1 and "no/topic" in reading.problems[0]
    router = reading.router()
    assert all(router.of(listener).fallback for listener in reading.listeners)
