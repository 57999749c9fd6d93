"""One source, whose broker is scripted: what a mirror makes of its answers."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest

from appliance.base.clock import ManualClock
from appliance.base.errors import ErrorCode
from appliance.base.logging import logger_from_environment
from appliance.base.model import BrokerId, Offset, TopicId, TopicPartition
from appliance.client import messages
from appliance.client.connection import await_readable
from appliance.client.groups import CommittedOffset
from services.mirror.__main__ import MirrorStopped, StopSignal, main, take_lock
from services.mirror.group_offsets import is_chosen, plan_offsets
from services.mirror.mirror_file import ClusterOptions, MirroredSource, read_mirror_file
from services.mirror.mirror_status import has_problem, prometheus_text, status_text, write_status
from services.mirror.source import COPYING, FIRST_PAUSE_MS, RETRYING, STOPPED, MirroredPartition, MirrorSource
from services.mirror.topic_rules import PositionNote, write_note
from tests.unit.client.fake_kafka_broker import TOPIC, FakeKafkaBroker, HangUp
from tests.unit.client.test_client_fetch import OnePartition, make_batch

HERE, THERE = TopicPartition(TOPIC, 0), TopicPartition(f"a.{TOPIC}", 0)
ID, OTHER_ID = TopicId(b"1" * 16), TopicId(b"2" * 16)


class ScriptedSource:
    """A source with one partition at offset 0, and its broker."""

    def __init__(self, on_source_change: str = "continue") -> None:
        self.log = OnePartition()
        self.broker = FakeKafkaBroker()
        self.broker.answers[messages.FETCH] = self.log.fetch
        self.broker.answers[messages.LIST_OFFSETS] = self.log.list_offsets
        self.clock = ManualClock()
        cluster = self.broker.cluster(clock=self.clock)
        cluster.metadata()
        options = MirroredSource("a", ClusterOptions([], None), [], [], "a.", "earliest", on_source_change, [re.compile("readers.*")])
        self.source = self.broker.keep(MirrorSource(options, cluster, "millrace-mirror.m.a"))
        self.partition = self.source.partitions[HERE] = MirroredPartition(HERE, THERE, ID)
        self.partition.leader = BrokerId(1)
        self.partition.next_offset = self.partition.committed = Offset(0)

    def turn(self) -> None:
        """Send what may be sent, and take one answer."""
        self.source.send_fetches()
        waiting = self.source.waiting()
        for connection in await_readable(waiting, 5_000) if waiting else ():
            self.source.receive(waiting[connection])

    def take(self) -> list[int]:
        """Return the first offsets of the fetched batches, as a round takes them."""
        batches, self.partition.batches = self.partition.batches, []
        return [each.source_offset for each in batches]


SCRIPTED = ScriptedSource
"""What the fixtures `scripted` and `strict` make."""


def test_batches_come_in_order_and_nothing_is_fetched_while_a_batch_waits(scripted: ScriptedSource) -> None:
    scripted.turn()
    scripted.turn()
    assert scripted.log.fetch_offsets == [0] and scripted.take() == [0]
    scripted.turn()
    assert scripted.take() == [10] and scripted.partition.next_offset == 20


def test_an_answer_for_a_position_that_was_left_is_dropped(scripted: ScriptedSource) -> None:
    scripted.source.send_fetches()
    scripted.partition.next_offset = Offset(50)
    scripted.turn()
    assert scripted.take() == [] and scripted.partition.next_offset == 50
    scripted.turn()
    assert scripted.take() == [50]


def test_after_a_failed_round_the_source_is_read_from_the_position_in_the_target(scripted: ScriptedSource) -> None:
    scripted.turn()
    scripted.source.positions[THERE] = CommittedOffset(Offset(40), write_note(PositionNote(ID, ("A",), ((40, 7, 0),))))
    scripted.source.resume(scripted.partition)
    assert (scripted.partition.batches, scripted.partition.next_offset, scripted.partition.runs.translate(40)) == ([], 40, 7)
    del scripted.source.positions[THERE]
    scripted.source.resume(scripted.partition)
    assert scripted.partition.next_offset == -1 and scripted.source.is_stale
    scripted.source.find_starts([scripted.partition])
    assert (scripted.partition.next_offset, scripted.partition.needs_commit) == (0, True)
    scripted.turn()
    assert scripted.take() == [], "a position must be in the target before anything is copied"


def test_a_gap_is_counted_and_the_partition_goes_on_behind_it(scripted: ScriptedSource) -> None:
    scripted.log.log_start_offset = 30
    scripted.turn()
    assert (scripted.partition.next_offset, scripted.partition.skipped_offsets, scripted.partition.source_changes) == (30, 30, 1)
    assert scripted.source.notices == ["numbers-0 of source a: 30 offsets from 0 on are deleted in the source; going on at offset 30"]


def test_a_change_whose_position_could_not_be_committed_is_counted_once(scripted: ScriptedSource) -> None:
    scripted.source.positions[THERE] = CommittedOffset(Offset(40), write_note(PositionNote(OTHER_ID)))
    for _ in range(2):
        scripted.source.resume(scripted.partition)
    assert (scripted.partition.source_changes, len(scripted.source.notices), scripted.partition.next_offset) == (1, 1, 0)


def test_with_stop_a_partition_stays_where_the_source_changed(strict: ScriptedSource) -> None:
    strict.partition.next_offset = Offset(500)
    strict.turn()
    assert (strict.partition.state, strict.partition.next_offset) == (STOPPED, 500)
    assert "its log was truncated" in strict.partition.problem and "stopped" in strict.source.notices[0]
    strict.source.resume(strict.partition)
    strict.turn()
    assert (strict.partition.state, len(strict.log.fetch_offsets)) == (STOPPED, 1)


def test_a_topic_that_was_created_anew_is_read_from_its_beginning_or_not_at_all(scripted: ScriptedSource, strict: ScriptedSource) -> None:
    for each in (scripted, strict):
        each.source.positions[THERE] = CommittedOffset(Offset(40), write_note(PositionNote(OTHER_ID)))
        each.source.resume(each.partition)
    assert (scripted.partition.next_offset, scripted.partition.needs_commit, scripted.partition.state) == (0, True, COPYING)
    assert (strict.partition.next_offset, strict.partition.state) == (40, STOPPED)


@pytest.mark.parametrize("turn", [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.TOPIC_AUTHORIZATION_FAILED, make_batch(0, 3)[:-1] + b"?"])
def test_an_error_of_a_partition_pauses_that_partition_alone_and_is_said_once(scripted: ScriptedSource, turn: Any) -> None:
    scripted.log.turns = [turn, turn]
    scripted.turn()
    assert (scripted.partition.state, scripted.source.problem, len(scripted.source.notices)) == (RETRYING, "", 1)
    scripted.turn()
    assert scripted.log.fetch_offsets == [0]
    scripted.clock.advance_ms(FIRST_PAUSE_MS)
    scripted.turn()
    assert (len(scripted.source.notices), scripted.log.fetch_offsets) == (1, [0, 0])
    scripted.clock.advance_ms(2 * FIRST_PAUSE_MS)
    scripted.turn()
    assert (scripted.partition.state, scripted.partition.problem, scripted.take()) == (COPYING, "", [0])


def test_a_lost_connection_pauses_the_source_which_says_so(scripted: ScriptedSource) -> None:
    scripted.log.turns = [HangUp()]
    scripted.turn()
    assert "closed the connection" in scripted.source.problem and scripted.source.failures == 1
    scripted.turn()
    assert scripted.log.fetch_offsets == [0]
    scripted.clock.advance_ms(FIRST_PAUSE_MS)
    scripted.turn()
    assert (scripted.source.problem, scripted.take()) == ("", [0])


def test_the_lag_counts_what_is_fetched_but_not_yet_in_the_target(scripted: ScriptedSource) -> None:
    partition = scripted.partition
    assert partition.lag == -1
    scripted.turn()
    partition.end_offset = 100
    assert (partition.position, partition.lag) == (0, 100)
    scripted.take()
    partition.in_round = True
    assert partition.lag == 100
    partition.in_round, partition.committed = False, partition.next_offset
    assert partition.lag == 90


# ---- groups, status


def test_offsets_of_chosen_groups_are_translated_and_never_moved_back(scripted: ScriptedSource) -> None:
    scripted.partition.runs.add(10, 3, 20)
    committed = {HERE: CommittedOffset(Offset(15), ""), TopicPartition("other", 0): CommittedOffset(Offset(1), "")}
    assert plan_offsets(scripted.source.partitions, committed, {}) == {THERE: 8}
    assert plan_offsets(scripted.source.partitions, committed, {THERE: CommittedOffset(Offset(8), "")}) == {}
    assert plan_offsets(scripted.source.partitions, {HERE: CommittedOffset(Offset(9), "")}, {}) == {}
    assert [name for name in ("readers", "readers-2", "others", "millrace-mirror.m.a") if is_chosen(scripted.source.options, name)] == ["readers", "readers-2"]


def document(**changes: Any) -> dict[str, Any]:
    keys = ("position", "records", "bytes", "skipped_offsets", "source_changes", "refusals")
    partition = {"topic": 't"', "partition": 1, "target_topic": "a.t", "state": "copying", "problem": "", "lag": 5, **dict.fromkeys(keys, 2)} | changes
    names = dict.fromkeys(("problem", "group_problem"), "")
    source = {"name": "a", "failures": 3, "left_out": [{"topic": "u", "reason": "because"}], "partitions": [partition], **names}
    head = {"mirror": "m", "is_running": True, "pid": 7, "updated_ms": 100_000, "interval_ms": 1_000, "problem": "", "rounds": 4, "failed_rounds": 1}
    return {**head, "sources": [source]}


def test_the_status_shows_each_partition_and_what_is_wrong() -> None:
    text = status_text(document(state="stopped", problem="gone"), 101_000)
    assert "mirror m: running (pid 7); 4 rounds, 1 failed" in text and "topic u is not copied: because" in text and 't"-1: gone' in text
    assert "no news for 9 s" in status_text(document(), 109_000)
    ended = document() | {"is_running": False}
    assert "mirror m: ended 1 s ago" in status_text(ended, 101_000) and has_problem(ended, 101_000), "a mirror that was stopped is not running"
    assert [has_problem(*each) for each in ((document(), 101_000), (document(), 109_000), (document(state="stopped"), 101_000))] == [False, True, True]


def test_figures_for_prometheus_have_names_types_and_escaped_labels() -> None:
    lines = prometheus_text(document()).splitlines()
    assert 'millrace_mirror_lag_records{mirror="m",source="a",topic="t\\"",partition="1"} 5' in lines
    assert 'millrace_mirror_partitions{mirror="m",source="a",state="copying"} 1' in lines
    assert "# TYPE millrace_mirror_records_total counter" in lines and 'millrace_mirror_target_up{mirror="m"} 1' in lines


def test_other_users_read_both_files_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        write_status(str(tmp_path / "status.json"), document())
    finally:
        os.umask(before)
    assert {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {"status.json": 0o644, "status.prom": 0o644}


def test_check_and_status_say_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "m.toml"
    path.write_text('[target]\nbootstrap.servers="127.0.0.1:1"\n[[source]]\nname="a"\nbootstrap.servers="127.0.0.1:1"\ntopics=["t"]\n')
    assert main(["check", str(path)]) == 1
    assert capsys.readouterr().out.splitlines() == [
        f"{path}: mirror m of a: the file is right",
        "target at 127.0.0.1:1: no broker at 127.0.0.1:1: connection refused",
        "source a at 127.0.0.1:1: no broker at 127.0.0.1:1: connection refused",
    ]
    assert main(["status", str(path)]) == 1 and "is it running?" in capsys.readouterr().err
    path.write_text("colour = 1")
    assert (main(["check", str(path)]), main(["run", str(path)])) == (1, 78) and capsys.readouterr().err.count("colour is no key") == 2


def test_a_second_mirror_of_one_file_ends_and_names_the_first(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "m.toml"
    path.write_text('[target]\nbootstrap.servers="127.0.0.1:1"\n[[source]]\nname="a"\nbootstrap.servers="127.0.0.1:1"\ntopics=["t"]\n')
    options, log = read_mirror_file(str(path)), logger_from_environment("mirror@m")
    lock = take_lock(options, log)
    assert lock is not None and main(["run", str(path)]) == 1
    assert f"mirror m runs already (pid {os.getpid()}, lock {path}.status.lock); stop it first" in capfd.readouterr().err
    os.close(lock)
    again = take_lock(options, log)
    assert again is not None, "the lock ends with its process"
    os.close(again)
    log.close()


def test_a_stop_ends_a_sleep() -> None:
    stop = StopSignal()
    stop.sleep(0)
    stop.set()
    with pytest.raises(MirrorStopped):
        stop.sleep(60)
    stop.close()
