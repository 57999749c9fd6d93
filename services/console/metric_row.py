"""One metric as a row: name, kind, meaning, and the shared counter that it comes from.
`metric_rows` lists them; the reference page and `/metrics` are generated from the rows.

Names follow Prometheus: `millrace_`, base units (bytes, seconds), `_total` for what only rises.
Weak: a counter that was renamed in its process is exported as `millrace_unlisted` until its row
follows; a test compares them.
"""

from __future__ import annotations

from typing import NamedTuple

COUNTER, GAUGE, HISTOGRAM = "counter", "gauge", "histogram"

MICROSECONDS = 1e-6
MILLISECONDS = 1e-3

Labels = tuple[str, ...]


class MetricRow(NamedTuple):
    """`source` is the label of a counter without its braces; "" for what the console computes.
    `scale` converts its unit into that of the metric."""

    name: str
    kind: str
    meaning: str
    source: str = ""
    labels: Labels = ("process",)
    scale: float = 1.0

    @property
    def exposed_name(self) -> str:
        """The name in `/metrics` and in queries, with `_total` for counters."""
        return f"{self.name}_total" if self.kind == COUNTER else self.name


def counter(name: str, source: str, meaning: str, labels: Labels = ("process",), scale: float = 1.0) -> MetricRow:
    """Return the row of a counter; `scale` converts the counter inside into the metric's unit."""
    return MetricRow(f"millrace_{name}", COUNTER, meaning, source, labels, scale)


def gauge(name: str, source: str, meaning: str, labels: Labels = ("process",), scale: float = 1.0) -> MetricRow:
    """Return the row of a gauge; `scale` converts the counter inside into the metric's unit."""
    return MetricRow(f"millrace_{name}", GAUGE, meaning, source, labels, scale)


def timing(name: str, source: str, meaning: str, labels: Labels = ("process",)) -> MetricRow:
    """Return the row of a histogram in microseconds, exposed in seconds."""
    return MetricRow(f"millrace_{name}_seconds", HISTOGRAM, meaning, source, labels)
