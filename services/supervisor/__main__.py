"""Entry point of the supervisor.

Under `millrace run` it is the parent process (`supervisor.py`, argument: the options as JSON).
Under systemd it prepares the box and reports its state (`box_keeper.py`, argument: the settings
file).
"""

from __future__ import annotations

from appliance.runtime.run_options import ResolvedOptions, SenderTable
from appliance.runtime.unit_process import is_unit


def check_zookeeper() -> list[str]:
    """Return why the embedded ZooKeeper cannot start. Runs in a short-lived child, so that the
    supervisor does not keep the import."""
    from appliance.cluster.zookeeper_server import zookeeper_problems

    return zookeeper_problems()


def read_senders(options: ResolvedOptions) -> SenderTable:
    """Read the tables of senders; a box without any does not load their reader."""
    if not options.sender_tables and not options.old_table:
        return SenderTable()
    from appliance.senders.table_checks import read_sender_table

    return read_sender_table(options)


def sync_zookeeper(state: str) -> None:
    """Sync ZooKeeper's files in `state`. Runs in a short-lived child, like `check_zookeeper`."""
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
