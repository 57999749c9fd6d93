"""The console's HTTP routes: `/healthz` (this process turns) and `/readyz` (the whole box serves), for load balancers and people.

Knows no socket; `appliance.agents.console` serves it. Starlette because the pages to come need its routing and streaming answers.
"""

from __future__ import annotations

from collections.abc import Callable

import orjson
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from appliance.console.readiness import Readiness


def make_application(read_readiness: Callable[[], Readiness]) -> Starlette:
    """The ASGI application. `read_readiness` is asked once per request to /readyz."""

    async def healthz(_request: Request) -> Response:
        return _answer(200, {"status": "alive"})

    async def readyz(_request: Request) -> Response:
        readiness = read_readiness()
        status = "ready" if readiness.is_ready else "not ready"
        return _answer(200 if readiness.is_ready else 503, {"status": status, "processes": readiness.processes, "missing": readiness.missing})

    return Starlette(routes=[Route("/healthz", healthz), Route("/readyz", readyz)])


def _answer(status: int, document: dict[str, object]) -> Response:
    return Response(orjson.dumps(document) + b"\n", status, media_type="application/json", headers={"Cache-Control": "no-store"})
