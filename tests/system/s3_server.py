"""Moto's S3 as a process: prints its port; answers 503 while the file FLAG exists, and 403 to the key `expired`.

Run by a Python that has moto: `python s3_server.py FLAG`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from typing import Any

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server

_moto = DomainDispatcherApplication(create_backend_app)


def answer(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
    code = "SlowDown" if os.path.exists(sys.argv[1]) else "ExpiredToken" if "expired" in environ.get("HTTP_AUTHORIZATION", "") else None
    if code is None:
        return _moto(environ, start)
    start("503 Slow Down" if code == "SlowDown" else "403 Forbidden", [("Content-Type", "application/xml")])
    return [f"<Error><Code>{code}</Code><Message>{code}</Message></Error>".encode()]


if __name__ == "__main__":
    server = make_server("127.0.0.1", 0, answer, threaded=True)
    print(server.server_port, flush=True)
    server.serve_forever()
