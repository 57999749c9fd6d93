"""controller: the box's ZooKeeper session, topics, metadata image, and orders to its log-writers."""

from __future__ import annotations

from appliance.runtime.service_main import service_main
from services.controller.agent import ControllerAgent

if __name__ == "__main__":
    raise SystemExit(service_main("controller", ControllerAgent))
