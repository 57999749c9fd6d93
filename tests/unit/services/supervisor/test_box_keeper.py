"""The supervisor of a box whose processes systemd runs, turned by hand."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from appliance.base.clock import ManualClock, SystemClock
from appliance.base.errors import ConfigurationProblems
from appliance.base.layout import RUNTIME_VARIABLE, BoxLayout, Disk
from appliance.base.logging import Logger
from appliance.base.settings import SenderSocket, load_box
from appliance.ipc.frames import connect_unix
from appliance.runtime.known_disks import KnownDisk, read_known_disk, write_known_disk
from appliance.runtime.poller import Poller
from appliance.runtime.preflight import PreparedBox, prepare_box
from appliance.runtime.request_server import DISK_ORDER, NOT_ROOT, StatusServer
from appliance.runtime.run_options import RunOptions, no_senders
from appliance.runtime.unit_files import SETTINGS_MARK_VARIABLE, settings_mark
from appliance.runtime.unit_process import SYSTEMD
from appliance.senders.old_table import tables_text
from appliance.senders.table_checks import read_sender_table
from appliance.shm.counters import Counters, read_counters, unlink_all
from appliance.shm.mapping import LayoutMismatch, lost_objects
from lab.running_box import listener
from services.supervisor.box_keeper import RETRY_MS, BoxKeeper, adopt_box, is_root, settings_changed, wait_after_failure
from tests.unit.runtime.test_unit_processes import Living


class UnitBox:
    """A box as systemd would start it, with a settings file."""

    def __init__(self, directory: Path) -> None:
        from appliance.base.layout import box_name

        self.directory = directory
        self.state = directory / "state"
        self.settings = directory / "m.toml"
        self.write_settings("kafka-port = 9092")
        self.layout = BoxLayout(f"{directory}/{box_name(str(self.state))}")
        self.options = RunOptions(config=str(self.settings))
        self.log = Logger("supervisor", descriptor=os.open(os.devnull, os.O_WRONLY))

    def write_settings(self, *lines: str) -> None:
        data = ", ".join(f'"{self.directory}/d{number}"' for number in range(2))
        text = "\n".join(("[box]", f"data = [{data}]", f'state = "{self.state}"', 'zookeeper = "127.0.0.1:1"', *lines))
        self.settings.write_text(text + "\n")

    def prepare(self) -> PreparedBox:
        return prepare_box(self.options, SystemClock(), list, self.layout.runtime_directory)

    def keeper(self, prepared: PreparedBox | None = None) -> BoxKeeper:
        return BoxKeeper(prepared or self.prepare(), SystemClock(), self.log)


@pytest.fixture
def box(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[UnitBox]:
    made = UnitBox(tmp_path)
    monkeypatch.setenv(RUNTIME_VARIABLE, made.layout.runtime_directory)
    yield made
    unlink_all(made.layout)


def test_a_box_for_units_is_prepared_without_sockets_and_records_systemd_as_its_manager(box: UnitBox) -> None:
    prepared = box.prepare()
    assert prepared.listening.sockets == {} and load_box(box.layout).kafka_port == 9092
    assert load_box(box.layout).managed_by == SYSTEMD
    os.close(prepared.state_lock)


def test_a_directory_that_cannot_be_used_is_left_out_as_long_as_there_is_another(box: UnitBox) -> None:
    (box.directory / "d1").write_text("no directory")
    prepared = box.prepare()
    assert list(prepared.left_out) == [f"{box.directory}/d1"] and len(prepared.box.disks) == 2
    os.close(prepared.state_lock)
    (box.directory / "d0").rmdir()
    (box.directory / "d0").write_text("no directory")
    with pytest.raises(ConfigurationProblems) as problems:
        box.prepare()
    assert len(problems.value.problems) == 2


def test_units_that_were_written_for_another_state_directory_are_refused(box: UnitBox) -> None:
    with pytest.raises(ConfigurationProblems, match="millrace units apply"):
        prepare_box(box.options, SystemClock(), list, f"{box.directory}/0123456789")


def test_a_restart_beside_running_processes_keeps_their_box_and_a_restart_alone_prepares_one(box: UnitBox) -> None:
    first = box.prepare()
    os.close(first.state_lock)
    assert adopt_box(box.options, box.layout) is None
    living = Living(box.layout, "acceptor@0")
    box.write_settings("kafka-port = 9999")
    adopted = adopt_box(box.options, box.layout)
    assert adopted is not None and adopted.box == first.box._replace(pid=os.getpid())
    with pytest.raises(ConfigurationProblems, match=r"in use|locked"):
        adopt_box(box.options, box.layout)
    os.close(adopted.state_lock)
    Path(box.layout.box_file).write_text(Path(box.layout.box_file).read_text().replace('"box"', '"box_of_another_release"'))
    with pytest.raises(LayoutMismatch):
        adopt_box(box.options, box.layout)
    living.end()


def test_settings_that_differ_from_the_units_are_reported(box: UnitBox, monkeypatch: pytest.MonkeyPatch) -> None:
    prepared = box.prepare()
    os.close(prepared.state_lock)
    monkeypatch.setenv(SETTINGS_MARK_VARIABLE, settings_mark(prepared.box))
    assert settings_changed(box.options, prepared.box, no_senders) is None
    box.write_settings("kafka-port = 9999")
    assert "millrace units apply" in str(settings_changed(box.options, prepared.box, no_senders))
    box.settings.write_text("[box\n")
    assert "config check" in str(settings_changed(box.options, prepared.box, no_senders))


def test_tables_of_senders_that_the_units_do_not_follow_or_that_have_mistakes_are_reported(box: UnitBox, monkeypatch: pytest.MonkeyPatch) -> None:
    options, before = box.options, box.settings.read_text()

    def write(relp: dict[str, object]) -> None:
        box.settings.write_text(before + tables_text({"listener": [relp]}))

    write(listener("relp", "relp", port=2514))
    prepared = prepare_box(options, SystemClock(), list, box.layout.runtime_directory, read_sender_table)
    os.close(prepared.state_lock)
    monkeypatch.setenv(SETTINGS_MARK_VARIABLE, settings_mark(prepared.box))
    assert load_box(box.layout).sender_sockets == [SenderSocket("ingest-relp", False, "", 2514, f"{box.settings}: [[ingest.listener]] 1")]
    assert settings_changed(options, prepared.box, read_sender_table) is None
    write(listener("relp", "relp", port=2515))
    assert "millrace units apply" in str(settings_changed(options, prepared.box, read_sender_table))
    write(listener("relp", "relp", "udp", port=2515))
    assert f"millrace config check {box.settings}" in str(settings_changed(options, prepared.box, read_sender_table))
    with pytest.raises(ConfigurationProblems) as problems:
        prepare_box(options, SystemClock(), list, box.layout.runtime_directory, read_sender_table)
    assert "[[ingest.listener]] 1: transport: relp does not run over udp; choose one of tcp, tls" in str(problems.value)


def described(keeper: BoxKeeper) -> dict[str, tuple[int | None, str, int | None]]:
    return {process["name"]: (process["pid"], process["state"], process["restarts"]) for process in keeper.describe()["processes"]}


def test_it_knows_its_processes_by_their_counters(box: UnitBox) -> None:
    keeper = box.keeper()
    living = Living(box.layout, "acceptor@0")
    counters = Counters.create_or_adopt(box.layout, "log-writer@d0", 1)
    counters.counter("runtime.starts").add(3)
    counters.close()
    keeper.turn()
    states = described(keeper)
    assert states["supervisor"][:2] == (os.getpid(), "serving")
    assert states["acceptor@0"] == (living.process.pid, "starting", 0)
    assert states["log-writer@d0"] == (None, "down", 2) and states["controller"] == (None, "not started", 0)
    kept = read_counters(box.layout, "supervisor")
    assert kept is not None and kept.values['supervisor.restarts{process="log-writer@d0"}'] == 2
    living.end()
    assert described(keeper)["acceptor@0"][:2] == (None, "down")
    keeper.close()
    assert not os.path.exists(box.layout.runtime_directory), "no process runs: nothing is left"


def test_its_counters_are_made_again_when_another_program_deleted_them(box: UnitBox) -> None:
    keeper = box.keeper()
    keeper.turn()
    name = box.layout.shared_memory_name("counters", "supervisor")
    os.unlink(f"/dev/shm{name}")
    assert read_counters(box.layout, "supervisor") is None
    keeper.turn()
    again = read_counters(box.layout, "supervisor")
    assert again is not None and (again.pid, again.state) == (os.getpid(), "serving") and again.heartbeat_ns
    assert lost_objects(name) == []
    keeper.close()


def test_a_process_that_died_because_it_did_not_turn_is_counted_for_the_alarm(box: UnitBox) -> None:
    clock = ManualClock()
    keeper = BoxKeeper(box.prepare(), clock, box.log)
    living = Living(box.layout, "acceptor@0")

    def counted() -> float:
        keeper.turn()
        supervisor = read_counters(box.layout, "supervisor")
        assert supervisor is not None
        return supervisor.values['supervisor.watchdog_kills{process="acceptor@0"}']

    living.beat(clock.monotonic_ns())
    for _ in range(30):
        assert counted() == 0, "it is exported before it rises"
        clock.advance_ms(1_000)
    living.end()
    assert (counted(), counted()) == (1, 1)
    keeper.close()


def test_running_processes_keep_their_box_when_the_supervisor_ends(box: UnitBox) -> None:
    keeper, living = box.keeper(), Living(box.layout, "acceptor@0")
    keeper.close()
    assert os.path.exists(box.layout.box_file) and read_counters(box.layout, "acceptor@0") is not None
    adopted = adopt_box(box.options, box.layout)
    assert adopted is not None
    keeper = box.keeper(adopted)
    Path(box.layout.stopping_file).touch()
    keeper.close()
    assert not os.path.exists(box.layout.runtime_directory), "the whole box stops: one that cannot end is left behind, and nothing for it"
    living.end()


def test_disks_come_and_go_and_are_replaced_by_order(box: UnitBox) -> None:
    keeper = box.keeper()
    assert keeper.on_disk_order({"verb": "add", "path": f"{box.directory}/d2"}) == {"disk": "d2", "path": f"{box.directory}/d2"}
    assert [disk.name for disk in load_box(box.layout).disks] == ["d0", "d1", "d2"]
    assert keeper.on_disk_order({"verb": "remove", "name": "d0"})["disk"] == "d0"
    write_known_disk(str(box.state), KnownDisk(f"{box.directory}/d1", "old"))
    living = Living(box.layout, "log-writer@d1")
    Path(box.layout.log_writer_socket("d1")).touch()
    assert "only a disk that is offline or hangs" in keeper.on_disk_order({"verb": "replace", "name": "d1"})["error"]
    living.end()
    assert keeper.on_disk_order({"verb": "replace", "name": "d1"})["disk"] == "d1", "its log-writer is down, as that of a disk that is not mounted"
    assert load_box(box.layout).disks[0] == Disk("d1", f"{box.directory}/d1", 1) and not os.path.exists(box.layout.log_writer_socket("d1"))
    assert read_known_disk(str(box.state), f"{box.directory}/d1").replaces == ("old",)
    keeper.close()


def test_an_order_is_carried_out_only_for_a_user_that_may_give_it(box: UnitBox) -> None:
    users, orders, poller = [], [], Poller()

    def may_order(user: int) -> bool:
        users.append(user)
        return len(users) > 1

    def order(given: dict[str, str]) -> dict[str, str]:
        orders.append(given)
        return {"disk": "d0"}

    def answer() -> Any:
        connection.send(DISK_ORDER, 1, b'{"verb": "remove", "name": "d0"}')
        while not (frames := connection.receive()):
            poller.poll(100)
        return json.loads(frames[0].payload)

    os.makedirs(box.layout.runtime_directory, exist_ok=True)
    server = StatusServer(box.layout.supervisor_socket, poller, dict, order, may_order)
    connection = connect_unix(box.layout.supervisor_socket)
    assert connection is not None
    assert answer() == {"error": NOT_ROOT} and orders == []
    assert answer() == {"disk": "d0"} and len(orders) == 1
    assert users == [os.geteuid()] * 2 and is_root(0) and not is_root(1)
    connection.close()
    server.close()


def test_after_a_start_that_failed_the_next_waits_unless_the_settings_were_changed(tmp_path: Path) -> None:
    class Clock(ManualClock):
        def wall_ms(self) -> int:
            self.advance_ms(RETRY_MS // 4)
            return super().wall_ms()

    failed, settings = tmp_path / "failed", tmp_path / "m.toml"
    clock = Clock()
    wait_after_failure(str(failed), str(settings), clock)
    started_ms = ManualClock.wall_ms(clock)
    failed.write_text("cannot start: a reason")
    os.utime(failed, ns=(started_ms * 1_000_000, started_ms * 1_000_000))
    wait_after_failure(str(failed), str(settings), clock)
    assert ManualClock.wall_ms(clock) - started_ms >= RETRY_MS
    clock = Clock()
    settings.write_text("")
    os.utime(settings, ns=(started_ms * 1_000_000 + 1, started_ms * 1_000_000 + 1))
    wait_after_failure(str(failed), str(settings), clock)
    assert ManualClock.wall_ms(clock) - started_ms < RETRY_MS
