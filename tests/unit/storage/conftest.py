"""No test here cuts the power, so syncing only has to be called with a good descriptor, not to be waited for."""

from __future__ import annotations

import os

import pytest

from appliance.storage import file_io


@pytest.fixture(autouse=True)
def _no_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_io, "fsync", os.fstat)
    monkeypatch.setattr(file_io, "fdatasync", os.fstat)
