"""What a wrong command line is answered by."""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer._click.exceptions import UsageError

from appliance.client import messages
from appliance.command import kafka
from appliance.command.failures import GaveUp, UsageProblem, run_app
from appliance.command.main import build_parser
from appliance.command.usage_errors import WIDTH, run_parser, usage_error_text
from tests.unit.client.fake_kafka_broker import FakeKafkaBroker

PARSER = build_parser()


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["millrace", *arguments])
    return run_parser(PARSER)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("search -debug", "millrace search: there is no option -d; arguments that begin with - come behind --"),
        ("topic trim --befor 1 x", "millrace topic trim: there is no option --befor; did you mean --before?"),
        ("topic lis", "millrace topic: there is no command lis; did you mean list?"),
        ("topic create", "millrace topic create: NAME is missing"),
        ("topic create x --partitions 0", "millrace topic create: --partitions: the least is 1"),
        ("topic create x --partitions a", "millrace topic create: --partitions: that is no whole number"),
        ("topic create x --partitions", "millrace topic create: --partitions needs a value"),
        ("topic list a b", "millrace topic list: a b: that is more than the command takes"),
        ("topic list --json=3", "millrace topic list: --json takes no value"),
        ("topic list --timeout 0", "millrace topic list: --timeout: write a number of seconds, above 0 and up to 86400"),
        ("topic list --timeout soon", "millrace topic list: --timeout: that is no number"),
    ],
)
def test_the_whole_usage_comes_first_and_what_is_wrong_in_our_words_last(
    line: str, words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, *line.split()) == 2
    said = capsys.readouterr()
    *usage, last = said.err.splitlines()
    assert (last, said.out) == (words, "")
    assert usage[0].startswith(f"Usage: {words.partition(':')[0]} ") and len(usage) > 4
    assert max(map(len, usage)) <= WIDTH


def test_a_timeout_ends_a_command_that_waits_for_a_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(GaveUp, match=r"gave up after 0.2 s \(--timeout\)"):
            run(monkeypatch, "topic", "list", "--bootstrap", address, "--timeout", "0.2")


def test_a_timeout_is_no_failure_of_the_broker_after_which_a_command_goes_on(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """It does not answer the creation, and the topic is there a moment later."""
    broker = FakeKafkaBroker()

    def metadata(request: Any) -> dict[str, Any]:
        answer = broker.metadata(request)
        if broker.count_of("create_topics"):
            answer["topics"] = [{**topic, "error_code": 0} for topic in answer["topics"]]
        return answer

    broker.answers[messages.CREATE_TOPICS] = lambda request: os.kill(os.getpid(), signal.SIGALRM)  # the time is over
    broker.answers[messages.METADATA] = metadata
    with pytest.raises(SystemExit) as ended:
        run_app(lambda: run(monkeypatch, "topic", "create", "t", "--bootstrap", str(broker.address), "--timeout", "60"))
    assert ended.value.code == 1 and capsys.readouterr().err.startswith("millrace: gave up after 60 s")
    broker.close()


def test_each_command_with_bootstrap_takes_the_options_of_a_client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "client.properties"
    file.write_text("security.protocol=KERBEROS\n")
    with pytest.raises(UsageProblem, match=r"security.protocol is 'KERBEROS'"):
        run(monkeypatch, "group", "list", "--bootstrap", "127.0.0.1:1", "--command-config", str(file))
    assert kafka.chosen_command_config is None, "the choice is that of one command"


def test_the_usage_of_each_command_fits_eighty_columns() -> None:
    def commands(command: Any, path: list[str]) -> Iterator[list[str]]:
        yield path
        for name, each in getattr(command, "commands", {}).items():
            yield from commands(each, [*path, name])

    long = {}
    for path in commands(PARSER, []):
        if path == ["ingest", "check"]:  # names its successor, whatever its options
            continue
        with pytest.raises(UsageError) as raised:
            PARSER(args=[*path, "--no-such-option"], prog_name="millrace", standalone_mode=False)
        text = usage_error_text(raised.value, PARSER, path)
        assert "there is no option --no-such-option" in text
        long |= {line: len(line) for line in text.splitlines()[:-1] if len(line) > WIDTH}
    assert long == {}
