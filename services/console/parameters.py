"""The parameters of a request to the console, from its query or its JSON: each is read with its type
and bounds.

Pure. What is missing, unknown or out of bounds raises `WrongParameter`, whose text is for people.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Any

from appliance.base.time_texts import parse_moment

NUMBER_MAX = (1 << 63) - 1
INT32_MAX = (1 << 31) - 1
SHOWN_CHARACTERS = 40


class WrongParameter(ValueError):
    """A parameter that is unknown or has no valid value."""


class Parameters:
    """Of one request; `now_ms` is what ages are relative to."""

    def __init__(self, given: Mapping[str, Any], now_ms: int = 0) -> None:
        self._given = given
        self.now_ms = now_ms

    def require_known(self, *names: str) -> None:
        if unknown := sorted(set(self._given) - set(names)):
            raise WrongParameter(f"there is no parameter {unknown[0][:SHOWN_CHARACTERS]}; there are {', '.join(names)}")

    def shown(self, *names: str) -> str:
        """Return some parameters for the log."""
        return ", ".join(f"{name} {str(self._given[name])[:SHOWN_CHARACTERS]!r}" for name in names if name in self._given)

    def get(self, name: str) -> Any:
        return self._given.get(name)

    def text(self, name: str, default: str | None = None) -> str:
        """Return a text; without a default it must be there and not be empty."""
        value = self._given.get(name, default)
        if value is None or (value == "" and default is None):
            raise WrongParameter(f"the parameter {name} is missing")
        if not isinstance(value, str):
            raise WrongParameter(f"{name} must be a text")
        return value

    def choice(self, name: str, choices: tuple[str, ...]) -> str:
        """Return one of `choices`; the first is the default."""
        value = self.text(name, choices[0])
        if value not in choices:
            raise WrongParameter(f"{name} is {value[:SHOWN_CHARACTERS]!r}; it must be one of {', '.join(choices)}")
        return value

    def number(self, name: str, default: int | None = None, low: int = 0, high: int = NUMBER_MAX) -> int:
        """Return a whole number between `low` and `high`. Without a default it must be there."""
        value = self._given.get(name)
        if value is None or value == "":
            if default is None:
                raise WrongParameter(f"the parameter {name} is missing")
            return default
        if isinstance(value, str) and value.isascii() and value.removeprefix("-").isdigit() and len(value) <= 20:
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise WrongParameter(f"{name} is {str(value)[:SHOWN_CHARACTERS]!r}; it must be a whole number between {low} and {high}")
        return value

    def optional_number(self, name: str, high: int = INT32_MAX) -> int | None:
        return None if self._given.get(name) in (None, "") else self.number(name, high=high)

    def flag(self, name: str) -> bool:
        """Return whether a flag is set; left out, it is not."""
        value = self._given.get(name, False)
        flags: dict[Any, bool] = {"": True, "1": True, "true": True, "0": False, "false": False}
        if isinstance(value, bool):
            return value
        if not isinstance(value, str) or value.lower() not in flags:
            raise WrongParameter(f"{name} must be true or false")
        return flags[value.lower()]

    def moment(self, name: str) -> int:
        """Return the milliseconds of an age as 2h, an ISO 8601 time, or milliseconds."""
        try:
            return parse_moment(self.text(name).replace(" ", "+"), self.now_ms)  # a + in a query string is a space
        except ValueError as problem:
            raise WrongParameter(f"{name}: {problem}") from problem

    def texts(self, name: str) -> dict[str, str]:
        """Return an object whose values are texts, as settings are."""
        value = self._given.get(name, {})
        if not isinstance(value, dict) or not all(isinstance(key, str) and isinstance(text, str) for key, text in value.items()):
            raise WrongParameter(f"{name} must be an object of names and texts")
        return value

    def items(self, name: str) -> list[Any]:
        value = self._given.get(name, [])
        if not isinstance(value, list):
            raise WrongParameter(f"{name} must be a list")
        return value


def content_of(value: Any, name: str) -> bytes | None:
    """Return the bytes of a key, value or header: null, a text, or {"base64": …}."""
    if value is None:
        return None
    try:
        if isinstance(value, str):
            return value.encode()
        if isinstance(value, dict) and set(value) == {"base64"} and isinstance(value["base64"], str):
            return base64.b64decode(value["base64"], validate=True)
    except (binascii.Error, UnicodeEncodeError, ValueError) as problem:
        raise WrongParameter(f"{name}: {problem}") from problem
    raise WrongParameter(f'{name} must be null, a text, or {{"base64": …}}')
