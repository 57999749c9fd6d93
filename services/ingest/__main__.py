"""ingest@K: receives from senders and stores their records.

SIGHUP is ignored: changed certificates are loaded within a second anyway, and a request to reload
must not end the process.
"""

from __future__ import annotations

import signal

from appliance.runtime.service_main import service_main
from services.ingest.agent import IngestAgent

if __name__ == "__main__":
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    raise SystemExit(service_main("ingest", IngestAgent))
