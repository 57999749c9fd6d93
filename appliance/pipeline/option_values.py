"""Options as Spark passes them: texts under names whose case is ignored. Errors name the option and the valid values. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from appliance.pipeline.problems import SourceProblem

_DURATION = re.compile(r"(-?\d+)\s*([a-z]*)\Z")
_UNIT_MS = {"ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}


class OptionValues(Mapping[str, str]):
    """Look-ups ignore the case of a name; iteration yields the names as given."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._names = {name.lower(): name for name in options}
        self._values = {name.lower(): value for name, value in options.items()}

    def __getitem__(self, name: str) -> str:
        return self._values[name.lower()]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names.values())

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name.lower() in self._values

    def integer(self, name: str, default: int | None = None, least: int | None = None) -> int | None:
        """Return an integer; `default` without the option. Raises `SourceProblem`."""
        if name not in self:
            return default
        try:
            value = int(self[name].strip())
        except ValueError:
            raise SourceProblem(f"option '{name}' is '{self[name]}'; it must be a whole number") from None
        if least is not None and value < least:
            words = "positive" if least == 1 else f"at least {least}"
            raise SourceProblem(f"option '{name}' is {value}; {name} must be {words}")
        return value

    def number(self, name: str, default: int, least: int = 0) -> int:
        """As `integer`, for an option that always has a value."""
        value = self.integer(name, default, least)
        assert value is not None
        return value

    def flag(self, name: str, default: bool) -> bool:
        """Parse true or false, in any case. Raises `SourceProblem`."""
        text = self.get(name, str(default)).strip().lower()
        if text not in ("true", "false"):
            raise SourceProblem(f"option '{name}' is '{self[name]}'; it must be true or false")
        return text == "true"

    def choice(self, name: str, default: str, allowed: tuple[str, ...]) -> str:
        """Parse one of a few words, in any case. Raises `SourceProblem`."""
        text = self.get(name, default).strip().lower()
        if text not in allowed:
            raise SourceProblem(f"option '{name}' is '{self[name]}'; it must be one of {', '.join(allowed)}")
        return text

    def milliseconds(self, name: str, default: str) -> int:
        """Parse a duration as Spark writes it: `15m`, `10s`, `250ms`; a bare number is milliseconds. Raises `SourceProblem`."""
        text = self.get(name, default).strip().lower()
        found = _DURATION.match(text)
        if found is None or (found[2] or "ms") not in _UNIT_MS or int(found[1]) < 0:
            raise SourceProblem(f"option '{name}' is '{self[name]}'; it must be a time such as 15m, 10s or 250ms")
        return int(found[1]) * _UNIT_MS[found[2] or "ms"]
