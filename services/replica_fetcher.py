"""replica-fetcher: copies what other boxes lead to this box's disks."""

from __future__ import annotations

from appliance.agents.replica_fetcher import ReplicaFetcherAgent
from appliance.runtime.service_main import service_main

if __name__ == "__main__":
    raise SystemExit(service_main("replica-fetcher", ReplicaFetcherAgent))
