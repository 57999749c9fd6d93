"""Which job fills a directory, and of which topics: what table.json keeps, and whether a later run is the same. Values only.

The ids of the cluster and of its topics are compared where both sides know them: a directory that was begun without them is given them by its next run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from appliance.base.model import TopicId
from appliance.pipeline.cluster_access import ClusterAccess
from appliance.pipeline.topic_offsets import TopicOffsets

CLUSTER_ID, TOPIC_IDS = "cluster_id", "topic_ids"


def ask_source(access: ClusterAccess, topics: Iterable[str]) -> dict[str, Any]:
    """The ids. Raises SourceProblem for a topic that is not there, and for a cluster that does not answer."""
    with TopicOffsets(access) as offsets:
        names = sorted(set(topics))
        offsets.partitions_of(names)
        known = offsets.access_for(names)
    return {CLUSTER_ID: known.cluster_id, TOPIC_IDS: {name: str(TopicId(number)) for name, number in known.topic_ids}}


def difference(kept: Mapping[str, Any], wanted: Mapping[str, Any]) -> str:
    """Why a run is not the one whose directory it is, or an empty text."""
    other = [name for name in wanted if name not in (CLUSTER_ID, TOPIC_IDS) and kept.get(name) != wanted[name]]
    if other:
        said = "; ".join(f"{name} was {kept.get(name)}, and is {wanted[name]} now" for name in other)
        return f"was begun by another job ({said}): its offsets and state would not fit"
    before, now = kept.get(CLUSTER_ID), wanted.get(CLUSTER_ID)
    if before and now and before != now:
        return f"was begun with topics of cluster {before}, and this one is {now}: its offsets mean other records here"
    ids = wanted.get(TOPIC_IDS, {})
    for topic, topic_id in sorted(kept.get(TOPIC_IDS, {}).items()):
        if ids.get(topic, topic_id) != topic_id:
            return f"has the records of an earlier topic {topic}, which was deleted and made anew: its offsets mean other records now"
    return ""


def completed(kept: Mapping[str, Any], wanted: Mapping[str, Any]) -> dict[str, Any]:
    """`kept` with the ids that it does not have yet."""
    ids = {**wanted.get(TOPIC_IDS, {}), **kept.get(TOPIC_IDS, {})}
    cluster_id = kept.get(CLUSTER_ID) or wanted.get(CLUSTER_ID)
    return {**kept, **({CLUSTER_ID: cluster_id} if cluster_id else {}), **({TOPIC_IDS: ids} if ids else {})}
