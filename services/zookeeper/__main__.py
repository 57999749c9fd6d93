"""Entry point of the embedded ZooKeeper server. Under systemd, a small process starts and watches
it."""

from __future__ import annotations

import sys

from appliance.base.errors import ConfigurationProblems
from appliance.cluster.zookeeper_server import become_zookeeper
from appliance.runtime.unit_process import is_unit


def main() -> int:
    if is_unit():
        from appliance.runtime.service_main import run_service
        from services.zookeeper.zookeeper_keeper import keep_zookeeper

        return run_service("zookeeper", keep_zookeeper)
    try:
        become_zookeeper()
    except ConfigurationProblems as problems:
        print(problems, file=sys.stderr)
        return 2


if __name__ == "__main__":
    raise SystemExit(main())
