"""The members of the boxes' ZooKeeper ensemble, for `box list` and `topic list`.

Weak: the members are in the settings of the box that runs here; with `--bootstrap` a command knows
none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from appliance.base.settings import default_settings
from appliance.base.zookeeper_access import zookeeper_tls
from appliance.base.zookeeper_member import ZooKeeperMember, parse_member
from appliance.command.finding import find_running_box

if TYPE_CHECKING:
    import ssl


class EnsembleView(NamedTuple):
    """`missing` are those of `members` that do not serve."""

    members: list[ZooKeeperMember]
    missing: list[ZooKeeperMember]

    def state_of(self, broker_id: int) -> str:
        """Return the state of the member that a box runs; '' for a box that runs none."""
        if broker_id in {member.member_id for member in self.missing}:
            return "missing"
        return "serving" if broker_id in {member.member_id for member in self.members} else ""

    @property
    def words(self) -> str:
        from appliance.cluster.zookeeper_probe import missing_words

        return missing_words(self.missing)


def probe_ensemble(bootstrap: str | None, data: str | None, config: str | None) -> EnsembleView:
    """Probe the members that the box of these options knows."""
    box = find_running_box(data, config).box if bootstrap is None else {}
    texts = box.get("zookeeper_members", [])
    if not texts:
        return EnsembleView([], [])
    from appliance.cluster.zookeeper_probe import missing_members

    members = [parse_member(str(text)) for text in texts]
    try:
        return EnsembleView(members, missing_members(members, probe_context(box)))
    except OSError:  # the user may not read the certificate of the box
        return EnsembleView([], [])


def probe_context(box: dict[str, Any]) -> ssl.SSLContext | None:
    """Return what members are asked with; None: clear text. Raises OSError if this user cannot read the files."""
    tls = zookeeper_tls({**default_settings(), **box.get("settings", {})})
    return None if tls is None else tls.context()
