"""A command that runs Spark, where Spark is not installed: fetched in a checkout, named elsewhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from appliance.base.errors import ConfigurationProblems
from appliance.command import pipeline_extra


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Its install.sh notes how it is called; the process believes to run from its .venv, without PySpark."""
    installer = tmp_path / "install.sh"
    installer.write_text(f'#!/bin/sh\necho "$*" >>{tmp_path}/called\n')
    installer.chmod(0o755)
    monkeypatch.setattr(pipeline_extra.sys, "prefix", str(tmp_path / ".venv"))
    monkeypatch.setattr(pipeline_extra, "find_spec", lambda name: None if name == "pyspark" else object())
    return tmp_path


def test_the_first_spark_job_of_a_checkout_fetches_what_it_needs_and_says_so(checkout: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with pipeline_extra.pipeline_extra(fetches=False):
        pass
    assert capfd.readouterr() == ("", ""), "a preview fetches nothing"
    with pipeline_extra.pipeline_extra():
        assert (checkout / "called").read_text() == "pipeline\n"
    out, err = capfd.readouterr()
    assert out == "" and err.startswith("pyspark, which Spark jobs need, are fetched now") and f"{checkout}/install.sh pipeline" in err


def test_nothing_is_fetched_where_it_is_installed_or_where_a_release_runs(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (checkout / "VERSION").write_text("0.2.0")
    with pytest.raises(ConfigurationProblems, match=r"pyspark is not installed here: .*install.sh --pipeline"), pipeline_extra.pipeline_extra():
        raise ModuleNotFoundError(name="pyspark")
    (checkout / "VERSION").unlink()
    monkeypatch.setattr(pipeline_extra, "find_spec", lambda name: object())
    with pipeline_extra.pipeline_extra():
        pass
    assert not (checkout / "called").exists()
