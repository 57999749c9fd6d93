"""ingest@K: receives from senders and stores their records.

SIGHUP is ignored: changed certificates are loaded within a second anyway, and a request to reload
must not end the process.
"""

from __future__ import annotations

import gc
import signal

if __name__ == "__main__":
    gc.disable()  # imports leave hardly any garbage; run_service enables it
    from appliance.runtime.service_main import service_main
    from services.ingest.agent import IngestAgent

    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    raise SystemExit(service_main("ingest", IngestAgent))
