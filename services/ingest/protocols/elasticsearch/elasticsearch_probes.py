"""Requests of Elasticsearch's clients before and between their data: version, health, licence,
templates, policies, pipelines; and ingest's own `GET /` and `GET /health`.

The answers make clients go on. What they want to create is not used here: it appears to exist (HEAD
answers 200), and a PUT is acknowledged with a `Warning`, which clients print. Nothing is stored.
Weak: there are no searches and no other reads; health is that of one listener of one ingest
process.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from services.ingest.protocols.elasticsearch.elasticsearch_answers import PRODUCT, VERSION, error_answer, json_answer, unauthorized
from services.ingest.protocols.http.http_endpoints import PATHS
from services.ingest.protocols.http.http_request import TEXT, HttpResponse, Request, busy_answer
from services.ingest.protocols.json_text import read_json

_INDEX_PARTS: Final = frozenset(("settings", "mappings", "aliases"))
CLUSTER: Final = "millrace"
_UUID: Final = "millrace-ingest-endpoint"
_LICENSE: Final = {"status": "active", "uid": _UUID, "type": "basic", "mode": "basic", "issued_to": CLUSTER, "issuer": CLUSTER, "max_nodes": None}
_NOT_USED: Final = (
    b"Warning",
    b'299 Elasticsearch-%b-millrace "templates, policies, pipelines and aliases are not used here: documents are stored as they are sent"' % VERSION.encode(),
)

__all__ = [
    "cat_health",
    "cluster_health",
    "data_streams",
    "index",
    "index_templates",
    "license_state",
    "nodes",
    "refresh",
    "root",
    "set_up",
    "unauthorized",
    "xpack",
]


def root_document() -> dict[str, Any]:
    """The document of `GET /` for Elasticsearch's clients. `version.number` is the version of the
    API.
    """
    version = {
        "number": VERSION,
        "build_flavor": "default",
        "build_type": "tar",
        "build_hash": "0",
        "build_date": "1970-01-01T00:00:00.000Z",
        "build_snapshot": False,
        "lucene_version": "9.12.0",
        "minimum_wire_compatibility_version": "7.17.0",
        "minimum_index_compatibility_version": "7.0.0",
    }
    return {"name": CLUSTER, "cluster_name": CLUSTER, "cluster_uuid": _UUID, "version": version, "tagline": "You Know, for Search"}


def root(request: Request) -> HttpResponse:
    """Handle `GET /` and `HEAD /`."""
    return json_answer(request, 200, root_document())


def cluster_health(request: Request) -> HttpResponse:
    """Handle `/_cluster/health`: green, or yellow while nothing can be accepted."""
    status = "yellow" if request.intake.blocked_by(request.listener) else "green"
    counts = dict.fromkeys(("relocating_shards", "initializing_shards", "unassigned_shards", "delayed_unassigned_shards", "number_of_pending_tasks"), 0)
    nodes = {"number_of_nodes": 1, "number_of_data_nodes": 1, "active_primary_shards": 1, "active_shards": 1}
    more = {"number_of_in_flight_fetch": 0, "task_max_waiting_in_queue_millis": 0, "active_shards_percent_as_number": 100.0}
    return json_answer(request, 200, {"cluster_name": CLUSTER, "status": status, "timed_out": False, **nodes, **counts, **more})


def cat_health(request: Request) -> HttpResponse:
    """Handle `/_cat/health`, rsyslog's health check: a line of text."""
    status = "yellow" if request.intake.blocked_by(request.listener) else "green"
    line = f"{request.intake.now_ms() // 1000} - {CLUSTER} {status} 1 1 1 1 0 0 0 0 - 100.0%\n"
    return HttpResponse(200, line.encode(), TEXT, (PRODUCT,))


def license_state(request: Request) -> HttpResponse:
    """Handle `/_license`: Beats and Logstash require an active one."""
    return json_answer(request, 200, {"license": _LICENSE})


