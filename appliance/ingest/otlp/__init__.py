"""OpenTelemetry's logs, over HTTP and gRPC."""
