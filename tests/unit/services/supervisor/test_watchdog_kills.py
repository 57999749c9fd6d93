from __future__ import annotations

from services.supervisor.box_keeper import WatchdogKills

SECOND = 1_000_000_000
NAME = "log-writer@d0"


def looked_at(kills: WatchdogKills, looks: list[tuple[int, int, int]]) -> list[float]:
    """What each look said: (second, pid, second of the last beat)."""
    return [kills.look(NAME, pid, beat * SECOND, now * SECOND) for now, pid, beat in looks]


def test_a_process_that_hung_until_the_watchdog_limit_and_ended_is_counted_once() -> None:
    stands_still = [(now, 7, 100) for now in range(100, 109)]
    assert sum(looked_at(WatchdogKills(10_000), [*stands_still, (109, 8, 109), (110, 8, 110)])) == 9
    assert sum(looked_at(WatchdogKills(10_000), [*stands_still, (109, 0, 0), (110, 0, 0), (111, 8, 111)])) == 9


def test_processes_that_beat_that_recovered_or_whose_end_was_not_seen_are_not_counted() -> None:
    killed_while_it_turned = [(100, 7, 100), (101, 8, 101), (102, 0, 0), (103, 9, 103)]
    went_on = [*((now, 7, 100) for now in range(100, 115)), (115, 7, 115), (116, 8, 116)]
    the_supervisor_slept = [(100, 7, 100), (200, 8, 200)]
    has_not_turned_yet = [*((now, 7, 0) for now in range(100, 115)), (115, 8, 115)]
    for looks in (killed_while_it_turned, went_on, the_supervisor_slept, has_not_turned_yet):
        assert sum(looked_at(WatchdogKills(10_000), looks)) == 0


def test_a_short_watchdog_is_seen_by_a_look_each_second() -> None:
    assert sum(looked_at(WatchdogKills(2_000), [(100, 7, 100), (101, 7, 100), (102, 8, 102)])) == 2
