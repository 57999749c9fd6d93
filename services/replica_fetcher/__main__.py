"""replica-fetcher: copies what other boxes lead to this box's disks."""

from __future__ import annotations

from appliance.runtime.service_main import service_main
from services.replica_fetcher.agent import ReplicaFetcherAgent

if __name__ == "__main__":
    raise SystemExit(service_main("replica-fetcher", ReplicaFetcherAgent))
