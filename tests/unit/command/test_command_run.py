from __future__ import annotations

from pathlib import Path

import pytest

from appliance.command.run import parse_numbers, run
from appliance.runtime.run_options import RunOptions, resolve_options


def test_numbers_are_parsed_and_what_is_none_is_named() -> None:
    numbers, problems = parse_numbers({"kafka_port": "0", "http_port": "x", "acceptors": None, "syslog_port": ""})
    assert numbers == {"kafka_port": 0, "http_port": 0, "syslog_port": 0}
    assert problems == ["--http-port is 'x'; it must be a whole number", "--syslog-port is ''; it must be a whole number"]


def test_every_wrong_option_is_said_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    handed: list[RunOptions] = []
    monkeypatch.setattr("appliance.runtime.run_options.exec_supervisor", handed.append)
    (tmp_path / "box.toml").write_text('"no.such.setting" = 1\n')
    run(kafka_port="x", http_port="99999", zookeeper="nonsense", config=str(tmp_path / "box.toml"))
    resolved, problems = resolve_options(RunOptions.from_json(handed[0].to_json()), 1)
    text = "\n".join(problems)
    assert (resolved.kafka_port, resolved.http_port) == (0, 0), "a default port is not reported as taken if another was requested"
    assert all(words in text for words in ("--kafka-port", "--http-port is 99999", "--zookeeper", "no.such.setting"))


def test_options_are_handed_to_the_supervisor_as_they_were_said(monkeypatch: pytest.MonkeyPatch) -> None:
    handed: list[RunOptions] = []
    monkeypatch.setattr("appliance.runtime.run_options.exec_supervisor", handed.append)
    run(data=["a", "b"], listen="*", kafka_port="9", acceptors="2")
    assert handed == [RunOptions(data=["a", "b"], listen="*", kafka_port=9, acceptors=2)]
    run()
    assert handed[1] == RunOptions()
