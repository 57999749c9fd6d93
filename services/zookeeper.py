"""`zookeeper`: the embedded ZooKeeper server of a box."""

from __future__ import annotations

import sys

from appliance.agents.zookeeper import become_zookeeper
from appliance.base.errors import ConfigurationProblems

if __name__ == "__main__":
    try:
        become_zookeeper()
    except ConfigurationProblems as problems:
        print(problems, file=sys.stderr)
        raise SystemExit(2) from None
