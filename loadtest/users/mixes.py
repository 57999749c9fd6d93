"""Mixes of users: which kinds, in what proportion. `produce=4,consume=2` or one of the names below. Pure."""

from __future__ import annotations

KINDS = ("produce", "consume", "syslog-udp", "syslog-tcp")

MIXES: dict[str, str] = {
    "produce": "produce=1",
    "kafka": "produce=2,consume=1",
    "syslog": "syslog-udp=1,syslog-tcp=1",
    "live": "produce=4,consume=2,syslog-udp=2,syslog-tcp=2",
}


def parse_mix(text: str) -> dict[str, int]:
    """Kind → weight, of a name or of a list. Raises ValueError that says what is wrong and what there is."""
    weights: dict[str, int] = {}
    for part in MIXES.get(text, text).split(","):
        kind, _, number = part.strip().partition("=")
        if kind not in KINDS or not (number or "1").isdecimal():
            raise ValueError(f"{part!r} is no part of a mix; name one of {', '.join(MIXES)}, or a list of KIND=WEIGHT with {', '.join(KINDS)}")
        weights[kind] = int(number or "1")
    weights = {kind: weight for kind, weight in weights.items() if weight}
    if not weights:
        raise ValueError(f"the mix {text!r} has no user in it")
    return weights
