from __future__ import annotations

from pathlib import Path

import pytest
import typer

from appliance.base.errors import MillraceError
from appliance.base.setting_rows import GROUPS, SETTING_ROWS
from appliance.command.config import check, convert
from appliance.command.config_check import line_of_problem, lines_by_name, reference_page
from appliance.command.failures import UsageProblem
from lab.running_box import ROOT

ILL = """\
# what is wrong here is wrong on purpose
"log.segment.bytes" = 5
log.roll.ms = "x"
acceptor.arena.bytez = 7   # misspelt
[socket.request]
max.bytes = 3
[box]
data = ["/srv/a", "/srv/a/b"]
kafka-port = 70000
http_port = 5514
colour = "blue"
"""


def complaints(file: Path, capsys: pytest.CaptureFixture[str]) -> list[str]:
    with pytest.raises(typer.Exit) as ended:
        check(str(file))
    assert ended.value.exit_code == 1
    return capsys.readouterr().out.splitlines()


def test_everything_that_is_wrong_is_said_at_once_with_its_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "millrace.toml"
    file.write_text(ILL)
    lines = complaints(file, capsys)
    said = [line.removeprefix(f"{file}:") for line in lines[::2]]
    assert [int(words.partition(":")[0]) for words in said] == [2, 3, 4, 6, 8, 9, 10, 11]
    assert "log.segment.bytes is 5; allowed is a whole number from 16384 to 2147483647 (bytes)" in said[0]
    assert "did you mean acceptor.arena.bytes?" in said[2]
    assert "--kafka-port is 70000" in said[5]
    assert lines[1::2] == [f"{number:>6} | {ILL.splitlines()[number - 1].strip()}" for number in (2, 3, 4, 6, 8, 9, 10, 11)]


def test_what_is_wrong_between_two_settings_shows_one_of_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "millrace.toml"
    file.write_text('\n"acceptor.arena.bytes" = 134217728\n"disk.budget.bytes" = 68719476736\n')
    lines = complaints(file, capsys)
    assert lines[0].startswith(f"{file}:3: disk.budget.bytes (68719476736) is more than acceptor.arena.bytes")


SENDERS = """\
[[ingest.listener]]
name = "f"
protocol = "fluent"
transport = "tcp"
port = 24224
shared-key = "hunter2"
proxy = "yes"
acks = 1

[[ingest.route]]
min-severity = "err"
app = ["a*", "b"]
topic = ["x", "y"]
key = "label.job"
key-required = true

[ingest.dead-letter]
topic = "d"
"""


