"""Millrace: a log appliance that speaks Kafka's protocol, built as a family of small processes."""

__version__ = "0.2.0.dev0"
