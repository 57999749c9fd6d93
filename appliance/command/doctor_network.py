"""Check addresses: the advertised one, the ports, ZooKeeper, and the boxes of the cluster.

It connects and binds for a moment; nothing stays open. Weak spots: what this machine reaches, clients may not reach, and the
reverse (NAT), so such findings are warnings; a box that is cut off from its cluster sees an old state of it.
"""

from __future__ import annotations

import ipaddress
import os
import socket
from collections.abc import Iterable

from appliance.base.clock import Clock, SystemClock
from appliance.base.layout import SYSTEM_ROOT, BoxLayout
from appliance.base.settings import Box
from appliance.base.zookeeper_access import access_problems, zookeeper_tls
from appliance.cluster.metadata_image import MetadataImage, TopicImage
from appliance.cluster.state_log import OFFSETS_TOPIC, SHARE_TOPIC, TRANSACTIONS_TOPIC
from appliance.cluster.zookeeper_probe import zookeeper_serves
from appliance.command.findings import Finding, from_sentence, ok, problem, warning
from appliance.command.output import plural
from appliance.runtime.ensemble_checks import member_problems, open_listeners, peer_warnings
from appliance.runtime.listening import open_listen_sockets
from appliance.runtime.run_options import AUTO_CREATE, WILDCARD_HOSTS
from appliance.runtime.unit_files import has_own_network
from appliance.runtime.unit_process import SYSTEMD
from appliance.security.listeners import is_encrypted
from appliance.shm.counters import read_counters

SUBJECT = "cluster"
NAMES_SHOWN = 5
_WANTED = {
    OFFSETS_TOPIC: "offsets.topic.replication.factor",
    TRANSACTIONS_TOPIC: "transaction.state.log.replication.factor",
    SHARE_TOPIC: "share.coordinator.state.topic.replication.factor",
}
_USERS = {OFFSETS_TOPIC: "groups", TRANSACTIONS_TOPIC: "transactions", SHARE_TOPIC: "share groups"}


def look_at_cluster(image: MetadataImage, box: Box) -> list[Finding]:
    """Nothing of a box that is alone."""
    brokers = sorted(image.brokers)
    if len(brokers) < 2:
        return []
    findings = [_controller(image)]
    findings += [found for name, setting in _WANTED.items() if (found := _state_topic(image, name, box.integer(setting))) is not None]
    single = sorted(name for name, topic in image.topics.items() if not topic.is_internal and _replicas(topic) == 1)
    if single:
        words = f"{plural(len(single), 'topic')} with a single copy ({_shown(single)}), though there are {len(brokers)} boxes"
        findings.append(warning(SUBJECT, words, "what is on a box or disk that dies is gone; `millrace topic alter NAME --replication-factor N` makes copies"))
    return findings


def _controller(image: MetadataImage) -> Finding:
    boxes = f"brokers {', '.join(map(str, sorted(image.brokers)))}"
    if image.controller_id in image.brokers:
        return ok(SUBJECT, f"{boxes}; controller is {image.controller_id}")
    return problem(SUBJECT, f"{boxes}; none of them is the controller", "look at ZooKeeper and at millrace-controller on each box")


def _state_topic(image: MetadataImage, name: str, wanted: int) -> Finding | None:
    """It was made with as many copies as there were boxes, and does not grow by itself."""
    topic = image.topics.get(name)
    wanted = min(wanted, len(image.brokers))
    if topic is None or _replicas(topic) >= wanted:
        return None
    words = f"topic {name} has {plural(_replicas(topic), 'replica')}, {wanted} are wanted: it was made when there were fewer boxes"
    advice = f"`millrace topic alter {name} --replication-factor {wanted}`; until then {_USERS[name]} stop when a box dies"
    if name == TRANSACTIONS_TOPIC and wanted > 2:
        advice += ". Then `--set min.insync.replicas=2`"
    return warning(SUBJECT, words, advice)


def _replicas(topic: TopicImage) -> int:
    return min((len(partition.replicas) for partition in topic.partitions), default=0)


def _shown(names: Iterable[str]) -> str:
    shown = list(names)
    return ", ".join(shown[:NAMES_SHOWN]) + (", …" if len(shown) > NAMES_SHOWN else "")


CONNECT_SECONDS = 3.0
ZOOKEEPER_SECONDS = 2.0
EXPIRES_SOON_DAYS = 30


def look_at_network(box: Box, is_running: bool) -> list[Finding]:
    return [
        *advertised(box, is_running),
        access(box),
        *certificates(box, SystemClock()),
        *encryption(box),
        creation_by_name(box),
        *ports(box, is_running),
        *ensemble(box, is_running),
        *zookeeper(box, is_running),
        *secret(box),
    ]


def access(box: Box) -> Finding:
    """Check whether clients of other machines need to authenticate themselves."""
    names = open_listeners(box)
    if names:
        advice = "restrict the ports by a firewall, listen on a loopback address, or set ssl.client.auth to required"
        return warning("access", f"without authentication, clients of other machines may use listener {', '.join(names)}", advice)
    return ok("access", "no listener serves clients of other machines without authentication")


