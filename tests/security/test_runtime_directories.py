"""No box reads or removes what another user could have written: runtime directories and box.json, attacked as other users attack them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from appliance.base.layout import BoxLayout, box_name, runtime_roots
from appliance.command.failures import UsageProblem
from appliance.command.finding import find_running_box
from appliance.runtime.directories import known_boxes, running_supervisor
from appliance.runtime.leftovers import clear_box, clear_vanished_boxes
from lab.other_users import STRANGER, VICTIM, as_user, needs_root, new_directory, run_python, running_python, shared_memory_of
from lab.running_box import begin_box, environment

NO_PID = 2**22 + 1

SWAP = """
import json, os, sys, threading
runtime, targets = sys.argv[1], sys.argv[2:]
document = json.dumps({"state_directory": runtime + "/gone", "pid": 2**22 + 1, "disks": []}).encode()

def attack(number, target):
    evil = f"{runtime}/millrace/evil{number}"
    for read in range(1, number + 1):
        descriptor = os.open(evil + "/box.json", os.O_WRONLY)  # waits until it is read
        if read == number:
            os.rename(evil, f"{runtime}/away{number}")
            os.symlink(target, evil)
        else:  # the next reader waits for another FIFO
            os.unlink(evil + "/box.json")
            os.mkfifo(evil + "/box.json")
        os.write(descriptor, document)
        os.close(descriptor)

os.mkdir(runtime + "/millrace")
for number in range(1, len(targets) + 1):
    os.mkdir(f"{runtime}/millrace/evil{number}")
    os.mkfifo(f"{runtime}/millrace/evil{number}/box.json")
for number, target in enumerate(targets, 1):
    threading.Thread(target=attack, args=(number, target)).start()
