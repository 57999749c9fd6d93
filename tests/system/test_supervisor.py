"""The house: starting, refusing to start, restarting what dies, and leaving nothing."""

from __future__ import annotations

import re
import shutil
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from lab.running_box import RunningBox, environment, eventually, listening_sockets, proportional_kib, run_and_wait, run_arguments, start_box

pytestmark = [pytest.mark.own_zookeeper, pytest.mark.system]

Start = Callable[..., RunningBox]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBox]:
    """One box for all tests here that leave it serving."""
    box = start_box(tmp_path_factory.mktemp("shared"), by_command=True)
    yield box
    assert box.stop() == 0
    assert box.leftovers() == []


PROCESSES = {
    *("supervisor", "zookeeper", "controller", "coordinator", "replica-fetcher", "log-writer@d0", "log-writer@d1"),
    *("log-reader@d0", "log-reader@d1", "acceptor@0", "ingest@0", "console"),
}


def test_a_box_says_exactly_one_ready_line_and_three_commands(shared: RunningBox) -> None:
    assert shared.output[0] == f"millrace ready kafka={shared.kafka} syslog={shared.syslog} http={shared.http} ingest={shared.ingest}"
    assert [Path(line.split()[0]).name for line in shared.output[1:]] == ["logger", "kcat" if shutil.which("kcat") else "millrace", "millrace"]
    assert str(shared.syslog.port) in shared.output[1] and str(shared.kafka) in shared.output[2] and "status" in shared.output[3]


@pytest.mark.alone  # a second run of tests takes the processors that a start needs
def test_a_box_is_ready_within_fifteen_seconds(shared: RunningBox) -> None:
    assert shared.ready_seconds < 15


def test_every_process_runs_and_serves(shared: RunningBox) -> None:
    status = shared.status()
    assert set(status) == PROCESSES
    assert {process["state"] for process in status.values()} == {"serving"}
    assert len({process["pid"] for process in status.values()}) == len(PROCESSES)
    assert "fork server" not in shared.messages


def open_files(pid: int) -> list[str]:
    found = []
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            found.append(descriptor.readlink().name)
    return found


def test_each_process_has_its_own_arguments_and_only_its_own_sockets(shared: RunningBox) -> None:
    listening, held = listening_sockets(), {}
    for name, pid in shared.pids().items():
        held[name] = {listening[inode] for link in open_files(pid) if (inode := link.removeprefix("socket:[").rstrip("]")) in listening}
        if name not in ("supervisor", "zookeeper"):
            kind, _, instance = name.partition("@")
            program = ["-P", "-m", f"services.{kind.replace('-', '_')}", *filter(None, [instance])]
            assert Path(f"/proc/{pid}/cmdline").read_text().rstrip("\0").split("\0")[1:] == program
            assert int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]) == shared.process.pid
    assert held["acceptor@0"] == {shared.kafka.port} and held["console"] == {shared.http.port}
    assert held["ingest@0"] == {shared.syslog.port, shared.ingest.port}
    assert not any(ports for name, ports in held.items() if name not in ("supervisor", "zookeeper", "acceptor@0", "ingest@0", "console"))


def test_the_console_reports_whether_it_runs_and_whether_the_box_serves(shared: RunningBox) -> None:
    assert shared.get("/healthz") == (200, {"status": "alive"})
    assert shared.get("/readyz") == (200, {"status": "ready", "processes": len(PROCESSES) - 1, "missing": {}})


def test_supervisor_and_console_are_small(shared: RunningBox) -> None:
    pids = shared.pids()
    assert proportional_kib(pids["supervisor"]) < 20 * 1024
    assert proportional_kib(pids["console"]) < 30 * 1024


