"""What `millrace doctor` says of the cluster of a running box, as its metadata image has it: are there as many copies as there are boxes for? Pure.

Weak spot: sees the cluster as this box does; a box that was cut off sees it as it was.
"""

from __future__ import annotations

from collections.abc import Iterable

from appliance.base.settings import Box
from appliance.cluster.internal_topics import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from appliance.cluster.metadata_image import MetadataImage, TopicImage
from appliance.command.findings import Finding, ok, problem, warning
from appliance.command.output import plural

SUBJECT = "cluster"
NAMES_SHOWN = 5
_WANTED = {OFFSETS_TOPIC: "offsets.topic.replication.factor", TRANSACTIONS_TOPIC: "transaction.state.log.replication.factor"}


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
    what = "groups" if name == OFFSETS_TOPIC else "transactions"
    words = f"topic {name} has {plural(_replicas(topic), 'replica')}, {wanted} are wanted: it was made when there were fewer boxes"
    advice = f"`millrace topic alter {name} --replication-factor {wanted}`; until then {what} stop when a box dies"
    if name == TRANSACTIONS_TOPIC and wanted > 2:
        advice += ". Then `--set min.insync.replicas=2`"
    return warning(SUBJECT, words, advice)


def _replicas(topic: TopicImage) -> int:
    return min((len(partition.replicas) for partition in topic.partitions), default=0)


def _shown(names: Iterable[str]) -> str:
    shown = list(names)
    return ", ".join(shown[:NAMES_SHOWN]) + (", …" if len(shown) > NAMES_SHOWN else "")
