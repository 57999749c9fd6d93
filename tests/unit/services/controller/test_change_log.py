"""The change log: the content of a node, and which box has missed an entry."""

from __future__ import annotations

import orjson
import pytest

from appliance.cluster.znodes import DocumentUnreadable, PartitionState
from services.controller.zookeeper import change_log
from services.controller.zookeeper.change_log import ClusterChange, StateRow
from services.controller.zookeeper.requests import Create
from tests.support.memory_zookeeper import MemoryZooKeeper
from tests.support.operation_runs import run

ROW = StateRow("t", "some-id", 3, PartitionState(1, 2, 4, (1, 5), 1), 9)


def test_a_change_says_what_changed_and_nothing_else() -> None:
    whole = ClusterChange(1, (ROW,), ("t",), ((1, "t"),), (2,))
    assert ClusterChange.decode("p", whole.encode()) == whole
    assert orjson.loads(whole.encode())["states"] == [["t", "some-id", 3, 1, 2, 4, [1, 5], 1, 9]]
    assert orjson.loads(ClusterChange(7, topics=("a",)).encode()) == {"version": 1, "broker": 7, "topics": ["a"]}


@pytest.mark.parametrize("data", [b"", b"[]", b'{"version":1}', b'{"broker":1,"states":[[1]]}'])
def test_what_is_no_change_is_not_taken_for_one(data: bytes) -> None:
    with pytest.raises(DocumentUnreadable):
        ClusterChange.decode("p", data)


def test_numbers_have_no_gaps_so_what_was_missed_is_known() -> None:
    names = [f"change_{number:010d}" for number in (7, 8, 9)]
    assert change_log.last_number(names) == 9 and change_log.last_number([]) == -1
    assert change_log.is_complete_since(names, 6) and change_log.is_complete_since(names, 8) and change_log.is_complete_since(names, 9)
    assert not change_log.is_complete_since(names, 5)
    assert change_log.number_of("another") == -1


def test_old_changes_are_removed_and_the_newest_stay() -> None:
    server = MemoryZooKeeper()
    for path in ("/millrace", "/millrace/changes"):
        server.write(Create(path))
    for number in range(change_log.TIDIED_ABOVE):
        server.write(change_log.change_write(ClusterChange(number)))
    names = run(server, change_log.list_changes())
    run(server, change_log.remove_old_changes(names))
    assert len(run(server, change_log.list_changes())) == change_log.TIDIED_ABOVE
    server.write(change_log.change_write(ClusterChange(999)))
    run(server, change_log.remove_old_changes(run(server, change_log.list_changes())))
    left = run(server, change_log.list_changes())
    assert len(left) == change_log.KEPT
    changes = run(server, change_log.read_changes(left))
    assert [change.broker_id for change in changes][-2:] == [change_log.TIDIED_ABOVE - 1, 999]
    assert run(server, change_log.read_changes(names[:1])) is None, "gone: load everything anew"
