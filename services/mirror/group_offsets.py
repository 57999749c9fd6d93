"""Committed offsets of consumer groups, translated from a source to the target.

For groups that the options name and that have no members on the target; an offset there is never moved back.
A group that goes on at the target reads each record that it has not read at the source, and possibly some
again (`OffsetRuns.translate`). Owned by the one thread of the mirror. Weak spot: a group's offset from before
the mirror was started is translated only as far as the mirror's last known position.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from appliance.base.errors import RequestRefused
from appliance.base.model import TopicPartition
from appliance.client.cluster import ClusterClient
from appliance.client.errors import ClientFailed
from appliance.client.groups import MIRROR_PREFIX, CommittedOffset, committed_offsets, list_groups, set_offsets
from services.mirror.mirror_file import MirroredSource
from services.mirror.source import MirroredPartition, MirrorSource

IDLE_STATES = frozenset(("", "Empty", "Dead"))


def translate_groups(
    source: MirrorSource, target: ClusterClient, partitions: Mapping[TopicPartition, MirroredPartition], on_progress: Callable[[], None]
) -> None:
    """Translate the offsets of all chosen groups once; failures are noted at the source. `on_progress` is called for each group.

    `partitions`: without those whose partition in the target has another source, too: an offset there says nothing about the other one."""
    try:
        chosen = [each.group_id for each in list_groups(source.cluster) if is_chosen(source.options, each.group_id)]
        if not chosen:
            return
        active = {each.group_id for each in list_groups(target) if each.state not in IDLE_STATES}
        for group_id in chosen:
            on_progress()
            if group_id not in active:
                wanted = plan_offsets(partitions, committed_offsets(source.cluster, group_id), committed_offsets(target, group_id))
                if wanted:
                    set_offsets(target, group_id, wanted)
                    source.translated_offsets += len(wanted)
    except (ClientFailed, RequestRefused) as error:
        text = error.message if isinstance(error, RequestRefused) else str(error)
        if text != source.group_problem:
            source.notices.append(f"offsets of groups of source {source.name}: {text}; retrying")
        source.group_problem = text
    else:
        source.group_problem = ""


def is_chosen(options: MirroredSource, group_id: str) -> bool:
    return not group_id.startswith(MIRROR_PREFIX) and any(each.fullmatch(group_id) for each in options.groups)


def plan_offsets(
    partitions: Mapping[TopicPartition, MirroredPartition],
    committed: Mapping[TopicPartition, CommittedOffset],
    there: Mapping[TopicPartition, CommittedOffset],
) -> dict[TopicPartition, int]:
    """Return the offsets to set on the target, of those that it does not have, or has lower ones of."""
    wanted: dict[TopicPartition, int] = {}
    for name, offset in committed.items():
        partition = partitions.get(name)
        translated = None if partition is None else partition.runs.translate(offset.offset)
        if partition is not None and translated is not None and (partition.target not in there or translated > there[partition.target].offset):
            wanted[partition.target] = translated
    return wanted
