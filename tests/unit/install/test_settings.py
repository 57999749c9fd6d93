"""The settings that install.sh writes: how the box reads them, and the message about an edited
file.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from appliance.base.layout import Disk, box_name
from appliance.runtime.disk_orders import keep_disks
from appliance.runtime.option_lines import option_lines
from appliance.runtime.run_options import RunOptions, resolve_options
from appliance.senders.table_checks import read_sender_table
from tests.support.install_functions import run_functions

pytestmark = pytest.mark.slow

CHOOSE = "choose_settings; write_settings"


def test_what_it_writes_is_what_the_box_reads(tmp_path: Path) -> None:
    code = "DISKS=(/srv/d0 /srv/d1) LISTEN=10.0.0.5; " + CHOOSE
    (tmp_path / "written.toml").write_text(run_functions(tmp_path, code).output)
    options, problems = resolve_options(RunOptions(config=str(tmp_path / "written.toml")), 2)
    assert problems == []
    assert (options.data, options.state) == (["/srv/d0", "/srv/d1"], "/var/lib/millrace")
    assert (options.listen, options.advertise) == ("10.0.0.5", "10.0.0.5")
    assert (options.kafka_port, options.syslog_port, options.http_port, options.ingest_port) == (9092, 514, 8080, 8081)


def test_the_examples_of_senders_are_right_where_they_are_meant(tmp_path: Path) -> None:
    written = run_functions(tmp_path, "DISKS=(/srv/d0) LISTEN=127.0.0.1; " + CHOOSE).output
    head, _, examples = written.partition("# Senders beside syslog and HTTP")
    meant = "".join(line.removeprefix("# ") + "\n" for line in examples.splitlines()[1:])
    (tmp_path / "meant.toml").write_text(head + meant)
    options, problems = resolve_options(RunOptions(config=str(tmp_path / "meant.toml")), 2)
    assert problems == [] and len(options.sender_tables["listener"]) == 2 and len(options.sender_tables["route"]) == 1
    assert read_sender_table(options).problems == ()
    (tmp_path / "written.toml").write_text(written)
    assert resolve_options(RunOptions(config=str(tmp_path / "written.toml")), 2)[0].sender_tables == {}


def test_a_table_of_release_0_1_stays_in_use_until_it_is_converted(tmp_path: Path) -> None:
    write = "DISKS=(/srv/d0) LISTEN=10.0.0.5; " + CHOOSE
    assert "ingest.table.file" not in run_functions(tmp_path, write).output
    (tmp_path / "ingest.table").write_text("listen a relp tcp :2514\n")
    (tmp_path / "written.toml").write_text(run_functions(tmp_path, write).output)
    options, problems = resolve_options(RunOptions(config=str(tmp_path / "written.toml")), 2)
    assert problems == [] and options.old_table == f"{tmp_path}/ingest.table" and len(read_sender_table(options).sockets) == 1
    (tmp_path / "ingest.table").write_text("listen a\n")
    (tmp_path / "r/.venv/bin").mkdir(parents=True)
    (tmp_path / "r/.venv/bin/millrace").symlink_to(Path(sys.executable).parent / "millrace")
    (tmp_path / "releases").mkdir()
    (tmp_path / "r").rename(tmp_path / "releases/r")
    check = f"PREFIX={tmp_path} EFFECTIVE_SETTINGS={tmp_path}/written.toml; check_with_release r"
    answer = run_functions(tmp_path, f"{check}; echo switched")
    assert "ingest.table:1: this line cannot be converted" in answer.output and "nothing was switched" in answer.output and "switched" not in answer.lines


def test_a_replaced_file_is_readable_for_the_same_users(tmp_path: Path) -> None:
    (tmp_path / "old").write_text("a")
    (tmp_path / "old").chmod(0o640)
    run_functions(tmp_path, f'echo b >"{tmp_path}/new"; replace_file "{tmp_path}/new" "{tmp_path}/old"; replace_file "{tmp_path}/new" "{tmp_path}/fresh"')
    assert [(tmp_path / name).stat().st_mode & 0o777 for name in ("old", "fresh")] == [0o640, 0o644]
    assert (tmp_path / "old").read_text() == "b\n"


def test_a_second_run_without_options_writes_the_same_and_an_option_changes_its_line_alone(tmp_path: Path) -> None:
    (tmp_path / "prefix/current").mkdir(parents=True)
    first = run_functions(tmp_path, "DISKS=(/srv/a /srv/b) LISTEN=10.0.0.5 ADVERTISE=logs.example; " + CHOOSE).output
    (tmp_path / "prefix/current/.settings").write_text(first)
    assert run_functions(tmp_path, CHOOSE).output == first
    other = run_functions(tmp_path, "ADVERTISE=other.example; " + CHOOSE).output
    assert set(other.splitlines()) ^ set(first.splitlines()) == {'advertise = "logs.example"', 'advertise = "other.example"'}


def test_the_disks_that_were_ordered_since_are_looked_at_and_the_settings_stay(tmp_path: Path) -> None:
    (tmp_path / "written.toml").write_text(f'[box]\ndata = ["/srv/d0", "/srv/d1"]\nstate = "{tmp_path}"\n')
    choose = f"EFFECTIVE_SETTINGS={tmp_path}/written.toml; choose_ordered_disks; echo ${{DISKS[*]}}"
    given = f"DISKS=(/srv/d0 /srv/d1); {choose}"
    assert run_functions(tmp_path, given).output.split() == ["/srv/d0", "/srv/d1"]
    keep_disks(str(tmp_path), ["/srv/d0", "/srv/d1"], [Disk("d1", "/srv/new"), Disk("d2", "/srv/d2")])
    assert run_functions(tmp_path, given).output.split() == ["/srv/new", "/srv/d2"]
    assert run_functions(tmp_path, f"DISKS=(/srv/d9); {choose}").output.split() == ["/srv/d9"]


def test_another_listen_address_is_advertised_to_clients(tmp_path: Path) -> None:
    (tmp_path / "prefix/current").mkdir(parents=True)
    (tmp_path / "prefix/current/.settings").write_text(run_functions(tmp_path, "DISKS=(/srv/a) LISTEN=10.0.0.5; " + CHOOSE).output)
    assert 'advertise = "10.0.0.6"' in run_functions(tmp_path, "LISTEN=10.0.0.6; " + CHOOSE).lines


def test_five_mistakes_in_edited_settings_are_all_named_before_anything_changes(tmp_path: Path) -> None:
    settings = tmp_path / "millrace.toml"
    settings.write_text(
        '"log.segment.bytes" = "much"\n"num.partitons" = 4\n[box]\ndata = ["/srv/d0", "/srv/d0"]\nstate = "/srv/state"\nkafka-port = 99999\nlisten = "a b"\n'
    )
    answer = run_functions(tmp_path, f'EFFECTIVE_SETTINGS={settings}; check_settings; print_findings; echo "count $PROBLEM_COUNT"')
    assert answer.lines[-1] == "count 5"
    for mistake in ("log.segment.bytes", "num.partitons", "--disks /srv/d0 is given twice", "--kafka-port is 99999", "--listen is 'a b'"):
        assert sum(mistake in line for line in answer.lines) == 1, answer.output


def test_the_lines_for_shells_fill_in_defaults_and_name_every_disk(tmp_path: Path) -> None:
    (tmp_path / "some.toml").write_text('[box]\ndata = ["/srv/d0", "/srv/d1"]\nstate = "/srv/state"\n')
    assert option_lines(str(tmp_path / "some.toml"), 2) == [
        "data\t/srv/d0", "data\t/srv/d1", "disk\t/srv/d0", "disk\t/srv/d1", "state\t/srv/state", "listen\t127.0.0.1", "advertise\t127.0.0.1",
        "kafka_port\t9092", "syslog_port\t5514", "http_port\t8080", "ingest_port\t8081",
        f"console_socket\t/run/millrace/{box_name('/srv/state')}/net/console.sock", "zookeeper\tembedded",
    ]  # fmt: skip


def test_broker_id_rack_and_members_of_a_cluster_box_are_written_and_kept(tmp_path: Path) -> None:
    (tmp_path / "prefix/current").mkdir(parents=True)
    given = "DISKS=(/srv/a) LISTEN=10.0.0.2; parse_options --broker-id 2 --zookeeper-members 1=10.0.0.1,2=10.0.0.2,3=10.0.0.3 --rack r2; "
    first = run_functions(tmp_path, given + CHOOSE).output
    (tmp_path / "prefix/current/.settings").write_text(first)
    options, problems = resolve_options(RunOptions(config=str(tmp_path / "prefix/current/.settings")), 2)
    assert problems == [] and options.own_member is not None
    assert (options.broker_id, options.settings["broker.rack"], options.own_member.host) == (2, "r2", "10.0.0.2")
    assert run_functions(tmp_path, CHOOSE).output == first


@pytest.mark.parametrize("wrong", ["--broker-id x", "--rack 'a b'", "--zookeeper-members 10.0.0.1"])
def test_options_of_a_cluster_that_cannot_be_meant_are_refused(tmp_path: Path, wrong: str) -> None:
    assert wrong.split()[0] in run_functions(tmp_path, f"parse_options {wrong} 2>&1 || true").output