print("ready", flush=True)
"""
"""Runtime directories whose box.json is a FIFO: at its nth read the nth is exchanged for a link to a directory of the victim."""


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Path]]:
    """Makes directories of other users."""
    directories = []

    def make(owner: int, mode: int = 0o700) -> Path:
        directories.append(new_directory(owner, mode))
        return directories[-1]

    yield make
    for directory in directories:
        shutil.rmtree(directory)


@pytest.fixture
def fake_box(made: Callable[..., Path]) -> Callable[..., BoxLayout]:
    """A runtime directory that another user made, in a directory of that user."""

    def make(state: str = "/gone/state", pid: int = NO_PID, disks: tuple[str, ...] = (), root: Path | None = None) -> BoxLayout:
        layout = BoxLayout(f"{root or made(STRANGER, 0o755)}/millrace/{box_name(state)}")
        os.makedirs(layout.runtime_directory)
        document = {"state_directory": state, "pid": pid, "disks": [{"name": Path(path).name, "path": path} for path in disks], "managed_by": "systemd"}
        Path(layout.box_file).write_text(json.dumps(document | {"listen": "127.0.0.1", "kafka_port": 1}))
        for path in (os.path.dirname(layout.runtime_directory), layout.runtime_directory, layout.box_file):
            os.chown(path, STRANGER, STRANGER)
        return layout

    return make


@contextmanager
def box_of(user: int, directory: Path, **options: int) -> Iterator[str]:
    """A box of that user serves meanwhile; its name. It must stop well."""
    starting = begin_box(directory, wrapper=as_user(user), **options)
    try:
        starting.read_ready_lines(60)
        yield box_name(f"{directory}/state")
        starting.process.terminate()
        assert starting.process.wait(30) == 0, starting.messages.read_text()
    finally:
        starting.process.kill()
        starting.process.wait()
        assert starting.process.stdout is not None
        starting.process.stdout.close()


def run_as_user(user: int, directory: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """A command of that user, whose home `directory` is."""
    return subprocess.run(
        [*as_user(user), sys.executable, "-m", "appliance.command.main", *arguments],
        env=environment() | {"HOME": str(directory)} | variables,
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@needs_root
@pytest.mark.system
@pytest.mark.slow
def test_a_box_that_starts_removes_nothing_behind_a_link_that_another_user_swaps_in(
    made: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    targets = [tmp_path / f"etc{number}" for number in range(8)]
    for target in targets:
        (target / "sub").mkdir(parents=True)
        (target / "passwd").write_text("root")
        (target / "sub" / "shadow").write_text("root")
    runtime = made(STRANGER, 0o755)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    with running_python(STRANGER, SWAP, str(runtime), *map(str, targets)):
        box = begin_box(tmp_path / "box").wait(60)
        box.stop()
    assert [(target / "passwd").exists() and (target / "sub" / "shadow").exists() for target in targets] == [True] * len(targets)
    assert len(os.listdir(runtime / "millrace")) == len(targets), "and what is the other user's stays, too"


@needs_root
def test_a_runtime_directory_of_another_user_is_neither_found_nor_cleared(fake_box: Callable[..., BoxLayout], monkeypatch: pytest.MonkeyPatch) -> None:
    fake = fake_box()
    monkeypatch.setenv("XDG_RUNTIME_DIR", os.path.dirname(os.path.dirname(fake.runtime_directory)))
    assert fake.box not in [layout.box for layout in known_boxes()]
    assert clear_vanished_boxes() == [] and not clear_box(fake) and os.path.exists(fake.box_file)


@needs_root
def test_a_directory_of_another_user_beside_those_of_ones_own_is_not_found_either(made: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = made(0, 0o755)
    for name, owner, mode in (("mine", 0, 0o700), ("foreign", STRANGER, 0o700), ("writable", 0, 0o777), ("linked", 0, 0o700)):
        (runtime / "millrace" / name).mkdir(parents=True)
        (runtime / "millrace" / name).chmod(mode)
        os.chown(runtime / "millrace" / name, owner, owner)
    (runtime / "millrace" / "linked").rmdir()
    (runtime / "millrace" / "linked").symlink_to(runtime / "millrace" / "mine")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    found = [layout.box for layout in known_boxes() if layout.runtime_directory.startswith(str(runtime))]
    assert found == ["mine"]


@pytest.mark.parametrize("kind", ["fifo", "link", "long", "writable"])
def test_a_box_file_is_a_regular_file_of_bounded_length_that_one_user_writes(tmp_path: Path, kind: str) -> None:
    layout = BoxLayout(str(tmp_path / "box"))
    os.mkdir(layout.runtime_directory, 0o700)
    text = json.dumps({"pid": 1})
    if kind == "fifo":
        os.mkfifo(layout.box_file)
    elif kind == "link":
        (tmp_path / "box.json").write_text(text)
        os.symlink(tmp_path / "box.json", layout.box_file)
    elif kind == "long":
        Path(layout.box_file).write_text(text + " " * (16 << 20))
    else:
        Path(layout.box_file).write_text(text)
        os.chmod(layout.box_file, 0o666)
    with pytest.raises(OSError):
        layout.read_box()
    os.unlink(layout.box_file)
    Path(layout.box_file).write_text(text)
    assert layout.read_box() == {"pid": 1}


@needs_root
def test_a_command_of_root_speaks_to_no_box_that_another_user_made(fake_box: Callable[..., BoxLayout], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state, data = str(tmp_path / "state"), str(tmp_path / "d0")
    fake = fake_box(state, disks=(data,))
    monkeypatch.setenv("XDG_RUNTIME_DIR", os.path.dirname(os.path.dirname(fake.runtime_directory)))
    (tmp_path / "m.toml").write_text(f'[box]\ndata = ["{data}"]\nstate = "{state}"\n')
    with pytest.raises(UsageProblem, match="no running box"):
        find_running_box(None, str(tmp_path / "m.toml"))
    with pytest.raises(UsageProblem, match="no running box"):
        find_running_box(data, None)


@needs_root
@pytest.mark.system
@pytest.mark.slow
def test_a_fake_box_that_names_a_directory_does_not_keep_its_owner_from_starting(
    made: Callable[..., Path], fake_box: Callable[..., BoxLayout], monkeypatch: pytest.MonkeyPatch
) -> None:
    home, runtime = made(VICTIM, 0o755), made(VICTIM)
    once = Path(f"/tmp/millrace-{VICTIM}")  # where boxes were looked for, once
    once.mkdir(mode=0o755)
    os.chown(once, STRANGER, STRANGER)
    try:
        # A lock that this user may not look at, and process 1, which is another user's: this was believed.
        fake = fake_box(str(made(STRANGER)), pid=1, disks=(f"{home}/d0", f"{home}/d1"), root=once)
        os.rename(fake.runtime_directory, once / fake.box)
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
        with box_of(VICTIM, home, ingests=2) as box:
            modes = {path.name: path.stat().st_mode & 0o777 for path in (runtime / "millrace" / box).rglob("*")}
    finally:
        shutil.rmtree(once)
    assert modes["box.json"] == 0o600, "it has tokens of senders in it"
    assert modes["senders@0.sock"] == 0o600 and {name for name, mode in modes.items() if name.endswith(".sock") and mode != 0o600} == set()
    assert shared_memory_of(box) == {}


@needs_root
@pytest.mark.system
@pytest.mark.slow
def test_without_a_runtime_directory_of_the_session_a_box_is_in_its_state_directory_and_is_found(
    made: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    home = made(VICTIM, 0o755)
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(home))
    os.mkdir(home / "var")
    os.chown(home / "var", VICTIM, VICTIM)
    place = home / "var/state/run"
    with box_of(VICTIM, home / "var") as box:
        assert os.listdir(place) == [box] and [path.stat().st_mode & 0o777 for path in (place, place / box)] == [0o700, 0o700]
        shown = run_as_user(VICTIM, home, "status")
        assert shown.returncode == 0 and f"{home}/var/d1" in shown.stdout, shown.stderr
        elsewhere = run_as_user(VICTIM, home / "var/state", "status", "--data", f"{home}/var/d1", HOME=str(home))
        assert elsewhere.returncode == 0, elsewhere.stderr
        assert run_as_user(STRANGER, home, "status").returncode == 2
    assert os.listdir(place) == [] and os.listdir(home / ".local/state/millrace/boxes") == [] and shared_memory_of(box) == {}


@needs_root
@pytest.mark.system
@pytest.mark.parametrize(("owner", "mode", "words"), [(STRANGER, 0o777, f"belongs to user {STRANGER}"), (VICTIM, 0o777, "can be written to by other users")])
def test_a_box_refuses_a_runtime_directory_of_the_session_that_others_could_exchange(made: Callable[..., Path], owner: int, mode: int, words: str) -> None:
    home, runtime = made(VICTIM, 0o755), made(owner, mode)
    arguments = ["run", "--data", f"{home}/d0", "--state", f"{home}/state", *(f"--{kind}-port=0" for kind in ("kafka", "http", "syslog", "ingest"))]
    refused = run_as_user(VICTIM, home, *arguments, XDG_RUNTIME_DIR=str(runtime))
    assert refused.returncode == 2 and f"{runtime} {words}" in refused.stderr and "set XDG_RUNTIME_DIR" in refused.stderr
    assert os.listdir(runtime) == []


@needs_root
@pytest.mark.system
def test_a_state_directory_with_a_long_name_is_refused_with_what_to_do(made: Callable[..., Path]) -> None:
    home = made(VICTIM, 0o755)
    state = f"{home}/{'long' * 20}"
    refused = run_as_user(VICTIM, home, "run", "--data", f"{home}/d0", "--state", state, XDG_RUNTIME_DIR="")
    assert refused.returncode == 2 and f"{state}/run: socket names in it would be longer than 107 bytes" in refused.stderr
    assert "set XDG_RUNTIME_DIR" in refused.stderr and "shorter --state" in refused.stderr


def test_no_box_is_looked_for_in_a_directory_that_all_users_may_make(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setenv("HOME", "/nonexistent")
    assert [root for root in [*runtime_roots(), *runtime_roots("/srv/state")] if root.startswith("/tmp")] == []


@needs_root
def test_a_registry_that_another_user_can_write_names_no_box(made: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    state_home, own = made(0, 0o755), made(0, 0o755)
    boxes = state_home / "millrace" / "boxes"
    boxes.mkdir(parents=True)
    (boxes / "box").symlink_to(own)
    monkeypatch.setenv("XDG_STATE_HOME", str(state_home))
    assert str(own) in runtime_roots()
    os.chown(boxes, STRANGER, STRANGER)
    assert str(own) not in runtime_roots()
    assert run_python(STRANGER, "import os, sys; print(os.getuid())").strip() == str(STRANGER)


def test_a_supervisor_that_another_user_made_up_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("appliance.runtime.directories.runtime_roots", lambda _state="": [str(tmp_path)])
    layout = BoxLayout(str(tmp_path / "box"))
    os.mkdir(layout.runtime_directory)
    os.chmod(layout.runtime_directory, 0o777)
    Path(layout.box_file).write_text(json.dumps({"state_directory": "/root", "pid": os.getppid(), "disks": []}))
    assert running_supervisor("/root") is None