def xpack(request: Request) -> HttpResponse:
    """Handle `/_xpack`: no feature. Without index lifecycle management Beats and Logstash create no
    policy.
    """
    features = {name: {"available": False, "enabled": False} for name in ("ilm", "data_streams", "security", "monitoring", "ml", "graph", "watcher")}
    return json_answer(request, 200, {"build": {}, "license": _LICENSE, "features": features, "tagline": "You know, for X"})


def nodes(request: Request) -> HttpResponse:
    """Handle `/_nodes` and `/_nodes/http`: no addresses, so clients stay with the one they have."""
    return json_answer(request, 200, {"_nodes": {"total": 0, "successful": 0, "failed": 0}, "cluster_name": CLUSTER, "nodes": {}})


def set_up(request: Request) -> HttpResponse:
    """Handle templates, policies, pipelines, data streams, aliases and indices by name."""
    if request.method in ("GET", "HEAD"):
        name = request.arguments.get("name", "")
        return json_answer(request, 200, {name: {}} if name else {})
    acknowledged: dict[str, Any] = {"acknowledged": True}
    if "index" in request.arguments:
        acknowledged |= {"shards_acknowledged": True, "index": request.arguments["index"]}
    return json_answer(request, 200, acknowledged, (_NOT_USED,))


def index_templates(request: Request) -> HttpResponse:
    """Handle `GET /_index_template/NAME` and `GET /_component_template/NAME`, which have forms of
    their own.
    """
    if request.method not in ("GET", "HEAD"):
        return set_up(request)
    kind = "component_template" if "component" in request.pattern else "index_template"
    template = {"name": request.arguments.get("name", ""), kind: {"index_patterns": ["*"], "template": {}, "composed_of": []}}
    return json_answer(request, 200, {f"{kind}s": [template]})


def data_streams(request: Request) -> HttpResponse:
    """Handle `/_data_stream/NAME`: every index is one, because documents are only added."""
    if request.method not in ("GET", "HEAD"):
        return set_up(request)
    stream = {"name": request.arguments.get("name", ""), "timestamp_field": {"name": "@timestamp"}, "indices": [], "generation": 1, "status": "GREEN"}
    return json_answer(request, 200, {"data_streams": [stream]})


def refresh(request: Request) -> HttpResponse:
    """Handle `_refresh` and `_flush`: acknowledged documents are stored already."""
    return json_answer(request, 200, {"_shards": {"total": 1, "successful": 1, "failed": 0}})


def index(request: Request) -> HttpResponse:
    """Handle `/INDEX`: every index exists (HEAD) and can be created (PUT). GET is refused, and so
    is a PUT whose body is a document.
    """
    if request.method == "GET":
        reason = f"no such path [{request.path[:200]}]: documents are taken here, and read with Kafka's clients"
        return error_answer(request, 404, "resource_not_found_exception", reason)
    if request.method == "PUT" and not _INDEX_PARTS.issuperset(_names(request.body)):
        return error_answer(request, 400, "parse_exception", "an index has settings, mappings and aliases; documents go to /INDEX/_doc or /_bulk")
    return set_up(request)


def _names(body: bytes) -> Iterable[str]:
    try:
        parsed = read_json(body) if body.strip() else {}
    except ValueError:
        parsed = None
    return parsed if type(parsed) is dict else ("",)


WORDS = "Millrace ingests logs here"


def describe_inputs(request: Request) -> HttpResponse:
    """Return the list of inputs, and what Elasticsearch's clients look for before they send."""
    inputs = [{"methods": path.methods, "path": path.pattern, "what": path.words} for path in PATHS if path.words]
    return json_answer(request, 200, {"what": WORDS, **root_document(), "inputs": inputs})


def health(request: Request) -> HttpResponse:
    """Return 200 while records are accepted."""
    if request.intake.blocked_by(request.listener):
        return busy_answer(request)
    return HttpResponse(200, b'{"status":"ok"}')
