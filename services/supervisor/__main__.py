"""supervisor: under `millrace run` the parent of everything, its only argument the options as JSON; under systemd the keeper of a box whose processes are
units, its only argument the settings file."""

from __future__ import annotations

from appliance.runtime.run_options import ResolvedOptions
from appliance.runtime.sender_table import SenderTable
from appliance.runtime.unit_mode import is_unit


def check_zookeeper() -> list[str]:
    """Called in a throw-away child, hence the import here."""
    from appliance.cluster.zookeeper_server import zookeeper_problems

    return zookeeper_problems()


def read_senders(options: ResolvedOptions) -> SenderTable:
    """The ingest table, read by who understands it; a box without one need not hold that."""
    if not options.settings["ingest.table.file"]:
        return SenderTable()
    from appliance.senders.table_checks import read_sender_table

    return read_sender_table(options)


def sync_zookeeper(state: str) -> None:
    """Called in a throw-away child, too."""
    from appliance.cluster.zookeeper_files import sync_data

    sync_data(state)


def main() -> int:
    if is_unit():
        from services.supervisor import box_keeper

        return box_keeper.main(check_zookeeper, read_senders)
    from services.supervisor import supervisor

    return supervisor.main(check_zookeeper, read_senders, sync_zookeeper)


if __name__ == "__main__":
    raise SystemExit(main())
