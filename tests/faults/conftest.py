"""Boxes on disks that tests hurt."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lab.loop_disks import LoopDisk, loop_disks
from lab.running_box import RunningBox
from tests.faults.hurt_box import HurtBox


@pytest.fixture
def make_disk(tmp_path: Path) -> Iterator[Callable[..., LoopDisk]]:
    """Disks that are taken away after the test, in whatever state they are."""
    with loop_disks(tmp_path / "disks") as make:
        yield make


@pytest.fixture
def hurt_box(tmp_path: Path, make_disk: Callable[..., LoopDisk], start_shared: Callable[..., RunningBox]) -> Iterator[Callable[..., HurtBox]]:
    """Starts a box on two disks of the same size; `is_faulty` and `kind` are of the one that will be hurt."""
    started: list[HurtBox] = []

    def starter(is_faulty: bool = False, kind: str = "ext4", mib: int = 64, **options: object) -> HurtBox:
        hurt = make_disk("hurt", is_faulty=is_faulty, kind=kind, mib=mib)
        well = make_disk("well", kind=kind, mib=mib)
        box = start_shared(tmp_path / "box", data=[hurt.path / "log" / "hurt", well.path / "log" / "well"], **options)
        started.append(HurtBox(box, hurt))
        return started[-1]

    yield starter
    for made in started:
        made.heal()
        made.box.stop()
        assert made.box.leftovers() == []
