"""What a restarted controller finds of its former session."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.controller.zookeeper.session import SavedSession


def test_a_saved_session_comes_back_for_the_same_zookeeper_only(tmp_path: Path) -> None:
    path = tmp_path / "zookeeper.session"
    saved = SavedSession(0x1000_0000_0001, bytes(range(16)))
    saved.save(str(path), "h:1")
    assert SavedSession.load(str(path), "h:1") == saved
    assert SavedSession.load(str(path), "h:2") is None
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"{}", b'{"zookeeper":"h:1","session_id":"x","password":"zz"}'])
def test_a_damaged_file_is_as_good_as_none(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "zookeeper.session"
    assert SavedSession.load(str(path), "h:1") is None
    path.write_bytes(content)
    assert SavedSession.load(str(path), "h:1") is None
