"""What each test of a suite is expected to do here, as the TOML files beside this module say it, and what is wrong with a run that says otherwise.

A test passes, or it fails or skips for a reason that is written down. A test that is not listed, does not run, begins to fail or passes against
expectation is a problem: then the list is what has to change, by hand. Pure but for reading the file. Weak spot: of a test that is expected to fail
the kind of failure is not checked.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path

PASSES = "passes"
Expectations = dict[str, dict[str, str]]
"""Group of tests → test → "passes", "fails: why" or "skips: why"."""


def read_expectations(suite: str) -> Expectations:
    """Of `<suite>.toml` beside this module."""
    expectations: Expectations = tomllib.loads((Path(__file__).parent / f"{suite}.toml").read_text())
    for group, tests in expectations.items():
        for name, expected in tests.items():
            kind, _, reason = expected.partition(": ")
            assert expected == PASSES or (kind in ("fails", "skips") and reason), f"{group}.{name}: {expected!r} is no expectation"
    return expectations


def problems(expected: Mapping[str, str], results: Mapping[str, str]) -> list[str]:
    """One line for each test that did something else. Of "skips: why" and "fails: why" the first word must agree; the reason is ours."""
    lines = [f"{name}: expected {wanted!r}, and it did not run" for name, wanted in expected.items() if name not in results]
    for name, result in results.items():
        wanted = expected.get(name)
        if wanted is None:
            lines.append(f"{name}: {result}, and it is not listed")
        elif result.partition(":")[0] != wanted.partition(":")[0]:
            lines.append(f"{name}: expected {wanted!r}, and it {result}")
    return lines


def table(expectations: Expectations) -> str:
    """Rows for people: every test with what it does, those that pass in one row for their group."""
    rows = ["| group | test | result |", "|---|---|---|"]
    for group, tests in expectations.items():
        passing = [name for name, expected in tests.items() if expected == PASSES]
        rows.append(f"| {group} | {len(passing)} tests | pass |")
        rows += [f"| {group} | {name} | {expected} |" for name, expected in tests.items() if expected != PASSES]
    return "\n".join(rows) + "\n"
