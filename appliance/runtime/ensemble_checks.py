"""What is looked at before a box takes part in an ensemble of the boxes' own: ports of its member, and addresses that its peers could not use.

Binds for a moment; nothing stays open. Weak spot: whether the other boxes reach these ports (a firewall between them) is seen only once all have started.
"""

from __future__ import annotations

import errno
import ipaddress
import socket
from collections.abc import Sequence

from appliance.base.zookeeper_member import ZooKeeperMember

WILDCARDS = ("0.0.0.0", "::", "*", "")


def member_problems(member: ZooKeeperMember, is_running: bool = False) -> list[str]:
    """Why this machine cannot run `member`; of one that runs already, whose ports are its own, only whether the address is this machine's."""
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
                problems.append(f"{name}, with port {port} for {purpose}, {reason}; stop who has it, or give the member other ports, on all boxes")
    return problems


def peer_warnings(members: Sequence[ZooKeeperMember], broker_id: int, listen: str, advertise: str) -> list[str]:
    """What keeps the other boxes of the ensemble from using this one. Boxes that are all on loopback (in a test) are no trouble."""
    others = [member for member in members if member.member_id != broker_id]
    if not others or all(is_loopback(member.plain_host) for member in others):
        return []
    warnings = []
    if listen not in WILDCARDS and is_loopback(listen):
        warnings.append(
            f"--listen is {listen}, where the other boxes cannot reach this one: it gets no replica and gives none; listen on an address of the network"
        )
    if is_loopback(advertise):
        warnings.append(f"--advertise is {advertise}: the other boxes and clients are told to connect to themselves; name this machine as they see it")
    return warnings


def is_loopback(host: str) -> bool:
    """Whether a name or an address means the machine itself; a name that does not resolve means nothing."""
    try:
        return ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
