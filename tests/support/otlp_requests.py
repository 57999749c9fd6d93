"""OTLP log requests as OpenTelemetry's schema writes them."""

from __future__ import annotations

from typing import Any

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue

TIME_NS = 1_760_000_000_123_456_789
TRACE_ID, SPAN_ID = bytes(range(16)), bytes(range(8))


def set_value(target: AnyValue, value: Any) -> None:
    """`value` as an AnyValue."""
    if isinstance(value, bool):
        target.bool_value = value
    elif isinstance(value, str):
        target.string_value = value
    elif isinstance(value, int):
        target.int_value = value
    elif isinstance(value, float):
        target.double_value = value
    elif isinstance(value, bytes):
        target.bytes_value = value
    elif isinstance(value, list):
        target.array_value.SetInParent()
        for each in value:
            set_value(target.array_value.values.add(), each)
    elif isinstance(value, dict):
        target.kvlist_value.SetInParent()
        for key, each in value.items():
            pair = target.kvlist_value.values.add()
            pair.key = key
            set_value(pair.value, each)


def otlp_request(
    bodies: list[Any], attributes: dict[str, Any] | None = None, resource: dict[str, Any] | None = None, **fields: Any
) -> ExportLogsServiceRequest:
    """One resource, one scope, a record for each body."""
    request = ExportLogsServiceRequest()
    resource_logs = request.resource_logs.add()
    for key, value in (resource or {}).items():
        set_value(resource_logs.resource.attributes.add(key=key).value, value)
    scope_logs = resource_logs.scope_logs.add()
    scope_logs.scope.name, scope_logs.scope.version = "library", "1.2"
    for body in bodies:
        record = scope_logs.log_records.add(**{"time_unix_nano": TIME_NS, "severity_number": 9, **fields})
        if body is not None:
            set_value(record.body, body)
        for key, value in (attributes or {}).items():
            set_value(record.attributes.add(key=key).value, value)
    return request
