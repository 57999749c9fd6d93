"""Pushes records by HTTP as fast as they are acknowledged: one request under way on each connection, the same one again and again.

    http_pusher.py HOST PORT FORM SECONDS CONNECTIONS RECORDS

FORM is bulk (Elasticsearch), bulk-ids (each item with an `_id` of its own), loki (JSON), hec (Splunk) or ndjson. Prints one line of JSON: records acknowledged,
requests, seconds. Weak spot: requests are made before the clock starts, so a client that makes its own would be slower.
"""

from __future__ import annotations

import json
import socket
import sys
import time
from threading import Thread

TEXT = "GET /api/orders/4711 200 12 ms 1834 bytes, upstream 10.0.3.17:8080, agent curl/8.5.0"
ID_DIGITS = 16


def main(words: list[str]) -> int:
    host, port, form = words[0], int(words[1]), words[2]
    seconds, connections, records = float(words[3]), int(words[4]), int(words[5])
    pushers = [Pusher(host, port, form, records, number) for number in range(connections)]
    started = time.monotonic()
    threads = [Thread(target=pusher.run, args=(started + seconds,)) for pusher in pushers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    requests = sum(pusher.requests for pusher in pushers)
    problems = [pusher.problem for pusher in pushers if pusher.problem]
    if problems:
        print(problems[0], file=sys.stderr)
        return 1
    print(json.dumps({"records": requests * records, "requests": requests, "seconds": time.monotonic() - started}), flush=True)
    return 0


class Pusher:
    """One connection."""

    def __init__(self, host: str, port: int, form: str, records: int, number: int) -> None:
        self._socket = socket.create_connection((host, port), 30)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        path, content_type, body = FORMS[form](records)
        head = f"POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: {content_type}\r\nContent-Length: {len(body)}\r\n\r\n"
        self._request = bytearray(head.encode() + body)
        self._ids = _places_of_ids(self._request) if form == "bulk-ids" else []
        self._next_id = number << 40
        self.requests = 0
        self.problem = ""

    def run(self, until: float) -> None:
        """Until then, and until the last request is answered."""
        try:
            while time.monotonic() < until and not self.problem:
                for place in self._ids:
                    self._request[place : place + ID_DIGITS] = b"%016x" % self._next_id
                    self._next_id += 1
                self._socket.sendall(self._request)
                self._receive()
                self.requests += 1
        except OSError as error:
            self.problem = str(error)
        finally:
            self._socket.close()

    def _receive(self) -> None:
        answer = b""
        while b"\r\n\r\n" not in answer:
            answer += self._more()
        head, _, body = answer.partition(b"\r\n\r\n")
        length = next((int(line.partition(b":")[2]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")), 0)
        while len(body) < length:
            body += self._more()
        if head.split(b" ", 2)[1][:1] != b"2" or b'"errors":true' in body[:100]:
            self.problem = f"{head.decode()}\n{body[:1000].decode()}"

    def _more(self) -> bytes:
        data = self._socket.recv(1 << 18)
        if not data:
            raise OSError("the connection was closed")
        return data


def _document(number: int) -> dict[str, object]:
    return {
        "@timestamp": f"2026-11-22T12:00:{number % 60:02d}.{number % 1000:03d}Z",
        "message": f"{TEXT} {number}",
        "host": {"name": f"web-{number % 40:02d}"},
        "log": {"level": "info"},
        "service": {"name": "nginx"},
        "http": {"status": 200, "bytes": 1834 + number},
    }


def _bulk(records: int) -> tuple[str, str, bytes]:
    lines = (f'{{"index":{{"_index":"web"}}}}\n{json.dumps(_document(number))}\n' for number in range(records))
    return "/_bulk?filter_path=errors,items.*.error,items.*.status", "application/x-ndjson", "".join(lines).encode()


def _bulk_ids(records: int) -> tuple[str, str, bytes]:
    lines = (f'{{"index":{{"_index":"web","_id":"{"x" * ID_DIGITS}"}}}}\n{json.dumps(_document(number))}\n' for number in range(records))
    return "/_bulk?filter_path=errors,items.*.error,items.*.status", "application/x-ndjson", "".join(lines).encode()


def _places_of_ids(request: bytearray) -> list[int]:
    wanted, places, position = b'"_id":"', [], 0
    while (found := request.find(wanted, position)) >= 0:
        position = found + len(wanted)
        places.append(position)
    return places


def _loki(records: int) -> tuple[str, str, bytes]:
    values = [[str(1_795_000_000_000_000_000 + number), f"{TEXT} {number}"] for number in range(records)]
    streams = [{"stream": {"job": "nginx", "level": "info", "host": f"web-{part:02d}"}, "values": values[part::10]} for part in range(10)]
    return "/loki/api/v1/push", "application/json", json.dumps({"streams": streams}).encode()


def _hec(records: int) -> tuple[str, str, bytes]:
    events = (
        {"time": 1_795_000_000 + number / 1000, "host": f"web-{number % 40:02d}", "sourcetype": "nginx", "event": f"{TEXT} {number}"}
        for number in range(records)
    )
    return "/services/collector/event", "application/json", "\n".join(map(json.dumps, events)).encode()


def _ndjson(records: int) -> tuple[str, str, bytes]:
    return "/ingest/syslog", "application/x-ndjson", "".join(json.dumps(_document(number)) + "\n" for number in range(records)).encode()


FORMS = {"bulk": _bulk, "bulk-ids": _bulk_ids, "loki": _loki, "hec": _hec, "ndjson": _ndjson}

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
