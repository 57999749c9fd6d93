"""Third-party programs, by HTTP and gRPC, plain and over TLS: OpenTelemetry's exporters, systemd-journal-upload, curl, and pylogbeat over TLS. What
was acknowledged to them is stored once.
"""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import grpc
import pytest
from elasticsearch import Elasticsearch
from elasticsearch.helpers import bulk
from opentelemetry._logs import LogRecord, SeverityNumber
from opentelemetry.exporter.otlp.proto.grpc._log_exporter import OTLPLogExporter as GrpcExporter
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter as HttpExporter
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import BatchLogRecordProcessor
from opentelemetry.sdk.resources import Resource
from pylogbeat import PyLogBeatClient

from lab.certificates import Authority, Certificate
from lab.running_box import RunningBox, listener
from lab.topic_documents import read_documents
from tests.unit.services.ingest.test_journal_upload import entry

pytestmark = [pytest.mark.system, pytest.mark.slow]

ROUTES = [{"label": {"service.name": "*"}, "topic": "otlp"}, {"app": "sshd", "topic": "journal"}, {"tag": "curl", "topic": "curl"}]
RECORDS = 2_000
"""No more than the exporter keeps in its queue."""
PATIENCE = 60
"""Seconds. An exporter that waits no longer than ten, its default, sends again what a busy machine has stored, and then it is there twice."""


class Site(NamedTuple):
    """A box with listeners for TLS that ask for a certificate, and those who may send there."""

    box: RunningBox
    authority: Authority
    client: Certificate


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, start_shared: Callable[..., RunningBox]) -> Iterator[Site]:
    directory = tmp_path_factory.mktemp("http")
    authority = Authority(directory)
    server, client = authority.sign("localhost", "DNS:localhost", "IP:127.0.0.1"), authority.sign("app.example.com")
    files = {"certificate": str(server.certificate), "private_key": str(server.private_key), "client_ca": str(authority.certificate)}
    secure = [
        listener(name, protocol, "tls", topic="tls", client_names="*.example.com", **files) for name, protocol in (("web", "http"), ("beats", "lumberjack"))
    ]
    senders = {"listener": [{"name": "http", "acks": "all"}, *secure], "route": ROUTES, "default": {"topic": "syslog"}}
    box = start_shared(directory / "box", settings={"ingest.syslog.partitions": 2}, senders=senders)
    yield Site(box, authority, client)
    box.stop()
    assert box.leftovers() == []


@pytest.fixture
def box(site: Site) -> RunningBox:
    return site.box


def peer(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_what_opentelemetry_exports_is_stored_once_with_all_it_says(box: RunningBox, protocol: str) -> None:
    exporter = (
        HttpExporter(f"http://{box.ingest}/v1/logs", compression=Compression.Gzip, timeout=PATIENCE)
        if protocol == "http"
        else GrpcExporter(str(box.ingest), insecure=True, compression=_grpc_gzip(), timeout=PATIENCE)
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
    return grpc.Compression.Gzip


def test_what_clients_send_over_tls_with_their_certificates_is_stored_once(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """HTTP/2 by gRPC and by curl, HTTP/1.1 by OpenTelemetry and Elasticsearch, Lumberjack by
    pylogbeat; a client without a certificate stores nothing.
    """
    for name in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):  # requests believes these more than its session
        monkeypatch.delenv(name, raising=False)
    box, web, beats = site.box, site.box.sender("web"), site.box.sender("beats")
    ca, certificate, key = (str(path) for path in (site.authority.certificate, site.client.certificate, site.client.private_key))
    credentials = grpc.ssl_channel_credentials(*(Path(path).read_bytes() for path in (ca, key, certificate)))
    exporters = {
        "grpc": GrpcExporter(f"https://{web}", credentials=credentials, timeout=PATIENCE),
        "otlp": HttpExporter(f"https://{web}/v1/logs", certificate_file=ca, client_key_file=key, client_certificate_file=certificate, timeout=PATIENCE),
    }
    for name, exporter in exporters.items():
        provider = LoggerProvider(Resource.create({}))
        provider.add_log_record_processor(BatchLogRecordProcessor(exporter, max_export_batch_size=256, schedule_delay_millis=50))
        for number in range(RECORDS):
            provider.get_logger(name).emit(LogRecord(timestamp=time.time_ns(), body=f"{name} {number}"))
        assert provider.force_flush()
        provider.shutdown()
    with Elasticsearch(f"https://{web}", ca_certs=ca, client_cert=certificate, client_key=key, request_timeout=PATIENCE) as client:
        assert bulk(client, ({"_index": "web", "message": f"bulk {number}"} for number in range(RECORDS)), chunk_size=500) == (RECORDS, [])
    with PyLogBeatClient(beats.host, beats.port, timeout=PATIENCE, ssl_enable=True, ssl_verify=True, ca_certs=ca, certfile=certificate, keyfile=key) as beat:
        for first in range(0, RECORDS, 500):
            beat.send([{"message": f"beat {number}"} for number in range(first, first + 500)])
    versions = {"--http2": "2", "--http1.1": "1.1"}
    for option, version in versions.items():
        (tmp_path / "lines").write_text("".join(f'{{"message": "curl{version} {number}"}}\n' for number in range(RECORDS)))
        curl = ["curl", "-sS", "--fail-with-body", option, "--cacert", ca, "-w", "\nversion %{http_version}", "--data-binary", f"@{tmp_path}/lines"]
        url = f"https://{web}/ingest/tls"
        said = subprocess.run([*curl, "--cert", certificate, "--key", key, url], capture_output=True, text=True, timeout=60, check=False)
        assert f'"stored":{RECORDS}' in said.stdout and said.stdout.endswith(f"version {version}"), (said.stdout, said.stderr)
        stranger = subprocess.run([*curl, url], capture_output=True, text=True, timeout=60, check=False)
        assert stranger.returncode != 0 and "stored" not in stranger.stdout
    names = (*exporters, "bulk", "beat", "curl2", "curl1.1")
    texts = [document["message"] for topic in ("tls", "otlp") for document in read_documents(box, topic)]
    assert sorted(text for text in texts if text.split()[0] in names) == sorted(f"{name} {number}" for name in names for number in range(RECORDS))


def test_a_journal_is_uploaded_once_however_often_it_is_sent(box: RunningBox, tmp_path: Path) -> None:
    remote, upload = peer("systemd-journal-remote"), peer("systemd-journal-upload")
    journal = tmp_path / "sent.journal"
    binary = b"two\nlines \xff"
    exported = b"".join(_exported(number, b"line %d" % number) for number in range(400)) + _exported(400, binary)
    subprocess.run([remote, f"--output={journal}", "-"], input=exported, check=True, capture_output=True, timeout=60)
    for _ in range(2):  # without a state file it begins at the beginning
        sent = subprocess.run(
            [upload, "--follow=no", f"--url=http://{box.ingest}", f"--file={journal}"], capture_output=True, text=True, timeout=60, check=False
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
        said = subprocess.run(["curl", "-sS", "--fail-with-body", *way, url], capture_output=True, text=True, timeout=60, check=False)
        assert said.returncode == 0 and '"stored":2000' in said.stdout, (way, said.stdout, said.stderr)
    stored = [document["message"] for document in read_documents(box, "curl")]
    assert sorted(stored) == sorted([f"line {number}" for number in range(2_000)] * len(ways))
