"""What a scrape says of a box, read back by Prometheus's own client library."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from appliance.base.clock import ManualClock
from appliance.runtime.process_cost import CostReport
from lab.pretended_box import PretendedBox
from services.console.box_sample import BoxReader
from services.console.console_groups import GroupLag, GroupsSample, TopicLag
from services.console.watch import BoxMonitor

Series = dict[tuple[str, frozenset[tuple[str, str]]], float]


def watch_of(box: PretendedBox) -> BoxMonitor:
    return BoxMonitor(BoxReader(box.layout, box.box, box.clock), box.clock, "1.2.3", lambda _event: None)


def scrape(watch: BoxMonitor) -> Series:
    found: Series = {}
    for family in text_string_to_metric_families(watch.metrics().decode()):
        assert family.documentation
        for sample in family.samples:
            key = sample.name, frozenset(sample.labels.items())
            assert key not in found, f"{key} is there twice"
            found[key] = sample.value
    return found


def value(series: Series, name: str, **labels: str) -> float:
    return series[name, frozenset(labels.items())]


def test_counters_are_exposed_by_process_disk_listener_and_reason(box: PretendedBox) -> None:
    box.counters["acceptor@0"].counter("acceptor.connections").set(7)
    box.counters["acceptor@0"].counter('acceptor.closed{reason="idle"}').add(3)
    box.counters["acceptor@0"].counter('source.ring_full{disk="d1"}').add(2)
    box.counters["log-writer@d0"].counter("log_writer.bytes").add(5_000)
    box.counters["log-writer@d0"].counter("flush.round_us").add(1_500_000)
    box.counters["log-writer@d0"].counter("retention.clock_disagreement_ms").set(2_500)
    box.counters["ingest@0"].counter('ingest.received{listener="syslog-udp"}').add(11)
    box.counters["supervisor"].counter('supervisor.restarts{process="console"}').add()
    box.counters["controller"].counter('controller.disk_draining{disk="d1"}').set(1)
    series = scrape(watch_of(box))
    assert value(series, "millrace_acceptor_connections", process="acceptor@0", listener="kafka") == 7
    assert value(series, "millrace_acceptor_closed_connections_total", process="acceptor@0", reason="idle") == 3
    assert value(series, "millrace_source_ring_full_total", process="acceptor@0", disk="d1") == 2
    assert value(series, "millrace_log_writer_bytes_total", disk="d0") == 5_000
    assert value(series, "millrace_flush_round_seconds_total", disk="d0") == pytest.approx(1.5)
    assert value(series, "millrace_retention_clock_disagreement_seconds", disk="d0") == pytest.approx(2.5)
    assert value(series, "millrace_ingest_received_lines_total", process="ingest@0", listener="syslog-udp") == 11
    assert value(series, "millrace_process_restarts_total", process="console") == 1
    assert value(series, "millrace_disk_draining", disk="d1") == 1
    assert value(series, "millrace_build", version="1.2.3") == 1


def test_a_counter_without_a_row_is_exposed_all_the_same(box: PretendedBox) -> None:
    box.counters["ingest@0"].counter("ingest.brand_new").add(4)
    series = scrape(watch_of(box))
    assert value(series, "millrace_unlisted", process="ingest@0", counter="ingest.brand_new") == 4
    assert sum(name == "millrace_unlisted" for name, _ in series) == 1


def test_tables_are_exposed_from_what_the_tabler_shows(box: PretendedBox) -> None:
    table = {"topic": "logs", "commits": 3, "lag": 5, "failing": 1, "last_commit_ms": 2_500}
    Path(box.layout.tables_file).write_text(json.dumps({"box_started_ms": box.box.started_wall_ms, "tables": [table]}))
    watch = watch_of(box)
    series = scrape(watch)
    assert value(series, "millrace_table_commits_total", topic="logs") == 3 and value(series, "millrace_table_lag_records", topic="logs") == 5
    assert value(series, "millrace_table_failing", topic="logs") == 1 and value(series, "millrace_table_last_commit_seconds", topic="logs") == 2.5
    Path(box.layout.tables_file).write_text(json.dumps({"box_started_ms": -1, "tables": [table]}))
    assert not any("table_failing" in name for name, _ in scrape(watch)), "of an earlier start of the box"


def test_a_histogram_has_cumulative_buckets_in_seconds(box: PretendedBox) -> None:
    latencies = box.counters["acceptor@0"].histogram("produce.latency_us")
    for microseconds in (10, 63, 64, 1_000, 200_000_000):
        latencies.record(microseconds * 1_000)
    series = scrape(watch_of(box))
    buckets = [(float(dict(labels)["le"]), count) for (name, labels), count in series.items() if name == "millrace_produce_latency_seconds_bucket"]
    counts = [count for _, count in sorted(buckets)]
    assert len(counts) == 22 and counts == sorted(counts)
    assert value(series, "millrace_produce_latency_seconds_bucket", process="acceptor@0", le="0.000064") == 2
    assert value(series, "millrace_produce_latency_seconds_bucket", process="acceptor@0", le="0.000128") == 3
    assert value(series, "millrace_produce_latency_seconds_bucket", process="acceptor@0", le="0.001024") == 4
    assert value(series, "millrace_produce_latency_seconds_bucket", process="acceptor@0", le="67.108864") == 4
    assert value(series, "millrace_produce_latency_seconds_count", process="acceptor@0") == 5


def test_processes_show_state_starts_and_cost(box: PretendedBox, clock: ManualClock) -> None:
    clock.advance_ms(500)
    box.begin_life("acceptor@0")
    box.counters["log-writer@d0"].set_state("recovering")
    CostReport(box.counters["console"]).turn(clock.monotonic_ns())
    series = scrape(watch_of(box))
    assert value(series, "millrace_process_serving", process="acceptor@0") == 1
    assert value(series, "millrace_process_serving", process="log-writer@d0") == 0
    assert value(series, "millrace_process_state", process="log-writer@d0", state="recovering") == 1
    assert value(series, "millrace_process_starts_total", process="acceptor@0") == 2
    assert value(series, "millrace_process_heartbeat_age_seconds", process="console") == pytest.approx(0.5)
    assert value(series, "millrace_process_resident_bytes", process="console") > 1 << 20
    assert value(series, "millrace_process_cpu_seconds_total", process="console") > 0
    assert value(series, "millrace_box_ready") == 0


def test_partitions_and_topics_show_where_they_are(box: PretendedBox) -> None:
    box.append("logs", 1, records=10, size_bytes=700)
    watch = watch_of(box)
    series = scrape(watch)
    assert value(series, "millrace_partition_log_end_offset", topic="logs", partition="1", disk="d1") == 10
    assert value(series, "millrace_partition_size_bytes", topic="logs", partition="1", disk="d1") == 700
    assert value(series, "millrace_partition_high_watermark", topic="quiet", partition="0", disk="d0") == 0
    assert value(series, "millrace_topic_partitions", topic="logs") == 4
    assert value(series, "millrace_topic_partitions_not_served", topic="logs") == 0
    assert sum(name.startswith("millrace_partition_") for name, _ in series) == 5 * 5
    table, index, _ = box.rows["logs", 2]
    table.remove_row(index)
    box.append("logs", 1, records=1, size_bytes=70)
    series = scrape(watch)
    assert value(series, "millrace_partition_log_end_offset", topic="logs", partition="1", disk="d1") == 11
    assert value(series, "millrace_topic_partitions_not_served", topic="logs") == 1
    assert sum(name.startswith("millrace_partition_") for name, _ in series) == 4 * 5


def test_groups_show_how_far_they_are_behind(box: PretendedBox) -> None:
    watch = watch_of(box)
    lag = TopicLag("billing", "logs", 12, 4)
    watch.groups = lambda: GroupsSample((GroupLag("billing", "Stable", (lag,)),), {"Stable": 1}, 0, 1)
    series = scrape(watch)
    assert value(series, "millrace_consumer_group_lag_records", group="billing", topic="logs") == 12
    assert value(series, "millrace_consumer_groups", state="Stable") == 1


def test_prometheus_finds_nothing_wrong_with_a_scrape(box: PretendedBox) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not there (./install.sh test unpacks it)")
    box.counters["acceptor@0"].histogram("produce.latency_us").record(1_000_000)
    checked = subprocess.run([promtool, "check", "metrics"], input=watch_of(box).metrics(), capture_output=True, timeout=60, check=False)
    assert checked.returncode == 0 and not checked.stdout, (checked.stdout + checked.stderr).decode()


def test_a_box_without_processes_is_not_alive(box: PretendedBox) -> None:
    watch = watch_of(box)
    assert watch.is_alive()
    for name in [name for name in box.counters if name != "console"]:
        box.counters.pop(name).close()
    assert not watch.is_alive()
