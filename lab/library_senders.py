"""Senders that are libraries for Python: elasticsearch-py, OpenTelemetry's exporters, pylogbeat, python-logstash-async; and what was confirmed to each.

What such a library does when the box dies under it (when it tries again, what it drops) is its own; we only hand it records, and try again where it leaves
that to its user.
"""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import requests
from elasticsearch import ApiError, Elasticsearch, TransportError
from elasticsearch.helpers import streaming_bulk
from logstash_async.constants import constants
from logstash_async.transport import BeatsTransport
from logstash_async.worker import LogProcessingWorker
from opentelemetry._logs import LogRecord, SeverityNumber
from opentelemetry.exporter.otlp.proto.grpc._log_exporter import OTLPLogExporter as GrpcExporter
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter as HttpExporter
from opentelemetry.sdk._logs import LoggerProvider, ReadableLogRecord
from opentelemetry.sdk._logs.export import BatchLogRecordProcessor, LogRecordExporter, LogRecordExportResult
from pylogbeat import ConnectionException, PyLogBeatClient

from lab.told_senders import Feed, Place, ToldSender

PER_CALL = 20
PAUSE_SECONDS = 0.02
TIMEOUT_SECONDS = 10.0


class BulkSender(ToldSender):
    """elasticsearch-py's helper; what it says of an item, and what it was answered for a request, decide what is sent again."""

    def __init__(self, place: Place, feed: Feed, has_ids: bool) -> None:
        super().__init__(place, feed)
        self._has_ids = has_ids

    def send_all(self) -> None:
        with Elasticsearch(f"http://{self.place.address}", max_retries=3, retry_on_timeout=True, request_timeout=TIMEOUT_SECONDS) as client:
            while numbers := self.feed.take(PER_CALL):
                while numbers:
                    numbers = self._send(client, numbers)

    def _send(self, client: Elasticsearch, numbers: list[int]) -> list[int]:
        """Those that have to go again."""
        answers: Iterable[tuple[bool, Any]] = streaming_bulk(client, map(self._action, numbers), max_retries=3, initial_backoff=0.05, raise_on_error=False)
        try:
            stored = [number for number, (good, _) in zip(numbers, answers, strict=True) if good]
        except (ApiError, TransportError):
            time.sleep(PAUSE_SECONDS)
            return numbers
        self.tell(stored)
        return sorted(set(numbers) - set(stored))

    def _action(self, number: int) -> dict[str, Any]:
        action = {"_index": "web", "message": self.text(number)}
        return action | {"_id": str(number)} if self._has_ids else action


bulk_with_ids = partial(BulkSender, has_ids=True)
bulk_without_ids = partial(BulkSender, has_ids=False)


class _Witness(LogRecordExporter):
    """Stands before an exporter and notes what was confirmed to it. What failed is exported again: the processor behind us would drop it."""

    def __init__(self, sender: ToldSender, exporter: LogRecordExporter) -> None:
        self._sender = sender
        self._exporter = exporter

    def export(self, batch: Sequence[ReadableLogRecord]) -> LogRecordExportResult:
        while self._exporter.export(batch) is not LogRecordExportResult.SUCCESS:
            time.sleep(PAUSE_SECONDS)
        for record in batch:
            self._sender.tell_text(str(record.log_record.body))
        return LogRecordExportResult.SUCCESS

    def force_flush(self, timeout_millis: int = 10_000) -> bool:
        return True

    def shutdown(self) -> None:
        self._exporter.shutdown()  # type: ignore[no-untyped-call]  # OpenTelemetry declares no type for it


