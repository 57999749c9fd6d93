"""Branch coverage of the product by fast tests, as a table of packages.

`pytest -p tests.support.branch_coverage --branch-coverage DIRECTORY` traces the first case of each
test function in `tests/unit` and leaves out `slow` ones, because tracing makes a test two to three
times as slow. `python -m tests.support.branch_coverage DIRECTORY` prints the table. It informs; there
is no threshold. Weak spot: module level code is not traced.
"""

from __future__ import annotations

import os
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent.parent
PRODUCT = ("appliance", "services")
_tracer: Any = None
_traced: set[str] = set()


def coverage_in(directory: Path, suffix: str | bool | None = None) -> Any:
    from coverage import Coverage  # not all environments have it

    sources = [str(ROOT / name) for name in PRODUCT]
    measured = Coverage(str(directory / "data"), data_suffix=suffix, branch=True, source=sources, config_file=False, messages=False)
    measured.set_option("run:disable_warnings", ["no-data-collected", "module-not-imported", "module-not-measured", "module-not-python"])
    return measured


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--branch-coverage", type=Path, metavar="DIRECTORY", help="trace the first case of each fast test; the data goes here")


@pytest.hookimpl(trylast=True)  # after `-m` has selected
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    global _tracer
    directory: Path | None = config.getoption("--branch-coverage")
    if directory is None:
        return
    directory.mkdir(parents=True, exist_ok=True)
    first = {item.nodeid.partition("[")[0]: item.nodeid for item in reversed(items) if is_traced(item)}
    _traced.update(first.values())
    _tracer = coverage_in(directory, os.environ.get("PYTEST_XDIST_WORKER", "main"))


def is_traced(item: pytest.Item) -> bool:
    return item.nodeid.startswith("tests/unit/") and not item.get_closest_marker("slow")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    if item.nodeid not in _traced:
        return (yield)
    _tracer.start()
    try:
        return (yield)
    finally:
        _tracer.stop()


def pytest_sessionfinish() -> None:
    if _tracer is not None:
        _tracer.save()


def table(measured: Any) -> list[str]:
    """A line for each package: covered branches, branches, percent."""
    counts: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for file in (path for name in PRODUCT for path in sorted((ROOT / name).rglob("*.py"))):
        exits = measured.branch_stats(str(file)).values()
        for package in (".".join(file.relative_to(ROOT).parts[:2]).removesuffix(".py"), "together"):
            counts[package][0] += sum(taken for _, taken in exits)
            counts[package][1] += sum(of for of, _ in exits)
    return [f"{package:32} {taken:>6} of {of:>6} branches {taken / of:>6.1%}" for package, (taken, of) in counts.items() if of]


def main(directory: Path) -> None:
    measured = coverage_in(directory)
    measured.combine()
    measured.save()
    print("\n".join(table(measured)))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
