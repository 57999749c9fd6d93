"""What the page of consumer groups shows, as JSON, and what it changes: through a client of Kafka, in a
thread of `KafkaWorkers`.

Each function takes a client and `Parameters`, and returns a document. Lists are bounded; what is left
out is counted. Weak: commits and ends are read one after the other, so the lag of a busy partition is
of no exact moment.
"""

from __future__ import annotations

from typing import Any

from appliance.client.cluster import ClusterClient
from appliance.client.groups import (
    ResetTo,
    committed_offsets,
    delete_group,
    describe_group,
    group_lags,
    group_or_new,
    group_progress,
    list_groups,
    partitions_to_reset,
    plan_reset,
    require_no_members,
    set_offsets,
)
from services.console.parameters import Parameters, WrongParameter

GROUPS_LISTED = 500
MEMBERS_SHOWN = 500
PARTITIONS_SHOWN = 2_000
WAYS = ("earliest", "latest", "time", "offset", "shift")


def groups_document(cluster: ClusterClient, given: Parameters) -> dict[str, Any]:
    """Return the groups whose names contain a text, with their states and lags."""
    contained = given.text("contains", "")
    found = [group for group in list_groups(cluster) if contained in group.group_id]
    lags = group_lags(cluster, found[:GROUPS_LISTED])
    return {"groups": [group._asdict() | {"lag": lags.get(group.group_id)} for group in found[:GROUPS_LISTED]], "count": len(found)}


def group_document(cluster: ClusterClient, given: Parameters) -> dict[str, Any]:
    """Return a group's state, members with what each reads, and its lag by partition."""
    name = given.text("group")
    described = describe_group(cluster, name)
    progress = group_progress(cluster, name, described)
    lags = [row["lag"] for row in progress if row["lag"] is not None]
    return {
        "group": name,
        "state": described.state,
        "protocol": described.group_type,
        "assignor": described.assignor,
        "members": [member._asdict() | {"partitions": [list(each) for each in member.partitions]} for member in described.members[:MEMBERS_SHOWN]],
        "members_count": len(described.members),
        "partitions": progress[:PARTITIONS_SHOWN],
        "partitions_count": len(progress),
        "lag": sum(lags) if lags or not progress else None,
    }


def reset(cluster: ClusterClient, given: Parameters) -> dict[str, Any]:
    """Plan where a group without members goes on, and with `execute` set it."""
    given.require_known("group", "topic", "partition", "to", "offset", "time", "execute")
    name, way, partition = given.text("group"), given.choice("to", WAYS), given.optional_number("partition")
    value = 0
    if way == "time":
        value = given.moment("time")
    elif way in ("offset", "shift"):
        value = given.number("offset", low=-(1 << 62) if way == "shift" else 0)
    topic = given.text("topic", "")
    if partition is not None and not topic:
        raise WrongParameter("a partition needs its topic")
    require_no_members(group_or_new(cluster, name))
    committed = committed_offsets(cluster, name)
    partitions = partitions_to_reset(cluster, [(topic, () if partition is None else (partition,))] if topic else [], committed)
    if not partitions:
        raise WrongParameter(f"group {name} has no offsets yet; name a topic")
    planned = plan_reset(cluster, ResetTo(way, value), partitions, committed)
    if given.flag("execute"):
        set_offsets(cluster, name, {each: plan.target for each, plan in planned.items()})
    rows = [each._asdict() | plan._asdict() for each, plan in sorted(planned.items())]
    return {"group": name, "partitions": rows[:PARTITIONS_SHOWN], "partitions_count": len(rows)}


def delete(cluster: ClusterClient, given: Parameters) -> dict[str, Any]:
    """Delete a group without members, and its offsets; `confirm` must be its name."""
    given.require_known("group", "confirm")
    name = given.text("group")
    if given.text("confirm", "") != name:
        raise WrongParameter("confirm must be the name of the group")
    delete_group(cluster, name)
    return {"group": name}
