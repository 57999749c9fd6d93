"""I/O classes in settings (`best-effort:2`, `idle`, `realtime:0`), and as the number of
ioprio_set(2).

Pure. Weak: the kernel decides whether a class is granted (realtime needs CAP_SYS_NICE), and only
bfq and mq-deadline use it.
"""

from __future__ import annotations

_CLASSES = {"realtime": 1, "best-effort": 2, "idle": 3}
_CLASS_SHIFT = 13
_LEVEL_DEFAULT = 4
NONE = "none"
"""Value of `disk.io.classes` if no disk has its own class."""


def io_priority(text: str) -> int | None:
    """Return the kernel's number; None for an unknown class. The level is 0 (first) to 7 (last)."""
    name, _, level = text.strip().partition(":")
    number = _CLASSES.get(name)
    if number is None or (name == "idle" and level) or level not in ("", *map(str, range(8))):
        return None
    return number << _CLASS_SHIFT | (0 if name == "idle" else int(level or _LEVEL_DEFAULT))


def classes_of_disks(text: str) -> dict[str, str] | None:
    """Return the classes in `d0=idle,d3=best-effort:7` by disk; None if the text is invalid."""
    if text == NONE:
        return {}
    pairs = [entry.strip().partition("=") for entry in text.split(",")]
    if not all(name and io_priority(value) is not None for name, _, value in pairs):
        return None
    return {name.strip(): value.strip() for name, _, value in pairs}


def io_class_problems(settings: dict[str, str | int | bool]) -> list[str]:
    """Return the problems of the three settings with I/O classes."""
    allowed = "allowed is realtime:0-7, best-effort:0-7 or idle"
    problems = [
        f"{name} is {settings[name]!r}; {allowed}" for name in ("log.writer.io.class", "log.reader.io.class") if io_priority(str(settings[name])) is None
    ]
    if classes_of_disks(str(settings["disk.io.classes"])) is None:
        problems.append(f'disk.io.classes is {settings["disk.io.classes"]!r}; allowed is none, or as in "d0=idle,d3=best-effort:7" ({allowed})')
    return problems
