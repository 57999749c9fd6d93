"""ingest@K: takes what senders send and makes record batches of it.

SIGHUP changes nothing: certificates are looked at once a second anyway, and whoever asks for a reload must not end the process.
"""

from __future__ import annotations

import signal

from appliance.runtime.service_main import service_main
from services.ingest.agent import IngestAgent

if __name__ == "__main__":
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    raise SystemExit(service_main("ingest", IngestAgent))
