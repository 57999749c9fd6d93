"""Limits of a run: the share of requests that failed, the 99th percentile of each kind of request, lines that the kernel dropped. Pure.

What is lost has no limit of its own: one record that is missing fails the run (`reconciliation`). Weak spot: locust rounds response times above
100 ms to two digits, so its percentiles are that coarse.
"""

from __future__ import annotations

from typing import NamedTuple


class Limits(NamedTuple):
    """None: no limit. `p99_ms` by kind of request, as in the report (`produce`, `consume`, `syslog-udp`, `syslog-tcp`)."""

    failure_ratio_max: float = 0.0
    p99_ms_max: tuple[tuple[str, float], ...] = ()
    dropped_ratio_max: float | None = None


class RequestFigures(NamedTuple):
    """One kind of request, all users and processes together."""

    kind: str
    requests: int
    failures: int
    p99_ms: float


def parse_p99(text: str) -> tuple[str, float]:
    """`produce=50` → ("produce", 50.0). Raises ValueError that says what is wrong."""
    kind, equals, number = text.partition("=")
    try:
        limit = float(number)
    except ValueError:
        limit = -1
    if not kind or not equals or limit <= 0:
        raise ValueError(f"{text!r} is no limit; write KIND=MILLISECONDS, such as produce=50")
    return kind, limit


def exceeded(limits: Limits, figures: list[RequestFigures], lines_sent: int, lines_dropped: int) -> list[str]:
    """A sentence for each limit that was not kept, a kind without any request included."""
    found = []
    requests, failures = sum(known.requests for known in figures), sum(known.failures for known in figures)
    if not requests:
        found.append("no request was made at all")
    elif failures / requests > limits.failure_ratio_max:
        found.append(f"{failures:,} of {requests:,} requests failed ({failures / requests:.2%}), allowed are {limits.failure_ratio_max:.2%}")
    for kind, p99_ms_max in limits.p99_ms_max:
        matching = [known for known in figures if known.kind == kind and known.requests]
        if not matching:
            found.append(f"p99 of {kind}: there was no such request; there were {', '.join(sorted({known.kind for known in figures})) or 'none'}")
        found += [f"p99 of {kind} was {known.p99_ms:g} ms, allowed are {p99_ms_max:g} ms" for known in matching if known.p99_ms > p99_ms_max]
    if limits.dropped_ratio_max is not None and lines_sent and lines_dropped / lines_sent > limits.dropped_ratio_max:
        share = f"{lines_dropped / lines_sent:.2%}"
        found.append(f"the kernel dropped {lines_dropped:,} of {lines_sent:,} lines sent by UDP ({share}), allowed are {limits.dropped_ratio_max:.2%}")
    return found