class ExportingSender(ToldSender):
    """OpenTelemetry's SDK with its batch processor and one of its exporters."""

    def __init__(self, place: Place, feed: Feed, is_grpc: bool, has_key: bool = False) -> None:
        super().__init__(place, feed)
        exporter: LogRecordExporter
        if is_grpc:
            exporter = GrpcExporter(str(place.address), insecure=True, timeout=TIMEOUT_SECONDS)
        else:
            session = requests.Session()
            if has_key:
                session.auth = _sign
            exporter = HttpExporter(f"http://{place.address}/v1/logs", timeout=TIMEOUT_SECONDS, session=session)
        self._provider = LoggerProvider()
        processor = BatchLogRecordProcessor(_Witness(self, exporter), max_export_batch_size=64, schedule_delay_millis=20, max_queue_size=1 << 20)
        self._provider.add_log_record_processor(processor)

    def send_all(self) -> None:
        logger = self._provider.get_logger(self.place.word)
        while numbers := self.feed.take(PER_CALL):
            for number in numbers:
                logger.emit(LogRecord(timestamp=time.time_ns(), severity_number=SeverityNumber.INFO, body=self.text(number)))
        self._provider.force_flush()
        self._provider.shutdown()


def _sign(request: requests.PreparedRequest) -> requests.PreparedRequest:
    """A request that comes again has the key it had: that of its bytes."""
    assert isinstance(request.body, bytes)
    request.headers["Idempotency-Key"] = hashlib.sha256(request.body).hexdigest()
    return request


otlp_http = partial(ExportingSender, is_grpc=False)
otlp_http_with_key = partial(ExportingSender, is_grpc=False, has_key=True)
otlp_grpc = partial(ExportingSender, is_grpc=True)


class WindowSender(ToldSender):
    """pylogbeat as a Beat with one worker uses its connection: a window that was not acknowledged comes first on the next one."""

    def send_all(self) -> None:
        logging.getLogger("pylogbeat").setLevel(logging.CRITICAL)
        client = self._client()
        while numbers := self.feed.take(PER_CALL):
            events = [{"message": self.text(number)} for number in numbers]
            while True:
                try:
                    client.send(events)
                    break
                except (OSError, ConnectionException):
                    client.close()
                    client = self._client()
                    time.sleep(PAUSE_SECONDS)
            self.tell(numbers)
        client.close()

    def _client(self) -> PyLogBeatClient:
        return PyLogBeatClient(self.place.address.host, self.place.address.port, timeout=TIMEOUT_SECONDS, use_logging=True)


class _BeatsWitness(BeatsTransport):  # type: ignore[misc]
    """Notes which of its events were confirmed."""

    def __init__(self, sender: ToldSender) -> None:
        address = sender.place.address
        super().__init__(address.host, address.port, False, False, None, None, None, None, timeout=TIMEOUT_SECONDS)
        self._sender = sender

    def send(self, events: list[str], use_logging: bool = False) -> None:
        super().send(events, use_logging=True)
        for event in events:
            self._sender.tell_text(json.loads(event)["message"])


class LogstashSender(ToldSender):
    """python-logstash-async's worker: it keeps events until their windows were acknowledged; a connection for each flush of at most 50."""

    def send_all(self) -> None:
        constants.QUEUE_CHECK_INTERVAL, constants.QUEUED_EVENTS_FLUSH_INTERVAL = PAUSE_SECONDS, 0.05
        transport = _BeatsWitness(self)
        unused = "host port ssl_enable ssl_verify ssl_verify_flags keyfile certfile ca_certs database_path event_ttl"
        nothing = dict.fromkeys(unused.split())
        worker = LogProcessingWorker(transport=transport, cache={}, **nothing)
        for name in ("LogProcessingWorker", "pylogbeat"):
            logging.getLogger(name).setLevel(logging.CRITICAL)
        worker.start()
        while numbers := self.feed.take(PER_CALL):
            for number in numbers:
                worker.enqueue_event(json.dumps({"message": self.text(number)}))
        while len(self.told) < self.feed.given:  # the worker drops what it has when it has to end
            worker.force_flush_queued_events()
            time.sleep(PAUSE_SECONDS)
        worker.shutdown()
        worker.join()
