"""Programs that nobody here wrote, by HTTP and gRPC: OpenTelemetry's exporters, systemd-journal-upload, curl. What they were told is stored, is stored once."""

from __future__ import annotations

import http.client
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Thread

import pytest
from opentelemetry._logs import LogRecord, SeverityNumber
from opentelemetry.exporter.otlp.proto.grpc._log_exporter import OTLPLogExporter as GrpcExporter
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter as HttpExporter
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import BatchLogRecordProcessor
from opentelemetry.sdk.resources import Resource

from tests.support.otlp_requests import otlp_request
from tests.support.running_box import RunningBox, eventually, start_box
from tests.support.topic_documents import read_documents
from tests.unit.ingest.test_journal_upload import entry

pytestmark = [pytest.mark.system, pytest.mark.slow]

TABLE = """
options http acks=all
route label.service.name=killed -> killed
route label.service.name=* -> otlp
route app=sshd -> journal
route tag=curl -> curl
default -> syslog
"""
RECORDS = 2_000
"""No more than the exporter keeps in its queue."""


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBox]:
    directory = tmp_path_factory.mktemp("http")
    (directory / "ingest.table").write_text(TABLE)
    box = start_box(directory / "box", settings={"ingest.table.file": str(directory / "ingest.table"), "ingest.syslog.partitions": 2})
    yield box
    box.stop()
    assert box.leftovers() == []


def peer(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_what_opentelemetry_exports_is_stored_once_with_all_it_says(box: RunningBox, protocol: str) -> None:
    exporter = (
        HttpExporter(f"http://{box.ingest}/v1/logs", compression=Compression.Gzip)
        if protocol == "http"
        else GrpcExporter(str(box.ingest), insecure=True, compression=_grpc_gzip())
    )
    provider = LoggerProvider(Resource.create({"service.name": protocol, "host.name": "web-1"}))
    provider.add_log_record_processor(BatchLogRecordProcessor(exporter, max_export_batch_size=256, schedule_delay_millis=50))
    logger = provider.get_logger(protocol)
    for number in range(RECORDS):
        attributes = {"n": number, "parts": ["a", "b"], "ok": True}
        logger.emit(LogRecord(timestamp=time.time_ns(), severity_number=SeverityNumber.WARN, body=f"order {number}", attributes=attributes))
    assert provider.force_flush()
    provider.shutdown()
    stored = [document for document in read_documents(box, "otlp") if document["app"] == protocol]
    assert sorted(document["fields"]["n"] for document in stored) == list(range(RECORDS))
    first = next(document for document in stored if document["fields"]["n"] == 7)
    assert (first["message"], first["host"], first["severity"]) == ("order 7", "web-1", 4)
    assert first["fields"]["parts"] == ["a", "b"] and first["fields"]["ok"] is True and first["scope"]["name"] == protocol


def _grpc_gzip() -> object:
    import grpc

    return grpc.Compression.Gzip


class ExportingSender(Thread):
    """Exports numbered records by POST with an idempotency key each, and again until it is told yes."""

    def __init__(self, box: RunningBox, requests: int, per_request: int) -> None:
        super().__init__()
        self._address = box.ingest
        self._bodies = [
            otlp_request([f"record {request * per_request + number}" for number in range(per_request)], resource={"service.name": "killed"}).SerializeToString()
            for request in range(requests)
        ]
        self.answered = 0
        self.repeated = 0

    def run(self) -> None:
        connection = http.client.HTTPConnection(*self._address, timeout=10)
        for number, body in enumerate(self._bodies):
            while not self._is_taken(connection, number, body):
                self.repeated += 1
            self.answered += 1
        connection.close()

    def _is_taken(self, connection: http.client.HTTPConnection, number: int, body: bytes) -> bool:
        try:
            connection.request("POST", "/v1/logs", body, {"Content-Type": "application/x-protobuf", "Idempotency-Key": str(number)})
            answer = connection.getresponse()
            answer.read()
            return answer.status == 200
        except (OSError, http.client.HTTPException):
            connection.close()
            time.sleep(0.005)
            return False


def test_requests_with_a_key_are_stored_once_when_ingest_is_killed_under_them(box: RunningBox) -> None:
    requests, per_request = 600, 20
    senders = [ExportingSender(box, requests, per_request)]
    sender = senders[0]
    sender.start()
    for part in (1, 2):
        eventually(lambda part=part: sender.answered > part * requests // 4, "requests are answered", 20)
        box.await_restart("ingest@0", box.kill("ingest@0"))
    sender.join(60)
    assert sender.answered == requests and sender.repeated >= 2, "it was killed under them"
    numbers = sorted(int(document["message"].split()[1]) for document in read_documents(box, "killed"))
    assert numbers == list(range(requests * per_request))


def test_a_journal_is_uploaded_once_however_often_it_is_sent(box: RunningBox, tmp_path: Path) -> None:
    remote, upload = peer("systemd-journal-remote"), peer("systemd-journal-upload")
    journal = tmp_path / "sent.journal"
    binary = b"two\nlines \xff"
    exported = b"".join(_exported(number, b"line %d" % number) for number in range(400)) + _exported(400, binary)
    subprocess.run([remote, f"--output={journal}", "-"], input=exported, check=True, capture_output=True, timeout=30)
    for _ in range(2):  # without a state file it begins at the beginning
        sent = subprocess.run(
            [upload, "--follow=no", f"--url=http://{box.ingest}", f"--file={journal}"], capture_output=True, text=True, timeout=30, check=False
        )
        assert sent.returncode == 0, sent.stderr
    stored = [document["message"] for document in read_documents(box, "journal")]
    assert sorted(stored) == sorted([*(f"line {number}" for number in range(400)), "two\nlines \ufffd"])


def _exported(number: int, message: bytes) -> bytes:
    """An entry that systemd can store: it wants ids of 128 bits and times that grow."""
    boot = b"_BOOT_ID=" + b"f0" * 16 + b"\n__MONOTONIC_TIMESTAMP=%d\n" % (1_000_000 + number)
    return boot + entry(number, MESSAGE=message)


def test_curl_sends_lines_in_every_way_it_knows(box: RunningBox, tmp_path: Path) -> None:
    lines = b"".join(b'{"message":"line %d"}\n' % number for number in range(2_000))
    (tmp_path / "lines").write_bytes(lines)
    url = f"http://{box.ingest}/ingest/curl"
    ways = (
        ["--data-binary", f"@{tmp_path}/lines"],
        ["-T", f"{tmp_path}/lines", "-H", "Transfer-Encoding: chunked", "-H", "Content-Type: application/x-ndjson"],
        ["--data-binary", f"@{tmp_path}/lines", "-H", "Expect: 100-continue"],
        ["--data-binary", f"@{tmp_path}/lines", "--http2"],
        ["--data-binary", f"@{tmp_path}/lines", "--http2-prior-knowledge"],
        ["--data-binary", f"@{tmp_path}/lines", "--http1.0"],
    )
    for way in ways:
        said = subprocess.run(["curl", "-sS", "--fail-with-body", *way, url], capture_output=True, text=True, timeout=30, check=False)
        assert said.returncode == 0 and '"stored":2000' in said.stdout, (way, said.stdout, said.stderr)
    stored = [document["message"] for document in read_documents(box, "curl")]
    assert sorted(stored) == sorted([f"line {number}" for number in range(2_000)] * len(ways))
