"""Which release the console says it is."""

from __future__ import annotations

from pathlib import Path

from services.console.agent import release_version


def test_the_release_is_that_of_the_installed_file_or_of_the_project(tmp_path: Path) -> None:
    assert release_version(tmp_path) == "unknown"
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "x"\nversion = "0.1.0"\n')
    assert release_version(tmp_path) == "0.1.0"
    (tmp_path / "VERSION").write_text("0.1.0+gabc\n")
    assert release_version(tmp_path) == "0.1.0+gabc"
    assert release_version()[0].isdigit()
