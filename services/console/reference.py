"""Generates `docs/metrics.md`, `systemd/prometheus-alerts.yml`, `systemd/grafana-dashboard.json` and the
runbook in `docs/operate.md` from the rows of metrics, alarms and panels. Tests compare them.

`python -m services.console.reference metrics > docs/metrics.md`, `… alerts >
systemd/prometheus-alerts.yml`, `… dashboard > systemd/grafana-dashboard.json`, `… runbook` for what stands between the marks of `docs/operate.md`.
Pure except for `main`.
"""

from __future__ import annotations

import re
import sys
import textwrap

from services.console.alarm import Alarm
from services.console.alarms import ALARMS
from services.console.dashboard import dashboard
from services.console.metric_row import MetricRow
from services.console.metric_rows import GROUPS

COLUMNS_MAX = 100

_METRICS_HEAD = """\
# Metrics

Written by `python -m services.console.reference metrics` from
[metric_rows.py](../services/console/metric_rows.py); change that, not this page.

The console serves them at `/metrics` in Prometheus's text format. They are read from shared memory:
a scrape uses no other process and no disk. Counters (`_total`) start at 0 when the box starts and
continue when a process restarts. A histogram has the series `_bucket` (by `le`: every power of two
from 64 µs to 67 s), `_count` and `_sum`; the sum is exact within 12.5 %. A partition has five
series. "Counter inside" is the name in shared memory, which the code and `millrace top` use.

```
scrape_configs:
  - job_name: millrace
    static_configs: [{targets: ["this-box.example:8080"]}]
rule_files: [/opt/millrace/current/systemd/prometheus-alerts.yml]
```
"""

_ALERTS_HEAD = """\
# Alert rules for Prometheus. Made by `python -m services.console.reference alerts` from services/console/alarms.py; change that, not this.
# The job that scrapes the boxes is called "millrace" (docs/metrics.md). What to check and to do: the annotation `runbook`.
groups:
  - name: millrace
    rules:
"""


def metrics_page() -> str:
    """Return Markdown with a table for each group of rows."""
    return _METRICS_HEAD + "".join(_metrics_group(title, rows) for title, rows in GROUPS.items())


def _metrics_group(title: str, rows: tuple[MetricRow, ...]) -> str:
    lines = [f"\n## {title}\n", "| metric | type | labels | meaning | counter inside |", "|---|---|---|---|---|"]
    lines += [f"| `{row.exposed_name}` | {row.kind} | {', '.join(row.labels)} | {row.meaning} | {f'`{row.source}`' if row.source else ''} |" for row in rows]
    return "\n".join(lines) + "\n"


def alert_rules() -> str:
    """Return `systemd/prometheus-alerts.yml`."""
    return _ALERTS_HEAD + "".join(_rule(alarm) for alarm in ALARMS)


def _rule(alarm: Alarm) -> str:
    words = re.sub(r"\{(\w+)\}", r"{{ $labels.\1 }}", alarm.words)
    held = f"        for: {alarm.hold_seconds}s\n" if alarm.hold_seconds else ""
    return (
        f"      - alert: {alarm.name}\n"
        f"        expr: {_quoted(alarm.expression)}\n"
        f"{held}"
        f"        labels:\n"
        f"          severity: {alarm.severity}\n"
        f"        annotations:\n"
        f"          summary: {_quoted(words)}\n"
        f"          description: {_quoted(alarm.meaning)}\n"
        f"          runbook: {_quoted(alarm.runbook)}\n"
    )


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def runbook() -> str:
    """Return a section for each alarm: what it means, what to check, what to do."""
    return "".join(f"\n### {alarm.name}\n\n{_filled(alarm.meaning)}\n\n{_item('Check', alarm.check)}\n{_item('Act', alarm.act)}\n" for alarm in ALARMS)


def _item(word: str, text: str) -> str:
    return _filled(f"* {word}: {text}", "  ")


def _filled(text: str, indent: str = "") -> str:
    """Wrap Markdown, and keep a code span in one line, so that its command can be copied."""
    whole = re.sub(r"`[^`]+`", lambda span: span.group().replace(" ", "\0"), text)
    return textwrap.fill(whole, COLUMNS_MAX, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False).replace("\0", " ")


def main() -> int:
    """Print the page that the first argument names; return the exit code."""
    pages = {"metrics": metrics_page, "alerts": alert_rules, "runbook": runbook, "dashboard": dashboard}
    if len(sys.argv) != 2 or sys.argv[1] not in pages:
        print(f"usage: python -m services.console.reference {'|'.join(pages)}", file=sys.stderr)
        return 2
    sys.stdout.write(pages[sys.argv[1]]())
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
