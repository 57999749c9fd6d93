"""controller: the box's ZooKeeper session, topics, metadata image, and orders to its log-writers."""

from __future__ import annotations

import gc

if __name__ == "__main__":
    gc.disable()  # imports leave hardly any garbage; run_service enables it
    from appliance.runtime.service_main import service_main
    from services.controller.agent import ControllerAgent

    raise SystemExit(service_main("controller", ControllerAgent))