@pytest.fixture(scope="module", params=[signal.SIGTERM, signal.SIGINT])
def ended(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> RunningBox:
    """A box that a signal has ended."""
    box = start_box(tmp_path_factory.mktemp("ended"), by_command=True)
    box.stop(request.param)
    return box


def test_a_signal_ends_the_box_and_nothing_is_left(ended: RunningBox) -> None:
    assert ended.exit_code == 0
    assert ended.leftovers() == []
    assert "killed" not in ended.messages


def test_a_directory_of_another_box_is_refused(ended: RunningBox, tmp_path: Path) -> None:
    refused = run_and_wait(run_arguments(tmp_path / "other", data=ended.disks))
    assert refused.returncode == 2
    assert ended.box.cluster_id in refused.stderr
    assert not (tmp_path / "other" / "state").exists()


def test_children_die_with_a_killed_supervisor_and_the_next_one_starts(start: Start) -> None:
    box = start(by_command=True)
    cluster_id, zookeeper = box.box.cluster_id, box.box.zookeeper
    box.kill_supervisor()
    again = start(by_command=True)
    assert (again.box.cluster_id, again.box.zookeeper) == (cluster_id, zookeeper)
    assert again.stop() == 0


KILLS_THE_FORK_SERVER = """
import os, signal, sys
if "services.supervisor.first_start" in sys.orig_argv:
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_box_whose_fork_server_dies_starts_its_processes_by_exec(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(KILLS_THE_FORK_SERVER)
    box = start_box(tmp_path / "box", wrapper=("env", f"PYTHONPATH={tmp_path}:{environment()['PYTHONPATH']}"))
    missing = ", ".join(re.findall("the fork server has not started (.*); starting by exec", box.messages)).split(", ")
    assert sorted(missing) == sorted(PROCESSES - {"supervisor", "zookeeper"})
    assert box.stop() == 0 and box.leftovers() == []


def test_a_second_start_on_the_same_directories_is_refused_with_the_pid_of_the_first(shared: RunningBox) -> None:
    before = shared.pids()
    refused = run_and_wait(run_arguments(shared.directory))
    assert refused.returncode == 2
    assert f"in use by the millrace run with pid {shared.process.pid}" in refused.stderr
    assert refused.stderr.count("\n  - ") == 3, refused.stderr  # the state directory and both disks
    assert shared.pids() == before


def test_a_start_with_a_broker_id_that_another_box_has_ends_with_the_reason(start: Start, chroot: str, tmp_path: Path) -> None:
    first = start(zookeeper=chroot)
    before = first.pids()
    refused = run_and_wait(run_arguments(tmp_path / "other", zookeeper=chroot), 60)
    assert refused.returncode == 2
    assert "millrace cannot start:\n  - broker id 1 is registered by box" in refused.stderr
    assert first.pids() == before


def test_a_box_with_its_own_state_cannot_have_a_disk_of_another(shared: RunningBox, tmp_path: Path) -> None:
    refused = run_and_wait(run_arguments(tmp_path / "thief", data=[shared.disks[0]]))
    assert refused.returncode == 2
    assert f"--data {shared.disks[0]} is in use by the millrace run with pid {shared.process.pid}" in refused.stderr


def test_every_problem_is_said_at_once_and_nothing_is_started(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("in the way")
    with socket.socket() as busy:
        busy.bind(("127.0.0.1", 0))
        busy.listen()
        port = busy.getsockname()[1]
        settings = {"num.partitions": 0, "no.such.setting": 1}
        data = [tmp_path / "d0", tmp_path / "d0", file / "d1", tmp_path / "state"]
        refused = run_and_wait(run_arguments(tmp_path, data=data, settings=settings, kafka_port=port, syslog_port=70000, http_port="abc", zookeeper="nonsense"))
    assert refused.returncode == 2
    assert refused.stdout == ""
    for part in (
        "d0 is given twice",
        f"{file} is not a directory",
        "is also the state directory",
        f"port {port}",
        "--syslog-port is 70000",
        "--http-port is 'abc'",
        "nonsense",
    ):
        assert part in refused.stderr, part
    for part in ("num.partitions is 0; allowed is a whole number from 1 to", "there is no setting no.such.setting"):
        assert part in refused.stderr, part
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "millrace.toml"]


def test_a_host_that_is_not_ours_is_refused(tmp_path: Path) -> None:
    refused = run_and_wait(run_arguments(tmp_path, listen="192.0.2.1"))
    assert refused.returncode == 2
    assert "192.0.2.1 is no address of this machine" in refused.stderr


@pytest.mark.parametrize("name", sorted(PROCESSES - {"supervisor", "log-writer@d1", "log-reader@d1"}))
def test_a_killed_process_is_started_again_and_counted(shared: RunningBox, name: str) -> None:
    before = shared.status()
    new_pid = shared.await_restart(name, shared.kill(name))
    status = shared.status()
    assert status[name]["pid"] == new_pid
    expected = {other: process["restarts"] + (other == name) for other, process in before.items()}
    assert {other: process["restarts"] for other, process in status.items()} == expected
    assert shared.counters("supervisor").values[f'supervisor.restarts{{process="{name}"}}'] == status[name]["restarts"]
    eventually(lambda: shared.get("/readyz")[0] == 200, "the box is ready again", 25)


def test_readyz_names_what_is_missing(shared: RunningBox) -> None:
    pid = shared.kill("acceptor@0", signal.SIGSTOP)
    shared.kill("zookeeper")
    status, answer = eventually(lambda: (found := shared.get("/readyz"))[0] == 503 and found, "readyz notices")
    assert status == 503 and "zookeeper" in answer["missing"]
    shared.kill("acceptor@0", signal.SIGCONT)
    eventually(lambda: shared.get("/readyz")[0] == 200, "the box is ready again")
    assert shared.pid("acceptor@0") == pid


def test_a_hung_process_is_killed_and_started_again_and_one_that_will_not_stop_is_killed_at_a_second_signal(start: Start) -> None:
    box = start(settings={"watchdog.timeout.ms": 3000})
    hung = box.kill("ingest@0", signal.SIGSTOP)
    box.await_restart("ingest@0", hung)
    assert f"ingest@0 (pid {hung}) has sent no heartbeat for" in box.messages
    # The next one may have no processor for three seconds, and be replaced, too.
    assert box.counters("supervisor").values['supervisor.watchdog_kills{process="ingest@0"}'] >= 1
    box.kill("console", signal.SIGSTOP)
    box.process.terminate()
    eventually(lambda: "stopping" in box.messages, "it stops")
    assert box.stop() == 0
    assert "console did not stop in time; killing it" in box.messages
    assert box.leftovers() == []
