"""replica-fetcher: copies what other boxes lead to this box's disks."""

from __future__ import annotations

import gc

if __name__ == "__main__":
    gc.disable()  # imports leave hardly any garbage; run_service enables it
    from appliance.runtime.service_main import service_main
    from services.replica_fetcher.agent import ReplicaFetcherAgent

    raise SystemExit(service_main("replica-fetcher", ReplicaFetcherAgent))
