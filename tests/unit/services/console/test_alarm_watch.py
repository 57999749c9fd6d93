"""Alarms as the console sees them, on the same rows as Prometheus's rules."""

from __future__ import annotations

from appliance.shm.histogram import BUCKETS, Histogram, HistogramReading
from services.console.alarm import CRITICAL, WARNING, Alarm, AlarmCondition, AlarmEvent, AlarmWatch
from services.console.figures import Figures

SECOND = 1_000_000_000


class World:
    """An alarm, and a clock that goes on by ten seconds with every look."""

    def __init__(self, condition: AlarmCondition, hold_seconds: int = 0, words: str = "{disk} hurts") -> None:
        self.watch = AlarmWatch([Alarm("Hurts", CRITICAL, condition, hold_seconds, words, "it does")])
        self.seconds = 0

    def look(self, metric: str, **by_disk: float) -> list[tuple[str, bool]]:
        return self._reported(Figures({metric: {(disk,): value for disk, value in by_disk.items()}}, {}))

    def look_at(self, metric: str, reading: HistogramReading) -> list[tuple[str, bool]]:
        return self._reported(Figures({}, {metric: {("d0",): reading}}))

    def _reported(self, figures: Figures) -> list[tuple[str, bool]]:
        self.seconds += 10
        news: list[AlarmEvent] = self.watch.look(figures, self.seconds * SECOND, self.seconds * 1000)
        return [(event.words, event.ended_wall_ms is None) for event in news]


def test_an_alarm_is_reported_once_when_it_begins_and_once_when_it_ends() -> None:
    world = World(AlarmCondition("millrace_disk_recent_fences", ">=", 2))
    assert world.look("millrace_disk_recent_fences", d0=1, d1=0) == []
    assert world.look("millrace_disk_recent_fences", d0=2, d1=0) == [("d0 hurts", True)]
    assert world.look("millrace_disk_recent_fences", d0=3, d1=5) == [("d1 hurts", True)]
    assert [look.is_firing for look in world.watch.looks] == [True]
    assert world.look("millrace_disk_recent_fences", d0=0, d1=5) == [("d0 hurts", False)]
    assert [(event.words, event.began_wall_ms, event.ended_wall_ms) for event in world.watch.events] == [
        ("d1 hurts", 30_000, None),
        ("d0 hurts", 20_000, 40_000),
    ]


def test_what_must_hold_for_a_while_is_forgotten_when_it_does_not() -> None:
    world = World(AlarmCondition("millrace_disk_recent_fences", ">", 0), hold_seconds=20)
    assert [world.look("millrace_disk_recent_fences", d0=1) for _ in range(2)] == [[], []]
    world.look("millrace_disk_recent_fences", d0=0)
    assert [world.look("millrace_disk_recent_fences", d0=1) for _ in range(3)] == [[], [], [("d0 hurts", True)]]
    assert world.look("millrace_disk_recent_fences") == [("d0 hurts", False)], "a series that is gone does not hurt any more"


def test_a_rise_is_over_when_it_leaves_the_window() -> None:
    world = World(AlarmCondition("millrace_log_writer_storage_failures_total", ">", 0, over_seconds=30))
    name = "millrace_log_writer_storage_failures"
    assert world.look(name, d0=7) == [], "a rise before the first reading is not reported"
    assert world.look(name, d0=8) == [("d0 hurts", True)]
    assert [world.look(name, d0=8) for _ in range(2)] == [[], []]
    assert world.look(name, d0=8) == [("d0 hurts", False)]
    assert world.look(name, d0=8, d1=1) == [("d1 hurts", True)], "a counter that appears began at zero"


def test_a_counter_that_began_anew_rose_by_what_it_is() -> None:
    world = World(AlarmCondition("millrace_log_writer_storage_failures_total", ">", 2, over_seconds=60))
    name = "millrace_log_writer_storage_failures"
    assert world.look(name, d0=100) == []
    assert world.look(name, d0=2) == []
    assert world.look(name, d0=3) == [("d0 hurts", True)]


def test_a_ratio_needs_both_of_its_sides() -> None:
    world = World(AlarmCondition("millrace_disk_free_bytes", "<", 0.1, divided_by="millrace_disk_size_bytes"))
    sides = {
        "millrace_disk_free_bytes": {("d0",): 9.0, ("d1",): 10.0, ("d2",): 0.0},
        "millrace_disk_size_bytes": {("d0",): 100.0, ("d1",): 100.0, ("d2",): 0.0},
    }
    assert [event.words for event in world.watch.look(Figures(sides, {}), 0, 0)] == ["d0 hurts"]


def test_a_percentile_is_that_of_the_window() -> None:
    world = World(AlarmCondition("millrace_log_writer_append_round_seconds", ">", 0.5, over_seconds=30, quantile=0.99, by="disk"))
    histogram = Histogram(memoryview(bytearray(8 * BUCKETS)).cast("Q"))
    name = "millrace_log_writer_append_round_seconds"
    histogram.record(SECOND)
    assert world.look_at(name, histogram.read()) == []
    histogram.record(SECOND)
    assert world.look_at(name, histogram.read()) == [("d0 hurts", True)]
    for _ in range(1_000):
        histogram.record(1_000)
    assert world.look_at(name, histogram.read()) == [("d0 hurts", False)]


def test_labels_pick_series() -> None:
    watch = AlarmWatch([Alarm("Off", WARNING, AlarmCondition("millrace_disk_state", "==", 1, (("state", "offline"),)), 0, "{disk} is {state}", "it is")])
    figures = Figures({"millrace_disk_state": {("d0", "online"): 1.0, ("d0", "offline"): 0.0, ("d1", "offline"): 1.0}}, {})
    assert [event.words for event in watch.look(figures, 0, 0)] == ["d1 is offline"]


def test_conditions_are_written_as_prometheus_asks() -> None:
    written = {
        'millrace_disk_state{state="full"} == 1': AlarmCondition("millrace_disk_state", "==", 1, (("state", "full"),)),
        "increase(millrace_x_total[15m]) > 3": AlarmCondition("millrace_x_total", ">", 3, over_seconds=900),
        "millrace_a / millrace_b < 0.1": AlarmCondition("millrace_a", "<", 0.1, divided_by="millrace_b"),
        "histogram_quantile(0.99, sum by (instance, disk, le) (rate(millrace_y_seconds_bucket[90s]))) > 0.5": AlarmCondition(
            "millrace_y_seconds", ">", 0.5, over_seconds=90, quantile=0.99, by="disk"
        ),
    }
    assert {condition.expression: condition for condition in written.values()} == written
