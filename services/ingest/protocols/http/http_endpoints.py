"""Which input serves a path of an HTTP listener: the table of paths, and the look-up.

Immutable values. A row names its endpoint by module and function; the first request for it imports
the module, so an idle box loads none of them. Weak: after the exact paths, the few patterns are
tried one after the other.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from importlib import import_module
from typing import Any, NamedTuple

from services.ingest.protocols.http.http_request import Endpoint, HttpResponse, Request, busy_answer, refusal, too_many_answer

GET, POST = ("GET",), ("POST",)
POST_OR_PUT = ("POST", "PUT")
_PACKAGE = "services.ingest.protocols."


class Path(NamedTuple):
    """One input. `{name}` in a pattern matches one segment of the path, which is in
    `request.arguments`.
    """

    methods: tuple[str, ...]
    pattern: str
    module: str
    function: str
    words: str
    """Description in the list of inputs that a 404 returns; empty: not listed."""
    stores: bool = True
    """Whether it stores records: it is not called while none can be accepted."""
    needs_token: bool = True
    is_stream: bool = False
    """Its body has no end: the function returns a `BodyStream` and is called when the header has
    arrived.
    """
    busy: str = "503"
    """Its answer under back-pressure: `503`, `429`, or the function of its module that makes it."""
    unauthorized: str = ""
    """The function of its module that makes its own answer to a missing token."""

    @property
    def endpoint(self) -> Endpoint:
        endpoint: Endpoint = self._load(self.function)
        return endpoint

    @property
    def busy_answer(self) -> Callable[[Request], HttpResponse]:
        return _BUSY.get(self.busy) or self._load(self.busy)

    @property
    def unauthorized_answer(self) -> Callable[[Request], HttpResponse]:
        return self._load(self.unauthorized) if self.unauthorized else unauthorized_answer

    def _load(self, function: str) -> Any:
        return _load(self.module, function)


SET_UP = ("GET", "PUT")


def _splunk(path: str, function: str, stores: bool = True) -> Path:
    words = "Splunk's collector" if path in ("/event", "/raw", "/ack") else ""
    return Path(POST, f"/services/collector{path}", "splunk.splunk_hec", function, words, stores=stores, busy="busy", unauthorized="unauthorized")


def _splunk_options(path: str) -> Path:
    """Docker's driver sends OPTIONS without its token to check for a collector; otherwise it starts
    no container.
    """
    return Path(("OPTIONS",), f"/services/collector{path}", "splunk.splunk_hec", "options", "", stores=False, needs_token=False)


def _elastic(methods: tuple[str, ...], path: str, module: str, function: str) -> Path:
    words = "Elasticsearch, with what its clients ask before they send" if path == "/_bulk" else ""
    return Path(methods, path, module, function, words, busy="busy", unauthorized="unauthorized")


def _probe(path: str, function: str, methods: tuple[str, ...] = GET) -> Path:
    """A request of Elasticsearch's clients before their data."""
    return Path(methods, path, "elasticsearch.elasticsearch_probes", function, "", stores=False, unauthorized="unauthorized")


