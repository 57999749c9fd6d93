"""Rows, pages and rules hold together: every counter in the code has its metric, every alarm its metric and its place in the runbook."""

from __future__ import annotations

import re
import shutil
import subprocess

import pytest

from appliance.base.logging import DROPPED_COUNTER
from lab.running_box import ROOT
from services.console.alarms import ALARMS
from services.console.dashboard import PANELS, dashboard
from services.console.metric_row import COUNTER, GAUGE, HISTOGRAM, MetricRow
from services.console.metric_rows import BY_SOURCE, PARTITIONS, ROWS
from services.console.reference import alert_rules, metrics_page, runbook

RULES = ROOT / "systemd" / "prometheus-alerts.yml"
RUNBOOK = ROOT / "docs" / "operate.md"
_MADE = re.compile(r"""\b(?:counter|gauge|histogram)\(\s*f?["']([a-z_]+\.[a-z_]+)""")
_COUNTED = re.compile(r"""\bcounter\(\s*f?["']([a-z_]+\.[a-z_]+)""")
_BY_NAME = re.compile(r"\b(?:counter|gauge)\(([A-Z_]+)\b")
_NAMED = re.compile(r"""^([A-Z_]+) = ["']([a-z_]+\.[a-z_]+)(?:\{.*)?["']$""", re.MULTILINE)


OUTLIVES_ITS_PROCESS = {
    "runtime.failed_starts",
    "counters.overflow",
    "disk.free_bytes",
    "disk.total_bytes",
    "disk.failures_of_late",
    "disk.fences_of_late",
    "disk.fences_waited_for",
    "disk.reopen_attempts",
    "ingest.kernel_drops_seen",
    "ingest.udp_socket_cookie",
    "ingest.udp_receive_buffer_bytes",
}
"""Gauges whose last value counts after a death of their process as well."""


def counters_in_the_code() -> set[str]:
    """What is asked of `counter(…)`, `gauge(…)` and `histogram(…)`, by a literal or by the name of a constant."""
    texts = [path.read_text() for top in ("appliance", "services") for path in (ROOT / top).rglob("*.py")]
    constants = {name for text in texts for name in _BY_NAME.findall(text)}
    found = {name for text in texts for name in _MADE.findall(text)}
    return found | {counter for text in texts for name, counter in _NAMED.findall(text) if name in constants}


def test_every_counter_in_the_code_has_a_metric_and_every_metric_its_counter() -> None:
    used = counters_in_the_code()
    assert len(used) > 150 and DROPPED_COUNTER in used
    assert sorted(used - BY_SOURCE.keys()) == [], "add a row to services/console/metric_rows.py"
    assert sorted(BY_SOURCE.keys() - used - {"counters.overflow"}) == [], "rows of counters that no process creates any more"


def test_no_other_gauge_is_left_as_a_dead_process_had_it() -> None:
    """Counters outlive their process; what is the case now is asked of `gauge(…)`."""
    gauges = {row.source for row in ROWS if row.kind == GAUGE and row.source}
    counted = {name for top in ("appliance", "services") for path in (ROOT / top).rglob("*.py") for name in _COUNTED.findall(path.read_text())}
    assert len(gauges) > 40 and sorted((gauges & counted) - OUTLIVES_ITS_PROCESS) == []


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_names_follow_prometheus(row: MetricRow) -> None:
    assert re.fullmatch(r"millrace_[a-z][a-z0-9_]*", row.name) and not row.name.endswith("_total")
    assert row.meaning.endswith(".") and (row.meaning[0].isupper() or row.meaning[0].isdigit())
    source_unit = re.search(r"_(us|ms)$", row.source)
    if source_unit:
        assert row.name.endswith("_seconds") and (row.kind == HISTOGRAM or row.scale < 1)
    assert not re.search(r"_(us|ms|mb|kb|count|sum|bucket)$", row.name)
    if row.source.endswith("_bytes"):
        assert row.name.endswith("_bytes")


def test_a_partition_has_at_most_five_series() -> None:
    assert 1 <= len([row for row in ROWS if "partition" in row.labels]) == len(PARTITIONS) <= 5


def test_the_page_of_metrics_and_the_rules_are_made_from_the_rows() -> None:
    page = (ROOT / "docs" / "metrics.md").read_text()
    assert page == metrics_page(), "run: python -m services.console.reference metrics > docs/metrics.md"
    assert RULES.read_text() == alert_rules(), "run: python -m services.console.reference alerts > systemd/prometheus-alerts.yml"


def test_the_dashboard_is_made_from_its_rows_and_names_metrics_and_labels_that_there_are() -> None:
    assert (ROOT / "systemd" / "grafana-dashboard.json").read_text() == dashboard(), (
        "run: python -m services.console.reference dashboard > systemd/grafana-dashboard.json"
    )
    exposed = {row.exposed_name + suffix: row for row in ROWS for suffix in (("_bucket",) if row.kind == HISTOGRAM else ("",))}
    for panel in PANELS:
        for expression, legend in panel.queries:
            rows = [exposed[name] for name in re.findall(r"millrace_\w+", expression)]
            labels = {"instance", "le", *(label for row in rows for label in row.labels)}
            assert rows and {label for found in re.findall(r"by \(([^)]+)\)", expression) for label in found.split(", ")} <= labels
            assert set(re.findall(r"\{\{(\w+)\}\}", legend)) <= labels


def test_every_alarm_reads_a_metric_with_the_labels_that_it_names() -> None:
    by_name = {row.exposed_name: row for row in ROWS}
    for alarm in ALARMS:
        if alarm.condition is None:
            continue
        row = by_name[alarm.condition.metric]
        labels = {alarm.condition.by} if alarm.condition.by else set(row.labels)
        assert {label for label, _ in alarm.condition.match} <= labels
        assert set(re.findall(r"\{(\w+)\}", alarm.words)) <= labels
        assert (row.kind == COUNTER) == (bool(alarm.condition.over_seconds) and not alarm.condition.quantile)


def test_every_alarm_has_its_place_in_the_runbook() -> None:
    assert [alarm.name for alarm in ALARMS if not alarm.check or not alarm.act] == []
    marked = RUNBOOK.read_text().split("<!-- alarms -->\n")[1].split("<!-- /alarms -->\n")[0]
    assert marked == runbook(), "make it anew: python -m services.console.reference runbook"


def test_prometheus_reads_the_rules() -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not there (./install.sh test unpacks it)")
    checked = subprocess.run([promtool, "check", "rules", str(RULES)], capture_output=True, text=True, timeout=60, check=False)
    assert checked.returncode == 0 and f"{len(ALARMS)} rules found" in checked.stdout, checked.stdout + checked.stderr
