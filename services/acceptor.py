"""acceptor@K: owns client connections."""

from __future__ import annotations

from appliance.agents.acceptor import AcceptorAgent
from appliance.runtime.service_main import service_main

if __name__ == "__main__":
    raise SystemExit(service_main("acceptor", AcceptorAgent))
