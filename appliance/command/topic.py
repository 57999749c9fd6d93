"""`millrace topic …`: create, list, describe, alter, reassign, elect, delete, trim, tail.

`elect` gives leadership back to the first replicas, or, unclean, to any replica if no in-sync replica is online.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from appliance.base.errors import ErrorCode, MillraceError, RequestRefused
from appliance.base.model import TopicPartition, topic_name_problem
from appliance.client.errors import ConnectionLost
from appliance.command.ensemble_view import probe_ensemble
from appliance.command.failures import PartlyDone, UsageProblem
from appliance.command.finding import find_running_box
from appliance.command.kafka import open_cluster, require_topic_name
from appliance.command.options import BootstrapOption, ConfigOption, DataOption, JsonOption, YesOption, argument, confirm, option, parse_setting
from appliance.command.output import NOTHING, Column, count_text, plural, print_table, say
from appliance.command.topic_alter import alter
from appliance.command.topic_reassign import reassign
from appliance.command.topic_tail import tail
from appliance.command.topic_trim import trim

if TYPE_CHECKING:
    from appliance.client.admin import DescribedTopic
    from appliance.client.cluster import ClusterClient, ClusterMetadata, TopicMetadata
    from appliance.protocol.config_apis import DescribedConfig


def elect(
    topics: Annotated[list[str] | None, argument("TOPIC", "The topics. [default: all]")] = None,
    partition: Annotated[
        list[int] | None, option("--partition", metavar="P", min=0, help="This partition of one topic only; may be given several times. [default: all]")
    ] = None,
    unclean: Annotated[
        bool,
        option("--unclean", help="Where no in-sync replica is online, let any other lead: records that it lacks are LOST. Name the topics."),
    ] = False,
    yes: YesOption = False,
    bootstrap: BootstrapOption = None,
    data: DataOption = None,
    config: ConfigOption = None,
) -> None:
    """Let the preferred leader (the first replica) lead each partition again, if it is in sync.

    Example: millrace topic elect; millrace topic elect orders --partition 3 --unclean
    """
    require_meaning(topics or [], partition or [], unclean)
    with open_cluster(bootstrap, data, config) as cluster:
        from appliance.client.boxes import elect_leaders

        found = cluster.metadata(topics or None).topics
        if absent := [name for name in topics or [] if name not in found or found[name].error != ErrorCode.NONE]:
            raise UsageProblem("\n".join(f"there is no topic {name}" for name in absent))
        wanted = [(name, each.partition) for name in sorted(found) for each in found[name].partitions if not partition or each.partition in partition]
        if missing := sorted(set(partition or []) - {number for _, number in wanted}):
            raise UsageProblem(f"topic {(topics or [''])[0]} has no partition {', '.join(map(str, missing))}")
        if unclean and not yes:
            confirm(f"Let any replica lead {', '.join(topics or [])}, and lose the records that it lacks?", "add --yes")
        results = elect_leaders(cluster, wanted, unclean)
    elected = [key for key, refused in results.items() if refused is None]
    failed = [refused for refused in results.values() if refused is not None and refused.code is not ErrorCode.ELECTION_NOT_NEEDED]
    as_it_should = len(results) - len(elected) - len(failed)
    print(f"{plural(len(elected), 'leader')} elected, {as_it_should} {'led' if unclean else 'led by the preferred leader'} already")
    if failed:
        raise PartlyDone("\n".join(str(refused) for refused in failed))


def require_meaning(topics: list[str], partitions: list[int], unclean: bool) -> None:
    """Raises UsageProblem with everything that is wrong."""
    problems = [problem for name in topics if (problem := topic_name_problem(name))]
    if partitions and len(topics) != 1:
        problems.append("--partition is for one topic; name it")
    if unclean and not topics:
        problems.append("--unclean loses records; name the topics that may")
    if problems:
        raise UsageProblem("\n".join(problems))


NameArgument = Annotated[str, argument("NAME", "The topic.")]


def build_app(markup: Literal["rich"] | None) -> typer.Typer:
    app = typer.Typer(help="Create, list, describe, alter, move, delete, trim and follow topics.", no_args_is_help=True, rich_markup_mode=markup)
    app.command("create")(create)
    app.command("list")(list_topics)
    app.command("describe")(describe)
    app.command("alter")(alter)
    app.command("reassign")(reassign)
    app.command("elect")(elect)
    app.command("delete")(delete)
    app.command("trim")(trim)
    app.command("tail")(tail)
    return app


def create(
    name: NameArgument,
    partitions: Annotated[
        int | None, option("--partitions", "-p", metavar="N", min=1, help="Number of partitions. [default: the box's num.partitions]")
    ] = None,
    replication_factor: Annotated[int | None, option("--replication-factor", metavar="N", min=1, help="Copies of each partition. [default: the box's]")] = None,
    setting: Annotated[
        list[str] | None,
        option("--set", metavar="NAME=VALUE", help="A topic setting by Kafka's name, such as retention.ms=3600000; may be given several times."),
    ] = None,
    bootstrap: BootstrapOption = None,
    data: DataOption = None,
    config: ConfigOption = None,
) -> None:
    """Create a topic."""
    require_topic_name(name)
    configs = dict(parse_setting(text) for text in setting or [])
    with open_cluster(bootstrap, data, config) as cluster:
        from appliance.client.admin import create_topic, find_unserved

        was_there = exists(cluster, name)
        words = "created topic"
        try:
            create_topic(cluster, name, partitions=partitions, replication_factor=replication_factor, configs=configs)
        except MillraceError as error:
            words = created_meanwhile(cluster, name, was_there, error)
        created = cluster.topic(name, is_new=True)
        unserved = find_unserved(cluster, [created])
        print(f"{words} {name} with {plural(len(created.partitions), 'partition')}")
        if unserved:
            print(f"{unserved_text(unserved.values())} yet; look with: millrace topic list")


def exists(cluster: ClusterClient, name: str) -> bool:
    topic = cluster.metadata([name]).topics.get(name)
    return topic is not None and topic.error != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


UNKNOWN_OUTCOMES = frozenset({ErrorCode.UNKNOWN_SERVER_ERROR, ErrorCode.REQUEST_TIMED_OUT})
"""Answers after which a controller, or its successor, may still carry out the request."""


def created_meanwhile(cluster: ClusterClient, name: str, was_there: bool, error: MillraceError) -> str:
    """Return what to say if the topic is there although the request failed: a controller that ends after ZooKeeper accepted the topic gives no
    answer, and the next one completes it. Raises `error`, or RequestRefused that says that the outcome is not known."""
    code = error.code if isinstance(error, RequestRefused) else None
    if code is None or code in UNKNOWN_OUTCOMES or (code == ErrorCode.TOPIC_ALREADY_EXISTS and not was_there):
        if not was_there and exists(cluster, name):
            return "the controller restarted before it answered, and now there is topic"
        if code in UNKNOWN_OUTCOMES or isinstance(error, ConnectionLost):
            words = error.message if isinstance(error, RequestRefused) else str(error)
            raise RequestRefused(code or ErrorCode.REQUEST_TIMED_OUT, f"{words}; it may still be created: look with: millrace topic list") from error
    raise error


def unserved_text(reasons: Iterable[str]) -> str:
    """`3 not served (KAFKA_STORAGE_ERROR)`."""
    counted = Counter(reasons)
    return f"{counted.total()} not served ({', '.join(sorted(counted))})"


def list_topics(as_json: JsonOption = False, bootstrap: BootstrapOption = None, data: DataOption = None, config: ConfigOption = None) -> None:
    """List topics, and what is missing of the cluster: boxes, its controller, members of its ZooKeeper ensemble. All decide whether another box may be
    restarted. Each leader is asked whether it serves."""
    with open_cluster(bootstrap, data, config) as cluster:
        from appliance.client.admin import find_unserved

        found = cluster.metadata(None)
        unserved = find_unserved(cluster, found.topics.values())
    troubles = [*cluster_troubles(found), controller_trouble(bootstrap, data, config), probe_ensemble(bootstrap, data, config).words]
    troubles = [words for words in troubles if words]
    states = {}
    for name, topic in sorted(found.topics.items()):
        reasons = [unserved[key] for each in topic.partitions if (key := TopicPartition(name, each.partition)) in unserved]
        states[name] = topic_state(topic, reasons)
    if as_json:
        topics = [
            {"topic": name, "partitions": len(topic.partitions), "replicas": replicas_text(topic), "internal": topic.is_internal, "state": states[name]}
            for name, topic in sorted(found.topics.items())
        ]
        sys.stdout.write(json.dumps({"topics": topics, "problems": troubles}, indent=2) + "\n")
        return
    rows = [[name, str(len(topic.partitions)), replicas_text(topic), states[name]] for name, topic in sorted(found.topics.items())]
    print_table([Column("topic"), Column("partitions", is_number=True), Column("replicas", is_number=True), Column("state")], rows)
    for words in troubles:
        print(words)


def topic_state(topic: TopicMetadata, unserved: list[str]) -> str:
    """Return the state of a topic for `topic list`; `unserved`: why, for each partition whose leader does not serve it."""
    leaderless = sum(partition.leader < 0 for partition in topic.partitions)
    behind = sum(len(partition.isr) < len(partition.assigned_replicas) for partition in topic.partitions)
    troubles = [f"{leaderless} without leader"] if leaderless else []
    troubles += [unserved_text(unserved)] if unserved else []
    troubles += [f"{behind} under-replicated"] if behind else []
    return ", ".join(troubles) or "ok"


def cluster_troubles(found: ClusterMetadata) -> list[str]:
    """Say which boxes that have replicas are missing, and whether there is no controller."""
    replicas = Counter(broker for topic in found.topics.values() for each in topic.partitions for broker in each.assigned_replicas)
    troubles = [f"box {broker} is missing: {plural(replicas[broker], 'replica')}" for broker in sorted(replicas.keys() - found.brokers.keys())]
    if found.controller_id not in found.brokers:
        troubles.append("no box is the controller: topics, leaders and in-sync sets stay as they are until one is elected")
    return troubles


def controller_trouble(bootstrap: str | None, data: str | None, config: str | None) -> str:
    """Say so if the controller process of the box that is asked does not run; '' if it does, or with `--bootstrap`."""
    if bootstrap is not None:
        return ""
    from appliance.command.status import NO_CONTROLLER
    from appliance.shm.counters import read_counters

    snapshot = read_counters(find_running_box(data, config).layout, "controller")
    return NO_CONTROLLER if snapshot is not None and not snapshot.is_alive else ""


def replicas_text(topic: TopicMetadata) -> str:
    """Of each of its partitions: `3`, or `2-3` where they differ."""
    counts = sorted({len(partition.assigned_replicas) for partition in topic.partitions} or {0})
    return str(counts[0]) if len(counts) == 1 else f"{counts[0]}-{counts[-1]}"


SOURCES = {
    "TOPIC": "topic",
    "DYNAMIC_BROKER": "box, altered",
    "DYNAMIC_DEFAULT_BROKER": "all boxes, altered",
    "STATIC_BROKER": "settings file",
    "DEFAULT": "default",
}
"""Where a setting's value comes from, by the names of `ConfigSource`."""


