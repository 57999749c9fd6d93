"""`millrace disk drain` from outside: sizes as people write them, what it shows, what it asks of the controller."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import closing

import pytest

from appliance.base.clock import ManualClock
from appliance.base.errors import ErrorCode, RequestRefused
from appliance.base.layout import BoxLayout
from appliance.base.model import TopicId
from appliance.cluster.box_balance import DrainPlan, PartitionOnDisk, PlannedMove
from appliance.cluster.disk_moves import DrainView, standing_moves
from appliance.cluster.metadata_image import MetadataImage, PartitionImage, TopicImage
from appliance.command.disk_drain import Drained, ProgressBar, bytes_of, print_plan, unplaced_words
from appliance.command.failures import UsageProblem
from appliance.command.moves import move_row
from appliance.ipc.disk_reports import CAUGHT_UP, COPYING, FAILED, MoveProgress, moves_file, write_moves
from appliance.ipc.frames import FrameSocket, listen_unix
from appliance.ipc.move_orders import Patience, ask_controller
from appliance.ipc.request_frames import IMAGE_CHANGED, MOVE_ORDERS, MOVE_ORDERS_DONE
from lab.scratch_layout import scratch_layout

TOPIC_ID = TopicId(bytes(range(16)))
MIB = 1 << 20


@pytest.fixture
def layout() -> Iterator[BoxLayout]:
    with scratch_layout() as made:
        yield made


def moving(partition: int, size_bytes: int = -1, state: str = COPYING, **more: object) -> MoveProgress:
    return MoveProgress("t", partition, str(TOPIC_ID), "d0", "d1", state, size_bytes=size_bytes, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "size"), [("50000000", 50_000_000), ("50M", 50 * MIB), ("50MiB/s", 50 * MIB), ("1 k".replace(" ", ""), 1024), ("2GB", 2 << 30)]
)
def test_a_throttle_is_written_as_people_write_sizes(text: str, size: int) -> None:
    assert bytes_of(text) == size


@pytest.mark.parametrize("text", ["", "0", "fast", "-5", "5T", "1.5M", "MM"])
def test_what_is_no_size_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(UsageProblem, match="50MiB"):
        bytes_of(text)


def test_a_move_stands_while_the_image_says_so_and_waits_until_a_report_names_it(layout: BoxLayout) -> None:
    partitions = (PartitionImage(1, 0, (1,), (1,), "d0", "d1"), PartitionImage(1, 0, (1,), (1,), "d0", "d1"), PartitionImage(1, 0, (1,), (1,), "d1"))
    image = MetadataImage(1, "c", 1, {}, {"t": TopicImage("t", TOPIC_ID, partitions, {})})
    write_moves(moves_file(layout, "d1"), [moving(1, 5), moving(2, 7)])
    assert [(move.partition, move.state, move.size_bytes) for move in standing_moves(layout, image, ["d0", "d1"])] == [(0, "waiting", -1), (1, COPYING, 5)]


def test_a_move_is_shown_in_one_row() -> None:
    shown = moving(3, 3 * MIB, log_end_offset=10, source_log_end_offset=25, lag_bytes=MIB, bytes_per_second=2 * MIB)
    assert move_row(shown) == ["t-3", "d0", "d1", "copying", "3.0 MiB", "1.0 MiB", "2.0 MiB/s", "15", ""]
    assert move_row(moving(3, state=FAILED, reason="no space")) == ["t-3", "d0", "d1", "failed", "-", "-", "-", "-", "no space"]


def test_progress_counts_what_was_moved_what_is_copied_and_what_came_late() -> None:
    clock = ManualClock()
    bar = ProgressBar(clock)
    sizes = {("t", 0): 6 * MIB, ("t", 1): 4 * MIB}
    first = DrainView((), (moving(0, 0), moving(1)), (), sizes)
    assert bar.text(first, clock.monotonic_ms()).startswith("[........................]   0%  0 B of 10.0 MiB  0 of 2 partitions")
    clock.advance_ms(2000)
    caught_up = moving(1, 2 * MIB, CAUGHT_UP, log_end_offset=5, source_log_end_offset=9)
    moved = DrainView((PartitionOnDisk("t", 2, 2 * MIB),), (caught_up,), (), {("t", 1): 4 * MIB, ("t", 2): 2 * MIB})
    assert bar.text(moved, clock.monotonic_ms()) == "[################........]  67%  8.0 MiB of 12.0 MiB  1 of 3 partitions  4.0 MiB/s  ETA 1s  lag 4"
    assert "100%  12.0 MiB of 12.0 MiB  3 of 3 partitions" in bar.text(DrainView((), (), (), {}), clock.monotonic_ms())


def test_a_failed_move_is_reported_once(capsys: pytest.CaptureFixture[str]) -> None:
    bar = ProgressBar(ManualClock())
    for _ in range(3):
        bar.show(DrainView((), (moving(0, state=FAILED, reason="no space left"),), (), {}))
    assert capsys.readouterr().err.count("t-0 to disk d1: no space left; it is tried again") == 1


def test_a_plan_says_what_goes_where(capsys: pytest.CaptureFixture[str]) -> None:
    print_plan("d0", DrainPlan((PlannedMove("t", 0, 3 * MIB, "d1"),), ()), (moving(1),))
    told = capsys.readouterr().out
    assert "t-0        3.0 MiB  d1" in told and "1 partition, 3.0 MiB, to move from disk d0\n1 move from disk d0 under way already" in told
    print_plan("d0", DrainPlan((), ()), ())
    assert capsys.readouterr().out == "disk d0 holds nothing\n"


def test_what_a_drain_waits_for_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    dead = DrainView((PartitionOnDisk("t", 2, 0),), (moving(1),), (), {}, "log-writer down", {"d1": "hung", "d2": "online, draining"})
    assert (dead.is_readable, dead.trouble) == (False, "waiting: the disk is not served (log-writer down)")
    assert dead._replace(has_controller=False).trouble == "waiting: the controller of this box does not run"
    assert dead._replace(state="full").trouble == dead._replace(state="online, restored from a copy").trouble == ""
    ProgressBar(ManualClock()).show(dead, dead.trouble)
    assert capsys.readouterr().err.endswith("  waiting: the disk is not served (log-writer down)\n")
    words = unplaced_words("d0", dead.plan(), dead.closed)
    assert words.endswith("millrace disk add PATH; or wait for disks that take none now: d1 (hung), d2 (online, draining)")


def test_a_drain_whose_controller_dies_says_how_many_moves_are_ordered(layout: BoxLayout, monkeypatch: pytest.MonkeyPatch) -> None:
    serve_controller(layout, [])
    monkeypatch.setattr("appliance.ipc.move_orders.ORDERS_MAX", 2)
    monkeypatch.setattr("appliance.ipc.move_orders.ATTEMPT_PAUSE_SECONDS", 0)
    drained = Drained(layout, [], "d0", None, ManualClock())
    with pytest.raises(RequestRefused, match=r"does not answer.*; 2 of 3 moves are ordered and go on"):
        drained.order(DrainPlan(tuple(PlannedMove("t", number, 1, "d1") for number in range(3)), ()), None)


def serve_controller(layout: BoxLayout, *answers: object) -> list[object]:
    """A controller in a thread: dies over a question whose answer is None. What it was asked."""
    listening, asked = listen_unix(layout.controller_socket), []
    listening.setblocking(True)

    def serve() -> None:
        for answer in answers:
            accepted, _ = listening.accept()
            connection = FrameSocket(accepted)
            connection.send(IMAGE_CHANGED, 0, bytes(8))
            accepted.setblocking(True)
            while not (frames := connection.receive()):
                pass
            assert frames[0].kind == MOVE_ORDERS
            asked.append(json.loads(frames[0].payload))
            if answer is not None:
                connection.send(MOVE_ORDERS_DONE, frames[0].token, json.dumps({"refused": answer}).encode())
            connection.close()
        listening.close()

    threading.Thread(target=serve, daemon=True).start()
    return asked


def test_orders_are_given_again_when_the_controller_dies_over_them(layout: BoxLayout) -> None:
    asked = serve_controller(layout, None, [["t-0", 56, "Disk d1 is offline."]])
    assert ask_controller(layout, {"disk": "d0"}, pause=lambda _seconds: None) == [["t-0", 56, "Disk d1 is offline."]]
    assert asked == [{"disk": "d0"}] * 2


def test_a_silent_controller_is_waited_for_as_long_as_one_has_patience(layout: BoxLayout) -> None:
    pauses: list[float] = []
    with closing(listen_unix(layout.controller_socket)), pytest.raises(RequestRefused, match="controller does not answer"):
        ask_controller(layout, {"disk": "d0"}, pauses.append, patience=Patience(2, 1))
    assert len(pauses) == 1


def test_without_a_controller_the_command_says_so(layout: BoxLayout) -> None:
    with pytest.raises(RequestRefused, match="controller does not answer") as refused:
        ask_controller(layout, {"disk": "d0"}, pause=lambda _seconds: None)
    assert refused.value.code is ErrorCode.BROKER_NOT_AVAILABLE
