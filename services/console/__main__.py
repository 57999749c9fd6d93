"""Entry point of the console: the HTTP port for people and probes. Its asyncio loop replaces the
common runner."""

from __future__ import annotations

from appliance.runtime.service_main import run_service
from services.console.agent import run_console

if __name__ == "__main__":
    raise SystemExit(run_service("console", run_console))