def describe(
    name: NameArgument,
    as_json: JsonOption = False,
    output: Annotated[
        str | None, option("--output", "-o", metavar="wide", help="wide: also each setting that holds for the topic, and where it comes from.")
    ] = None,
    bootstrap: BootstrapOption = None,
    data: DataOption = None,
    config: ConfigOption = None,
) -> None:
    """Show a topic's id, each partition's leader, replicas and offsets, and the settings that were set on the topic itself."""
    require_topic_name(name)
    if output not in (None, "wide"):
        raise UsageProblem(f"--output: there is no form {output!r}; there is wide (for programs: --json)")
    with open_cluster(bootstrap, data, config) as cluster:
        from appliance.client.admin import describe_topic, topic_configs
        from appliance.client.errors import VersionUnsupported

        described = describe_topic(cluster, name)
        try:
            configs: list[DescribedConfig] | None = sorted(topic_configs(cluster, name))
        except VersionUnsupported as error:
            configs = None
            say(f"millrace: no settings are shown: {error}")
    if as_json:
        sys.stdout.write(json.dumps(description_document(described, configs), indent=2) + "\n")
        return
    topic_id = described.topic.topic_id
    own = "".join(f"  {key}={value}" for key, value in (own_settings(configs) or {}).items())
    print(f"topic {name}  id {topic_id or NOTHING}  {plural(len(described.partitions), 'partition')}{own}")
    rows = []
    for metadata, start, end in described.partitions:
        rows.append([
            str(metadata.partition),
            str(metadata.leader) if metadata.leader >= 0 else "none",
            str(metadata.leader_epoch) if metadata.leader_epoch >= 0 else NOTHING,
            ",".join(map(str, metadata.assigned_replicas)),
            ",".join(map(str, metadata.isr)) or "none",
            NOTHING if start is None else str(start),
            NOTHING if end is None else str(end),
            NOTHING if start is None or end is None else count_text(end - start),
        ])  # fmt: skip
    columns = [Column("partition", is_number=True), Column("leader", is_number=True), Column("epoch", is_number=True), Column("replicas"), Column("isr"),
               Column("start offset", is_number=True), Column("end offset", is_number=True), Column("records", is_number=True)]  # fmt: skip
    print_table(columns, rows)
    if output is not None:
        print()
        effective = [[each.name, NOTHING if each.value is None else each.value, source_text(each)] for each in configs or []]
        print_table([Column("setting"), Column("value"), Column("from")], effective)


