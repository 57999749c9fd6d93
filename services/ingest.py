"""ingest@K: takes syslog lines and makes record batches of them."""

from __future__ import annotations

from appliance.agents.ingest import IngestAgent
from appliance.runtime.service_main import service_main

if __name__ == "__main__":
    raise SystemExit(service_main("ingest", IngestAgent))
