"""log-writer@DISK: owns every file of one log directory."""

from __future__ import annotations

from appliance.runtime.service_main import service_main
from services.log_writer.offline_log_writer import open_log_writer

if __name__ == "__main__":
    raise SystemExit(service_main("log-writer", open_log_writer))
