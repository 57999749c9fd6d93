"""The ingest table: what a line means, and that everything wrong with a file is told at once, at its line, with what to do."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from appliance.base.settings import SenderSocket
from appliance.runtime.run_options import RunOptions, resolve_options
from appliance.senders.conditions import Condition, Subject
from appliance.senders.ingest_table import TableReading, read_table
from appliance.senders.listen_line import OPTIONS
from appliance.senders.listener import HTTP, SYSLOG_TCP, SYSLOG_UDP, KeyKind, KeyRule, Listener, Protocol, ProxyMode, Transport
from appliance.senders.route_line import SUBJECT_WORDS
from appliance.senders.router import Route
from appliance.senders.table_checks import certificate_problems, machine_problems, read_sender_table
from appliance.senders.table_words import words_of
from lab.running_box import ROOT
from tests.unit.base.test_settings import make_box

EXAMPLE = """
# senders of this box
listen dmz    syslog     tls :6514  topic=dmz key=app acks=1 certificate=/c.pem private-key=/k.pem client-ca=/ca.pem client-names=a.example,*.b.example
listen relp   relp       tcp 10.0.0.5:2514 max-message-bytes=1000 time-zone=Europe/Berlin idle-seconds=5
listen fluent fluent     tcp [::1]:24224 shared-key="a # b\\" c" raw=yes
listen beats  lumberjack tcp :5044 proxy=required proxy-from=10.0.0.0/8,192.0.2.7
listen gelf   gelf       udp *:12201   # a comment behind a line
options http token=one,two max-frame-bytes=2048
route listener=dmz facility=auth,authpriv   -> security,all
route severity<=err app=sshd*               -> errors key=app key-required=yes
route label.job=nginx field.a.b=5*          -> web
default -> other key=none
dead-letter -> ingest-dead-letter
"""


def read(text: str) -> TableReading:
    return read_table(text, "t", make_box(settings={"ingest.syslog.key": "host"}))


def named(reading: TableReading) -> dict[str, Listener]:
    return {listener.name: listener for listener in reading.listeners}


def test_a_table_is_understood_line_by_line() -> None:
    reading = read(EXAMPLE)
    assert reading.problems == []
    listeners = named(reading)
    assert list(listeners) == [SYSLOG_TCP, SYSLOG_UDP, HTTP, "dmz", "relp", "fluent", "beats", "gelf"]
    dmz = listeners["dmz"]
    assert (dmz.protocol, dmz.transport, dmz.address, dmz.port, dmz.topic, dmz.acks) == (Protocol.SYSLOG, Transport.TLS, "", 6514, "dmz", 1)
    assert (dmz.key, dmz.client_names, dmz.fd_name) == (KeyRule(KeyKind.APP), ("a.example", "*.b.example"), "ingest-dmz")
    relp = listeners["relp"]
    assert (relp.address, relp.message_bytes_max, relp.time_zone, relp.idle_ms_max, relp.key) == (
        "10.0.0.5",
        1000,
        "Europe/Berlin",
        5000,
        KeyRule(KeyKind.HOST),
    )
    assert (listeners["fluent"].address, listeners["fluent"].shared_key, listeners["fluent"].raw) == ("::1", 'a # b" c', True)
    assert (listeners["beats"].proxy, listeners["beats"].proxy_from) == (ProxyMode.REQUIRED, ("10.0.0.0/8", "192.0.2.7/32"))
    assert listeners["gelf"].is_datagram and listeners["gelf"].address == "0.0.0.0"
    assert (listeners[HTTP].tokens, listeners[HTTP].frame_bytes_max, listeners[HTTP].port) == (("one", "two"), 2048, 8081)
    assert reading.routes.routes[1] == Route(
        (Condition(Subject("severity"), (3,), True), Condition(Subject("app"), ("sshd*",))), ("errors",), KeyRule(KeyKind.APP), True
    )
    assert reading.routes.default == Route((), ("other",), KeyRule(KeyKind.NONE)) and reading.routes.dead_letter == "ingest-dead-letter"
    assert reading.lines["relp"] == 4


def test_an_empty_table_is_the_built_in_listeners_and_the_topic_of_the_settings() -> None:
    reading = read_table("", "t", make_box(settings={"ingest.syslog.topic": "lines", "ingest.syslog.key": "none"}))
    assert list(named(reading)) == [SYSLOG_TCP, SYSLOG_UDP, HTTP]
    assert reading.routes == reading.routes._replace(routes=(), default=Route((), ("lines",)), dead_letter="")
    assert named(reading)[SYSLOG_TCP].key == KeyRule(KeyKind.NONE) and named(reading)[SYSLOG_TCP].proxy is ProxyMode.V1


MISTAKES = {
    "lisen a": "did you mean listen?",
    "listen a syslog": "needs a name, a protocol, a transport and a port",
    "listen A_b syslog tcp :1": "cannot be a listener's name",
    "listen http http tcp :1": "change that one by `options http",
    "listen a smtp tcp :1": "there is no protocol 'smtp'",
    "listen a relpp tcp :1": "did you mean relp?",
    "listen a relp quic :1": "there is no transport 'quic'",
    "listen a relp udp :1": "relp is not spoken over udp; choose one of tcp, tls",
    "listen a relp tcp 1": "write :PORT",
    "listen a relp tcp :65536": "write :PORT",
    "listen a syslog tcp :5514": "port 5514 is taken by listener syslog-tcp, which is built in",
    "listen a relp tcp :1 topic=a/b": "characters other than",
    "listen a relp tcp :1 key=pid": "a key is host, app, tag, none, label.NAME or field.PATH",
    "listen a relp tcp :1 key=none key-required=yes": "key=none gives no record a key",
    "options syslog-tcp key-required=yes key=none": "key=none gives no record a key",
    "route app=a -> b key-required=yes key=none": "key=none gives no record a key",
    "default -> b key=none key-required=yes": "key=none gives no record a key",
    "listen a relp tcp :1 acks=2": "acks is '2'",
    "listen a relp tcp :1 raw=maybe": "it is yes or no",
    "listen a relp tcp :1 token=x": "token is for http, and this listener speaks relp",
    "listen a fluent tcp :1 shared-key=": "shared-key is not good: it is empty",
    "listen a relp tcp :1 certificate=/x": "certificate is for tls, and this listener is on tcp",
    "listen a relp tcp :1 max-message-bytes=5": "whole number from 480 to 8388608",
    "listen a relp tcp :1 proxy-from=10.0.0.0/8": "add proxy=yes",
    "listen a relp tcp :1 proxy=yes proxy-from=10.0.0.1/8": "write networks as 10.1.0.0/16",
    "listen a relp tcp :1 topc=x": "did you mean topic?",
    "listen a relp tcp :1 topic=x topic=y": "topic is said twice",
    "listen a relp tcp :1 topic": "write option=value",
    "listen a relp tls :1 certificate=/x": "needs certificate=FILE and private-key=FILE",
    "listen a relp tls :1 certificate=/x private-key=/y client-names=a": "client-names needs client-ca=FILE",
    "options dmz topic=a": "options are for a built-in listener",
    "route app=a": "a route needs `-> TOPIC`",
    "route -> a": "write it as `default -> TOPIC`",
    "route app=a ->": "no topic stands behind `->`",
    "route app=a -> b,b": "named twice",
    "route app=a -> __consumer_offsets": "is the box's own",
    "listen a relp tcp :1 topic=__x": "is the box's own",
    "route app=a -> b.c,b_c": "topics b.c and b_c differ in '.' and '_' alone",
    "route app=a -> b acks=1": "not known behind a topic",
    "route app -> b": "is no condition",
    "route ap=x -> b": "did you mean app?",
    "route label=x -> b": "cannot be asked",
    "route app<=x -> b": "<= is for severity alone",
    "route severity<=err,info -> b": "takes one value",
    "route severity=loud -> b": "there is no severity 'loud'",
    "route severity=8 -> b": "write a number from 0 to 7",
    "route facility=local8 -> b": "did you mean local0?",
    "route app=a, -> b": "has an empty value",
    "route app=a app=b -> c": "write one condition with commas",
    "route listener=dmz -> b": "there is no listener 'dmz'",
    "default topic": "default needs a topic",
    "dead-letter -> a,b": "dead letters go to one topic",
    'route app="a -> b': "a quote has no end",
}


@pytest.mark.parametrize("line", MISTAKES)
def test_a_mistake_is_told_at_its_line_with_what_to_do(line: str) -> None:
    problems = read(f"# first\n{line}\n").problems
    assert len(problems) == 1 and problems[0].startswith("t:2: ") and MISTAKES[line] in problems[0], problems


def test_everything_wrong_is_told_at_once_in_the_order_of_the_lines() -> None:
    lines = [line for line in MISTAKES if "key=pid" in line or line.startswith(("route", "lisen"))]
    problems = read("\n".join(lines)).problems
    assert [int(problem.split(":")[1]) for problem in problems] == list(range(1, len(lines) + 1))


def test_what_is_wrong_between_lines_names_the_other_line() -> None:
    text = "listen a relp tcp :1\nlisten a relp tcp :2\nlisten b gelf udp :1\nlisten c gelf tcp 127.0.0.1:1\noptions http topic=x\noptions http raw=yes\n"
    text += "default -> a\ndefault -> b\nroute app=x* -> a\nroute app=x* severity=err -> b\n"
    problems = read(text).problems
    assert [problem.partition(" ")[0] for problem in problems] == ["t:2:", "t:4:", "t:6:", "t:8:", "t:10:"]
    assert "line 1 already" in problems[0] and "taken by listener a, which is on line 1" in problems[1] and "line 9 takes all of them" in problems[4]


def test_no_message_shows_a_secret() -> None:
    text = "options http token=hunter2,\nlisten f fluent tcp :1 shared-key=hunter2 shared-key=hunter2\n"
    problems = read(text).problems
    assert len(problems) == 2 and "hunter2" not in "".join(problems)


def test_words_end_at_blanks_and_quotes_hold_them() -> None:
    assert words_of('  a "b c"  d="e \\"f\\" # g"#h # i') == ["a", "b c", 'd=e "f" # g#h']
    assert words_of("# nothing") == [] and words_of("\t") == []
    assert words_of('a "b') is None and words_of('a"') is None


# -- what the machine says


def options(tmp_path: Path, table: str) -> RunOptions:
    (tmp_path / "t").write_text(table)
    (tmp_path / "m.toml").write_text(f'"ingest.table.file" = "{tmp_path}/t"\n')
    return RunOptions(config=str(tmp_path / "m.toml"))


def test_a_start_learns_the_sockets_and_their_lines(tmp_path: Path) -> None:
    table = read_sender_table(resolve_options(options(tmp_path, "listen a relp tcp :0\nlisten b gelf udp 127.0.0.1:7\n"), 1)[0])
    assert table.sockets == (SenderSocket("ingest-a", False, "", 0, f"{tmp_path}/t:1"), SenderSocket("ingest-b", True, "127.0.0.1", 7, f"{tmp_path}/t:2"))
    assert table.problems == () and table.certificate_check is None and "relp" in table.text


def test_a_byte_order_mark_before_the_first_line_is_nothing(tmp_path: Path) -> None:
    table = read_sender_table(resolve_options(options(tmp_path, "\ufefflisten a relp tcp :0\n"), 1)[0])
    assert table.problems == () and len(table.sockets) == 1 and table.text.startswith("listen")


def test_files_and_zones_that_are_not_there_are_told(tmp_path: Path) -> None:
    lines = ["listen a syslog tcp :0 time-zone=Mars/Olympus", "listen b relp tls :0 certificate=x.pem private-key=/nowhere/k.pem"]
    table = read_sender_table(resolve_options(options(tmp_path, "\n".join(lines)), 1)[0])
    assert [problem.partition(": ")[0] for problem in table.problems] == [f"{tmp_path}/t:1", f"{tmp_path}/t:2", f"{tmp_path}/t:2"]
    assert all(words in "".join(table.problems) for words in ("Mars/Olympus", "give the whole path", "/nowhere/k.pem is not there"))
    assert table.sockets == ()
    (tmp_path / "t").unlink()
    (problem,) = read_sender_table(resolve_options(RunOptions(config=str(tmp_path / "m.toml")), 1)[0]).problems
    assert "cannot read the ingest table: No such file" in problem and "ingest.table.file" in problem
    (tmp_path / "t").write_bytes(b"\xff")
    assert "not UTF-8" in read_sender_table(resolve_options(RunOptions(config=str(tmp_path / "m.toml")), 1)[0]).problems[0]


@pytest.mark.slow
def test_a_key_of_another_certificate_is_found_before_the_start(tmp_path: Path) -> None:
    for name in ("one", "two"):
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-subj", "/CN=x", "-days", "1",
             "-keyout", f"{tmp_path}/{name}.key", "-out", f"{tmp_path}/{name}.pem"],
            check=True, capture_output=True,
        )  # fmt: skip
    base = f"listen a relp tls :0 certificate={tmp_path}/one.pem"
    reading = read(f"{base} private-key={tmp_path}/one.key client-ca={tmp_path}/two.pem\n")
    right = named(reading)["a"]
    assert machine_problems(reading, "t") == [] and certificate_problems([("t:1", right)]) == []
    wrong = right._replace(private_key=f"{tmp_path}/two.key", client_ca=f"{tmp_path}/one.key")
    key, authority = certificate_problems([("t:1", wrong)])
    assert "no certificate with its key" in key and "holds no certificate" in authority


def test_who_reads_a_table_stays_lean() -> None:
    code = "import sys, appliance.senders.table_checks; print(*{'ssl', 'orjson', 'logging', 'subprocess', 'typer'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True, cwd=Path(__file__).parents[3]).stdout.strip() == ""


def test_the_page_names_every_option_protocol_and_condition() -> None:
    page = (ROOT / "docs/senders.md").read_text()
    named = {word for line in page.splitlines() if line.startswith("| `") for word in re.findall(r"`([a-z-]+)`", line.split(" | ")[0])}
    assert set(OPTIONS) | set(Protocol) <= named
    assert [word for word in SUBJECT_WORDS.replace(" or ", ", ").split(", ") if f"`{word.replace('NAME', '').replace('PATH', '')}" not in page] == []


def test_every_line_that_the_page_gives_for_a_sender_is_right() -> None:
    rows = [line.split(" | ")[1] for line in (ROOT / "docs/send.md").read_text().splitlines() if line.startswith("| ") and line.count(" | ") == 2]
    lines = [text for row in rows for text in re.findall(r"`((?:listen|options) [^`]+)`", row)]
    assert read("\n".join(lines)).problems == [] and len(lines) >= 6
