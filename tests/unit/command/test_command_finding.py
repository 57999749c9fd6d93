from __future__ import annotations

import json
import pwd
from pathlib import Path

import pytest

from appliance.base.layout import box_name
from appliance.command.failures import UsageProblem
from appliance.command.finding import bootstrap_addresses, find_running_box


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with two running boxes, /srv/d0 + /srv/d1 and /other/d0; the working directory is empty."""
    monkeypatch.setattr("appliance.runtime.directories.runtime_roots", lambda _state="": [str(tmp_path / "run")])
    monkeypatch.setattr("appliance.runtime.running_boxes.living_processes", lambda layout: [1])
    monkeypatch.setattr("appliance.command.finding.SYSTEM_SETTINGS_FILE", str(tmp_path / "no.toml"))
    monkeypatch.setattr("appliance.command.finding.INSTALLED_TARGETS", (str(tmp_path / "no.target"),))
    monkeypatch.delenv("MILLRACE_DATA", raising=False)
    monkeypatch.chdir(tmp_path)
    make_box(tmp_path, "one", ["/srv/d0", "/srv/d1"], "0.0.0.0")
    make_box(tmp_path, "two", ["/other/d0"], "10.1.1.1")
    return tmp_path


def make_box(root: Path, name: str, directories: list[str], listen: str) -> None:
    (root / "run" / name).mkdir(parents=True)
    disks = [{"name": Path(directory).name, "path": directory} for directory in directories]
    (root / "run" / name / "box.json").write_text(json.dumps({"disks": disks, "listen": listen, "kafka_port": 9092}))


def test_any_directory_of_a_box_finds_it(here: Path) -> None:
    for directory in ("/srv/d0", "/srv/d1", "/srv/../srv/d1/", "/srv"):
        assert find_running_box(directory, None).layout.box == "one"


def test_the_option_goes_before_the_environment_and_that_before_the_settings_file(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "box.toml").write_text('[box]\ndata = ["/other/d0"]\n')
    assert find_running_box(None, str(here / "box.toml")).layout.box == "two"
    monkeypatch.setenv("MILLRACE_DATA", "/srv/d1")
    assert find_running_box(None, str(here / "box.toml")).layout.box == "one"
    assert find_running_box("/other/d0", str(here / "box.toml")).layout.box == "two"


def test_a_settings_file_finds_its_box_by_the_state_directory_or_any_disk_when_the_first_was_removed_or_replaced(here: Path) -> None:
    (here / "box.toml").write_text('[box]\ndata = ["/srv/removed", "/srv/d1"]\nstate = "/var/lib/elsewhere"\n')
    assert find_running_box(None, str(here / "box.toml")).layout.box == "one"
    make_box(here, box_name("/var/lib/millrace"), ["/srv/new0", "/srv/new1"], "0.0.0.0")
    (here / "box.toml").write_text('[box]\ndata = ["/srv/old0", "/srv/old1"]\nstate = "/var/lib/millrace"\n')
    assert find_running_box(None, str(here / "box.toml")).layout.box == box_name("/var/lib/millrace")


def test_without_anything_said_it_is_var_in_the_working_directory(here: Path) -> None:
    make_box(here, "three", [str(here / "var" / "d0")], "127.0.0.1")
    assert find_running_box(None, None).layout.box == "three"


def test_a_box_that_is_not_there_is_said_with_those_that_are(here: Path) -> None:
    with pytest.raises(UsageProblem) as raised:
        find_running_box("/nowhere", None)
    assert str(raised.value) == "no running box has the data directory /nowhere (--data); name one of these with --data DIR: /srv/d0, /other/d0"


def test_where_nothing_runs_it_is_said_how_to_start(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("appliance.runtime.directories.runtime_roots", lambda _state="": [])
    with pytest.raises(UsageProblem, match="start one with `millrace run`"):
        find_running_box(None, None)
    monkeypatch.setattr("appliance.command.finding.INSTALLED_TARGETS", ("/nowhere", str(here)))
    with pytest.raises(UsageProblem, match=r"systemctl start millrace\.target"):
        find_running_box(None, None)


def test_a_user_without_rights_reads_that_and_not_that_no_box_runs(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("appliance.runtime.directories.runtime_roots", lambda _state="": [])
    monkeypatch.setattr("appliance.command.finding.SYSTEM_ROOT", str(here / "run"))
    owner = (here / "run" / "one").stat().st_uid
    monkeypatch.setattr("os.geteuid", lambda: owner + 7)
    with pytest.raises(UsageProblem, match=f"a box of user {pwd.getpwuid(owner).pw_name} is on this machine, .*: run the command with sudo"):
        find_running_box(None, None)
    monkeypatch.setattr("appliance.command.finding.SYSTEM_ROOT", str(here / "no"))
    with pytest.raises(UsageProblem, match="no box runs on this machine"):
        find_running_box(None, None)


def test_a_settings_file_that_cannot_be_read_is_said(here: Path) -> None:
    with pytest.raises(UsageProblem, match="cannot read the settings file"):
        find_running_box(None, "missing.toml")


def test_a_box_that_listens_everywhere_is_asked_at_loopback(here: Path) -> None:
    assert [str(address) for address in bootstrap_addresses(None, "/srv/d0", None)] == ["127.0.0.1:9092"]
    assert [str(address) for address in bootstrap_addresses(None, "/other/d0", None)] == ["10.1.1.1:9092"]


def test_bootstrap_needs_no_box(here: Path) -> None:
    assert [str(address) for address in bootstrap_addresses("a:1,b", None, None)] == ["a:1", "b:9092"]
    with pytest.raises(UsageProblem, match="--bootstrap: 'a:x' has no valid port"):
        bootstrap_addresses("a:x", None, None)
