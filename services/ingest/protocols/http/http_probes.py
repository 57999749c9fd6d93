"""What an HTTP input says of itself: `GET /` and `GET /health`. Values only. Weak: health speaks of one listener of one ingest process."""

from __future__ import annotations

from services.ingest.protocols.elasticsearch.elasticsearch_probes import root_document
from services.ingest.protocols.elasticsearch.elasticsearch_words import json_answer
from services.ingest.protocols.http.http_endpoints import PATHS
from services.ingest.protocols.http.http_request import Answer, Request, busy_answer

WORDS = "Millrace ingests logs here"


def root(request: Request) -> Answer:
    """What this is, and its inputs; and what Elasticsearch's clients look for before they send anything."""
    inputs = [{"methods": path.methods, "path": path.pattern, "what": path.words} for path in PATHS if path.words]
    return json_answer(request, 200, {"what": WORDS, **root_document(), "inputs": inputs})


def health(request: Request) -> Answer:
    """200 while records are taken."""
    if request.intake.blocked_by(request.listener):
        return busy_answer(request)
    return Answer(200, b'{"status":"ok"}')
