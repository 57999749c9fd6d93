"""The disks of a box as the page shows them, and what draining one would do; from shared memory that a test writes."""

from __future__ import annotations

from typing import Any

import pytest

from appliance.base.clock import ManualClock
from appliance.base.errors import ErrorCode, RequestRefused
from lab.pretended_box import PretendedBox
from services.console.box_documents import DiskContents
from services.console.box_sample import BoxReader
from services.console.parameters import Parameters, WrongParameter
from tests.unit.command.test_command_disk_drain import serve_controller

GIB = 1 << 30
NO_CLIENT: Any = None


@pytest.fixture
def disks(box: PretendedBox, clock: ManualClock) -> DiskContents:
    """Two disks; of the topic `logs` two partitions lie on each."""
    for name in ("d0", "d1"):
        counters = box.counters[f"log-writer@{name}"]
        counters.gauge("disk.free_bytes").set(50 * GIB)
        counters.gauge("disk.total_bytes").set(100 * GIB)
    box.append("logs", 1, 10, 5_000)
    reader = BoxReader(box.layout, box.box, clock)
    return DiskContents(box.layout, reader.read)


def test_each_disk_is_shown_with_what_lies_on_it_the_largest_first(disks: DiskContents) -> None:
    document = disks.document(NO_CLIENT, Parameters({}))
    shown = {disk["name"]: [(each["topic"], each["partition"], each["is_led"], each["size_bytes"]) for each in disk["held"]] for disk in document["disks"]}
    assert shown["d1"] == [("logs", 1, True, 5_000), ("logs", 3, True, 0)] and len(shown["d0"]) == 3
    assert [(disk["state"], disk["free_bytes"], disk["held_bytes"]) for disk in document["disks"]] == [("online", 50 * GIB, 0), ("online", 50 * GIB, 5_000)]
    assert document["may_drain"] and document["moves"] == []


def test_a_drain_is_planned_without_an_order_and_then_ordered(disks: DiskContents, box: PretendedBox) -> None:
    planned = disks.drain(NO_CLIENT, Parameters({"disk": "d1"}))
    assert [(move["topic"], move["partition"], move["target_disk"]) for move in planned["moves"]] == [("logs", 1, "d0"), ("logs", 3, "d0")]
    assert planned["size_bytes"] == 5_000
    orders = serve_controller(box.layout, [], [["draining", 41, "Not the controller."]], [])
    disks.drain(NO_CLIENT, Parameters({"disk": "d1", "execute": True}))
    assert orders == [{"disk": "d1", "draining": True, "throttle": None, "moves": [["logs", 1, "d0"], ["logs", 3, "d0"]]}]
    with pytest.raises(RequestRefused, match="Not the controller"):
        disks.drain(NO_CLIENT, Parameters({"disk": "d1", "cancel": True}))
    assert disks.drain(NO_CLIENT, Parameters({"disk": "d1", "cancel": True})) == {"disk": "d1"}
    assert orders[1:] == [{"disk": "d1", "draining": False, "cancel": True}] * 2


def test_what_cannot_be_drained_is_said(disks: DiskContents, box: PretendedBox, clock: ManualClock) -> None:
    with pytest.raises(WrongParameter, match="there is no disk d7; there are d0, d1"):
        disks.drain(NO_CLIENT, Parameters({"disk": "d7"}))
    box.counters["log-writer@d0"].gauge("disk.free_bytes").set(0)
    with pytest.raises(RequestRefused, match="2 partitions of disk d1 fit on no other disk"):
        disks.drain(NO_CLIENT, Parameters({"disk": "d1"}))
    installed = box.box._replace(managed_by="systemd")
    sample = BoxReader(box.layout, box.box, clock).read()._replace(box=installed)
    refusing = DiskContents(box.layout, lambda: sample)
    assert not refusing.document(NO_CLIENT, Parameters({}))["may_drain"]
    with pytest.raises(RequestRefused, match="sudo millrace disk drain d1") as refused:
        refusing.drain(NO_CLIENT, Parameters({"disk": "d1"}))
    assert refused.value.code is ErrorCode.CLUSTER_AUTHORIZATION_FAILED
