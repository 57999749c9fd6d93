"""The page's document: rates, latencies, history, and its bounds."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from appliance.base.clock import ManualClock
from appliance.senders.sender_accounts import SenderFigures, senders_file, write_senders
from lab.pretended_box import PretendedBox
from services.console.activity import EVERY_MS, POINTS
from services.console.alarm import Alarm, AlarmEvent
from services.console.alarms import ALARMS
from services.console.box_sample import BoxReader
from services.console.console_groups import GroupLag, GroupsSample, TopicLag
from services.console.figure_history import HistorySpan
from services.console.overview import GROUPS_SHOWN, SENDERS_SHOWN, TOPICS_SHOWN
from services.console.person_rights import ALL, Visible
from services.console.watch import ALARMS_EVERY_MS, SENDERS_EVERY_MS, BoxMonitor


class Watched:
    """A box and its watch; `step` lets one interval pass."""

    def __init__(self, box: PretendedBox, clock: ManualClock) -> None:
        self.box, self.clock = box, clock
        self.alarms: list[AlarmEvent] = []
        self.watch = BoxMonitor(BoxReader(box.layout, box.box, clock), clock, "1", self.alarms.append)

    def step(self, count: int = 1) -> None:
        for _ in range(count):
            self.clock.advance_ms(EVERY_MS)
            self.box.beat()
            self.watch.turn()

    def document(self, since_ms: int = 0) -> Any:
        return orjson.loads(orjson.dumps(self.watch.overview(since_ms)))


@pytest.fixture
def watched(box: PretendedBox, clock: ManualClock) -> Watched:
    return Watched(box, clock)


def named(rows: list[dict[str, Any]], name: str) -> dict[str, Any]:
    return next(row for row in rows if row["name"] == name)


def test_the_page_of_alarms_has_a_runbook_for_each_and_marks_those_that_last(watched: Watched) -> None:
    watched.box.counters["log-writer@d1"].counter("disk.fences_of_late").add(2)
    watched.step(1 + ALARMS_EVERY_MS // EVERY_MS)
    document = watched.watch.alarms_document()
    assert [(event["name"], event["words"]) for event in document["present"]] == [("MillraceDiskFencedAgain", "disk d1 was fenced again")]
    assert [alarm["name"] for alarm in document["alarms"] if alarm["is_firing"]] == ["MillraceDiskFencedAgain"]
    assert len(document["alarms"]) == len(ALARMS) and all(alarm["check"] and alarm["act"] for alarm in document["alarms"])


def test_alarms_name_the_topics_and_groups_alone_that_a_person_may_see(watched: Watched) -> None:
    alarms = {alarm.name: alarm for alarm in ALARMS}
    labels = (("group", "readers"), ("topic", "secret"))
    behind = AlarmEvent(alarms["MillraceConsumerLag"], "group readers is behind in topic secret", 5, labels=labels)
    restarts = AlarmEvent(alarms["MillraceProcessRestarts"], "ingest@0 was started", 4, 5, (("process", "ingest@0"),))
    older = AlarmEvent(alarms["MillracePartitionsNotServed"], "partitions of topic secret are not served", 3, 5)
    unknown = AlarmEvent(Alarm("Foreign", "warning", None, 0, "of topic secret", "m"), "of topic secret", 2, 5)
    watched.watch.alarms.restore([behind, restarts, older, unknown])

    def words(visible: Visible) -> list[str]:
        alarms = watched.watch.alarms_document(visible)
        found = [event["words"] for event in (*alarms["present"], *alarms["past"])]
        assert [event["words"] for event in watched.watch.overview(0, visible)["alarms"]] == found, "the first page has them, too"
        return found

    assert words(ALL) == [event.words for event in (behind, restarts, older, unknown)]
    text = "group {} is more than a million records behind in topic {}".format
    rest = ["ingest@0 was started more than three times in 15 minutes", "partitions of topic (hidden) are not served", "(hidden)"]
    assert words(Visible(frozenset(), frozenset())) == [text("(hidden)", "(hidden)"), *rest]
    assert words(Visible(frozenset({"other"}), frozenset({"readers"}))) == [text("readers", "(hidden)"), *rest]
    assert words(Visible(frozenset({"secret"}), frozenset())) == [text("(hidden)", "secret"), *rest]


def test_each_minute_has_a_point_of_its_own(watched: Watched) -> None:
    start_ms = watched.watch.last_sample().wall_ms
    for _ in range(3 * 60_000 // EVERY_MS):
        watched.box.append("logs", 1, records=1, size_bytes=10)
        watched.box.counters["log-writer@d1"].counter("log_writer.records").add(20)
        watched.box.counters["log-writer@d1"].counter("disk.total_bytes").add()
        watched.step()
    shown = watched.watch.figures_between(HistorySpan(start_ms - 60_000, watched.watch.last_sample().wall_ms))
    assert set(shown["lag_records"]) == {None}, "no group was looked at: that is no lag of 0"
    known = [value for value in shown["records_per_s"] if value is not None]
    assert known == [10.0] * len(known) and 2 <= len(known) <= 3 and {value for value in shown["fullest_disk_percent"] if value is not None} == {100.0}


def test_rates_and_latencies_are_those_of_the_last_seconds(watched: Watched) -> None:
    box = watched.box
    watched.step()
    box.counters["log-writer@d1"].counter("log_writer.bytes").add(8_000)
    box.counters["acceptor@0"].counter('fetch.topic_bytes{topic="logs"}').add(4_000)
    box.counters["acceptor@0"].counter("fetch.range_bytes").add(4_000)
    box.counters["acceptor@0"].histogram("produce.latency_us").record(3_000_000)
    box.counters["log-writer@d1"].histogram("disk.probe_us").record(9_000_000)
    box.append("logs", 1, records=40, size_bytes=8_000)
    watched.step()
    document = watched.document()
    assert document["seconds"] == 4.0
    assert (document["rates"]["received_bytes"], document["rates"]["sent_bytes"]) == (2_000, 1_000)
    assert document["latency"]["produce"]["p99_us"] == pytest.approx(3_000, rel=0.13) and document["latency"]["fetch"]["p99_us"] is None
    topic = named(document["topics"], "logs")
    assert (topic["records_per_s"], topic["received_bytes_per_s"], topic["sent_bytes_per_s"], topic["records"]) == (10, 2_000, 1_000, 40)
    disk = named(document["disks"], "d1")
    assert disk["written_bytes_per_s"] == 2_000 and disk["probe_p99_us"] == pytest.approx(9_000, rel=0.13)
    assert document["history"]["received_bytes_per_s"] == [0, 4_000]
    assert document["history"]["disks"] == {"d0": [0, 0], "d1": [0, 4_000]}
    watched.step(5)
    assert watched.document()["rates"]["received_bytes"] == 0


def test_restarts_come_from_the_process_or_the_supervisor(watched: Watched) -> None:
    box = watched.box
    box.begin_life("acceptor@0")
    box.counters["supervisor"].counter('supervisor.restarts{process="zookeeper"}').add(3)
    watched.step()
    processes = watched.document()["processes"]
    assert [named(processes, name)["restarts"] for name in ("acceptor@0", "zookeeper", "console")] == [1, 3, 0]


def test_history_is_bounded_and_given_from_a_moment_on(watched: Watched) -> None:
    watched.step(POINTS + 20)
    history = watched.document()["history"]
    assert len(history["time_ms"]) == POINTS == len(history["cpu_percent"]) == len(history["disks"]["d0"])
    later = watched.document(history["time_ms"][-3])["history"]
    assert later["time_ms"] == history["time_ms"][-2:] and len(later["disks"]["d1"]) == 2
    assert watched.document(history["time_ms"][-1])["history"]["time_ms"] == []


def test_topics_are_listed_by_name_with_a_filter_and_internal_ones_only_if_asked(layout: Any, clock: ManualClock) -> None:
    box = PretendedBox(layout, clock, topics={"logs": 4, "quiet": 1, "__consumer_offsets": 2})
    watched = Watched(box, clock)
    box.append("logs", 0, 8, 800)
    watched.step()
    document = watched.watch.topics()
    assert [topic["name"] for topic in document["topics"]] == ["logs", "quiet"] and document["count"] == 2
    logs = {name: document["topics"][0][name] for name in ("partitions", "replicas", "records", "size_bytes", "records_per_s", "leaderless", "is_internal")}
    assert logs == {"partitions": 4, "replicas": 1, "records": 8, "size_bytes": 800, "records_per_s": 4.0, "leaderless": 0, "is_internal": False}
    assert [topic["name"] for topic in watched.watch.topics("_o", True)["topics"]] == ["__consumer_offsets"]
    assert watched.watch.topics("_o")["count"] == 0
    box.close()


def test_two_thousand_partitions_do_not_make_the_document_larger(layout: Any, clock: ManualClock) -> None:
    box = PretendedBox(layout, clock, topics={f"topic-{number}": 20 for number in range(100)})
    watched = Watched(box, clock)
    lags = tuple(GroupLag(f"group-{number}", "Stable", tuple(TopicLag("g", f"topic-{topic}", number, 20) for topic in range(100))) for number in range(300))
    watched.watch.groups = lambda: GroupsSample(lags, {"Stable": 300}, 0, 1)
    watched.step()
    document = watched.document()
    assert (document["partitions_count"], document["topics_count"], document["groups_count"]) == (2_000, 100, 300)
    assert (len(document["topics"]), len(document["groups"])) == (TOPICS_SHOWN, GROUPS_SHOWN)
    assert document["groups"][0]["group"] == "group-299", "the group with the largest lag comes first"
    assert len(orjson.dumps(document)) < 32_000
    box.close()


def test_alarms_are_logged_shown_and_end(watched: Watched, clock: ManualClock) -> None:
    watched.step()
    assert watched.document()["alarms"] == []
    watched.box.counters["log-writer@d0"].counter("disk.fences_of_late").set(2)
    watched.step(ALARMS_EVERY_MS // EVERY_MS)
    (alarm,) = watched.document()["alarms"]
    assert (alarm["name"], alarm["words"], alarm["ended_ms"]) == ("MillraceDiskFencedAgain", "disk d0 was fenced again", None)
    watched.box.counters["log-writer@d0"].counter("disk.fences_of_late").set(0)
    watched.step(ALARMS_EVERY_MS // EVERY_MS)
    assert watched.document()["alarms"][0]["ended_ms"] is not None
    assert [event.ended_wall_ms is None for event in watched.alarms] == [True, False]


def test_a_disk_that_comes_while_the_console_runs_is_shown(watched: Watched) -> None:
    box = watched.box
    watched.step(3)
    more = box.box._replace(disks=[*box.box.disks, box.box.disks[0]._replace(name="d9", path="/srv/d9")])
    with open(box.layout.box_file, "wb") as file:
        file.write(more.to_json())
    watched.step()
    document = watched.document()
    assert named(document["disks"], "d9")["state"] == "down"
    assert document["missing"] == {"log-writer@d9": "not started", "log-reader@d9": "not started"}
    assert document["history"]["disks"]["d9"] == [None, None, None, 0]


def test_senders_are_bounded_the_silent_ones_first_and_many_are_read_every_ten_seconds(watched: Watched) -> None:
    watched.step()
    now_ms = watched.watch.last_sample().wall_ms
    accounts = [
        SenderFigures(f"10.0.{number >> 8}.{number & 255}", number, number, 0, 0, 0, {}, ["syslog-tcp"], now_ms) for number in range(SENDERS_SHOWN + 50)
    ]
    accounts[7] = accounts[7]._replace(last_seen_ms=now_ms - 301_000, refused=2, reasons={"malformed": 2})
    write_senders(senders_file(watched.box.layout, "ingest@0"), accounts)
    watched.step()
    document = watched.watch.senders()
    assert (len(document["senders"]), document["senders_count"], document["silent_count"]) == (SENDERS_SHOWN, SENDERS_SHOWN + 50, 1)
    first, second = document["senders"][:2]
    assert (first["host"], first["is_silent"], first["reasons"]) == ("10.0.0.7", True, {"malformed": 2})
    assert (second["received"], second["is_silent"]) == (SENDERS_SHOWN + 49, False)
    assert "syslog-tcp" in [each["name"] for each in document["listeners"]]
    write_senders(senders_file(watched.box.layout, "ingest@0"), [])
    watched.step(SENDERS_EVERY_MS // EVERY_MS - 1)
    assert watched.watch.senders() is document
    watched.step()
    few = watched.watch.senders()
    assert few["senders"] == []
    write_senders(senders_file(watched.box.layout, "ingest@0"), accounts[:3])
    assert watched.watch.senders() is few, "until the next sample"
    watched.step()
    assert len(watched.watch.senders()["senders"]) == 3
