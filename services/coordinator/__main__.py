"""coordinator: consumer groups and transactions whose state this box leads."""

from __future__ import annotations

from appliance.runtime.service_main import service_main
from services.coordinator.agent import CoordinatorAgent

if __name__ == "__main__":
    raise SystemExit(service_main("coordinator", CoordinatorAgent))
