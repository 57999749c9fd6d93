"""coordinator: consumer groups and transactions whose state this box leads."""

from __future__ import annotations

import gc

if __name__ == "__main__":
    gc.disable()  # imports leave hardly any garbage; run_service enables it
    from appliance.runtime.service_main import service_main
    from services.coordinator.agent import CoordinatorAgent

    raise SystemExit(service_main("coordinator", CoordinatorAgent))
