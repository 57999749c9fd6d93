"""supervisor: the parent of everything under `millrace run`; its only argument is the options as JSON."""

from __future__ import annotations

from appliance.runtime.supervisor import main


def check_zookeeper() -> list[str]:
    """Called in a throw-away child, hence the import here."""
    from appliance.agents.zookeeper import zookeeper_problems

    return zookeeper_problems()


if __name__ == "__main__":
    raise SystemExit(main(check_zookeeper))
