"""acceptor@K: owns client connections."""

from __future__ import annotations

from appliance.runtime.service_main import service_main
from services.acceptor.agent import AcceptorAgent

if __name__ == "__main__":
    raise SystemExit(service_main("acceptor", AcceptorAgent))
