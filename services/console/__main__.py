"""Entry point of the console: the HTTP port for people and probes. Its asyncio loop replaces the
common runner."""

from __future__ import annotations

import gc

if __name__ == "__main__":
    gc.disable()  # imports leave hardly any garbage; run_service enables it
    from appliance.runtime.service_main import run_service
    from services.console.agent import run_console

    raise SystemExit(run_service("console", run_console))
