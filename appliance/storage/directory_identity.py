"""Check that a log directory may be used: its lock, and the broker and cluster that it belongs to.

The log-writer calls it when it opens the directory. `runtime/preflight.py` reports before the start
what can be known then, with the names of the command's options. Weak spot: on the first start of a
box with a ZooKeeper ensemble no cluster id is known, and only the broker id keeps directories of
another cluster out.
"""

from __future__ import annotations

from appliance.base.errors import ConfigurationProblems
from appliance.storage import checkpoints, file_io
from appliance.storage.meta_properties import DIRECTORY_ID, META_PROPERTIES, MetaProperties

LOCK_FILE = ".lock"
CLEAN_SHUTDOWN_MARKER = ".kafka_cleanshutdown"
PROBE_FILE = ".millrace-probe"
"""4 KiB that the log-writer writes again and again, to see whether the disk answers."""
KNOWN_NAMES = frozenset(
    {
        LOCK_FILE,
        CLEAN_SHUTDOWN_MARKER,
        META_PROPERTIES,
        checkpoints.RECOVERY_POINTS,
        checkpoints.HIGH_WATERMARKS,
        checkpoints.LOG_START_OFFSETS,
        "cleaner-offset-checkpoint",
        "remote-log-index-cache",
        "lost+found",
        PROBE_FILE,
    }
)


def lock_holder(fd: int) -> str:
    """Describe the process whose id is in the lock file."""
    text = file_io.pread_all(fd, 0, 32).decode("ascii", "replace").strip()
    return f"process {text}" if text.isdigit() else "another process (of Kafka, perhaps)"


def read_identity(path: str) -> MetaProperties | None:
    """What `meta.properties` says; None if there is none. Raises `ValueError` for one that cannot be understood."""
    try:
        return MetaProperties.decode(file_io.read_file(f"{path}/{META_PROPERTIES}"))
    except FileNotFoundError:
        return None


def identity_problems(path: str, identity: MetaProperties, broker_id: int | None, cluster_id: str | None) -> list[str]:
    problems = []
    if broker_id is not None and identity.broker_id not in (None, broker_id):
        problems.append(f"{path} belongs to broker {identity.broker_id}, this is broker {broker_id}; name another directory or change broker.id")
    if cluster_id is not None and identity.cluster_id not in (None, cluster_id):
        problems.append(f"{path} belongs to cluster {identity.cluster_id}, this is cluster {cluster_id}; name another directory or its ZooKeeper")
    return problems


def claim_identity(path: str, broker_id: int | None, cluster_id: str | None, new_directory_id: str = "") -> MetaProperties:
    """Check `meta.properties` against ours and write what it does not say yet. Raises `ConfigurationProblems`.

    A directory keeps the id it once got: by it the controller knows the disk again under any name and path.
    """
    try:
        known = read_identity(path)
    except ValueError as problem:
        raise ConfigurationProblems([f"{path}/{META_PROPERTIES}: {problem}; this is not a log directory of this kind of broker"]) from None
    identity = known or MetaProperties(0, None, None)
    problems = identity_problems(path, identity, broker_id, cluster_id)
    if problems:
        raise ConfigurationProblems(problems)
    wanted = identity._replace(
        broker_id=identity.broker_id if broker_id is None else broker_id,
        cluster_id=identity.cluster_id if cluster_id is None else cluster_id,
    )
    if new_directory_id and not wanted.directory_id:
        wanted = wanted._replace(others=(*wanted.others, (DIRECTORY_ID, new_directory_id)))
    if wanted != known:
        file_io.replace_file(f"{path}/{META_PROPERTIES}", wanted.encode())
    return wanted