def test_tables_of_senders_are_printed_as_they_are_understood(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "millrace.toml"
    file.write_text('"ingest.syslog.topic" = "lines"\n' + SENDERS)
    check(str(file))
    text = capsys.readouterr().out
    assert "1. min-severity=err app=a*,b -> x,y, key label.job (required)\ndefault -> lines; dead letters -> d\n" in text and "hunter2" not in text
    rows = {line.split()[0]: line.split() for line in text.splitlines() if line}
    assert rows["f"] == ["f", "fluent", "tcp", "(box):24224", "lines", "host", "1", "shared", "key,", "proxy", "yes"]


def test_mistakes_in_tables_of_senders_are_reported_with_their_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "millrace.toml"
    text = SENDERS.replace("24224", "514").replace('"err"', '"loud"').replace('topic = "d"', "")
    file.write_text("[box]\nsyslog-port = 514\n" + text + '\n[[ingest.listener]]\nname = "g"\nprotocol = "gelf"\nport = 1\nraw = "maybe"\n')
    lines = complaints(file, capsys)
    found = [line.removeprefix(f"{file}:").partition(":")[0] for line in lines[::2]]
    assert [lines[2 * index + 1].partition(" | ")[2] for index in range(len(found))] == [
        "port = 514",
        'min-severity = "loud"',
        "[ingest.dead-letter]",
        "[[ingest.listener]]",
        'raw = "maybe"',
    ]
    assert found == sorted(found, key=int) and "port: 514 is taken by listener syslog-tcp" in lines[0]


def test_two_listeners_on_one_port_are_reported_also_if_one_is_the_console_or_kafka(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "millrace.toml"
    of_kafka = 'listeners = "PLAINTEXT://127.0.0.1:9092,OTHER://127.0.0.2:8081"\n"listener.security.protocol.map" = "PLAINTEXT:PLAINTEXT,OTHER:PLAINTEXT"\n'
    for port, heading, taken in (
        (8080, "", "the console ([box] http-port)"),
        (9092, "", "Kafka's clients ([box] kafka-port)"),
        (9092, of_kafka, "Kafka's listener PLAINTEXT"),
    ):
        file.write_text(heading + SENDERS.replace("24224", str(port)))
        assert f": port: {port} is taken by {taken}; choose another" in complaints(file, capsys)[0]
    file.write_text(of_kafka.replace("127.0.0.2", "0.0.0.0"))
    assert "the listener OTHER of listeners and --ingest-port are both 8081; give each its own" in complaints(file, capsys)[0]
    file.write_text(of_kafka + SENDERS.replace("24224", '8080\naddress = "127.0.0.3"'))
    check(str(file))


def old_table(tmp_path: Path, text: str) -> Path:
    (tmp_path / "ingest.table").write_text(text)
    (tmp_path / "ingest.table").chmod(0o640)
    file = tmp_path / "millrace.toml"
    file.write_text(f'# mine\n"ingest.table.file" = "{tmp_path}/ingest.table"\n')
    return file


def test_a_table_of_release_0_1_is_shown_as_it_would_be_converted_and_then_converted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = old_table(tmp_path, "listen a relp tcp :2514\n")
    before = file.read_text()
    check(str(file))
    shown = capsys.readouterr().out
    made = '[[ingest.listener]]\nname = "a"\nprotocol = "relp"\ntransport = "tcp"\nport = 2514\n'
    assert shown.endswith(made) and "is a table of release 0.1" in shown and file.read_text() == before
    convert(str(file))
    assert f"moved the table of senders {tmp_path}/ingest.table into {file}" in capsys.readouterr().out
    assert file.read_text() == f"# mine\n\n# Converted from {tmp_path}/ingest.table.\n\n{made}" and file.stat().st_mode & 0o777 == 0o640
    assert (tmp_path / "ingest.table.converted").exists() and not (tmp_path / "ingest.table").exists()
    convert(str(file))
    assert "nothing to convert" in capsys.readouterr().out
    check(str(file))


def test_a_wrong_table_of_release_0_1_is_reported_by_its_lines_and_not_converted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = old_table(tmp_path, "listen a relp tcp :2514\nlisten a relp tcp :2515\nroad -> x\n")
    before = file.read_text()
    assert [line.split(":")[1] for line in complaints(file, capsys)] == ["3", "2"]
    with pytest.raises(MillraceError, match=r"was not converted: .*ingest.table:3: "):
        convert(str(file))
    assert file.read_text() == before and (tmp_path / "ingest.table").exists()


def test_a_table_that_cannot_be_replaced_stays_in_use(tmp_path: Path) -> None:
    file = old_table(tmp_path, "listen a relp tcp :2514\n")
    before = file.read_text()
    (tmp_path / "millrace.toml.new").mkdir()
    with pytest.raises(MillraceError, match=r"was not converted: .*millrace.toml.new: file exists"):
        convert(str(file))
    assert file.read_text() == before and (tmp_path / "ingest.table").exists()


def test_toml_that_is_none_is_said_with_the_line_that_its_reader_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "millrace.toml"
    file.write_text("a = 1\nb = = 2\n")
    lines = complaints(file, capsys)
    assert lines[0].startswith(f"{file}:2: not valid TOML") and lines[1] == "     2 | b = = 2"


def test_a_good_file_is_said_to_be_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "millrace.toml"
    file.write_text('"log.roll.ms" = 7\n"num.partitions" = 1\n[box]\nlisten = "0.0.0.0"\n')
    check(str(file))
    assert capsys.readouterr().out == f"{file}: ok, 1 option and 2 settings, 1 of them not the default\n"
    file.write_text('"num.partitions" = 1\n"listeners" = "CLIENTS://127.0.0.1:9092"\n"listener.security.protocol.map" = "CLIENTS:PLAINTEXT"\n')
    with file.open("a") as more:
        more.write('"listener.name.clients.max.connections" = 5\n')
    check(str(file))
    assert capsys.readouterr().out == f"{file}: ok, 0 options and 4 settings, 3 of them not the default\n", "a setting of one listener has no row"


@pytest.mark.parametrize("file", [None, "/nowhere/millrace.toml", "/"])
def test_no_file_is_wrong_usage(file: str | None) -> None:
    with pytest.raises(UsageProblem):
        check(file)


def test_the_reference_is_printed_whole(capsys: pytest.CaptureFixture[str]) -> None:
    check(None, reference=True)
    assert capsys.readouterr().out == reference_page()


@pytest.mark.parametrize(
    ("text", "name", "number"),
    [
        ("a.b = 1", "a.b", 1),
        ('x = 0\n"a.b" = 1', "a.b", 2),
        ("[a]\n'b.c' = 1", "a.b.c", 2),
        ('[ "a.b" ]\n  c . d = 1', "a.b.c.d", 2),
        ("[box]\nkafka-port = 1", "box.kafka-port", 2),
        ("a = 1\na = 2", "a", 1),
    ],
)
def test_names_are_found_as_toml_means_them(text: str, name: str, number: int) -> None:
    assert lines_by_name(text)[name].number == number


def test_a_name_within_a_longer_one_is_not_meant() -> None:
    text = "log.roll = 1\n"
    assert line_of_problem("log.roll.ms is 0; allowed is …", lines_by_name(text), text) is None


def test_a_bad_address_is_said_of_the_option_that_has_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "millrace.toml"
    file.write_text('[box]\nlisten = "x y"\n')
    (words, line) = complaints(file, capsys)
    assert words.startswith(f"{file}:2: --listen is 'x y'") and line == '     2 | listen = "x y"'


def test_an_unknown_empty_table_is_a_problem_and_a_known_one_is_not(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "millrace.toml"
    file.write_text("[log.segment]\n\n[nope]\n# nothing\n[log.nope]\n")
    lines = complaints(file, capsys)
    assert [line.removeprefix(f"{file}:").partition(";")[0] for line in lines[::2]] == ["3: there is no setting nope", "5: there is no setting log.nope"]
    file.write_text("[log]\n[box]\n")
    check(str(file))


def test_the_reference_page_is_in_step_with_the_rows() -> None:
    page = (ROOT / "docs/settings.md").read_text()
    assert page == reference_page(), "run: millrace config check --reference > docs/settings.md"


def test_every_setting_stands_once_on_the_page() -> None:
    page = reference_page()
    assert sum(len(rows) for rows in GROUPS.values()) == len(SETTING_ROWS)
    assert all(page.count(f"| `{name}` |") == 1 for name in SETTING_ROWS)
