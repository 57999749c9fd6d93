"""One installed box for all tests of this folder (of each process that runs some of them)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.installed_box import DISKS, InstalledBox, copy_sources, make_wheelhouse
from lab.systemd_box import SystemdBox


@pytest.fixture(scope="session")
def wheelhouse(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("packages") / "wheelhouse"
    make_wheelhouse(place)
    return place


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory, wheelhouse: Path) -> Iterator[InstalledBox]:
    """Two disks of half a gigabyte, everything else as install.sh does it by itself."""
    sources = tmp_path_factory.mktemp("sources")
    copy_sources(sources / "first")
    box = SystemdBox.start(tmp_path_factory.mktemp("box"), ["ext4"] * len(DISKS), 640, [(sources, "/sources"), (wheelhouse, "/wheelhouse")], name="logbox")
    installed = InstalledBox(box, sources / "first")
    try:
        installed.install("--offline", "/wheelhouse", "--disks", ",".join(DISKS), "--advertise", "127.0.0.1")
        yield installed
        box.stop()
    finally:
        box.destroy()
