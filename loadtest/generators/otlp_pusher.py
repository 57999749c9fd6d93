"""Exports OTLP log records as fast as they are acknowledged: one request under way on each connection, the same one again and again.

    otlp_pusher.py HOST PORT FORM SECONDS CONNECTIONS RECORDS

FORM is http (protobuf), http-json or grpc. Prints one line of JSON: records acknowledged, requests, seconds. Weak spot: requests are made before the clock
starts, so an exporter that makes its own would be slower.
"""

from __future__ import annotations

import json
import socket
import sys
import time
from threading import Thread

import h2.config
import h2.connection
import h2.events
from google.protobuf.json_format import MessageToJson
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

TEXT = "GET /api/orders/4711 200 12 ms 1834 bytes, upstream 10.0.3.17:8080, agent curl/8.5.0"
EXPORT = "/opentelemetry.proto.collector.logs.v1.LogsService/Export"


def main(words: list[str]) -> int:
    host, port, form = words[0], int(words[1]), words[2]
    seconds, connections, records = float(words[3]), int(words[4]), int(words[5])
    message = export_request(records)
    body = message.SerializeToString() if form != "http-json" else MessageToJson(message, indent=None).encode()
    pushers: list[HttpPusher | GrpcPusher] = [
        GrpcPusher(host, port, body) if form == "grpc" else HttpPusher(host, port, form, body) for _ in range(connections)
    ]
    started = time.monotonic()
    threads = [Thread(target=push, args=(pusher, started + seconds)) for pusher in pushers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    problems = [pusher.problem for pusher in pushers if pusher.problem]
    if problems:
        print(problems[0], file=sys.stderr)
        return 1
    requests = sum(pusher.requests for pusher in pushers)
    print(json.dumps({"records": requests * records, "requests": requests, "seconds": time.monotonic() - started}), flush=True)
    return 0


def push(pusher: HttpPusher | GrpcPusher, until: float) -> None:
    """Until then, and until the last request is answered."""
    try:
        while time.monotonic() < until and not pusher.problem:
            pusher.push()
            pusher.requests += 1
    except OSError as error:
        pusher.problem = str(error)
    finally:
        pusher.socket.close()


class HttpPusher:
    """One connection of HTTP/1.1."""

    def __init__(self, host: str, port: int, form: str, body: bytes) -> None:
        self.socket = socket.create_connection((host, port), 30)
        content_type = "application/json" if form == "http-json" else "application/x-protobuf"
        head = f"POST /v1/logs HTTP/1.1\r\nHost: {host}\r\nContent-Type: {content_type}\r\nContent-Length: {len(body)}\r\n\r\n"
        self._request = head.encode() + body
        self.requests = 0
        self.problem = ""

    def push(self) -> None:
        self.socket.sendall(self._request)
        answer = b""
        while b"\r\n\r\n" not in answer:
            data = self.socket.recv(1 << 16)
            if not data:
                raise OSError("the connection was closed")
            answer += data
        if not answer.startswith(b"HTTP/1.1 200") or b"artial" in answer:
            self.problem = answer.decode()


class GrpcPusher:
    """One connection of HTTP/2, a call at a time."""

    def __init__(self, host: str, port: int, body: bytes) -> None:
        self.socket = socket.create_connection((host, port), 30)
        self._h2 = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True, header_encoding="utf-8"))
        self._h2.initiate_connection()
        self._message = b"\0" + len(body).to_bytes(4, "big") + body
        self._headers = [(":method", "POST"), (":scheme", "http"), (":authority", host), (":path", EXPORT), ("content-type", "application/grpc")]
        self.requests = 0
        self.problem = ""
        self._status = ""

    def push(self) -> None:
        stream_id = self._h2.get_next_available_stream_id()
        self._h2.send_headers(stream_id, [*self._headers, ("te", "trailers")])
        rest, self._status = self._message, ""
        while rest or not self._status:
            while rest and (room := min(self._h2.local_flow_control_window(stream_id), self._h2.max_outbound_frame_size, len(rest))):
                self._h2.send_data(stream_id, rest[:room], end_stream=room == len(rest))
                rest = rest[room:]
            self.socket.sendall(self._h2.data_to_send())
            self._receive()
        if self._status != "0":
            self.problem = f"grpc-status {self._status}"

    def _receive(self) -> None:
        data = self.socket.recv(1 << 16)
        if not data:
            raise OSError("the connection was closed")
        for event in self._h2.receive_data(data):
            if isinstance(event, h2.events.ResponseReceived | h2.events.TrailersReceived):
                self._status = dict(event.headers).get("grpc-status", self._status)  # type: ignore[call-overload]
            elif isinstance(event, h2.events.DataReceived) and len(event.data or b"") > 5:
                self.problem = f"a partial success: {event.data!r}"


def export_request(records: int) -> ExportLogsServiceRequest:
    """One resource of two attributes, and records of 230 B with four."""
    request = ExportLogsServiceRequest()
    resource_logs = request.resource_logs.add()
    for key, text in (("service.name", "nginx"), ("host.name", "web-07")):
        resource_logs.resource.attributes.add(key=key).value.string_value = text
    scope_logs = resource_logs.scope_logs.add()
    scope_logs.scope.name = "access"
    for number in range(records):
        time_ns = 1_795_000_000_000_000_000 + number * 1_000
        record = scope_logs.log_records.add(time_unix_nano=time_ns, observed_time_unix_nano=time_ns, severity_number=9, severity_text="INFO")
        record.body.string_value = f"{TEXT} {number}"
        record.trace_id, record.span_id = number.to_bytes(16, "big"), number.to_bytes(8, "big")
        for key, text in (("http.method", "GET"), ("http.route", "/api/orders/{id}")):
            record.attributes.add(key=key).value.string_value = text
        for key, count in (("http.status", 200), ("http.bytes", 1834 + number)):
            record.attributes.add(key=key).value.int_value = count
    return request


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
