from __future__ import annotations

from pathlib import Path

import pytest

from appliance.base.errors import ConfigurationProblems
from appliance.command.run import parse_numbers, run
from appliance.runtime.run_options import RunOptions


def test_numbers_are_parsed_and_what_is_none_is_named() -> None:
    numbers, problems = parse_numbers({"kafka_port": "0", "http_port": "x", "acceptors": None, "syslog_port": ""})
    assert numbers == {"kafka_port": 0}
    assert problems == ["--http-port is 'x'; it must be a number", "--syslog-port is ''; it must be a number"]


def test_every_wrong_option_is_said_at_once(tmp_path: Path) -> None:
    (tmp_path / "box.toml").write_text('"no.such.setting" = 1\n')
    with pytest.raises(ConfigurationProblems) as raised:
        run(kafka_port="x", http_port="99999", zookeeper="nonsense", config=str(tmp_path / "box.toml"))
    text = str(raised.value)
    assert all(words in text for words in ("--kafka-port", "--http-port is 99999", "--zookeeper", "no.such.setting"))


def test_options_are_handed_to_the_supervisor_as_they_were_said(monkeypatch: pytest.MonkeyPatch) -> None:
    handed: list[RunOptions] = []
    monkeypatch.setattr("appliance.runtime.run_options.exec_supervisor", handed.append)
    run(data=["a", "b"], listen="*", kafka_port="9", acceptors="2")
    assert handed == [RunOptions(data=["a", "b"], listen="*", kafka_port=9, acceptors=2)]
    run()
    assert handed[1] == RunOptions()
