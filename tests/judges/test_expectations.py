"""What counts as a problem when a suite is held against its list, and how the suites' own reports are read."""

from __future__ import annotations

import io
import xml.etree.ElementTree as ElementTree

import pytest

from tests.judges import kafka_python, librdkafka
from tests.judges.expectations import problems, read_expectations, table

EXPECTED = {"works": "passes", "needs TLS": "fails: there is no TLS", "for KRaft": "skips: for KRaft"}


def test_a_run_that_does_what_is_listed_has_no_problem() -> None:
    assert problems(EXPECTED, {"works": "passes", "needs TLS": "fails: handshake", "for KRaft": "skips: another reason"}) == []


@pytest.mark.parametrize(
    ("changed", "word"),
    [
        ({"works": "fails: it broke"}, "it broke"),
        ({"works": "skips: not today"}, "not today"),
        ({"needs TLS": "passes"}, "and it passes"),
        ({"new": "passes"}, "not listed"),
        ({"for KRaft": None}, "did not run"),
    ],
)
def test_every_test_that_does_something_else_is_one_problem(changed: dict[str, str | None], word: str) -> None:
    results = {"works": "passes", "needs TLS": "fails", "for KRaft": "skips"} | changed
    (problem,) = problems(EXPECTED, {name: result for name, result in results.items() if result is not None})
    assert next(iter(changed)) in problem and word in problem


@pytest.mark.parametrize("suite", ["kafka-python", "librdkafka"])
def test_every_expectation_of_a_list_is_one(suite: str) -> None:
    expectations = read_expectations(suite)
    assert sum(map(len, expectations.values())) > 60 and "| pass |" in table(expectations)


def test_librdkafkas_table_is_read_and_so_is_a_log_that_broke_off_before_it() -> None:
    log = """
[0001_multiobj    /  0.0s] ================= Running test 0001_multiobj =================
| 0001_multiobj                            |     PASSED |   1.075s |
| 0097_ssl_verify                          |    SKIPPED |   0.000s | Test requires SSL
| 0055_producer_latency_mock               |    SKIPPED |   0.000s | Filtered due to negative test flags
"""
    assert librdkafka.results_in(log) == {"0001_multiobj": "passes", "0097_ssl_verify": "skips: Test requires SSL"}
    broken = "[0002_unkpart / 0.0s] ================= Running test 0002_unkpart =================\nTEST FAILURE\n"
    assert librdkafka.results_in(broken) == {"0002_unkpart": "fails"}


def test_the_worst_outcome_of_a_junit_report_counts() -> None:
    report = """<testsuites><testsuite><testcase name="good"/><testcase name="bad"><failure message="it broke&#10;more"/></testcase>
    <testcase name="bad"><error message="teardown"/></testcase><testcase name="left"><skipped message="no"/></testcase></testsuite></testsuites>"""
    parsed = ElementTree.parse(io.StringIO(report))
    assert kafka_python.results_in(parsed) == {"good": "passes", "bad": "fails: it broke", "left": "skips: no"}
