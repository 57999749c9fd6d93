"""coordinator: consumer groups and transactions whose state this box leads."""

from __future__ import annotations

from appliance.agents.coordinator import CoordinatorAgent
from appliance.runtime.service_main import service_main

if __name__ == "__main__":
    raise SystemExit(service_main("coordinator", CoordinatorAgent))
