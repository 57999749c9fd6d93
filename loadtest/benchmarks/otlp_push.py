"""OTLP log records by HTTP and by gRPC, each request acknowledged when its records are stored; everything else as in `http_push`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from loadtest.benchmark import Figure
from loadtest.benchmarks.http_push import HttpPush, figures_of

_GENERATOR = Path(__file__).parent.parent / "generators" / "otlp_pusher.py"


@dataclass(frozen=True)
class OtlpHttp(HttpPush):
    name: ClassVar[str] = "otlp_http"
    title: ClassVar[str] = "OTLP over HTTP (protobuf): requests of 500 records of 230 B over 4 connections, each answered when its records are stored."
    figures: ClassVar[tuple[Figure, ...]] = figures_of(60_000)
    form: ClassVar[str] = "http"
    generator: ClassVar[Path] = _GENERATOR


@dataclass(frozen=True)
class OtlpGrpc(HttpPush):
    name: ClassVar[str] = "otlp_grpc"
    title: ClassVar[str] = "OTLP over gRPC: calls of 500 records of 230 B over 4 connections, each answered when its records are stored."
    figures: ClassVar[tuple[Figure, ...]] = figures_of(60_000)
    form: ClassVar[str] = "grpc"
    generator: ClassVar[Path] = _GENERATOR
