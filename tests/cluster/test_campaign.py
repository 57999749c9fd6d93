"""Two faults at a time on three boxes, by seed, with histories of every client operation (`lab/campaign.py`). A run goes on where the last one with its seed
ended."""

from __future__ import annotations

import os

import pytest

from lab.campaign import run_rounds, summary
from lab.running_box import ROOT

pytestmark = [pytest.mark.system, pytest.mark.slow]

SEED = int(os.environ.get("MILLRACE_SEED", "27"))
MINUTES = float(os.environ.get("MILLRACE_CAMPAIGN_MINUTES", "60"))
OVERLOAD = int(os.environ.get("MILLRACE_OVERLOAD", "0"))


@pytest.mark.deep
def test_two_faults_at_a_time_show_no_client_an_anomaly() -> None:
    out = ROOT / f".venv/log/campaign-{SEED}-{OVERLOAD}.jsonl"
    results = run_rounds(SEED, MINUTES, out, OVERLOAD)
    text = f"MILLRACE_SEED={SEED}, {out}\n{summary(results)}"
    print(text)
    assert results and not any(each.get("findings") or "death" in each for each in results), text
