"""From one release to another: whatever fails on the way, the one before it runs again, with its files and its settings."""

from __future__ import annotations

import hashlib
import http.server
import json
import socketserver
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.install_functions import Answer, run_functions

pytestmark = pytest.mark.slow

STEPS = ["none", "place_system_files", "point", "write_record", "apply_system_files", "make_directories", "link_command", "apply_units", "start_or_restart"]
SYSTEM = """
place_system_files() { place "$1/unit" "$PREFIX/../unit"; }
apply_system_files() { :; }; make_directories() { :; }; apply_units() { :; }; box_is_active() { true; }; order() { :; }
start_or_restart() { echo "started $1"; }
is_healthy() { [ "$1" != "$BAD" ]; }
fail_once() {
    eval "real_$(declare -f "$1")"
    eval "$1() { if [ -e $SCRATCH/failed ]; then real_$1 \\"\\$@\\"; else touch $SCRATCH/failed; echo $1; return 1; fi; }"
}
"""


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """Releases 1, 2 and 3; 2 is current, 1 the one before, and 2's files are in place."""
    prefix = tmp_path / "prefix"
    for name in ("1", "2", "3"):
        release = prefix / "releases" / name
        release.mkdir(parents=True)
        (release / ".settings").write_text(f"# of {name}\n")
        (release / "unit").write_text(f"unit of {name}\n")
    for link, name in (("current", "2"), ("previous", "1")):
        (prefix / link).symlink_to(f"releases/{name}")
    placed = {tmp_path / "millrace.toml": "# of 2\n", prefix / "../unit": "unit of 2\n"}
    for path, text in placed.items():
        path.write_text(text)
    (prefix / "installed").write_text("".join(f"{hashlib.sha256(text.encode()).hexdigest()}  {path}\n" for path, text in placed.items()))
    return tmp_path


def switch(directory: Path, version: str, bad: str = "", fails: str = "none") -> Answer:
    code = f"BAD={bad!r}; {SYSTEM}\n[ {fails} = none ] || fail_once {fails}; switch_to {version}"
    answer = run_functions(directory, code)
    (directory / "scratch/failed").unlink(missing_ok=True)
    return answer


def state(directory: Path) -> tuple[str, str, str, str]:
    prefix = directory / "prefix"
    links = [(prefix / link).readlink().name for link in ("current", "previous")]
    return links[0], links[1], (directory / "millrace.toml").read_text(), (directory / "unit").read_text()


@pytest.mark.parametrize("fails", STEPS)
def test_when_any_step_of_an_upgrade_fails_all_is_as_it_was(machine: Path, fails: str) -> None:
    answer = switch(machine, "3", bad="3", fails=fails)
    assert answer.code == 1
    assert (fails in answer.lines) == (fails != "none")
    assert answer.lines[-1].startswith("release 2 runs again; release 3 is kept"), answer.output
    assert "started 2" in answer.lines
    assert state(machine) == ("2", "1", "# of 2\n", "unit of 2\n")


def test_a_kill_after_files_were_written_is_mended_by_the_next_run_of_either_release(machine: Path) -> None:
    code = f"BAD=; {SYSTEM}\nreal_point() {{ :; }}; point() {{ kill -9 $$; }}; switch_to 3"
    assert run_functions(machine, code).code == -9
    assert state(machine) == ("2", "1", "# of 3\n", "unit of 3\n")
    assert "edited" not in switch(machine, "2").output
    assert state(machine) == ("2", "1", "# of 2\n", "unit of 2\n")
    assert switch(machine, "3").code == 0
    assert state(machine) == ("3", "2", "# of 3\n", "unit of 3\n")


def test_edited_settings_stay_through_an_upgrade_and_its_return(machine: Path) -> None:
    (machine / "millrace.toml").write_text("# mine\n")
    assert switch(machine, "3", bad="3").code == 1
    assert state(machine) == ("2", "1", "# mine\n", "unit of 2\n")
    assert switch(machine, "3").code == 0
    assert state(machine) == ("3", "2", "# mine\n", "unit of 3\n")


def test_settings_that_the_same_release_cannot_serve_with_are_taken_back(machine: Path) -> None:
    code = (
        f'BAD=; {SYSTEM}\nis_healthy() {{ grep -q "of 2" "$SETTINGS_FILE"; }}; echo "# narrower" >"$SCRATCH/millrace.toml"; keep_settings_with 2; switch_to 2'
    )
    answer = run_functions(machine, code)
    assert answer.code == 1
    assert "release 2 runs again." in answer.output
    assert state(machine) == ("2", "1", "# of 2\n", "unit of 2\n")
    assert (machine / "prefix/releases/2/.settings").read_text() == "# of 2\n"


ALONE = """
systemctl() { echo "$STATUS"; }; timeout() { exec /usr/bin/timeout "$2" sleep 30; }
box_is_active() { [ -n "$ACTIVE" ]; }; ask_readiness() { echo "zookeeper starting"; return 1; }; readiness_url() { :; }; read_options() { :; }
activate() { STARTED_AT=$SECONDS; point current "$1"; order start; }
MEMBERS_SECONDS=1 WAIT_SECONDS=3
"""


def test_a_box_that_waits_for_others_of_its_cluster_is_installed_and_does_not_count_as_one_that_has_served(machine: Path) -> None:
    waiting = 'ACTIVE=; STATUS="waits for members 2 and 3 of the ZooKeeper ensemble; one of them is enough; JVM 7"'
    answer = run_functions(machine, f"{ALONE}{waiting}; touch $PREFIX/releases/2/.served; switch_to 3 && how_it_is")
    assert answer.code == 0, answer.output
    assert "waits for members 2 and 3 of the ZooKeeper ensemble" in answer.lines[-1]
    assert (machine / "prefix/current").readlink().name == "3"
    assert not (machine / "prefix/releases/3/.served").exists()