PATHS: tuple[Path, ...] = (
    Path(GET, "/", "elasticsearch.elasticsearch_probes", "describe_inputs", "what this is", stores=False, needs_token=False),
    Path(GET, "/health", "elasticsearch.elasticsearch_probes", "health", "200 while records are taken, else 503", stores=False, needs_token=False),
    Path(POST, "/v1/logs", "otlp.otlp", "export_logs", "OTLP logs, protobuf or JSON", busy="busy"),
    Path(POST_OR_PUT, "/ingest/{topic}", "http.ndjson", "ingest_lines", "NDJSON, a JSON array, or lines of text, into TOPIC"),
    Path(POST, "/upload", "http.journal_upload", "upload", "systemd-journal-upload", is_stream=True),
    Path(POST, "/gelf", "gelf.gelf_http", "gelf", "GELF"),
    Path(POST, "/loki/api/v1/push", "loki.loki_push", "push", "Loki, protobuf or JSON", busy="429"),
    Path(POST, "/api/prom/push", "loki.loki_push", "push", "", busy="429"),
    Path(GET, "/ready", "loki.loki_push", "ready", "", stores=False, needs_token=False),
    Path(GET, "/loki/api/v1/status/buildinfo", "loki.loki_push", "build_info", "", stores=False, needs_token=False),
    *(_splunk(path, "event") for path in ("", "/1.0", "/event", "/event/1.0")),
    *(_splunk(path, "raw") for path in ("/raw", "/raw/1.0")),
    *(_splunk(path, "ack", stores=False) for path in ("/ack", "/ack/1.0")),
    *(_splunk_options(path) for path in ("", "/1.0", "/event", "/event/1.0", "/raw", "/raw/1.0")),
    *(Path(GET, f"/services/collector{path}", "splunk.splunk_hec", "health", "", stores=False, needs_token=False) for path in ("/health", "/health/1.0")),
    *(_elastic(POST_OR_PUT, path, "elasticsearch.elasticsearch_bulk", "bulk") for path in ("/_bulk", "/{index}/_bulk", "/{index}/{type}/_bulk")),
    *(_elastic(POST_OR_PUT, path, "elasticsearch.elasticsearch_bulk", "document") for path in ("/{index}/_doc", "/{index}/_doc/{id}", "/{index}/_create/{id}")),
    *(_probe(path, "cluster_health") for path in ("/_cluster/health", "/_cluster/health/{index}")),
    _probe("/_cat/health", "cat_health"),
    *(_probe(path, "license_state") for path in ("/_license", "/_xpack/license")),
    _probe("/_xpack", "xpack"),
    *(_probe(path, "nodes") for path in ("/_nodes", "/_nodes/http", "/_nodes/_all/http")),
    *(_probe(f"/{kind}/{{name}}", "index_templates", SET_UP) for kind in ("_index_template", "_component_template")),
    *(_probe(f"/{kind}/{{name}}", "set_up", SET_UP) for kind in ("_template", "_ilm/policy", "_ingest/pipeline", "_alias")),
    _probe("/_data_stream/{name}", "data_streams", SET_UP),
    *(_probe(path, "refresh", ("GET", "POST")) for path in ("/_refresh", "/{index}/_refresh", "/_flush", "/{index}/_flush")),
    *(_probe(path, "set_up", SET_UP) for path in ("/{index}/_alias/{name}", "/{index}/_mapping", "/{index}/_settings")),
    _probe("/{index}", "index", SET_UP),
)

_BUSY: dict[str, Callable[[Request], HttpResponse]] = {"503": busy_answer, "429": too_many_answer}


class FoundPath(NamedTuple):
    """The row of a method and a path, and the values of the path's names."""

    path: Path
    arguments: dict[str, str]


def find_path(method: str, path: str) -> FoundPath | HttpResponse:
    """Return the input, or an error: 404 (unknown path) or 405 (other methods). HEAD is accepted
    where GET is.
    """
    exact, patterns = _tables()
    rows = [FoundPath(row, {}) for row in exact.get(path, ())] or _match(patterns, path)
    wanted = "GET" if method == "HEAD" else method
    for found in rows:
        if wanted in found.path.methods:
            return found
    if rows:
        allowed = sorted({name for found in rows for name in found.path.methods})
        allow = ", ".join(allowed)
        return refusal(405, f"{method} is not for this path", path, f"use {allow}", headers=((b"Allow", allow.encode()),))
    inputs = "; ".join(f"{'|'.join(row.methods)} {row.pattern} ({row.words})" for row in PATHS if row.words)
    return refusal(404, "no such path", path[:200], f"inputs are {inputs}. Traces and metrics are not taken, only logs.")


def unauthorized_answer(request: Request) -> HttpResponse:
    """Return 401."""
    do = "send one of the listener's tokens as `Authorization: Bearer TOKEN`, or as the password of basic authentication"
    headers = ((b"WWW-Authenticate", b'Bearer realm="millrace", Basic'),)
    return refusal(401, "no token, or one that this listener does not know for this path", request.path, do, headers=headers)


@lru_cache(maxsize=64)
def _load(module: str, function: str) -> Any:
    return getattr(import_module(_PACKAGE + module), function)


@lru_cache(maxsize=1)
def _tables() -> tuple[dict[str, list[Path]], list[tuple[list[str], Path]]]:
    exact: dict[str, list[Path]] = {}
    patterns: list[tuple[list[str], Path]] = []
    for row in PATHS:
        if "{" in row.pattern:
            patterns.append((row.pattern.split("/"), row))
        else:
            exact.setdefault(row.pattern, []).append(row)
    return exact, patterns


def _match(patterns: list[tuple[list[str], Path]], path: str) -> list[FoundPath]:
    segments = path.split("/")
    rows = []
    for names, row in patterns:
        if len(names) != len(segments):
            continue
        arguments: dict[str, str] = {}
        for name, segment in zip(names, segments):
            if name[:1] == "{":
                if not segment:
                    break
                arguments[name[1:-1]] = segment
            elif name != segment:
                break
        else:
            rows.append(FoundPath(row, arguments))
    return rows
