"""Which client may see details, read records, and change something.

Pure. A person (`person_guard.py`) may see all and change what the role allows, and the authorizer decides.
Without persons details, records and changes are for `http.details.allowed.networks` and the Unix socket; with
an authorizer, or where Kafka clients need a login or a certificate, only the Unix socket reads
records, because the console has the rights of the box. A change needs more without
users: no authorizer, a console that listens on loopback alone, a client on this machine, and a
request that no page of another site can send. Weak: each user of the machine reaches loopback, as
with the Kafka port, and so does each client of a proxy that adds no header: it needs a login.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from starlette.requests import Request

from appliance.base.networks import Network, lies_in, packed_address, read_networks
from services.console.person_guard import person_of
from services.console.persons import Role

ASKING_HEADER = "x-millrace"
FORWARDED_HEADERS = ("forwarded", "x-forwarded-for", "x-forwarded-host", "x-real-ip", "via")
JSON = "application/json"
_LOOPBACK = read_networks("127.0.0.0/8, ::1")
ELSEWHERE = "this is for http.details.allowed.networks only, or by the command `millrace` on the box"
_NO_USERS = "and the console has no users: name some in http.role.admin, or use the command or a client that logs in"
WITH_AUTHORIZER = f"the box has an authorizer, {_NO_USERS}"
WITH_LOGINS = f"Kafka clients of the box need a login or a certificate, {_NO_USERS}"


class Access(NamedTuple):
    """`is_local`: the console listens on loopback alone. `needs_login`: each listener for Kafka clients
    needs a login or a certificate. `end_session`: of a person that the box has refused; `log_order`:
    of a person, which no acceptor audits; `has_session`: while a search goes on."""

    details_networks: Sequence[Network]
    has_authorizer: bool = False
    is_local: bool = False
    needs_login: bool = False
    end_session: Callable[[bytes], None] = lambda _digest: None
    log_order: Callable[[str], None] = lambda _words: None
    has_session: Callable[[bytes], bool] = lambda _digest: True

    def sees_details(self, request: Request) -> bool:
        """Whether a client sees paths, process ids and senders. A Unix socket has no address."""
        return request.client is None or person_of(request.scope) is not None or lies_in(packed_address(request.client.host), self.details_networks)

    def why_not_read(self, request: Request) -> str | None:
        """Return why a client may not read what the box keeps for its clients: records, members."""
        if request.client is None:
            return None
        if (person := person_of(request.scope)) is not None:
            if person.session and not self.has_session(person.session):
                return "this login is over"
            return None if is_asked_for(request) else ELSEWHERE
        if self.has_authorizer:
            return WITH_AUTHORIZER
        if self.needs_login:
            return WITH_LOGINS
        return None if self.sees_details(request) and is_asked_for(request) else ELSEWHERE

    def why_no_changes(self, request: Request) -> str | None:
        """Return why nothing is changed for this client; None if changes are offered."""
        if (person := person_of(request.scope)) is not None:
            return None if person.role > Role.VIEWER else f"{person.principal} is viewer here, and changes need the role operator or admin"
        if self.has_authorizer:
            return WITH_AUTHORIZER
        if not self.is_local:
            return "the console listens beyond loopback, and has no users: use the command `millrace` on the box"
        if request.client is not None and not lies_in(packed_address(request.client.host), _LOOPBACK):
            return "changes are made from this machine only"
        if any(name in request.headers for name in FORWARDED_HEADERS):
            return "changes are not made through a proxy"
        return self.why_not_read(request)

    def why_not_change(self, request: Request) -> tuple[int, str] | None:
        """Return status and text of the refusal of a request that changes something. A page of another
        site can neither add `ASKING_HEADER` nor send JSON without asking first, which is refused."""
        if (why := self.why_no_changes(request)) is not None:
            return 403, why
        if ASKING_HEADER not in request.headers:
            return 403, f"a request that changes something needs the header {ASKING_HEADER}"
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() != JSON:
            return 415, f"the body must have the type {JSON}"
        return None


def is_asked_for(request: Request) -> bool:
    """Whether a program or our own page sent this, and no link, image, script or form of another
    site: a search is not cheap. Of what a browser sends only fetch of the same site can carry
    `ASKING_HEADER`; the agent names of browsers begin with Mozilla/.
    """
    headers = request.headers
    accepts = headers.get("accept", "")
    is_from_browser = headers.get("user-agent", "").startswith("Mozilla/") or any(name.startswith("sec-fetch-") for name in headers)
    return ASKING_HEADER in headers or not (is_from_browser or "text/html" in accepts or "image/" in accepts)
