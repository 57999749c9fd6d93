"""New text is plain technical English: no file has more retired words than it had (`STYLE.md`)."""

from __future__ import annotations

import io
import json
import tokenize
from pathlib import Path

import pytest

from tests.unit.documents import plain_language
from tests.unit.documents.allow_list import ROOT
from tests.unit.documents.plain_language import ALLOWED, INSTEAD, PYTHON_TEXT, allowed_counts, complaints, files, found_hits, hits_of_text


def words(kind: str, source: str) -> list[str]:
    return [hit.word for hit in hits_of_text(kind, source)]


def test_no_file_has_more_retired_words_than_it_is_allowed_and_the_list_is_up_to_date() -> None:
    wrong = complaints(allowed_counts(), found_hits())
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("sentence", "found"),
    [
        ("Who asks is told to come again.", ["Who", "told"]),
        ("Nobody is to elect this box, and whoever looks at it tells\n    everybody.", ["Nobody", "whoever", "looks at", "tells", "everybody"]),
        ("He keeps his books in a room behind the door of each lane.", ["He", "his", "books", "room", "door", "lane"]),
        ("A wish of the last life that parted from its leader's.", ["wish", "life", "parted"]),
    ],
)
def test_the_dialect_is_found_wherever_a_sentence_may_stand(sentence: str, found: list[str]) -> None:
    assert words(".py", f'"""{sentence}"""\n') == found
    assert words(".py", f'raise Refused(f"""{sentence} {{he}}""")\n') == found
    assert words(".md", f"# Title\n\n{sentence}\n") == found
    commented = sentence.replace("\n", "\n# ")
    assert words(".py", f"x = 1  # {commented}\n") == words(".sh", f"x=1 # {commented}\n")
    assert len(words(".sh", f"x=1 # {commented}\n")) == len(found)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (".py", '"""Retry the request until the leader answers; the rest of the lifetime is unknown."""\n'),
        (".py", 'room = lanes["life"]  # the index of the lane_count column, see lane.py\n'),
        (".py", 'log(f"retrying partition {lane.room} on broker {who}")\n'),
        (".md", "## Life of a syslog line\n\nLook at the queue. The acceptor asks the coordinator.\n"),
        (".py", '"""For operators who replace a disk."""\n'),
        (".md", "The queue is `lane` in `lanes.py`, [drawn here](life/room.md).\n\n```\nwho tells nobody\n```\n"),
        (".sh", "#!/bin/bash\nroom=$#\nsay 'nobody'\n"),
    ],
)
def test_plain_text_names_and_code_are_left_alone(kind: str, text: str) -> None:
    assert words(kind, text) == []


def test_the_name_of_a_test_is_read_as_a_sentence() -> None:
    assert words(".py", "def test_a_client_is_told_who_leads() -> None:\n    who = told()\n") == ["told", "who"]


def test_a_hit_names_its_line_and_what_to_write_instead() -> None:
    (hit,) = hits_of_text(".py", '"""Append a batch.\n\n    The room must\n    be free.\n    """\n')
    assert (hit.line, hit.word, hit.instead) == (3, "room", INSTEAD["rooms?"])


def test_more_hits_than_allowed_fewer_and_none_at_all_are_each_a_complaint() -> None:
    hits = hits_of_text(".md", "Nobody is told.\n")
    assert complaints({"a.md": 2}, {"a.md": hits}) == []
    assert complaints({"a.md": 1}, {"a.md": hits})[0] == "a.md: 2 retired words, allowed 1:"
    assert complaints({}, {"a.md": hits})[0] == "a.md: 2 retired words, allowed 0:"
    assert "lower the count" in complaints({"a.md": 3}, {"a.md": hits})[0]
    assert "lower the count" in complaints({"gone.md": 1}, {})[0]


def test_literals_and_comments_are_those_that_python_itself_sees() -> None:
    source = (ROOT / "appliance/storage/log.py").read_text() + Path(__file__).read_text()
    seen = [token.string for token in tokenize.generate_tokens(io.StringIO(source).readline) if token.type in (tokenize.COMMENT, tokenize.STRING)]
    assert [match.group() for match in PYTHON_TEXT.finditer(source)] == seen


def test_product_tests_documents_and_scripts_are_all_read() -> None:
    names = {str(path.relative_to(ROOT)) for path in files()}
    assert {
        "CONTRIBUTING.md",
        "README.md",
        "install.sh",
        ".ci/run",
        "install/disks.sh",
        "appliance/storage/log.py",
        "tests/README.md",
        "tests/unit/storage/test_log.py",
    } <= names
    assert sum(name.endswith(".py") for name in names) > 500


def test_the_command_lowers_counts_and_refuses_to_raise_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    found = {"README.md": hits_of_text(".md", "Nobody is told.\n")}
    monkeypatch.setattr(plain_language, "ALLOWED", tmp_path / "allowed.json")
    monkeypatch.setattr(plain_language, "ROOT", tmp_path)
    monkeypatch.setattr(plain_language, "found_hits", lambda: found)
    plain_language.ALLOWED.write_text('{"README.md": 3}')
    assert plain_language.main(["--rewrite"]) == 0
    assert allowed_counts() == {"README.md": 2}
    plain_language.ALLOWED.write_text('{"README.md": 1}')
    assert plain_language.main(["--rewrite"]) == 1
    assert allowed_counts() == {"README.md": 1}
    assert "README.md: 2, allowed 1" in capsys.readouterr().err


def test_the_list_has_a_line_for_each_file_so_that_changes_merge() -> None:
    text = ALLOWED.read_text()
    assert list(json.loads(text)) == sorted(json.loads(text))
    assert len(text.splitlines()) == len(json.loads(text)) + 2