def test_an_upgrade_of_a_box_that_served_waits_for_others_as_long_as_it_may_and_then_keeps_the_new_release(machine: Path) -> None:
    waiting = 'ACTIVE=1; STATUS="waits for member 2 of the ZooKeeper ensemble; JVM 7"'
    answer = run_functions(machine, f"{ALONE}{waiting}; touch $PREFIX/releases/2/.served; switch_to 3 && how_it_is && echo $((SECONDS - STARTED_AT))")
    assert answer.code == 0 and int(answer.lines[-1]) >= 3, answer.output
    assert (machine / "prefix/current").readlink().name == "3"


def test_a_box_whose_ensemble_only_has_to_agree_is_waited_for_and_not_taken_for_one_that_serves(machine: Path) -> None:
    agreeing = 'ACTIVE=1; STATUS="waits until the ZooKeeper ensemble has agreed on a leader; JVM 7"'
    answer = run_functions(machine, f"{ALONE}{agreeing}; WAIT_SECONDS=1; switch_to 3")
    assert answer.code == 1 and "release 3 does not serve within 1 s: zookeeper starting" in answer.output


@contextmanager
def console(status: int, body: bytes, path: Path | None = None) -> Iterator[str]:
    """What answers so to everything, at a Unix socket `path` if there is one; its address."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    made: socketserver.BaseServer = http.server.HTTPServer(("127.0.0.1", 0), Handler) if path is None else socketserver.UnixStreamServer(str(path), Handler)
    with made as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/readyz" if isinstance(server, http.server.HTTPServer) else str(path)
        server.shutdown()
        thread.join()


def test_a_box_is_ready_when_all_serve_but_those_that_were_away_before(tmp_path: Path) -> None:
    (tmp_path / "prefix/current/.venv/bin").mkdir(parents=True)
    (tmp_path / "prefix/current/.venv/bin/python").symlink_to(sys.executable)
    missing = json.dumps({"status": "not ready", "missing": {"log-writer@d1": "dead", "acceptor@0": "starting"}}).encode()
    with console(200, b"{}") as ready, console(503, missing) as unready:
        ask = 'ask() { if ask_readiness "$@"; then echo yes; else echo no; fi; }'
        code = f"{ask}; ask no {ready}; ask no {unready} log-writer@d1; ask no {unready} log-writer@d1 acceptor@0"
        answer = run_functions(tmp_path, code)
    assert answer.lines == ["yes", "log-writer@d1 dead, acceptor@0 starting", "no", "yes"]
    assert run_functions(tmp_path, f"ask_readiness no {unready}").code == 1


def test_a_console_whose_port_others_keep_busy_is_asked_by_its_unix_socket(tmp_path: Path) -> None:
    (tmp_path / "prefix/current/.venv/bin").mkdir(parents=True)
    (tmp_path / "prefix/current/.venv/bin/python").symlink_to(sys.executable)
    with console(503, b"Service Unavailable") as crowded, console(200, b"{}", tmp_path / "console.sock") as by_path:
        assert run_functions(tmp_path, f"ask_readiness {by_path} {crowded}").code == 0
        assert run_functions(tmp_path, f"ask_readiness {tmp_path}/none {crowded}").output.strip() == "Service Unavailable"


def test_logs_that_the_group_can_read_are_noted_and_a_disk_that_does_not_answer_is_left_out(tmp_path: Path) -> None:
    disks = [tmp_path / name for name in ("closed", "open", "silent")]
    for disk in disks:
        (disk / "topic-0").mkdir(parents=True)
        (disk / "topic-0").chmod(0o750)
    (disks[0] / "topic-0" / "log").write_text("x")
    (disks[0] / "topic-0" / "log").chmod(0o600)
    setting = f"""
    SYSTEM_USER=$(id -un); STATE_DIRECTORY={tmp_path}/none; RUNTIME_DIRECTORY=; DISKS=({" ".join(map(str, disks))})
    strangers_things() {{ :; }}; chown() {{ :; }}; is_unmounted() {{ false; }}
    timeout() {{ shift; [[ "$*" != *silent* ]] || return 124; echo "$1" >>"$SCRATCH/asked"; "$@"; }}
    """
    asked = tmp_path / "scratch" / "asked"
    assert run_functions(tmp_path, setting + "closed_logs").lines == [str(disks[0])]
    assert asked.read_text().split().count("find") == 2
    asked.unlink()
    run_functions(tmp_path, setting + "hand_over another; closed_logs; closed_logs")
    assert (disks[0] / "topic-0" / "log").stat().st_mode & 0o777 == 0o640
    assert asked.read_text().split().count("find") == 3, "one finds it, one opens it, one sees that all is open"
    asked.unlink()
    assert run_functions(tmp_path, setting + "closed_logs").lines == [] and "find" not in asked.read_text()


def test_man_pages_and_completion_come_with_the_release_and_go_with_it(tmp_path: Path) -> None:
    command = tmp_path / "prefix/current/.venv/bin/millrace"
    command.parent.mkdir(parents=True)
    command.write_text(f"#!{sys.executable} -P\nfrom appliance.command.main import main\nmain()\n")
    command.chmod(0o755)
    answer = run_functions(
        tmp_path, "place_manual; ls $SHARE/man/man1/millrace.1 $SHARE/bash-completion/completions/millrace; remove_manual; find $SHARE -type f"
    )
    assert answer.code == 0 and len(answer.lines) == 2, answer.output
    command.write_text("#!/bin/sh\nexit 2\n")
    assert "no man pages" in run_functions(tmp_path, 'place_manual; echo "${REMARKS[@]}"').output, "a box runs without them"