def own_settings(configs: list[DescribedConfig] | None) -> dict[str, str] | None:
    return None if configs is None else {each.name: each.value or "" for each in configs if source_of(each) == "TOPIC"}


def source_of(config: DescribedConfig) -> str:
    from appliance.protocol.config_apis import ConfigSource

    return ConfigSource(config.config_source).name if config.config_source in list(ConfigSource) else ""


def source_text(config: DescribedConfig) -> str:
    """Return where a value comes from, and the setting of the box that gives it, if that has another name."""
    text = SOURCES.get(source_of(config), NOTHING)
    giving = next((each.name for each in config.synonyms), config.name)
    return text if giving == config.name else f"{text} ({giving})"


def description_document(described: DescribedTopic, configs: list[DescribedConfig] | None) -> dict[str, Any]:
    """What `describe` shows, for programs; `configs` None where the broker does not tell them."""
    partitions = [
        {
            "partition": metadata.partition,
            "leader": metadata.leader,
            "leader_epoch": metadata.leader_epoch,
            "replicas": list(metadata.assigned_replicas),
            "isr": list(metadata.isr),
            "log_start_offset": start,
            "end_offset": end,
        }
        for metadata, start, end in described.partitions
    ]
    topic_id = described.topic.topic_id
    effective = {each.name: {"value": each.value, "from": source_text(each)} for each in configs or []}
    document = {"topic": described.topic.name, "id": str(topic_id) if topic_id else None, "settings": own_settings(configs)}
    return {**document, "effective_settings": effective, "partitions": partitions}


def delete(
    names: Annotated[list[str], argument("NAME", "The topics.")],
    yes: YesOption = False,
    bootstrap: BootstrapOption = None,
    data: DataOption = None,
    config: ConfigOption = None,
) -> None:
    """Delete topics and all their records."""
    for name in names:
        require_topic_name(name)
    with open_cluster(bootstrap, data, config) as cluster:
        from appliance.client.admin import delete_topic

        if not yes:
            known = cluster.metadata().topics
            if absent := [name for name in names if name not in known]:
                raise UsageProblem("\n".join(f"there is no topic {name}; millrace topic list names all" for name in absent))
            confirm(f"Delete {', '.join(names)} and all records for good?", "add --yes")
        for name in names:
            delete_topic(cluster, name)
            print(f"deleted topic {name}")
