"""One metric as a row: its name, kind and meaning, and the shared counter that it is read from. The list is `metric_rows`; the reference page and `/metrics`
are made from it.

Names follow Prometheus: `millrace_`, base units (bytes, seconds), `_total` for what only rises. Owned by nobody. Weak spot: a counter that was renamed in its
process is exported as `millrace_unlisted`, until its row follows; a test holds both together.
"""

from __future__ import annotations

from typing import NamedTuple

COUNTER, GAUGE, HISTOGRAM = "counter", "gauge", "histogram"

MICROSECONDS = 1e-6
MILLISECONDS = 1e-3

Labels = tuple[str, ...]


class MetricRow(NamedTuple):
    """`source` is a counter's label without its braces, "" for what the console finds by other means. `scale` turns its unit into the metric's."""

    name: str
    kind: str
    meaning: str
    source: str = ""
    labels: Labels = ("process",)
    scale: float = 1.0

    @property
    def exposed_name(self) -> str:
        """As the page shows it and as queries use it."""
        return f"{self.name}_total" if self.kind == COUNTER else self.name


def counter(name: str, source: str, meaning: str, labels: Labels = ("process",), scale: float = 1.0) -> MetricRow:
    return MetricRow(f"millrace_{name}", COUNTER, meaning, source, labels, scale)


def gauge(name: str, source: str, meaning: str, labels: Labels = ("process",), scale: float = 1.0) -> MetricRow:
    return MetricRow(f"millrace_{name}", GAUGE, meaning, source, labels, scale)


def timing(name: str, source: str, meaning: str, labels: Labels = ("process",)) -> MetricRow:
    """A histogram of microseconds, exposed in seconds."""
    return MetricRow(f"millrace_{name}_seconds", HISTOGRAM, meaning, source, labels)
