"""Where a box is: `--host kafka://HOST:9092`, and ports beside it. Pure."""

from __future__ import annotations

import argparse

from appliance.client.address import Address, parse_addresses

SCHEME = "kafka://"


def addresses_of(host: str | None) -> list[Address]:
    """Of `kafka://HOST:PORT,…`, with or without scheme and port. Raises ValueError that says what is wrong."""
    return parse_addresses((host or "").removeprefix(SCHEME).rstrip("/"))


def bootstrap_of(host: str | None) -> str:
    return ",".join(map(str, addresses_of(host)))


def syslog_address(options: argparse.Namespace) -> Address:
    return Address(options.syslog_host or addresses_of(options.host)[0].host, options.syslog_port)


def metrics_url(options: argparse.Namespace) -> str:
    return str(options.metrics_url or f"http://{Address(addresses_of(options.host)[0].host, options.http_port)}/metrics")
