"""Completion in real shells, and pages that a real groff formats."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer import Context

from appliance.client import messages
from appliance.command import manual
from appliance.command.failures import UsageProblem
from appliance.command.main import build_parser
from appliance.command.manual import PAGES, SHARE, SHELLS, pages, script, write_manual
from tests.unit.client.fake_kafka_broker import TOPIC, FakeKafkaBroker


@pytest.fixture(scope="module")
def share(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `millrace manual` writes, and the command itself."""
    directory = tmp_path_factory.mktemp("share")
    write_manual(build_parser(), str(directory))
    command = directory / "bin" / "millrace"
    command.parent.mkdir()
    command.write_text(f"#!{sys.executable} -P\nfrom appliance.command.main import main\nmain()\n")
    command.chmod(0o755)
    return directory


ASK = {
    "bash": 'source "$1"; COMP_WORDS=(millrace {words}); COMP_CWORD={last}; _millrace_completion millrace; printf "%s\\n" "${{COMPREPLY[@]}}"',
    "fish": 'source "$argv[2]"; complete -C "millrace {words}"',
}


@pytest.mark.slow
@pytest.mark.parametrize("shell", sorted(ASK))
@pytest.mark.parametrize(("words", "completed"), [("topic re", {"reassign"}), ("group list --js", {"--json"})])
def test_a_shell_completes_commands_and_options(share: Path, shell: str, words: str, completed: set[str]) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    code = ASK[shell].format(words=words, last=len(words.split()))
    environment = {**os.environ, "PATH": f"{share / 'bin'}:{os.environ['PATH']}"}
    done = subprocess.run([shell, "-c", code, shell, str(share / SHARE[shell])], env=environment, capture_output=True, text=True, timeout=60, check=True)
    assert {line.split("\t")[0] for line in done.stdout.splitlines()} == completed and done.stderr == ""


def test_names_complete_where_topics_and_groups_are_named_and_a_broker_that_is_gone_completes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manual, "NAMES_SECONDS", 60.0)

    parser = build_parser()

    def parameter(line: str) -> Any:
        command, name = parser, line.split()[-1]
        for word in line.split()[:-1]:
            command = command.commands[word]
        return next(each for each in command.params if name in (each.name, *each.opts))

    broker = FakeKafkaBroker()
    names = ("readers", "re$(reboot)", "re;x", "re x", "others")
    groups = [{"group_id": name, "protocol_type": "consumer", "group_state": "Stable", "group_type": "classic"} for name in names]
    broker.answers[messages.LIST_GROUPS] = lambda _request: {"throttle_time": 0, "error_code": 0, "groups": groups}
    asked = Context(parser, info_name="millrace")
    asked.params = {"bootstrap": str(broker.address)}
    try:
        for line in ("topic tail name", "topic trim name", "topic delete names", "topic reassign topics", "load topics", "send name", "search --topic"):
            assert [each.value for each in parameter(line).shell_complete(asked, "nu")] == [TOPIC], line
        for line in ("group describe group", "group lag groups", "acl list --group"):
            assert [each.value for each in parameter(line).shell_complete(asked, "re")] == ["readers"], line
        assert parameter("topic create name").shell_complete(asked, "") == []
    finally:
        broker.close()
    assert parameter("topic tail name").shell_complete(asked, "") == []


@pytest.mark.slow
def test_fish_offers_commands_only_and_no_lines_of_their_help(share: Path) -> None:
    if shutil.which("fish") is None:
        pytest.skip("fish is not installed")
    environment = {**os.environ, "PATH": f"{share / 'bin'}:{os.environ['PATH']}"}
    code = ASK["fish"].format(words="topic ")
    done = subprocess.run(["fish", "-c", code, "fish", str(share / SHARE["fish"])], env=environment, capture_output=True, text=True, timeout=60, check=True)
    offered = {line.split("\t")[0] for line in done.stdout.splitlines()}
    assert {"create", "list", "describe", "tail"} <= offered and all(name.isalpha() for name in offered), offered


def test_each_shell_has_a_script_and_others_have_none() -> None:
    assert all("_MILLRACE_COMPLETE" in script(shell) for shell in SHELLS)
    with pytest.raises(UsageProblem, match="there are bash, zsh, fish"):
        script("tcsh")


def test_each_command_has_a_page_with_all_its_options(share: Path) -> None:
    written = dict(pages(build_parser()))
    assert {path.stem for path in (share / PAGES).iterdir()} == set(written)
    page = written["millrace-topic-trim"]
    assert ".SH NAME\nmillrace\\-topic\\-trim \\- Delete a topic's oldest records for good.\n" in page
    assert all(name in page for name in ("\\-\\-before OFFSET|TIME", "\\-\\-dry\\-run", "\\-\\-yes", ".SH EXIT STATUS"))
    assert ".B reassign\n" in written["millrace-topic"]


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("groff") is None, reason="groff is not installed")
def test_groff_has_nothing_to_object_to(share: Path) -> None:
    files = sorted(str(path) for path in (share / PAGES).iterdir())
    done = subprocess.run(["groff", "-man", "-Tutf8", "-ww", "-z", *files], capture_output=True, text=True, timeout=60, check=True)
    assert done.stderr == ""
