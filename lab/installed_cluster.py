"""Three machines with a real systemd on one switch, each with Millrace installed by install.sh: one cluster, by the options that README says.

A machine is a `SystemdBox` with two disks; its line comes up and goes down by a unit of its own, as Debian's networking.service does it (before
network.target, and down again at a shutdown as early as units let it). The switch and the clients' machine are those of `machine.py`. Weak spot: root file
system and state directory of a machine are memory of this one, so a power cut takes only what lay unsynced on the log disks.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from appliance.base.zookeeper_access import new_secret
from lab.installed_box import DISKS, InstalledBox, copy_sources
from lab.machine import Network, address_of
from lab.running_box import eventually
from lab.systemd_box import SystemdBox

KAFKA_PORT = 9092
DISK_MIB = 640
LINE_UNIT = """[Unit]
Description=The line of this machine
DefaultDependencies=no
After=local-fs.target
Before=network.target shutdown.target
Wants=network.target
Conflicts=shutdown.target

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/bin/sh -ec 'until ip link show eth0 >/dev/null 2>&1; do sleep 0.02; done; ip address add {address}/24 dev eth0; ip link set eth0 up'
ExecStop=ip link set eth0 down

[Install]
WantedBy=multi-user.target
"""


def side_by_side(*calls: Callable[[], object]) -> None:
    """All at once; the first error of any."""
    errors: list[BaseException] = []

    def run(call: Callable[[], object]) -> None:
        try:
            call()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


class ClusterMachine(InstalledBox):
    """One of the three."""

    def __init__(self, number: int, network: Network, box: SystemdBox, sources: Path) -> None:
        super().__init__(box, sources, address_of(number))
        self.number = number
        self._network = network

    @property
    def address(self) -> tuple[str, int]:
        return self.host, KAFKA_PORT

    def set_up_line(self) -> None:
        """Once: from then on it comes with each boot."""
        self._network.plug(self.number, self.box.pid)
        self.box.path("/etc/systemd/system/line.service").write_text(LINE_UNIT.format(address=self.host))
        self.box.run("systemctl daemon-reload && systemctl enable --now line.service")

    def power_on(self) -> None:
        """Boot it again, after `power_off` or `cut_power` of its box; what it has to start it starts by itself."""
        self.box.power_on()
        self._network.plug(self.number, self.box.pid)

    def restarts(self) -> dict[str, int]:
        return {unit: int(self.box.unit(unit, "NRestarts")["NRestarts"]) for unit in self.services()}

    def words(self) -> str:
        """The last of what it has said, where it takes orders."""
        if not self.box.pid:
            return f"--- box {self.number} is off\n"
        states = self.box.run("systemctl list-units --all --no-legend --plain 'millrace*' | grep -v ' active '; millrace status 2>&1 | head -60", check=False)
        journal = self.box.run("journalctl --no-pager -o short-iso-precise -u 'millrace*' -n 120", check=False)
        return f"--- box {self.number}\n{states.stdout}{journal.stdout[-12_000:]}"


class InstalledCluster:
    """All of it; nothing is installed yet."""

    def __init__(self, directory: Path, wheelhouse: Path, numbers: Sequence[int] = (1, 2, 3)) -> None:
        self.sources = directory / "sources"
        copy_sources(self.sources / "first")
        (self.sources / "secret").touch(0o600)
        (self.sources / "secret").write_text(f"{new_secret()}\n")
        self.network = Network(())
        self.machines: dict[int, ClusterMachine] = {}
        self.members = ",".join(f"{number}={address_of(number)}" for number in numbers)
        try:
            for number in numbers:
                mounts = [(self.sources, "/sources"), (wheelhouse, "/wheelhouse")]
                box = SystemdBox.start(directory / f"box{number}", ["ext4"] * len(DISKS), DISK_MIB, mounts, name=f"logbox{number}")
                self.machines[number] = ClusterMachine(number, self.network, box, self.sources / "first")
                self.machines[number].set_up_line()
        except BaseException:
            self.end()
            raise

    @property
    def bootstrap(self) -> str:
        return ",".join(f"{host}:{port}" for host, port in (machine.address for machine in self.machines.values()))

    def options(self, number: int) -> list[str]:
        """What README has a user say on this machine."""
        own = ["--listen", address_of(number), "--broker-id", str(number), "--rack", f"r{number}"]
        return ["--disks", ",".join(DISKS), *own, "--zookeeper-members", self.members, "--zookeeper-secret", "/sources/secret"]

    @contextmanager
    def clients(self) -> Iterator[None]:
        with self.network.clients.inside():
            yield

    def await_ready(self, seconds: float) -> None:
        """Every process of every box serves."""
        for machine in self.machines.values():
            eventually(lambda machine=machine: machine.get("/readyz") == 200, f"box {machine.number} is ready", seconds)  # type: ignore[misc]

    def words(self) -> str:
        return "\n".join(machine.words() for machine in self.machines.values())

    def end(self) -> None:
        for machine in self.machines.values():
            machine.box.destroy()
        self.network.end()


@contextmanager
def three_machines(directory: Path, wheelhouse: Path) -> Iterator[InstalledCluster]:
    """A cluster that is gone afterwards; a failure shows what its boxes logged last."""
    cluster = InstalledCluster(directory, wheelhouse)
    try:
        yield cluster
    except BaseException:
        print(cluster.words())
        raise
    finally:
        cluster.end()
