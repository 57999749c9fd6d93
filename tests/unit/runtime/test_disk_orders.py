"""Orders about disks, decided without a disk; and what the next start makes of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from appliance.base.errors import RequestRefused
from appliance.base.layout import Disk
from appliance.runtime.disk_orders import ADD, REMOVE, REPLACE, changed_disks, free_name, keep_disks, kept_disks

DISKS = [Disk("d0", "/srv/d0"), Disk("d1", "/srv/d1")]


def test_a_disk_that_is_added_gets_a_name_of_its_own() -> None:
    assert changed_disks(DISKS, ADD, "", "/mnt/d0") == ([*DISKS, Disk("d0-2", "/mnt/d0")], Disk("d0-2", "/mnt/d0"))
    assert free_name([*DISKS, Disk("d0-2", "/mnt/d0")], "/other/d0/") == "d0-3"


def test_a_disk_that_is_replaced_keeps_name_and_place() -> None:
    new = Disk("d0", "/mnt/new", 1)
    assert changed_disks(DISKS, REPLACE, "d0", "/mnt/new") == ([new, DISKS[1]], new)
    assert changed_disks([new, DISKS[1]], REPLACE, "d0", "")[0] == [Disk("d0", "/mnt/new", 2), DISKS[1]], "another directory at the same path is another one"


def test_a_disk_that_is_removed_is_gone() -> None:
    assert changed_disks(DISKS, REMOVE, "d0", "") == ([DISKS[1]], DISKS[0])


@pytest.mark.parametrize(
    ("verb", "name", "path", "why"),
    [
        (ADD, "", "/srv/d1", "already"),
        (REMOVE, "d7", "", "no disk d7; there are d0, d1"),
        (REPLACE, "d0", "/srv/d1", "another disk"),
        ("paint", "d0", "", "no order"),
    ],
)
def test_what_cannot_be_is_refused_with_a_reason(verb: str, name: str, path: str, why: str) -> None:
    with pytest.raises(RequestRefused, match=why):
        changed_disks(DISKS, verb, name, path)


def test_the_only_disk_stays() -> None:
    with pytest.raises(RequestRefused, match="only disk"):
        changed_disks(DISKS[:1], REMOVE, "d0", "")


def test_orders_hold_until_the_box_is_started_with_other_directories(tmp_path: Path) -> None:
    given = ["/srv/d0"]
    assert kept_disks(str(tmp_path), given) is None
    keep_disks(str(tmp_path), given, DISKS)
    assert kept_disks(str(tmp_path), given) == DISKS
    assert kept_disks(str(tmp_path), ["/srv/d9"]) is None
    (tmp_path / "disks.json").write_text("[]")
    assert kept_disks(str(tmp_path), given) is None
