"""The file of Spark's output, as `millrace load` keeps and removes it."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

import pytest

from appliance.command.load_call import RUNNING_LOG, spark_log


def test_the_log_of_a_killed_load_is_removed_by_the_next_and_that_of_a_failed_one_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with subprocess.Popen(["true"]) as ended:
        pass
    killed, running = (tmp_path / f"{RUNNING_LOG.format(pid)}x.log" for pid in (ended.pid, os.getppid()))
    for path in (killed, running):
        path.write_text("said by Spark")
    with pytest.raises(ValueError, match="it failed"), spark_log() as log:
        log.write_text("said by Spark")
        raise ValueError("it failed")
    (kept,) = [path for path in tmp_path.iterdir() if path != running]
    assert not killed.exists() and kept.name.startswith("millrace-load-") and str(kept) in capsys.readouterr().err
    with spark_log():
        pass
    assert kept.exists() and set(tmp_path.iterdir()) == {kept, running}
