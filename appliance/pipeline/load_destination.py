"""Where `--to` points: a directory, or a PostgreSQL database. Text only; nothing is opened.

A load is published by link(2) and rename(2), so a directory must lie on a POSIX file system, local or shared; object stores have neither.
"""

from __future__ import annotations

import os
import re
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from appliance.pipeline.load_problem import LoadProblem

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")
_DATABASES = ("postgresql", "postgres")


class Destination(NamedTuple):
    """Either a directory's absolute path or a database's address."""

    directory: str | None = None
    database: str | None = None


def parse_destination(text: str) -> Destination:
    """Raises LoadProblem for what cannot be loaded into, with the reason."""
    if not text:
        raise LoadProblem("--to is empty; name a directory, or postgresql://USER@HOST/DATABASE")
    found = _SCHEME.match(text)
    if found is None:
        return Destination(directory=os.path.abspath(text))
    scheme = found.group(1).lower()
    if scheme in _DATABASES:
        return Destination(database=text)
    if scheme == "file":
        address = urlsplit(text)
        if address.netloc not in ("", "localhost") or not address.path.startswith("/"):
            raise LoadProblem(f"--to {text}: write file:///DIR, or the directory alone")
        return Destination(directory=os.path.abspath(unquote(address.path)))
    raise LoadProblem(
        f"--to {text}: only directories of local or shared POSIX file systems and postgresql:// can be loaded into. A load becomes part of a directory "
        f"by link and rename, each in one step, which {scheme}: does not have; load into a directory and copy what its manifests name"
    )
