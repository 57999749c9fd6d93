"""The list of files with private access shrinks."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.documents.allow_list import RaisedCount, shrunk
from tests.unit.documents.private_access import BEGIN, COMMAND, END, PYPROJECT, allowed_files, found_accesses, with_allowed_files


def test_every_file_that_may_access_private_members_still_does() -> None:
    clean = allowed_files(PYPROJECT.read_text()) - set(found_accesses())
    assert clean == set(), f"these files need no exception any more; remove them with: {COMMAND}\n" + "\n".join(sorted(clean))


def test_no_pattern_of_pyproject_allows_private_access_to_a_whole_folder() -> None:
    text = PYPROJECT.read_text()
    assert text.count("SLF001") == 1 + len(allowed_files(text)), "the rule itself, and one exception per file between the two comments"
    assert [name for name in allowed_files(text) if "*" in name] == []


def test_a_private_access_is_found_and_an_access_to_self_is_not(tmp_path: Path) -> None:
    (tmp_path / "private.py").write_text("def probe(log: object) -> object:\n    return log._segments\n")
    (tmp_path / "own.py").write_text("class Log:\n    def probe(self) -> object:\n        return self._segments\n")
    assert found_accesses(tmp_path) == {"private.py": 1}


def test_the_list_is_written_as_it_is_read() -> None:
    text = with_allowed_files(f'a = 1\n{BEGIN}"x.py" = ["SLF001"]\n{END}b = 2\n', ["z.py", "y.py"])
    assert text.startswith("a = 1\n") and text.endswith("b = 2\n")
    assert allowed_files(text) == {"y.py", "z.py"}
    assert allowed_files(with_allowed_files(text, [])) == set()


def test_a_list_may_shrink_and_never_grow(tmp_path: Path) -> None:
    (tmp_path / "kept.py").touch()
    assert shrunk({"kept.py": 3}, {"kept.py": 2}, tmp_path) == {"kept.py": 2}
    assert shrunk({"kept.py": 3}, {}, tmp_path) == {}
    with pytest.raises(RaisedCount, match=r"kept\.py: 4, allowed 3"):
        shrunk({"kept.py": 3}, {"kept.py": 4}, tmp_path)
    with pytest.raises(RaisedCount, match=r"new\.py: 1, allowed 0"):
        shrunk({"kept.py": 3}, {"new.py": 1}, tmp_path)


def test_a_file_that_moved_keeps_what_it_was_allowed(tmp_path: Path) -> None:
    assert shrunk({"old.py": 3}, {"new.py": 3}, tmp_path) == {"new.py": 3}
    with pytest.raises(RaisedCount):
        shrunk({"old.py": 3}, {"new.py": 4}, tmp_path)
