"""controller: the box's ZooKeeper session, topics, metadata image, and orders to its log-writers."""

from __future__ import annotations

from appliance.agents.controller import ControllerAgent
from appliance.runtime.service_main import service_main

if __name__ == "__main__":
    raise SystemExit(service_main("controller", ControllerAgent))
