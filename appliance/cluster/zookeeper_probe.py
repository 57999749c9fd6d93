"""Probe whether ZooKeeper servers serve, with the four-letter word `srvr` and without kazoo, and
whether a restart of a box costs the ensemble its majority.

`srvr`, not `ruok`: a running server that belongs to no quorum answers `ruok` all the same.
`millrace box list` and `topic list` probe the ensemble, and install.sh does before an upgrade
(`python -m appliance.cluster.zookeeper_probe OWN_ID MEMBER… [--tls KEYSTORE AUTHORITIES]`, with the
machine's own Python and the standard library only). Weak: a server whose `4lw.commands.whitelist` lacks `srvr` (it is there by
default) counts as serving. A member that this box does not reach counts as missing, even if the
others reach it.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Collection, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING

from appliance.base.zookeeper_access import ZooKeeperTls
from appliance.base.zookeeper_member import ZooKeeperMember, in_words, parse_member

if TYPE_CHECKING:
    import ssl

PROBE_TIMEOUT_SECONDS = 0.25
NOT_WHITELISTED = b"not in the whitelist"


def zookeeper_serves(host: str, port: int, timeout_seconds: float = PROBE_TIMEOUT_SECONDS, tls: ssl.SSLContext | None = None) -> bool:
    """Whether the server answers as a standalone server, leader, follower or observer, or refuses
    `srvr`.

    Waits at most `timeout_seconds` per step. `tls`: ask with TLS.
    """
    try:
        with ExitStack() as closed:
            connection = closed.enter_context(socket.create_connection((host, port), timeout_seconds))
            if tls is not None:
                connection = closed.enter_context(tls.wrap_socket(connection, server_hostname=host))
            connection.sendall(b"srvr")
            answer = b""
            while chunk := connection.recv(4096):
                answer += chunk
    except OSError:
        return False
    return b"\nMode: " in answer or NOT_WHITELISTED in answer


PROBE_SECONDS = 1.0


def missing_members(members: Sequence[ZooKeeperMember], tls: ssl.SSLContext | None = None) -> list[ZooKeeperMember]:
    """Return the members that do not serve or do not answer. `tls`: how they are asked."""
    if not members:
        return []
    from concurrent.futures import ThreadPoolExecutor  # here: long-running processes need only `zookeeper_serves`

    with ThreadPoolExecutor(len(members)) as pool:
        serving = list(pool.map(lambda member: zookeeper_serves(member.plain_host, member.client_port, PROBE_SECONDS, tls), members))
    return [member for member, serves in zip(members, serving, strict=True) if not serves]


def missing_words(missing: Sequence[ZooKeeperMember]) -> str:
    """Return a warning about missing members; '' if there are none."""
    if not missing:
        return ""
    addresses = ", ".join(member.client_address for member in missing)
    verb = "does" if len(missing) == 1 else "do"
    return f"ZooKeeper: {in_words([member.member_id for member in missing])} ({addresses}) {verb} not serve; restart no other box before that is mended"


def restart_costs_majority(member_ids: Collection[int], own_id: int, missing_ids: Collection[int]) -> bool:
    """Whether the ensemble has a majority now that it would lose while `own_id` is down."""
    if own_id not in member_ids or own_id in missing_ids:
        return False
    return len(member_ids) - len(missing_ids) - 1 < len(member_ids) // 2 + 1


def main(arguments: list[str]) -> int:
    """Print why this box must not be restarted now; nothing if it may be."""
    own_id, texts, files = int(arguments[0]), arguments[1:], []
    if "--tls" in texts:
        texts, files = texts[: texts.index("--tls")], texts[texts.index("--tls") + 1 :]
    members = [parse_member(text) for text in texts]
    missing = missing_members(members, ZooKeeperTls(*files).context() if files else None)
    if restart_costs_majority([member.member_id for member in members], own_id, [member.member_id for member in missing]) and missing:
        print(missing_words(missing))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
