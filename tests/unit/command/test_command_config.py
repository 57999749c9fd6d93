from __future__ import annotations

from pathlib import Path

import pytest
import typer

from appliance.base.settings_reference import reference_page
from appliance.command.config import check
from appliance.command.config_lines import line_of_problem, lines_by_name
from appliance.command.failures import UsageProblem

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


def test_the_table_of_senders_that_it_names_is_checked_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, table = tmp_path / "millrace.toml", tmp_path / "ingest.table"
    file.write_text(f'"ingest.table.file" = "{table}"\n')
    check(str(file))
    assert f"{table} is not there" in capsys.readouterr().err
    table.write_text("listen a relp tcp :2514\nlisten a relp tcp :2515\nroad -> x\n")
    assert [line.split(":")[1] for line in complaints(file, capsys)] == ["2", "3"]
    table.write_text("listen a relp tcp :2514\n")
    check(str(file))
    assert "ok" in capsys.readouterr().out


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


def test_an_empty_table_that_nobody_knows_is_a_problem_and_one_that_holds_settings_is_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "millrace.toml"
    file.write_text("[log.segment]\n\n[nope]\n# nothing\n[log.nope]\n")
    lines = complaints(file, capsys)
    assert [line.removeprefix(f"{file}:").partition(";")[0] for line in lines[::2]] == ["3: there is no setting nope", "5: there is no setting log.nope"]
    file.write_text("[log]\n[box]\n")
    check(str(file))
