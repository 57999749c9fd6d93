"""log-writer@DISK: owns every file of one log directory."""

from __future__ import annotations

import gc

if __name__ == "__main__":
    gc.disable()  # imports leave hardly any garbage; run_service enables it
    from appliance.runtime.service_main import service_main
    from services.log_writer.offline_log_writer import open_log_writer

    raise SystemExit(service_main("log-writer", open_log_writer))
