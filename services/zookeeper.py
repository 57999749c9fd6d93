"""zookeeper: the embedded ZooKeeper server of a box; under systemd a small process that watches it."""

from __future__ import annotations

import sys

from appliance.agents.zookeeper import become_zookeeper
from appliance.base.errors import ConfigurationProblems
from appliance.runtime.unit_mode import is_unit


def main() -> int:
    if is_unit():
        from appliance.agents.zookeeper_keeper import keep_zookeeper
        from appliance.runtime.service_main import run_service

        return run_service("zookeeper", keep_zookeeper)
    try:
        become_zookeeper()
    except ConfigurationProblems as problems:
        print(problems, file=sys.stderr)
        return 2


if __name__ == "__main__":
    raise SystemExit(main())
