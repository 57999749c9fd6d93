"""log-reader@DISK: opens segments of one log directory for acceptors, and looks offsets and times
up in its indexes.
"""

from __future__ import annotations

from appliance.runtime.service_main import service_main
from services.log_reader.agent import LogReaderAgent

if __name__ == "__main__":
    raise SystemExit(service_main("log-reader", LogReaderAgent))
