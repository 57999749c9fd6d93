"""Who asks: what a coordinator remembers of a client for people to read."""

from __future__ import annotations

from typing import NamedTuple


class ClientIdentity(NamedTuple):
    """The client id of the request's header, and the client's address as Java writes it (`/10.0.0.1`)."""

    client_id: str
    client_host: str
