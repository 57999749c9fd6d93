"""What the settings mean for systemd's units, and the units themselves as far as they can be looked at without a systemd that runs."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from appliance.base.layout import Disk
from appliance.base.settings import Box, KafkaListener, SenderSocket, default_settings
from appliance.runtime.children import LISTEN_NAMES, STOP_ORDER
from appliance.runtime.run_options import RunOptions, resolve_options
from appliance.runtime.unit_files import SOCKET_UNITS, disk_problems, escaped_path, plan_units, settings_mark, unit_problems
from tests.unit.base.test_settings import make_box

SYSTEMD = Path(__file__).parent.parent.parent.parent / "systemd"
KINDS = {kind for group in STOP_ORDER for kind in group}
EXPOSURE_MAX = 10
"""The largest exposure that a unit may have, as systemd-analyze counts it, in tenths."""
READ_FROM_OTHER_MACHINES = {"acceptor", "ingest", "console", "coordinator", "replica-fetcher", "mirror"}
"""They parse what comes from clients, senders, browsers, other boxes and clusters."""
FACES_NETWORK = {"acceptor", "ingest", "console"}
"""They have a user of their own, which owns no log and no secret."""
SCHEDULED = {"acceptor", "log-writer", "log-reader"}
"""They ask the kernel for a core, a time slice or an I/O class."""


def plan(box: Box, **mounts: str) -> dict[str, str]:
    return plan_units(box, {disk.path: mounts.get(disk.name, "/") for disk in box.disks}).drop_ins


def sections(path: Path) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for line in path.read_text().splitlines():
        if line.startswith("["):
            current = found.setdefault(line, [])
        elif line and not line.startswith("#"):
            current.append(line)
    return found


def kind_of(unit: str) -> str:
    return unit.removeprefix("millrace-").partition(".service")[0].rstrip("@").partition("@")[0]


def test_the_target_wants_every_process_and_every_socket_and_nothing_else() -> None:
    text = plan(make_box(acceptors=2, ingests=1, embedded_zookeeper=False))["millrace.target.d/20-settings.conf"]
    wanted = {line.partition("=")[2] for line in text.splitlines() if line.startswith("Wants=")}
    instances = {"millrace-acceptor@0.service", "millrace-acceptor@1.service", "millrace-ingest@0.service"}
    disks = {f"millrace-log-{kind}@{disk}.service" for kind in ("writer", "reader") for disk in ("d0", "d1")}
    single = {f"millrace-{kind}.service" for kind in ("controller", "coordinator", "replica-fetcher", "console")}
    assert wanted == instances | disks | single | set(SOCKET_UNITS)


def test_every_process_stops_before_the_network_does_so_that_other_boxes_can_take_over() -> None:
    assert "After=network.target" in sections(SYSTEMD / "millrace-supervisor.service")["[Unit]"]
    services = [path for path in SYSTEMD.glob("millrace-*.service") if path.name.removeprefix("millrace-").removesuffix(".service").rstrip("@") in KINDS]
    assert len(services) == len(KINDS)
    for path in services:
        assert "After=millrace-supervisor.service" in sections(path)["[Unit]"], path.name


def test_a_disk_that_is_mounted_is_bound_to_its_mount_and_is_the_only_one_that_its_log_writer_may_write_to() -> None:
    drop_ins = plan(make_box(disks=[Disk("d0", "/srv/log-1/d0"), Disk("d1", "/var/d1")]), d0="/srv/log-1")
    writer = drop_ins["millrace-log-writer@d0.service.d/20-settings.conf"]
    assert "BindsTo=srv-log\\x2d1.mount\n" in writer and "AssertPathIsMountPoint=/srv/log-1\n" in writer
    assert "ReadWritePaths=/srv/log-1/d0 /srv/state\nNoExecPaths=/srv/log-1/d0 /srv/state\n" in writer
    assert "InaccessiblePaths=-/srv/state/zookeeper -/srv/state/zookeeper.secret\n" in writer
    reader = drop_ins["millrace-log-reader@d0.service.d/20-settings.conf"]
    assert "BindsTo=srv-log\\x2d1.mount\n" in reader and "ReadWritePaths" not in reader
    assert "BindsTo" not in drop_ins["millrace-log-writer@d1.service.d/20-settings.conf"]


def test_the_tabler_writes_to_the_locations_of_tables_alone_and_exists_only_where_there_are_some() -> None:
    box = make_box(settings={"tables.locations": "/srv/tables, /data/more"})
    drop_ins = plan(box)
    tabler = drop_ins["millrace-tabler.service.d/20-settings.conf"]
    assert "ReadWritePaths=-/srv/state/tables -/srv/tables -/data/more\nNoExecPaths=-/srv/state/tables -/srv/tables -/data/more\n" in tabler
    assert "Wants=millrace-tabler.service\n" in drop_ins["millrace.target.d/20-settings.conf"]
    assert "PrivateNetwork=yes" in sections(SYSTEMD / "millrace-tabler.service")["[Service]"] and "PrivateNetwork" not in tabler
    catalog = box._replace(settings=box.settings | {"tables.properties.file": "/srv/state/tables.properties"})
    assert "PrivateNetwork=no\n" in plan(catalog)["millrace-tabler.service.d/20-settings.conf"] and settings_mark(catalog) != settings_mark(box)
    stored = plan(make_box(settings={"tables.locations": "s3://logs/tables"}))["millrace-tabler.service.d/20-settings.conf"]
    assert "PrivateNetwork=no\n" in stored and "ReadWritePaths=-/srv/state/tables\n" in stored
    assert "millrace-tabler.service.d/20-settings.conf" not in plan(make_box()) and settings_mark(box) != settings_mark(make_box())


def test_a_disk_brings_its_processes_back_when_it_is_mounted_and_they_start_only_where_there_is_a_box() -> None:
    drop_ins = plan(make_box(), d0="/srv", d1="/srv")
    wanted = {f"Wants=millrace-log-{kind}@{disk}.service" for kind in ("writer", "reader") for disk in ("d0", "d1")}
    assert wanted < set(drop_ins["srv.mount.d/20-settings.conf"].splitlines())
    assert "ConditionPathExists=/run/millrace/b/box.json\n" in drop_ins["millrace-.service.d/10-box.conf"]
    supervisor = drop_ins["millrace-supervisor.service.d/20-settings.conf"]
    assert "ConditionPathExists=\n" in supervisor, "the process that writes the file does not wait for it"
    assert "ReadOnlyPaths=-/run/millrace/b/box.json\n" in drop_ins["millrace-.service.d/10-box.conf"] and "ReadOnlyPaths=\n" in supervisor


def zookeeper_addresses(box: Box) -> list[str]:
    lines = plan(box)["millrace-zookeeper.service.d/20-settings.conf"].splitlines()
    return [line for line in lines if line.startswith("IPAddress")]


def test_zookeeper_is_reached_from_its_box_and_the_members_alone() -> None:
    unit = sections(SYSTEMD / "millrace-zookeeper.service")["[Service]"]
    assert {"IPAddressDeny=any", "IPAddressAllow=localhost"} <= set(unit)
    assert zookeeper_addresses(make_box()) == []
    members = ["1=10.0.0.1", "2=10.0.0.2", "3=[fd00::3]:2181:2888:3888"]
    assert zookeeper_addresses(make_box(zookeeper_members=members)) == ["IPAddressAllow=10.0.0.1 10.0.0.2 fd00::3"]
    more = make_box(zookeeper_members=members, settings={"zookeeper.allowed.addresses": "10.0.0.4, 10.1.0.0/16"})
    assert zookeeper_addresses(more) == ["IPAddressAllow=10.0.0.1 10.0.0.2 fd00::3 10.0.0.4 10.1.0.0/16"]
    assert settings_mark(more) != settings_mark(make_box(zookeeper_members=members)) != settings_mark(make_box())


def test_members_that_go_by_names_are_not_filtered_by_addresses_that_may_change() -> None:
    named = make_box(zookeeper_members=["1=one.example", "2=10.0.0.2", "3=10.0.0.3"])
    assert zookeeper_addresses(named) == ["IPAddressDeny=", "IPAddressAllow="]
    settings = {"cluster.networks": "10.0.0.0/24", "zookeeper.allowed.addresses": "10.1.0.0/16"}
    assert zookeeper_addresses(named._replace(settings=named.settings | settings)) == ["IPAddressAllow=10.0.0.0/24 10.1.0.0/16"]


def test_a_box_alone_connects_to_no_address_and_only_processes_that_need_the_secret_see_it() -> None:
    alone, member = plan(make_box()), plan(make_box(zookeeper_members=["1=10.0.0.1", "2=10.0.0.2", "3=10.0.0.3"]))
    external = plan(make_box(embedded_zookeeper=False))
    for kind in ("acceptor@", "coordinator", "replica-fetcher"):
        unit = f"millrace-{kind}.service"
        assert "PrivateNetwork=yes" in sections(SYSTEMD / unit)["[Service]"], unit
        assert "PrivateNetwork" not in alone[f"{unit}.d/20-settings.conf"], unit
        for drop_ins in (member, external):
            assert "PrivateNetwork=no\n" in drop_ins[f"{unit}.d/20-settings.conf"], unit
    kinds_with_secret = {kind_of(path) for path, text in alone.items() if ".service.d/20-" in path and "zookeeper.secret" not in text}
    assert kinds_with_secret == {"supervisor", "controller", "zookeeper"}


def test_acceptors_of_a_box_alone_connect_to_other_machines_if_they_read_keys_of_tokens_there() -> None:
    listener = KafkaListener("CLIENTS", "SASL_SSL", "0.0.0.0", 9092, "log1", 9092, {"sasl.enabled.mechanisms": "OAUTHBEARER"})
    for url, is_alone in (("https://issuer.example.com/keys", False), ("file:///var/lib/keys.json", True)):
        box = make_box(listeners=[listener], settings={"sasl.oauthbearer.jwks.endpoint.url": url})
        assert ("PrivateNetwork=no" in plan(box)["millrace-acceptor@.service.d/20-settings.conf"]) is not is_alone


def test_processes_that_read_from_other_machines_have_user_namespaces_of_their_own() -> None:
    alone = {kind_of(path.name) for path in SYSTEMD.glob("millrace-*.service") if "PrivateUsers=yes" in sections(path)["[Service]"]}
    assert alone == READ_FROM_OTHER_MACHINES | {"controller", "zookeeper", "load", "stop-order"}, "the supervisor must see log-writers that hang"


def test_a_box_with_others_connects_to_the_networks_of_the_cluster_alone_if_the_settings_name_them() -> None:
    members = ["1=10.0.0.1", "2=10.0.0.2", "3=10.0.0.3"]
    drop_ins = plan(make_box(zookeeper_members=members, settings={"cluster.networks": "10.0.0.0/24, fd00::/8"}))
    any_address = plan(make_box(zookeeper_members=members))
    for kind in ("acceptor@", "coordinator", "replica-fetcher", "controller", "console", "ingest@"):
        unit = f"millrace-{kind}.service.d/20-settings.conf"
        assert "IPAddressDeny=any\nIPAddressAllow=localhost 10.0.0.0/24 fd00::/8" in drop_ins[unit], unit
        assert "IPAddressDeny=\nIPAddressAllow=\n" in any_address[unit], unit
    assert settings_mark(make_box(settings={"cluster.networks": "10.0.0.0/24"})) != settings_mark(make_box())


def test_a_load_connects_to_other_machines_if_it_names_a_server_or_the_box_has_neighbours() -> None:
    def addresses(box: Box, load: str = "") -> list[str]:
        drop_in = plan_units(box, {disk.path: "/" for disk in box.disks}, load).drop_ins["millrace-load.service.d/20-settings.conf"]
        return [line for line in drop_in.splitlines() if line.startswith("IPAddress")]

    unit = sections(SYSTEMD / "millrace-load.service")["[Service]"]
    assert {"IPAddressDeny=any", "IPAddressAllow=localhost"} <= set(unit)
    alone, anywhere = make_box(), ["IPAddressDeny=", "IPAddressAllow="]
    directory = 'MILLRACE_LOAD="syslog --to /srv/warehouse --decode syslog"\n'
    assert addresses(alone) == addresses(alone, directory) != anywhere
    for server in ("--to postgresql://loader@db.example/logs?table=syslog", "--to /srv --bootstrap 10.0.0.9:9092", "--to /srv --master spark"):
        assert addresses(alone, f'MILLRACE_LOAD="syslog {server}"') == anywhere
    assert addresses(make_box(embedded_zookeeper=False), directory) == anywhere


def test_zookeeper_of_a_box_alone_is_in_a_network_of_its_own_with_its_clients() -> None:
    kinds = ("supervisor", "controller", "zookeeper")
    members = make_box(zookeeper_members=["1=10.0.0.1", "2=10.0.0.2", "3=10.0.0.3"])
    shared = make_box(settings={"zookeeper.allowed.addresses": "127.0.0.1"})
    for kind in kinds:
        unit = sections(SYSTEMD / f"millrace-{kind}.service")
        joined = {f"millrace-{other}.service" for other in kinds if other != kind}
        (joins,) = [line for line in unit["[Unit]"] if line.startswith("JoinsNamespaceOf=")]
        assert set(joins.partition("=")[2].split()) == joined and "PrivateNetwork=yes" in unit["[Service]"]
        drop_in = f"millrace-{kind}.service.d/20-settings.conf"
        assert "PrivateNetwork" not in plan(make_box())[drop_in]
        assert ("PrivateNetwork=no\n" in plan(members)[drop_in]) is (kind != "supervisor"), "it connects to no address"
        assert "PrivateNetwork=no\n" in plan(shared)[drop_in], "old consumers on this machine keep their groups in ZooKeeper"
    assert settings_mark(shared) != settings_mark(make_box())
    assert "IPAddressDeny=any" in sections(SYSTEMD / "millrace-supervisor.service")["[Service]"]
    external = plan(make_box(embedded_zookeeper=False))
    assert "PrivateNetwork=no\n" in external["millrace-controller.service.d/20-settings.conf"]
    assert "Network" not in external["millrace-supervisor.service.d/20-settings.conf"]


def test_console_and_ingest_connect_to_their_acceptors_alone_until_the_box_has_others() -> None:
    def addresses(unit: str, box: Box) -> list[str]:
        return [line for line in plan(box)[f"millrace-{unit}.service.d/20-settings.conf"].splitlines() if line.startswith("IPAddress")]

    for unit in ("console", "controller", "ingest@"):
        assert {"IPAddressDeny=any", "IPAddressAllow=localhost"} <= set(sections(SYSTEMD / f"millrace-{unit}.service")["[Service]"])
        assert addresses(unit, make_box(embedded_zookeeper=False)) == ["IPAddressDeny=", "IPAddressAllow="]
    assert addresses("console", make_box(listen="0.0.0.0")) == addresses("controller", make_box(listen="10.0.0.5")) == []
    assert addresses("console", make_box(listen="10.0.0.5")) == ["IPAddressAllow=10.0.0.5"]
    alerts = "http://me:pa55@{}:9093/api/v2/alerts"
    local, far, named = (make_box(settings={"alerts.url": alerts.format(host)}) for host in ("localhost", "10.0.0.9", "alerts.example"))
    assert (addresses("console", local), addresses("console", far)) == (["IPAddressAllow=127.0.0.1"], ["IPAddressAllow=127.0.0.1", "IPAddressAllow=10.0.0.9"])
    assert addresses("console", named) == ["IPAddressDeny=", "IPAddressAllow="]
    assert "ReadWritePaths=-/srv/state/console\n" in plan(make_box())["millrace-console.service.d/20-settings.conf"], "its alarms and figures are there"
    assert settings_mark(far) != settings_mark(make_box()) and "pa55" not in str(plan(far))
    assert addresses("ingest@", make_box(advertise="10.0.0.6")) == ["IPAddressAllow=10.0.0.6"], "it reaches them where clients do"
    assert addresses("ingest@", make_box(advertise="box.example")) == ["IPAddressDeny=", "IPAddressAllow="], "a name may become any address"
    members = make_box(zookeeper_members=["1=10.0.0.1", "2=10.0.0.2", "3=10.0.0.3"])
    for unit in ("console", "controller"):
        assert addresses(unit, members) == ["IPAddressDeny=", "IPAddressAllow="], "the controller is on any box, member or not"


def test_an_address_of_version_six_stands_in_brackets() -> None:
    assert "ListenStream=[::1]:9092\n" in plan(make_box(listen="::1"))["millrace-kafka.socket.d/20-settings.conf"]
    assert "ListenDatagram=0.0.0.0:514\n" in plan(make_box(listen="0.0.0.0", syslog_port=514))["millrace-syslog-udp.socket.d/20-settings.conf"]


def test_every_listener_of_the_table_has_a_socket_unit_that_ingest_is_given() -> None:
    senders = [SenderSocket("ingest-dmz", False, "", 6514), SenderSocket("ingest-gelf", True, "::1", 12201)]
    drop_ins = plan(make_box(listen="10.0.0.5", sender_sockets=senders))
    assert "ListenStream=10.0.0.5:6514\n" in drop_ins["millrace-ingest-dmz.socket"] and "Backlog=" in drop_ins["millrace-ingest-dmz.socket"]
    assert (
        "ListenDatagram=[::1]:12201\n" in drop_ins["millrace-ingest-gelf.socket"]
        and "FileDescriptorName=ingest-gelf\n" in drop_ins["millrace-ingest-gelf.socket"]
    )
    assert "ReceiveBuffer=64M\n" in drop_ins["millrace-ingest-gelf.socket"]
    units = "millrace-ingest-dmz.socket millrace-ingest-gelf.socket"
    assert f"Sockets={units}\n" in drop_ins["millrace-ingest@.service.d/20-settings.conf"]
    assert all(f"Wants={unit}\n" in drop_ins["millrace.target.d/20-settings.conf"] for unit in units.split())
    without = plan(make_box())["millrace-ingest@.service.d/20-settings.conf"]
    assert "Sockets=" not in without and "ReadWritePaths=-/srv/state/ingest\n" in without, "its journal and its spool are there"


@pytest.mark.parametrize("path", ["/", "/srv/d0", "/srv/log-1", "/srv/.hidden/x y", "/srv/ä", "/a.b_c:d"])
def test_paths_are_escaped_as_systemd_does_it(path: str) -> None:
    if shutil.which("systemd-escape") is None:
        pytest.skip("systemd-escape is not there")
    assert escaped_path(path) == subprocess.run(["systemd-escape", "--path", path], capture_output=True, text=True, check=True).stdout.strip()


def test_the_mark_changes_with_what_is_written_and_with_nothing_else() -> None:
    mark = settings_mark(make_box())
    assert mark == settings_mark(make_box(pid=7, started_wall_ms=8, managed_by="systemd", settings=default_settings()))
    changes: list[dict[str, object]] = [
        {"listen": "::"},
        {"advertise": "box.example"},
        {"kafka_port": 1},
        {"syslog_port": 1},
        {"http_port": 1},
        {"ingest_port": 1},
        {"acceptors": 5},
        {"ingests": 5},
    ]
    changes += [{"sender_sockets": [SenderSocket("ingest-a", False, "", 1)]}, {"sender_sockets": [SenderSocket("ingest-a", True, "", 1)]}]
    changes += [{"disks": [Disk("d0", "/srv/d0")]}, {"embedded_zookeeper": False}, {"state_directory": "/x"}, {"settings": {"zookeeper.heap.mb": 99}}]
    assert len({mark, *(settings_mark(make_box(**change)) for change in changes)}) == 1 + len(changes)


def test_all_settings_that_units_lack_are_reported_together(tmp_path: Path) -> None:
    file = tmp_path / "m.toml"
    file.write_text('[box]\nlisten = "no such host"\nhttp-port = 0\n')
    options, _ = resolve_options(RunOptions(config=str(file)), 1)
    problems = "\n".join(unit_problems(options, {"listen": "no such host", "http-port": 0}, [Disk("a b", "/srv/a b")]))
    assert all(words in problems for words in ("data is not set", "state is not set", "http-port is 0", "listen is 'no such host'", "'a b'"))
    assert problems.count("\n") == 5 and "kafka-port" not in problems


def test_a_disk_is_called_so_that_a_unit_can_be_called_after_it() -> None:
    assert disk_problems("/srv/d0", "d0") == disk_problems("/srv/log-2", "log-2") == []
    assert disk_problems("/srv/d@0", "d@0") and disk_problems("/srv/-x", "-x") and disk_problems("/srv/x%y/d0", "d0")


# -- the files in systemd/


def test_every_kind_of_process_has_a_unit_and_no_unit_is_without_one() -> None:
    found = {path.name.removeprefix("millrace-").split("@")[0].removesuffix(".service") for path in SYSTEMD.glob("millrace-*.service")}
    assert found == KINDS | {"supervisor", "stop-order", "load", "mirror"}


def test_every_unit_stops_with_the_target_and_in_order_and_is_held_to_the_same() -> None:
    units = {path.name: sections(path) for path in SYSTEMD.glob("millrace-*.service")}
    stop_order = units.pop("millrace-stop-order.service")
    units.pop("millrace-load.service")  # it comes and goes, and is no part of the box
    common: set[str] | None = None
    for name, unit in units.items():
        assert "PartOf=millrace.target" in unit["[Unit]"] and "Before=millrace-stop-order.service" in unit["[Unit]"], name
        assert "StartLimitIntervalSec=0" in unit["[Unit]"], f"{name} would be given up"
        if name != "millrace-supervisor.service":
            assert "After=millrace-supervisor.service" in unit["[Unit]"], name
        block = unit["[Service]"][unit["[Service]"].index("Type=notify") :]
        if kind_of(name) not in SCHEDULED:
            assert block.pop() == "SystemCallFilter=~@resources", name
        user = "millrace-mirror" if kind_of(name) == "mirror" else "millrace-net" if kind_of(name) in FACES_NETWORK else "millrace"
        block.remove(f"User={user}")
        block.remove(f"Group={user}" if kind_of(name) == "mirror" else "Group=millrace")
        common = set(block) if common is None else common
        assert set(block) == common, name
    assert (
        common is not None
        and {"UMask=0027", "Restart=always", "RestartPreventExitStatus=78", "SystemCallFilter=@system-service", "CapabilityBoundingSet="} <= common
    )
    assert "PartOf=millrace.target" in stop_order["[Unit]"] and "Type=oneshot" in stop_order["[Service]"]


def test_a_mirror_reaches_nothing_of_the_box_of_its_machine() -> None:
    service = sections(SYSTEMD / "millrace-mirror@.service")["[Service]"]
    assert "InaccessiblePaths=-/var/lib/millrace -/run/millrace" in service
    hidden = next(line for line in plan(make_box())["millrace-mirror@.service.d/20-settings.conf"].splitlines() if line.startswith("InaccessiblePaths="))
    assert set(hidden.split()) >= {"-/srv/d0", "-/srv/d1"} and f"-{make_box().state_directory}" in hidden.split()


def test_every_process_may_ask_what_is_in_the_page_cache() -> None:
    """No group of calls has these two; an answer of ENOSYS would mean that nothing ever is."""
    for path in SYSTEMD.glob("millrace-*.service"):
        service = sections(path)["[Service]"]
        allowed = service.index("SystemCallFilter=mincore cachestat")
        assert service[allowed - 2 : allowed] == ["SystemCallFilter=@system-service", "SystemCallFilter=~@privileged"], path.name


def test_units_that_listen_get_the_sockets_of_millrace_run_and_they_stay_non_blocking() -> None:
    for kind, names in LISTEN_NAMES.items():
        (path,) = SYSTEMD.glob(f"millrace-{kind}*.service")
        service = sections(path)["[Service]"]
        assert f"Sockets={' '.join(f'millrace-{name}.socket' for name in names)}" in service
        assert "NonBlocking=yes" in service, "a descriptor that one process makes blocking is blocking for all"
        own = ["administration"] if kind == "acceptor" else []  # which `millrace run` has the first acceptor make
        assert all(f"Sockets=millrace-{name}.socket" in service for name in own)
        for name in (*names, *own):
            socket = sections(SYSTEMD / f"millrace-{name}.socket")
            assert f"FileDescriptorName={name}" in socket["[Socket]"] and "StopPropagatedFrom=millrace.target" in socket["[Unit]"]
    assert {path.name for path in SYSTEMD.glob("*.socket")} == set(SOCKET_UNITS)


KAFKA_LISTENERS = [
    KafkaListener("PLAINTEXT", "PLAINTEXT", "127.0.0.1", 9091, "127.0.0.1"),
    KafkaListener("CLIENTS", "SSL", "0.0.0.0", 9092, "logs.example.com"),
]


def test_each_further_kafka_listener_has_a_socket_unit_of_its_own() -> None:
    inner, outer = KAFKA_LISTENERS
    box = make_box(listeners=KAFKA_LISTENERS)
    files = plan_units(box, {"/srv/d0": "/", "/srv/d1": "/"}).drop_ins
    assert "ListenStream=127.0.0.1:9091\n" in files["millrace-kafka.socket.d/20-settings.conf"]
    unit = files["millrace-kafka-clients.socket"]
    for line in ("ListenStream=0.0.0.0:9092", "FileDescriptorName=kafka-clients", "Service=millrace-acceptor@0.service"):
        assert f"{line}\n" in unit
    assert "Sockets=millrace-kafka-clients.socket\n" in files["millrace-acceptor@.service.d/20-settings.conf"]
    assert "Wants=millrace-kafka-clients.socket\n" in files["millrace.target.d/20-settings.conf"]
    assert settings_mark(box) != settings_mark(make_box(listeners=[inner, outer._replace(port=9093)])) != settings_mark(make_box())


def filled(tmp_path: Path, **more: Any) -> Path:
    """The units as on a box, with what the settings say."""
    values = {
        "@PYTHON@": sys.executable,
        "@CURRENT@": str(SYSTEMD.parent),
        "@PREFIX@": str(SYSTEMD.parent),
        "@SETTINGS@": "/etc/millrace/millrace.toml",
        "@JAVA_HOME@": "",
    }
    for path in (path for pattern in ("*.service", "*.socket", "*.target", "*.slice", "*.timer") for path in SYSTEMD.glob(pattern)):
        text = path.read_text()
        for name, value in values.items():
            text = text.replace(name, value)
        assert not re.search(r"@(?!\.service|0\.service|system-service|privileged|resources)", text), path.name
        (tmp_path / path.name).write_text(text)
    senders = [SenderSocket("ingest-dmz", False, "", 6514), SenderSocket("ingest-gelf", True, "", 12201)]
    box = make_box(sender_sockets=senders, listeners=KAFKA_LISTENERS, **more)
    for name, text in plan_units(box, {"/srv/d0": "/", "/srv/d1": "/"}).drop_ins.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.mark.slow
def test_systemd_understands_every_line_and_finds_little_exposed(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not there")
    directory = filled(tmp_path)
    units = sorted(directory.glob("millrace-*.service"))
    started = [str(path).replace("@.", "@d0." if "log-" in path.name else "@0.") for path in units]
    verified = ask("verify", "--man=no", *started, str(directory / "millrace.target"))
    # An unknown key is only reported, it is no failure.
    assert [line for line in verified.stderr.splitlines() if "millrace" in line] == []
    for path in units:
        most = EXPOSURE_MAX + (kind_of(path.name) == "mirror")  # it alone reaches any address without the settings of a cluster
        looked = ask("security", "--offline=true", f"--threshold={most}", "--no-pager", str(path))
        assert looked.returncode == 0, looked.stdout[-300:] + looked.stderr


@pytest.mark.slow
def test_systemd_finds_little_exposed_in_a_cluster_that_names_its_networks(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not there")
    members = ["1=10.0.0.1", "2=10.0.0.2", "3=10.0.0.3"]
    directory = filled(tmp_path, zookeeper_members=members, settings={"cluster.networks": "10.0.0.0/24"})
    for path in sorted(directory.glob("millrace-*.service")):
        most = EXPOSURE_MAX + {"mirror": 1, "acceptor": 1, "load": 1}.get(kind_of(path.name), 0)
        looked = ask("security", "--offline=true", f"--threshold={most}", "--no-pager", str(path))
        assert looked.returncode == 0, looked.stdout[-300:] + looked.stderr


def ask(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["systemd-analyze", *arguments], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(("host", "allowed"), [("192.0.2.7", "IPAddressAllow=192.0.2.7"), ("box.example", "IPAddressDeny=\n")])
def test_the_console_of_a_box_alone_reaches_the_address_that_its_certificate_has(host: str, allowed: str) -> None:
    boxes = KafkaListener("BOXES", "SSL", "0.0.0.0", 9093, host)
    console = "millrace-console.service.d/20-settings.conf"
    assert allowed in plan(make_box(listeners=[boxes], listen="0.0.0.0"))[console]
    assert "IPAddress" not in plan(make_box(listeners=[boxes._replace(protocol="PLAINTEXT")], listen="0.0.0.0"))[console]
