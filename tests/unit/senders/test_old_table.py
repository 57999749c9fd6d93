"""The table of release 0.1: its lines become tables of the settings file that mean the same."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from appliance.runtime.run_options import RunOptions, resolve_options
from appliance.senders.old_table import ConvertedTable, convert_table, converted_settings, tables_text
from appliance.senders.sender_tables import TableReading, read_tables
from appliance.senders.table_checks import read_sender_table
from tests.unit.base.test_settings import make_box
from tests.unit.senders.test_sender_tables import EXAMPLE, read

OLD_EXAMPLE = """
# senders of this box
listen dmz    syslog     tls :6514  topic=dmz key=app acks=1 certificate=/c.pem private-key=/k.pem client-ca=/ca.pem client-names=a.example,*.b.example
listen relp   relp       tcp 10.0.0.5:2514 max-message-bytes=1000 time-zone=Europe/Berlin idle-seconds=5
listen fluent fluent     tcp [::1]:24224 shared-key="a # b\\" c" raw=yes
listen beats  lumberjack tcp :5044 proxy=required proxy-from=10.0.0.0/8,192.0.2.7
listen gelf   gelf       udp *:12201   # a comment behind a line
options http token=one,two max-frame-bytes=2048
route listener=dmz facility=auth,10         -> security,all
route severity<=err app=sshd*               -> errors key=app key-required=yes
route label.job=nginx field.a.b=5*,404,true -> web
default -> other key=none
dead-letter -> ingest-dead-letter
"""


def convert(text: str) -> ConvertedTable:
    return convert_table(text, "t")


def reading_of(text: str) -> TableReading:
    converted = convert(text)
    assert converted.problems == []
    return read_tables(converted.tables, "", make_box(settings={"ingest.syslog.key": "host"}), converted.places)


def test_the_converted_tables_mean_what_the_lines_meant() -> None:
    old, new = reading_of(OLD_EXAMPLE), read(EXAMPLE)
    assert (old.problems, old.listeners, old.routes) == ([], new.listeners, new.routes)
    assert old.places["relp"] == "t:4"


def test_the_converted_tables_are_written_as_toml() -> None:
    tables = convert(OLD_EXAMPLE + 'route label."k.x"=a field.x="q\\"\x7f ü" -> b\n').tables
    assert tomllib.loads(tables_text(tables)) == {"ingest": tables}


@pytest.mark.parametrize("text", ["", "# only comments\n\n   # more\n", "\ufeff# a byte order mark\n"])
def test_a_table_of_comments_becomes_nothing(text: str) -> None:
    assert convert(text) == ConvertedTable({}, {}, [])


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("lisen a", "lines begin with listen, options"),
        ("listen a syslog", "write listen NAME PROTOCOL"),
        ("listen a relp tcp :1 topic", "write option=value"),
        ("listen a relp tcp :1 topic=x topic=y", "is there twice"),
        ("listen a relp tcp :1 port=2", "'port=2' is not an option"),
        ("options", "write options NAME"),
        ("route app=a", "write route CONDITION"),
        ("route app=a ->", "write route CONDITION"),
        ("route app -> b", "'app' is not a condition"),
        ("route app=a app=b -> c", "is there twice"),
        ("route topic=a -> b", "'topic=a' is not a condition"),
        ("route label=a -> b", "'label=a' is not a condition"),
        ("default topic", "write default -> TOPIC"),
        ("default -> a\ndefault -> b", "default is on an earlier line"),
        ('route app="a -> b', "a quote has no end"),
        ('route app="a"" -> b', "a quote has no end"),
    ],
)
def test_a_line_that_cannot_be_converted_is_reported(line: str, words: str) -> None:
    (problem,) = convert(f"# first\n{line}\n").problems
    assert problem.startswith(f"t:{1 + len(line.splitlines())}: ") and words in problem


@pytest.mark.parametrize(
    "line", ["listen a relp tcp :x", "listen a relp udp :1", "listen a gelf udp :1 raw=maybe", "route app.x=1 app=2 -> b", "route app= -> b"]
)
def test_a_wrong_value_is_reported_at_its_old_line(line: str) -> None:
    converted = convert(f"\n{line}\n")
    (problem,) = read_tables(converted.tables, "m.toml", make_box(), converted.places).problems
    assert converted.problems == [] and problem.startswith("t:2: ")


def test_texts_that_look_like_numbers_stay_texts() -> None:
    tables = convert("options http token=007 topic=5\nroute app=08 severity=3 -> 9\n").tables
    assert tables == {"listener": [{"name": "http", "token": "007", "topic": "5"}], "route": [{"app": "08", "severity": 3, "topic": "9"}]}


# -- the settings file


def test_a_start_reads_an_old_table_and_names_its_lines(tmp_path: Path) -> None:
    (tmp_path / "t").write_text("listen a relp tcp :0\nlisten b gelf udp 127.0.0.1:7\n")
    (tmp_path / "m.toml").write_text(f'"ingest.table.file" = "{tmp_path}/t"\n')
    options, problems = resolve_options(RunOptions(config=str(tmp_path / "m.toml")), 1)
    assert problems == []
    assert [(socket.name, socket.where) for socket in read_sender_table(options).sockets] == [("ingest-a", f"{tmp_path}/t:1"), ("ingest-b", f"{tmp_path}/t:2")]
    (tmp_path / "t").write_text("listen a relp tcp :0 time-zone=Mars\nroad\n")
    assert [problem.partition(": ")[0] for problem in read_sender_table(options).problems] == [f"{tmp_path}/t:2", f"{tmp_path}/t:1"]
    (both,) = read_sender_table(options._replace(sender_tables={"default": {"topic": "x"}}, old_table="/dev/null")).problems
    assert "tables of senders in both files" in both
    (tmp_path / "t").write_bytes(b"\xff")
    assert "is not UTF-8" in read_sender_table(options).problems[0]
    (tmp_path / "t").unlink()
    assert "cannot read the table of senders: No such file" in read_sender_table(options).problems[0]


TABLES = {"listener": [{"name": "http", "raw": True}]}


@pytest.mark.parametrize(
    "text",
    [
        'a = 1\n"ingest.table.file" = "/t"\n[box]\nb = "x = y"\n',
        'ingest.table.file = "/t"  # by dots\n',
        "[ingest]\ntable.file = '/t'\nsyslog.topic = 'x'\n[box]\n",
        '"ingest.syslog.topic" = "x"\ningest.batch.ms = 1\ningest.table.file = "/t"\n[log]\n',
    ],
)
def test_the_line_that_names_the_old_table_is_replaced_by_the_tables(text: str) -> None:
    made = converted_settings(text, TABLES, "/t")
    assert made is not None and "table" not in made.replace("# Converted from /t", "") and made.count("\n# Converted from /t.\n") == 1
    kept = [line for line in text.splitlines() if "/t" not in line]
    assert made.splitlines()[: len(kept)] == kept
    assert tomllib.loads(made)["ingest"]["listener"] == TABLES["listener"]


@pytest.mark.parametrize("text", ['a = """\nx\n"""\ningest = { table.file = "/t", batch.ms = 1 }\n', '[ingest.table]\nfile = "/t"\n'])
def test_a_settings_file_in_which_no_single_line_names_the_old_table_is_left_alone(text: str) -> None:
    assert converted_settings(text, TABLES, "/t") is None