def certificates(box: Box, clock: Clock) -> list[Finding]:
    """Check until when the certificates of listeners are valid."""
    found = []
    encrypted = [each for each in box.kafka_listeners if is_encrypted(each.protocol)]
    if not encrypted:
        return []
    from appliance.security.tls_contexts import certificate_expiry

    for listener in encrypted:
        path = str(listener.settings.get("ssl.keystore.location", box.setting("ssl.keystore.location")))
        expires_s = certificate_expiry(path)
        if expires_s is None:
            continue  # why it cannot be used is said elsewhere
        days = (expires_s - clock.wall_ms() // 1000) // 86_400
        words = f"the certificate of listener {listener.name} ({path}) " + (f"expires in {plural(days, 'day')}" if days >= 0 else "has expired")
        advice = "replace the file; it is loaded within a second"
        if days >= EXPIRES_SOON_DAYS:
            found.append(ok("certificate", words))
        else:
            found.append((problem if days < 0 else warning)("certificate", words, advice))
    return found


def encryption(box: Box, kernel_tls: str = "/proc/net/tls_stat") -> list[Finding]:
    """Say where records of TLS are encrypted. `kernel_tls`: a file that exists if the kernel has loaded its TLS."""
    names = [each.name for each in box.kafka_listeners if is_encrypted(each.protocol)]
    if not names:
        return []
    import ssl  # OpenSSL takes 4 MB

    kernel = "has kernel TLS (kTLS), which the box does not use" if os.path.exists(kernel_tls) else "has no kernel TLS (kTLS) loaded"
    return [ok("encryption", f"TLS of {', '.join(names)} is encrypted in user space, by {ssl.OPENSSL_VERSION}; this kernel {kernel}")]


def creation_by_name(box: Box) -> Finding:
    """Check whether clients, which have no identity, can create topics by naming them."""
    creates, is_open = box.flag(AUTO_CREATE), bool(open_listeners(box))
    words = f"{AUTO_CREATE} is {str(creates).lower()}, listening on {box.listen}"
    if creates and is_open:
        bound = box.integer("max.topics")
        advice = f"any client that reaches the box can create {bound} topics (max.topics); set it to false and use `millrace topic create`"
        return warning("topics", words, advice)
    return ok("topics", words if creates else f"{words}: topics are created by `millrace topic create` and by listeners' routes only")


def advertised(box: Box, is_running: bool) -> list[Finding]:
    """Kafka clients connect to the advertised address, not to the one they were given first."""
    subject = "advertised"
    try:
        addresses = sorted({str(found[4][0]) for found in socket.getaddrinfo(box.advertise, None, type=socket.SOCK_STREAM)})
    except OSError as error:
        return [problem(subject, f"{box.advertise} does not resolve: {error.strerror}", "clients cannot connect to it; name this machine with --advertise")]
    if finding := judge_loopback(box.listen, box.advertise, addresses):
        return [finding]
    words = box.advertise if addresses == [box.advertise] else f"{box.advertise} is {', '.join(addresses)}"
    if is_running:
        return [_connect(subject, words, box)]
    if not any(is_local(address) for address in addresses):
        return [warning(subject, f"{words}, which is no address of this machine", "fine behind a NAT or a load balancer; else correct --advertise")]
    return [ok(subject, words)]


def judge_loopback(listen: str, advertise: str, addresses: list[str]) -> Finding | None:
    """A box that listens beyond loopback must not advertise loopback."""
    if not all(ipaddress.ip_address(address.partition("%")[0]).is_loopback for address in addresses):
        return None
    if listen in WILDCARD_HOSTS:
        advice = "clients on other machines would connect to themselves: use --advertise NAME, as they see this machine"
        return warning("advertised", f"{advertise}, a loopback address, while listening on every address", advice)
    return None


def _connect(subject: str, words: str, box: Box) -> Finding:
    try:
        for _, host, port in (listener.endpoint for listener in box.kafka_listeners):
            socket.create_connection((host, port), CONNECT_SECONDS).close()
    except OSError as error:
        reason = error.strerror or str(error)
        advice = "clients get no further either, unless only this machine cannot reach it: correct --advertise or open the port"
        return warning(subject, f"{words}, but port {box.kafka_port} does not answer there from here: {reason.lower()}", advice)
    return ok(subject, f"{words}, port {box.kafka_port} answers from here")


def is_local(address: str) -> bool:
    """Whether this machine has the address: then it can be bound to."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
    return True


def ports(box: Box, is_running: bool) -> list[Finding]:
    others = [("syslog", box.syslog_port), ("http", box.http_port), ("ingest", box.ingest_port)]
    named = [(f"kafka listener {each.name}" if box.listeners else "kafka", each.address, each.port) for each in box.kafka_listeners]
    named += [(name, box.listen, port) for name, port in others]
    words = ", ".join(f"{name} {port or 'any'}" + (f" on {host}" if host != box.listen else "") for name, host, port in named) + f" on {box.listen}"
    if not is_running:
        listening, problems = open_listen_sockets(
            box.listen, box.kafka_port, box.syslog_port, box.http_port, box.ingest_port, box.sender_sockets, box.listeners
        )
        listening.close()
        return [from_sentence("ports", sentence) for sentence in problems] or [ok("ports", f"{words}: free")]
    silent = [(name, port) for name, host, port in named if not _answers(host, port)]
    advice = "look at `millrace status`; its process may be starting"
    return [problem("ports", f"{name} port {port} is the box's and does not answer", advice) for name, port in silent] or [ok("ports", f"{words}: this box's")]


def _answers(listen: str, port: int) -> bool:
    host = {"::": "::1"}.get(listen, "127.0.0.1") if listen in WILDCARD_HOSTS else listen
    try:
        socket.create_connection((host, port), CONNECT_SECONDS).close()
    except OSError:
        return False
    return True


def ensemble(box: Box, is_running: bool) -> list[Finding]:
    """Check this box as a member of the boxes' ensemble: its own ports, and its address at the peers."""
    own = next((member for member in box.ensemble if member.member_id == box.broker_id), None)
    findings = [from_sentence("member", sentence) for sentence in member_problems(own, is_running)] if own is not None else []
    for sentence in peer_warnings(box.ensemble, box.broker_id, box.listen, box.advertise):
        words, _, advice = sentence.partition("; ")
        findings.append(warning("member", words, advice))
    return findings


def zookeeper(box: Box, is_running: bool) -> list[Finding]:
    """Check every named server. One that serves is enough for the box; fewer than all is a warning."""
    if box.embedded_zookeeper and not is_running and len(box.zookeeper_members) <= 1:
        return [ok("zookeeper", "embedded, starts with the box")]
    if box.embedded_zookeeper and not is_running:
        others = [f"{member.member_id} ({member.plain_host})" for member in box.ensemble if member.member_id != box.broker_id]
        return [ok("zookeeper", f"member {box.broker_id} starts with the box, and waits for {' or '.join(others)}")]
    if box.managed_by == SYSTEMD and has_own_network(box):
        counters = read_counters(BoxLayout(f"{SYSTEM_ROOT}/{box.box}"), "zookeeper")
        return [judge_zookeeper({box.zookeeper: counters is not None and counters.state == "serving"}, True)]
    servers = [server.rpartition(":") for server in box.zookeeper.partition("/")[0].split(",")]
    tls = zookeeper_tls(box.settings)
    try:
        context = None if tls is None else tls.context()
    except OSError as error:
        return [warning("zookeeper", f"not asked: {error}", "zookeeper.ssl.keystore.location and zookeeper.ssl.truststore.location name PEM files")]
    serving = {f"{host}:{port}": zookeeper_serves(host.strip("[]"), int(port), ZOOKEEPER_SECONDS, context) for host, _, port in servers}
    return [judge_zookeeper(serving, box.embedded_zookeeper)]


def secret(box: Box) -> list[Finding]:
    """Whether the box has credentials for ZooKeeper, and whether ZooKeeper asks for any. Users who may not look into the state directory hear nothing."""
    if os.path.exists(box.state_directory) and not os.access(box.state_directory, os.R_OK | os.X_OK):
        return []
    findings = [from_sentence("secret", sentence) for sentence in access_problems(box)]
    is_own = box.embedded_zookeeper or bool(box.zookeeper_members)
    if is_own and not box.flag("zookeeper.auth.required"):
        words = "zookeeper.auth.required is false: every program that reaches ZooKeeper can change the cluster"
        findings.append(warning("secret", words, "take it out of the settings when every box has the secret"))
    elif not is_own and not box.text("zookeeper.digest.file"):
        words = "the ZooKeeper that --zookeeper names gets no credentials: every program that reaches it can change the cluster"
        findings.append(warning("secret", words, "zookeeper.digest.file names a file with USER:PASSWORD"))
    return findings


def judge_zookeeper(serving: dict[str, bool], is_embedded: bool) -> Finding:
    silent = [server for server, serves in serving.items() if not serves]
    which = "embedded, " if is_embedded else ""
    if not silent:
        return ok("zookeeper", f"{which}{', '.join(serving)} serves" if len(serving) == 1 else f"{', '.join(serving)} serve")
    words = f"{which}{', '.join(silent)} does not serve" if len(silent) == 1 else f"{', '.join(silent)} do not serve"
    if len(silent) < len(serving):
        return warning("zookeeper", words, "the others carry on; bring it back before another one goes")
    return problem(
        "zookeeper", words, "topics cannot be created until it is back; " + ("see `millrace status`" if is_embedded else "check --zookeeper, and the servers")
    )
