"""Directories are looked at by children; one that never answers is left behind."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from appliance.base.clock import SystemClock
from appliance.runtime import directories
from appliance.runtime.directories import DirectoryCheck, ask_each

LONG_MS = 20_000


def test_a_look_says_what_is_there_and_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "d0").mkdir()
    (tmp_path / "d0" / "meta.properties").write_text("broker.id=7\n")
    (tmp_path / "link").symlink_to(tmp_path / "d0")
    (tmp_path / "file").touch()
    wanted = [(str(tmp_path / name), "--data") for name in ("link", "new/one", "file/below")]
    looks = ask_each(wanted, False, LONG_MS, SystemClock())
    assert looks.unanswered == {}
    assert looks.answers[str(tmp_path / "link")] == DirectoryCheck(str(tmp_path / "d0"), owner={"broker.id": "7"})
    assert looks.answers[str(tmp_path / "new/one")] == DirectoryCheck(str(tmp_path / "new/one"))
    assert "is not a directory" in (looks.answers[str(tmp_path / "file/below")].problem or "")
    assert looks.real_path(str(tmp_path / "link")) == str(tmp_path / "d0") and not (tmp_path / "new").exists()


def test_directories_are_made_if_that_is_wanted(tmp_path: Path) -> None:
    looks = ask_each([(str(tmp_path / "new/one"), "--data")], True, LONG_MS, SystemClock())
    assert (tmp_path / "new/one").is_dir() and looks.answers[str(tmp_path / "new/one")].problem is None


def test_a_directory_that_never_answers_is_left_to_its_child_and_the_others_are_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def look(path: str, option: str) -> DirectoryCheck:
        if path.endswith("hung"):
            os.read(os.pipe()[0], 1)
        return DirectoryCheck(path)

    monkeypatch.setattr(directories, "look_at", look)
    looks = ask_each([("/srv/hung", "--data"), ("/srv/well", "--data")], False, 100, SystemClock())
    assert list(looks.answers) == ["/srv/well"] and looks.real_path("/srv/hung") == "/srv/hung"
    assert os.WIFSIGNALED(os.waitpid(looks.unanswered["/srv/hung"], 0)[1])


def test_a_look_that_dies_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directories, "look_at", lambda path, option: os._exit(1))
    looks = ask_each([("/srv/d0", "--data")], False, LONG_MS, SystemClock())
    assert looks.answers["/srv/d0"].problem == "the check of /srv/d0 failed"
