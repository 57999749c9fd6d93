"""A log directory or a state directory that was put back from a copy is recognised, and gives no offset again."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from appliance.base.layout import BoxLayout
from appliance.ipc.descriptors import DescriptorKind
from appliance.runtime.known_disks import give_up
from tests.support.real_log_writer import TOPIC_ID, RealLogWriter
from tests.unit.services.log_writer.test_changed_logs import batches_of, command, produce, started

pytestmark = pytest.mark.usefixtures("no_waiting_for_the_disk")


def _run(layout: BoxLayout, path: Path, incarnation: int, leader_epoch: int, count: int) -> RealLogWriter:
    """Start, lead, append `count` records."""
    writer = started(layout, path, incarnation)
    if incarnation == 1:
        assert command(writer, DescriptorKind.CREATE, 0) == 0
    assert command(writer, DescriptorKind.BECOME_LEADER, leader_epoch) == 0
    produce(writer, count)
    return writer


def _copied_between_two_runs(layout: BoxLayout, path: Path, what: str) -> None:
    """A copy of `what` is taken after 3 of 5 records and put back at the end."""
    _run(layout, path, 1, 0, 3).stop()
    shutil.copytree(path / what, path / "copy")
    _run(layout, path, 2, 0, 2).stop()
    shutil.rmtree(path / what)
    shutil.copytree(path / "copy", path / what)


def test_a_log_directory_that_was_restored_from_a_copy_gives_no_offset_again(layout: BoxLayout, tmp_path: Path) -> None:
    _copied_between_two_runs(layout, tmp_path, "d0")
    writer = started(layout, tmp_path, 3)
    assert f"log directory {tmp_path}/d0 is older than its box remembers" in writer.said
    assert "log t-0" in writer.said and "lacks 2 offsets at its end, 3 to 4" in writer.said
    assert writer.counters.gauge("log_writer.old_copy").value == 1
    assert writer.agent.boot == "unclean" and writer.agent.describe()["needs_epoch_bump"], "other replicas lead first"
    assert command(writer, DescriptorKind.BECOME_LEADER, 0) != 0
    assert command(writer, DescriptorKind.BECOME_LEADER, 1) == 0
    produce(writer, 1)
    writer.stop()
    assert batches_of(tmp_path / "d0" / "t-0") == [(0, 0, 1), (1, 1, 1), (2, 2, 1), (3, 4, 0), (5, 5, 1)]
    fourth = started(layout, tmp_path, 4)
    assert "older" not in fourth.said and fourth.counters.gauge("log_writer.old_copy").value == 0
    fourth.stop()


def test_a_restored_log_directory_that_follows_keeps_what_it_has_and_fetches_the_rest(layout: BoxLayout, tmp_path: Path) -> None:
    _copied_between_two_runs(layout, tmp_path, "d0")
    writer = started(layout, tmp_path, 3)
    assert command(writer, DescriptorKind.BECOME_FOLLOWER, 1, leader=2, replicas=[2, 1]) == 0
    replica = writer.agent.partitions.find(TOPIC_ID, 0)
    assert replica is not None and replica.log.log_end_offset == 3 and not replica.log.damage.ranges
    writer.stop()


def test_a_state_directory_that_was_restored_from_a_copy_is_reported_and_the_logs_are_trusted(layout: BoxLayout, tmp_path: Path) -> None:
    _copied_between_two_runs(layout, tmp_path, "d0.state")
    writer = started(layout, tmp_path, 3)
    assert f"state directory {tmp_path}/d0.state is older than log directory" in writer.said
    assert writer.counters.gauge("log_writer.old_copy").value == 2
    assert writer.agent.boot == "clean" and not writer.agent.describe()["needs_epoch_bump"]
    writer.stop()


def test_a_power_cut_and_a_kill_leave_directories_that_agree(layout: BoxLayout, tmp_path: Path) -> None:
    _run(layout, tmp_path, 1, 0, 3).die()
    second = _run(layout, tmp_path, 2, 0, 1)
    second.die()

    third = started(layout, tmp_path, 3)
    assert "older" not in third.said and third.counters.gauge("log_writer.old_copy").value == 0
    third.stop()


@pytest.mark.parametrize("written", ["state", "state and directory"])
def test_a_crash_while_a_generation_begins_leaves_directories_that_agree(layout: BoxLayout, tmp_path: Path, written: str) -> None:

    _run(layout, tmp_path, 1, 0, 3).stop()
    (known,) = (tmp_path / "d0.state" / "disks").glob("*.json")
    document = json.loads(known.read_text())
    known.write_text(json.dumps({**document, "next_generation": "9:00"}))
    if written == "state and directory":
        (tmp_path / "d0" / ".millrace-generation").write_text("9:00\n")
    writer = started(layout, tmp_path, 2)
    assert "older" not in writer.said
    writer.stop()


def test_a_disk_that_was_given_up_and_is_back_is_old(layout: BoxLayout, tmp_path: Path) -> None:
    _run(layout, tmp_path, 1, 0, 3).stop()
    give_up(f"{tmp_path}/d0.state", f"{tmp_path}/d0")
    writer = started(layout, tmp_path, 2)
    assert f"log directory {tmp_path}/d0 is older" in writer.said and writer.agent.boot == "unclean"
    writer.stop()
    third = started(layout, tmp_path, 3)
    assert "older" not in third.said
    third.stop()
