"""Files that install.sh puts outside of its prefix: written once, and never over an edited file."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.install_functions import Answer, run_functions

pytestmark = pytest.mark.slow


def install(directory: Path, text: str) -> Answer:
    """One run of an installation whose only file is `etc/file` with this text."""
    (directory / "source").write_text(text)
    code = f'read_record; place "{directory}/source" "{directory}/etc/file"; remove_gone_files; write_record; printf "remark %s\\n" "${{REMARKS[@]}}"'
    answer = run_functions(directory, code)
    assert answer.code == 0, answer
    return answer


def test_the_second_run_changes_nothing(tmp_path: Path) -> None:
    assert f"wrote {tmp_path}/etc/file" in install(tmp_path, "one\n").output
    before = (tmp_path / "etc/file").stat()
    assert "wrote" not in install(tmp_path, "one\n").output
    assert (tmp_path / "etc/file").stat().st_mtime_ns == before.st_mtime_ns
    assert sorted(found.name for found in (tmp_path / "etc").iterdir()) == ["file"]


def test_an_unedited_file_follows_the_release(tmp_path: Path) -> None:
    install(tmp_path, "one\n")
    install(tmp_path, "two\n")
    assert (tmp_path / "etc/file").read_text() == "two\n"
    assert not (tmp_path / "etc/file.new").exists()


def test_an_edited_file_is_kept_and_the_new_one_put_beside_it_once(tmp_path: Path) -> None:
    install(tmp_path, "one\n")
    (tmp_path / "etc/file").write_text("mine\n")
    assert "wrote" not in install(tmp_path, "one\n").output  # nothing new to show
    assert not (tmp_path / "etc/file.new").exists()
    assert "was edited and is kept" in install(tmp_path, "two\n").output
    assert (tmp_path / "etc/file").read_text() == "mine\n"
    assert (tmp_path / "etc/file.new").read_text() == "two\n"
    (tmp_path / "etc/file.new").unlink()
    assert "wrote" not in install(tmp_path, "two\n").output
    assert not (tmp_path / "etc/file.new").exists()


def test_a_file_that_was_there_before_is_somebodys(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/file").write_text("mine\n")
    install(tmp_path, "one\n")
    assert (tmp_path / "etc/file").read_text() == "mine\n"
    assert (tmp_path / "etc/file.new").read_text() == "one\n"


def test_what_a_release_no_longer_has_goes_unless_it_was_edited(tmp_path: Path) -> None:
    for name in ("kept", "gone"):
        (tmp_path / name).write_text(name)
    run_functions(tmp_path, f'read_record; for name in kept gone; do place "{tmp_path}/$name" "{tmp_path}/etc/$name"; done; write_record')
    (tmp_path / "etc/kept").write_text("mine")
    assert "removed" in install(tmp_path, "one\n").output
    assert sorted(found.name for found in (tmp_path / "etc").iterdir()) == ["file", "kept"]
