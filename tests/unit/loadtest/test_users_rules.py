"""Small rules of the load by users: ranges of offsets, limits, mixes, addresses, the box's counters as text, and the words of a verdict."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from loadtest.users.box_view import read_books
from loadtest.users.limits import Limits, RequestFigures, exceeded
from loadtest.users.mixes import MIXES, parse_mix
from loadtest.users.offset_ranges import Coverage, OffsetRange, OffsetRanges, cover
from loadtest.users.reconciliation import Reconciliation, Row, SyslogBooks
from loadtest.users.report import verdict_document, verdict_text
from loadtest.users.sample_text import padded
from loadtest.users.targets import bootstrap_of
from loadtest.users.verdict import Verdict

GOOD = Reconciliation((Row("records acknowledged → t", 12_345, 12_345, 0, 0, 0),), False)
BAD = Reconciliation((Row("records acknowledged → t", 12_345, 12_340, 0, 5, 0, "5 deleted since"),), False)


def test_consecutive_offsets_are_one_range_and_a_new_assignment_begins_another() -> None:
    ranges = OffsetRanges()
    for offset in (5, 6, 7, 9):
        ranges.add(offset)
    ranges.begin_anew(10)
    ranges.add(10)
    ranges.begin_anew(11)
    assert ranges.document() == [[5, 8], [9, 10], [10, 11]]


def test_coverage_counts_missing_repeated_and_outside_offsets() -> None:
    seen = [OffsetRange(8, 12), OffsetRange(0, 4), OffsetRange(3, 5), OffsetRange(9, 10)]
    assert cover(seen, OffsetRange(2, 11)) == Coverage(seen=6, missing=3, repeated=2, outside=3, first_missing=5)
    assert cover([], OffsetRange(2, 2)) == Coverage(0, 0, 0, 0, None)


def test_each_limit_that_is_not_kept_has_a_sentence() -> None:
    figures = [RequestFigures("produce", 99, 1, 80.0), RequestFigures("consume", 1, 0, 900.0)]
    assert exceeded(Limits(0.01, (("produce", 80.0),), 0.5), figures, 100, 50) == []
    found = exceeded(Limits(0.0, (("produce", 79.0), ("syslog-udp", 5.0)), 0.1), figures, 100, 50)
    assert len(found) == 4
    assert "1 of 100 requests failed (1.00%)" in found[0] and "was 80 ms" in found[1] and "no such request" in found[2] and "50 of 100 lines" in found[3]
    assert exceeded(Limits(), [], 0, 0) == ["no request was made at all"]


def test_a_mix_is_a_name_or_a_list_and_a_wrong_one_says_what_there_is() -> None:
    assert parse_mix("kafka") == {"produce": 2, "consume": 1}
    assert parse_mix("produce, syslog-tcp=3,consume=0") == {"produce": 1, "syslog-tcp": 3}
    assert all(parse_mix(name) for name in MIXES)
    for wrong in ("prodoose", "produce=many", "consume=0", ""):
        with pytest.raises(ValueError, match=r"part of a mix|no user"):
            parse_mix(wrong)


def test_a_host_is_written_with_scheme_and_port_or_without() -> None:
    assert bootstrap_of("kafka://logs.example") == "logs.example:9092"
    assert bootstrap_of("kafka://[::1]:19092/") == "[::1]:19092"
    with pytest.raises(ValueError, match="names no broker"):
        bootstrap_of(None)


def test_the_boxes_counters_are_summed_over_processes() -> None:
    text = """# TYPE millrace_ingest_received_lines_total counter
millrace_ingest_received_lines_total{process="ingest@0",listener="syslog-udp"} 5.0
millrace_ingest_received_lines_total{process="ingest@1",listener="syslog-udp"} 2.0
millrace_ingest_received_lines_total{process="ingest@0",listener="syslog-tcp"} 1e+06
millrace_ingest_stored_lines_total{process="ingest@0"} 7
millrace_ingest_stored_lines_total{process="ingest@1"} 8
millrace_ingest_lost_lines_total{process="ingest@0",reason="too_large"} 4
millrace_ingest_kernel_drops_total{process="ingest@0"} 3
millrace_up 1
"""
    assert read_books(text) == SyslogBooks({"udp": 7, "tcp": 1_000_000}, 15, {"too_large": 4}, 3)
    assert read_books("<html>another program</html>") is None


def test_exit_code_and_words_follow_the_worst_that_was_found() -> None:
    assert [verdict.exit_code for verdict in (Verdict(GOOD, [], []), Verdict(GOOD, ["slow"], []), Verdict(BAD, ["slow"], []))] == [0, 3, 1]
    assert [verdict.exit_code for verdict in (Verdict(GOOD, [], ["a worker died"]), Verdict(None, [], []))] == [1, 1]
    assert verdict_text(Verdict(GOOD, [], [])).splitlines()[-2:] == ["counts: all add up", "PASSED"]
    words = verdict_text(Verdict(BAD, ["p99 of produce was 90 ms"], []))
    assert "12,345   12,340        0        5        0  5 deleted since" in words
    assert "DO NOT ADD UP (5 missing)" in words and words.endswith("FAILED (exit code 1)")
    assert json.loads(verdict_document(Verdict(BAD, [], [])))["rows"][0]["missing"] == 5


def test_a_record_has_the_size_that_was_asked_for_and_its_head() -> None:
    assert len(padded("a 1 ", 300)) == 300 and padded("a 1 ", 300).startswith(b"a 1 ")
    assert padded("longer than that", 4) == b"longer than that"


@pytest.mark.slow
def test_benchmarks_and_rules_import_neither_locust_nor_gevent() -> None:
    """Their import changes sockets, threads and sleeps of the whole process."""
    assert loaded_by("loadtest.benchmark_runs, loadtest.users.report, loadtest.users.box_view, loadtest.users.options", "locust", "gevent") == "set()"


@pytest.mark.slow
def test_users_need_no_package_of_the_tests() -> None:
    """The extra `loadtest` is enough for them; the box that they start is one of `lab`."""
    assert loaded_by("loadtest.__main__, loadtest.users.command, lab.running_box", "hypothesis", "pytest", "kio", "selenium") == "set()"


def loaded_by(modules: str, *packages: str) -> str:
    program = f"import sys, {modules}; print({set(packages)} & set(sys.modules))"
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True).stdout.strip()
