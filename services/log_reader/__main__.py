"""log-reader@DISK: opens segments of one log directory for acceptors, and looks offsets and times
up in its indexes.
"""

from __future__ import annotations

import gc

if __name__ == "__main__":
    gc.disable()  # imports leave hardly any garbage; run_service enables it
    from appliance.runtime.service_main import service_main
    from services.log_reader.agent import LogReaderAgent

    raise SystemExit(service_main("log-reader", LogReaderAgent))
