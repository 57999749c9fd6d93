"""`millrace cluster secret`: the secret goes from one box to the others."""

from __future__ import annotations

import io
import stat
from pathlib import Path

import pytest

from appliance.base.errors import ConfigurationProblems
from appliance.base.zookeeper_access import SECRET_FILE, consumer_password, new_secret
from appliance.command import certificate
from appliance.command.cluster import consumer, new, set_secret, show
from appliance.command.failures import UsageProblem


def text_of(state: Path) -> str:
    return (state / SECRET_FILE).read_text().strip()


def test_a_secret_goes_from_one_box_to_another(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    new(str(first))
    capsys.readouterr()
    show(str(first))
    shown = capsys.readouterr().out
    monkeypatch.setattr("sys.stdin", io.StringIO(shown))
    set_secret(None, str(second))
    assert text_of(first) == text_of(second) == shown.strip()
    assert stat.S_IMODE((second / SECRET_FILE).stat().st_mode) == 0o600


def test_a_secret_comes_from_a_private_file(tmp_path: Path) -> None:
    file, secret = tmp_path / "given", new_secret()
    file.write_text(secret + "\n")
    file.chmod(0o644)
    with pytest.raises(ConfigurationProblems, match="other users may read"):
        set_secret(str(file), str(tmp_path / "state"))
    file.chmod(0o600)
    set_secret(str(file), str(tmp_path / "state"))
    assert text_of(tmp_path / "state") == secret


def test_another_secret_is_replaced_only_when_that_is_wanted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    new(str(tmp_path))
    former = text_of(tmp_path)
    with pytest.raises(UsageProblem, match="--replace"):
        new(str(tmp_path))
    monkeypatch.setattr("sys.stdin", io.StringIO(former + "\n"))
    set_secret(None, str(tmp_path))
    assert text_of(tmp_path) == former
    new(str(tmp_path), replace=True)
    assert text_of(tmp_path) != former


def test_what_is_no_secret_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("short\n"))
    with pytest.raises(UsageProblem, match="standard input: the secret has 5 characters"):
        set_secret(None, str(tmp_path))
    with pytest.raises(UsageProblem, match="no such file"):
        set_secret(str(tmp_path / "missing"), str(tmp_path))
    with pytest.raises(UsageProblem, match="cluster secret new"):
        show(str(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_the_state_directory_is_that_of_the_settings(tmp_path: Path) -> None:
    settings = tmp_path / "millrace.toml"
    settings.write_text(f'[box]\nstate = "{tmp_path}/state"\n')
    new(None, str(settings))
    assert len(text_of(tmp_path / "state")) == 64


def test_old_consumers_get_a_jaas_section_without_the_secret_in_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    new(str(tmp_path))
    consumer(str(tmp_path))
    section = capsys.readouterr().out
    assert f'password="{consumer_password(text_of(tmp_path))}"' in section and text_of(tmp_path) not in section


def test_the_certificates_of_boxes_are_made_listed_and_replaced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = str(tmp_path / "authority")
    certificate.init(directory)
    certificate.issue(1, ["10.0.0.1", "box1"], directory)
    certificate.issue(2, ["10.0.0.2"], directory, days=5)
    for step in ("begin", "switch"):
        certificate.rotate(step, directory)
    with pytest.raises(UsageProblem, match="still signed by the former authority"):
        certificate.rotate("end", directory)
    certificate.renew(1, directory)
    capsys.readouterr()
    certificate.show(directory)
    rows = [line.split() for line in capsys.readouterr().out.splitlines()[1:]]
    assert [(row[0], row[-1]) for row in rows] == [("authority.pem", "ok"), ("previous.pem", "ok"), ("broker-1.pem", "ok"), ("broker-2.pem", "soon")]
    assert rows[2][1:3] == ["10.0.0.1", "box1"]
    for wrong, words in ((lambda: certificate.rotate("x", directory), "the steps are"), (lambda: certificate.issue(3, ["*"], directory), "no host name")):
        with pytest.raises(UsageProblem, match=words):
            wrong()
    with pytest.raises(UsageProblem, match="No such file"):
        certificate.renew(1, directory, csr=str(tmp_path / "none"))
