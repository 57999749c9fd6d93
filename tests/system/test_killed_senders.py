"""Every sender that waits for an answer, while ingest, acceptor, log-writer and controller are killed with -9: nothing acknowledged is lost, and nothing is
twice where its protocol has an identity. Which senders have an identity: `lab/killed_senders.py`.

Every day all of them at once, each process once. At length (`--deep`) each sender alone with each process, and with all four at once: two runs of three kills.
`MILLRACE_CELLS=pylogbeat/ingest,otlp-http` picks cells, `MILLRACE_CELL_RUNS` says how often, `MILLRACE_SEED` gives the same chances again; the table is
`.venv/log/killed-senders.md`.
"""

from __future__ import annotations

import os
import random
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.killed_senders import KINDS, VICTIMS, Finding, SenderSite, sending
from lab.told_senders import Kind, Promise

pytestmark = [pytest.mark.system, pytest.mark.slow]

TOGETHER_PER_SECOND = 150
ALONE_PER_SECOND = 800
KILLS = 3
COLUMNS = {name.partition("@")[0]: [name] for name in VICTIMS} | {"all four": list(VICTIMS)}
RUNS = int(os.environ.get("MILLRACE_CELL_RUNS", "2"))
CELLS = [cell for cell in os.environ.get("MILLRACE_CELLS", "").split(",") if cell]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SenderSite]:
    made = SenderSite(tmp_path_factory.mktemp("killed"))
    yield made
    made.stop()


@pytest.fixture(scope="module")
def chance() -> random.Random:
    seed = int(os.environ.get("MILLRACE_SEED") or random.SystemRandom().randrange(1_000_000))
    print(f"MILLRACE_SEED={seed}")
    return random.Random(seed)


def test_every_sender_at_once_while_each_process_is_killed(site: SenderSite, chance: random.Random) -> None:
    kinds = [kind for kind in KINDS if kind.missing() is None]
    with sending(site, kinds, TOGETHER_PER_SECOND) as run:
        for name in VICTIMS:
            run.kill([name], chance, most=50)
        run.await_progress(chance, most=50)
        run.judge(run.finish())
    assert {kind.promise for kind in kinds} == set(Promise)


@pytest.fixture(scope="module")
def table() -> Iterator[dict[tuple[str, str], list[Finding]]]:
    findings: dict[tuple[str, str], list[Finding]] = defaultdict(list)
    yield findings
    path = Path(sys.prefix) / "log" / "killed-senders.md"
    path.parent.mkdir(exist_ok=True)
    path.write_text(_as_table(findings))


@pytest.mark.deep
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_each_cell(site: SenderSite, chance: random.Random, table: dict[tuple[str, str], list[Finding]], kind: Kind) -> None:
    if reason := kind.missing():
        pytest.skip(reason)
    columns = [column for column in COLUMNS if not CELLS or {kind.name, column, f"{kind.name}/{column}"} & set(CELLS)]
    if not columns:
        pytest.skip("not among MILLRACE_CELLS")
    for column in [column for column in columns for _ in range(RUNS)]:
        with sending(site, [kind], ALONE_PER_SECOND) as run:
            for _ in range(KILLS):
                run.kill(COLUMNS[column], chance)
            run.await_progress(chance, most=100)
            (finding,) = run.finish()
            print(finding)
            run.judge([finding])
        table[kind.name, column].append(finding)


def _as_table(findings: dict[tuple[str, str], list[Finding]]) -> str:
    """A row for each sender; of each cell the runs, the acknowledged records, and the number of
    duplicates.
    """
    lines = [f"| sender | promise | known again by | {' | '.join(COLUMNS)} |", "|---" * (3 + len(COLUMNS)) + "|"]
    for kind in KINDS:
        cells = [_cell(findings.get((kind.name, column), [])) for column in COLUMNS]
        if any(cells):
            lines.append(f"| {kind.name} | {kind.promise.value} | {kind.identity} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _cell(findings: list[Finding]) -> str:
    if not findings:
        return ""
    twice = sum(finding.twice for finding in findings)
    return f"{len(findings)}: {sum(finding.told for finding in findings)}" + (f", {twice} twice" if twice else "")
