"""The table of flame graphs is renewed load by load, and what people wrote around it stays."""

from __future__ import annotations

from pathlib import Path

import pytest

from loadtest.benchmarks import BENCHMARKS
from loadtest.flame_graph import parse_stacks
from loadtest.flames import BEGIN, DIRECTORY, END, LOADS, PAGE_FILE, SAMPLES_MIN, keep_profile, put_rows
from loadtest.sampler import RATE, Profile

PAGE = f"# Title\n\n{BEGIN}\n{END}\n\nWhat was learned.\n"


def profile(samples: int, label: str = "") -> Profile:
    return Profile(label, "acceptor", parse_stacks(f"Runner.turn (appliance/runtime/runner.py:48);send (libc.so.6) {samples}\n"), 0.5, 2.0)


def test_rows_of_a_load_replace_its_old_ones_and_stand_in_the_order_of_the_loads() -> None:
    page = put_rows(PAGE, "latency", ["| latency | a | old |"])
    page = put_rows(page, "replay_small", ["| replay_small | a | first |", "| replay_small, 9 connections | b | second |"])
    page = put_rows(page, "latency", ["| latency | a | new |"])
    assert "old" not in page
    assert page.index("first") < page.index("second") < page.index("new")
    assert page.startswith("# Title") and page.endswith("What was learned.\n")


def test_a_page_without_marks_is_left_alone() -> None:
    with pytest.raises(ValueError, match="has no"):
        put_rows("# Title\n", "latency", [])


def test_a_profile_becomes_a_graph_and_a_row_that_links_it(tmp_path: Path) -> None:
    row = keep_profile("connections", profile(300, "10 connections"), tmp_path)
    assert row == f"| connections, 10 connections | [acceptor](connections-10_connections-acceptor.svg) | 0.50 | 300 | {RATE} | send() 100 % |"
    assert (tmp_path / "connections-10_connections-acceptor.svg").read_text().startswith("<svg")


def test_too_few_samples_make_no_graph(tmp_path: Path) -> None:
    assert "no graph" in keep_profile("consume", profile(SAMPLES_MIN - 1), tmp_path)
    assert not list(tmp_path.iterdir())


def test_every_load_is_a_benchmark_and_every_graph_that_is_kept_is_small_and_linked() -> None:
    assert set(LOADS) <= set(BENCHMARKS)
    page = PAGE_FILE.read_text()
    for graph in DIRECTORY.glob("*.svg"):
        assert graph.stat().st_size < 150_000
        assert f"({graph.name})" in page
