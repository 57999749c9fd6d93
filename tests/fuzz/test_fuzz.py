"""Every seed is taken, every parser of ingest is reached by one, and the campaign finds what there is to be found.

The campaign itself is `python -m tests.fuzz`, a stage of its own in `./install.sh test`; with `MILLRACE_DEEP=1` (a minute for each target) or
`MILLRACE_FUZZ_INPUTS=10000000` it is run from here, one target after the other.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from inspect import CO_OPTIMIZED
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from tests.conftest import DEEP
from tests.fuzz.kafka_targets import golden_frames
from tests.fuzz.report import report
from tests.fuzz.targets import INGEST_TARGETS, TARGETS

ROOT = Path(__file__).parent.parent.parent
INPUTS = os.environ.get("MILLRACE_FUZZ_INPUTS", "")
INPUTS_MIN = 1_000
"""Fewer in a minute, and something hangs in every input."""
INGEST = ROOT / "services/ingest"
FOLDERS = (*(INGEST / name for name in ("listeners", "protocols", "records", "replay")), ROOT / "appliance/senders")
NO_PARSERS = {
    *(f"records/{name}.py" for name in ("batcher", "intake", "partitioner")),
    *(f"records/{name}.py" for name in ("held_records", "identified_records", "ingest_input", "ingest_ledger", "record_router")),
    *(f"records/{name}.py" for name in ("acknowledger", "ingest_topics", "live_tap", "sender_rights")),
    *(f"protocols/{name}.py" for name in ("session", "elasticsearch/elasticsearch_probes")),
    *(f"listeners/{name}.py" for name in ("half_closed_connections", "listening_socket", "sender_connection")),
    *(f"listeners/{name}.py" for name in ("sender_connections", "sender_datagrams", "sender_limits", "sender_owners", "sender_quotas", "sender_stream")),
    *(f"listeners/{name}.py" for name in ("sliced_work", "tls_stream")),
    *(f"replay/{name}.py" for name in ("frame_streams", "stream_replay")),  # properties/test_ingest_stream_replay.py
    *(f"replay/{name}.py" for name in ("journalled_batches", "replay_journal", "replays")),
    *(f"appliance/senders/{name}.py" for name in ("accounting", "ingest_figures", "sender_accounts", "table_checks")),
}
"""They are given values, not bytes, or bytes of this user's commands."""

needs_atheris = pytest.mark.skipif(importlib.util.find_spec("atheris") is None, reason="atheris is not installed (it has no wheel for this Python)")


def campaign(directory: Path, *arguments: str) -> tuple[int, list[dict[str, Any]]]:
    command = [sys.executable, "-m", "tests.fuzz", *arguments, "--findings", str(directory / "findings")]
    ended = subprocess.run(command, cwd=directory, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE, text=True, check=False)
    return ended.returncode, [json.loads(line) for line in ended.stdout.splitlines()]


@pytest.mark.parametrize("name", TARGETS)
def test_every_seed_is_taken(name: str) -> None:
    target = TARGETS[name]
    for seed in target.seeds():
        target.run(seed)
        for end in range(0, len(seed), 7):
            target.run(seed[:end])


@pytest.mark.parametrize("name", INGEST_TARGETS)
def test_seeds_are_as_short_as_inputs_are(name: str) -> None:
    assert all(len(seed) <= TARGETS[name].length_max for seed in TARGETS[name].seeds())


def test_the_corpus_begins_with_frames_of_real_clients() -> None:
    assert len(golden_frames()) >= 30


@pytest.mark.slow
def test_every_module_that_is_given_bytes_is_reached_by_a_seed() -> None:
    paths = [path for folder in FOLDERS for path in folder.rglob("*.py") if path.name != "__init__.py"]
    modules = {str(path): str(path.relative_to(INGEST if path.is_relative_to(INGEST) else ROOT)) for path in paths}
    reached = set()

    def on_call(frame: FrameType, event: str, _argument: Any) -> None:
        if event == "call" and frame.f_code.co_flags & CO_OPTIMIZED:  # a function, no body of a module or a class
            reached.add(frame.f_code.co_filename)

    sys.setprofile(on_call)
    try:
        for target in INGEST_TARGETS.values():
            for seed in target.seeds():
                target.run(seed)
    finally:
        sys.setprofile(None)
    unreached = {name for path, name in modules.items() if path not in reached}
    assert sorted(unreached - NO_PARSERS) == [], "give it a target, or say that it is no parser"
    assert sorted(NO_PARSERS - set(modules.values())) == [], "it is gone"


@needs_atheris
@pytest.mark.slow
def test_the_campaign_counts_inputs_and_ends_well(tmp_path: Path) -> None:
    code, ended = campaign(tmp_path, "proxy_header", "loki_labels", "--runs", "500", "--workers", "2")
    assert code == 0 and [each["findings"] for each in ended] == [{}, {}]
    assert {each["target"]: each["inputs"] >= 500 for each in ended} == {"proxy_header": True, "loki_labels": True}


@needs_atheris
@pytest.mark.slow
def test_the_campaign_finds_what_is_planted(tmp_path: Path) -> None:
    planted = tmp_path / "planted.py"
    planted.write_text("""
from tests.fuzz.target import Target
from tests.fuzz.__main__ import Campaign, fuzz
from pathlib import Path
import sys

def run(data):
    if data[:2] == b"ab":
        assert data[2:3] != b"c", "planted"

directory = Path(sys.argv[1])
import atheris
run = atheris.instrument_func(run)
sys.exit(fuzz(["planted"], {"planted": Target(run, lambda: iter((b"abb",)), 8)}, Campaign(200_000, 0, 1, 10, directory / "corpus", directory / "findings"), 1))
""")
    ended = subprocess.run([sys.executable, planted, tmp_path], env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE, text=True, check=False)
    found = json.loads(ended.stdout)
    assert ended.returncode == 1 and "planted" in found["log"]
    assert all(bytes.fromhex(data)[:3] == b"abc" for data in found["findings"].values()) and found["findings"]


@needs_atheris
@pytest.mark.slow
@pytest.mark.skipif(not (DEEP or INPUTS), reason="./install.sh test has a stage for it")
@pytest.mark.parametrize("name", TARGETS)
def test_no_input_gives_anything_but_a_value_or_a_violation(name: str, tmp_path: Path) -> None:
    code, (ended,) = campaign(tmp_path, name, *(["--runs", INPUTS] if INPUTS else ["--seconds", "60"]))
    assert code == 0, ended
    assert ended["inputs"] >= min(INPUTS_MIN, int(INPUTS or INPUTS_MIN)), ended


LINE: dict[str, Any] = {"target": "relp", "inputs": 7_000, "seconds": 1.5, "seed": 3, "code": 0, "findings": {}, "log": ""}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"code": 77, "findings": {"crash-1": "00ff"}, "log": "AssertionError"}, "relp (seed 3): crash-1 00ff\nAssertionError"),
        ({"code": -9}, "relp ended with -9\n"),
        ({"inputs": 0}, "relp had no input"),
        ({"target": "other"}, "not fuzzed: relp"),
    ],
)
def test_a_report_lists_findings_ends_and_missing_targets(changes: dict[str, Any], words: str) -> None:
    assert report([LINE], ["relp"]) == (
        ["relp                          7,000 inputs      1.5 s", "1 targets, 7,000 inputs in 2 s of a processor: no findings"],
        [],
    )
    shown, problems = report([LINE | changes], ["relp"])
    assert problems == [words] and shown[-1].endswith(": 1 findings")
    assert report([{"skipped": "atheris is not installed"}], ["relp"]) == ([], ["atheris is not installed"])
