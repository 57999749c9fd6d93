"""log-writer@DISK: owns every file of one log directory."""

from __future__ import annotations

from appliance.agents.offline_log_writer import open_log_writer
from appliance.runtime.service_main import service_main

if __name__ == "__main__":
    raise SystemExit(service_main("log-writer", open_log_writer))
