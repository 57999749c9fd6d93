"""Checks before a box joins an ensemble of the boxes: the ports of its member, and addresses that
its peers cannot use. Also which listeners serve other machines without authentication.

Binds each port for a moment. Weak: whether the other boxes reach these ports (firewalls) shows only
when all have started.
"""

from __future__ import annotations

import errno
import ipaddress
import socket
from collections.abc import Sequence

from appliance.base.settings import Box, KafkaListener
from appliance.base.zookeeper_member import ZooKeeperMember
from appliance.security.listeners import SSL, uses_sasl

WILDCARDS = ("0.0.0.0", "::", "*", "")


def member_problems(member: ZooKeeperMember, is_running: bool = False) -> list[str]:
    """Return why this machine cannot run `member`. If it `is_running`, check only whether the
    address belongs to this machine."""
    name = f"--zookeeper-members says that this box, {member.member_id}, is {member.plain_host}"
    try:
        family, _, _, _, address = socket.getaddrinfo(member.plain_host, None, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        return [f"{name}, which does not resolve: {error.strerror}; give its address"]
    problems = []
    for port, purpose in ((0, ""),) if is_running else member.ports:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((address[0], port))
            except OSError as error:
                if error.errno == errno.EADDRNOTAVAIL:
                    return [f"{name}, which is no address of this machine; correct it, or --broker-id, which says which box this is"]
                reason = "which is taken" if error.errno == errno.EADDRINUSE else f"which cannot be used: {error.strerror}"
                problems.append(f"{name}, with port {port} for {purpose}, {reason}; stop its owner, or give the member other ports, on all boxes")
    return problems


def peer_warnings(members: Sequence[ZooKeeperMember], broker_id: int, listen: str, advertise: str) -> list[str]:
    """Return what keeps the other boxes of the ensemble from using this one. If all are on loopback
    (tests), nothing does."""
    others = [member for member in members if member.member_id != broker_id]
    if not others or all(is_loopback(member.plain_host) for member in others):
        return []
    warnings = []
    if listen not in WILDCARDS and is_loopback(listen):
        warnings.append(
            f"--listen is {listen}, where the other boxes cannot reach this one: it can neither replicate nor be replicated; use an address of the network"
        )
    if is_loopback(advertise):
        warnings.append(f"--advertise is {advertise}: the other boxes and clients would connect to themselves; name this machine as they see it")
    return warnings


def open_listeners(box: Box) -> list[str]:
    """Return `NAME (ADDRESS:PORT)` of the listeners that clients of other machines may use without
    authentication."""
    found = [listener for listener in box.kafka_listeners if not authenticates(box, listener) and not is_loopback(listener.address)]
    return [f"{listener.name} ({listener.address}:{listener.port})" for listener in found]


def authenticates(box: Box, listener: KafkaListener) -> bool:
    """Return whether clients of a listener need a login or a certificate."""
    client_auth = listener.settings.get("ssl.client.auth", box.setting("ssl.client.auth"))
    return uses_sasl(listener.protocol) or (listener.protocol == SSL and client_auth == "required")


def access_warning(box: Box) -> str | None:
    """Return the warning about open listeners, or None if there are none."""
    names = open_listeners(box)
    if not names:
        return None
    many = len(names) > 1
    return (
        f"{'listeners' if many else 'listener'} {', '.join(names)} {'serve' if many else 'serves'} Kafka clients of other machines without "
        "authentication; restrict them by a firewall, a loopback address, SASL, or ssl.client.auth=required"
    )


def is_loopback(host: str) -> bool:
    """Return whether a host name or address is loopback; False if it does not resolve."""
    try:
        return ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
