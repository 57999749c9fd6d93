"""Keys of tokens from an issuer's server (`services/acceptor/token_keys.py`)."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from appliance.base.logging import Logger
from appliance.security.oauth import TokenRules
from appliance.shm.counters import Counters
from lab.running_box import eventually
from lab.scratch_layout import scratch_layout
from lab.token_issuer import AUDIENCE, ISSUER, TokenIssuer, key_set
from services.acceptor.token_keys import TokenKeys

pytestmark = pytest.mark.slow


@pytest.fixture
def issuer(tmp_path: Path) -> TokenIssuer:
    return TokenIssuer(tmp_path)


@pytest.fixture
def server(issuer: TokenIssuer) -> Iterator[str]:
    """Serves keys at /keys, and sends /moved there."""
    document = key_set(issuer.public_key())

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(302 if self.path == "/moved" else 200)
            self.send_header("Location", "/keys")
            self.end_headers()
            self.wfile.write(document if self.path == "/keys" else b"")

        def log_message(self, format: str, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as serving:
        thread = threading.Thread(target=serving.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield f"http://127.0.0.1:{serving.server_port}"
        finally:
            serving.shutdown()
            thread.join()


@pytest.mark.parametrize("path", ["/keys", "/moved"])
def test_keys_are_read_from_a_server_that_does_not_send_elsewhere(
    server: str, issuer: TokenIssuer, path: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    with scratch_layout() as layout:
        counters = Counters.create_or_adopt(layout, "acceptor@0", 1)
        failures = counters.counter("acceptor.token_keys_failed")
        keys = TokenKeys(f"{server}{path}", 3_600_000, Logger("test"), failures)

        def has_ended() -> bool:
            keys.sweep()
            return keys.has_keys or failures.value > 0

        eventually(has_ended, "the document was read, or refused")
        keys.close()
        shown = "".join(capfd.readouterr())
        if path == "/keys":
            assert keys.verify(issuer.token(), TokenRules(ISSUER, (AUDIENCE,))).user == "alice"
        else:
            assert not keys.has_keys and "could not read the keys of tokens" in shown
        counters.close()
