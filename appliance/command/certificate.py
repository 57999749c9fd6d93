"""`millrace cluster certificate …`: an authority for the cluster's boxes, and their certificates
(`security/cluster_authority.py`). It works on one directory of one machine; what it makes is copied to the boxes.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from appliance.command.failures import UsageProblem
from appliance.command.finding import state_directory
from appliance.command.options import ConfigOption, option
from appliance.command.output import Column, print_table, say

if TYPE_CHECKING:  # OpenSSL takes 50 ms
    from appliance.security.cluster_authority import ClusterAuthority

BoxArgument = Annotated[int, typer.Argument(metavar="BOX", help="Broker id of the box.", min=0)]
NamesArgument = Annotated[list[str], typer.Argument(metavar="NAME...", help="Host names and addresses by which boxes and clients connect to it.")]
DirectoryOption = Annotated[str | None, option("--directory", metavar="DIR", help="Directory of the authority. [default: authority in the state directory]")]
DaysOption = Annotated[int, option("--days", metavar="DAYS", help="Validity of the certificate.", min=1, max=3650)]
RequestOption = Annotated[str | None, option("--csr", metavar="FILE", help="Sign the key of this request (PEM), which stays where it is.")]
SOON_DAYS = 30


@contextmanager
def _authority(directory: str | None, config: str | None) -> Iterator[ClusterAuthority]:
    from appliance.security.cluster_authority import AuthorityProblem, ClusterAuthority

    where = directory or f"{state_directory(None, config)}/authority"
    try:
        with closing(ClusterAuthority(where, datetime.datetime.now(datetime.UTC).replace(microsecond=0))) as authority:
            yield authority
    except AuthorityProblem as problem:
        raise UsageProblem(str(problem)) from problem
    except OSError as error:
        raise UsageProblem(f"{error.filename or where}: {error.strerror}") from error


def init(directory: DirectoryOption = None, config: ConfigOption = None) -> None:
    """Make the authority: its key (mode 0600), its certificate, and trusted.pem for the boxes.

    Example: millrace cluster certificate init --directory /root/authority
    """
    with _authority(directory, config) as authority:
        authority.make()
        say(f"made the authority in {authority.directory}; keep its key there, and bring trusted.pem to the boxes")


def issue(
    box: BoxArgument, names: NamesArgument, directory: DirectoryOption = None, config: ConfigOption = None, days: DaysOption = 365, csr: RequestOption = None
) -> None:
    """Make key and certificate of a box in one file, for `ssl.keystore.location`.

    Example: millrace cluster certificate issue 1 10.0.0.1 box1.example.com
    """
    with _authority(directory, config) as authority:
        say(f"wrote {authority.issue(box, names, days, _request(csr))}")


def renew(box: BoxArgument, directory: DirectoryOption = None, config: ConfigOption = None, days: DaysOption = 365, csr: RequestOption = None) -> None:
    """Make a new key and certificate of a box, with the names that its last one has.

    Example: millrace cluster certificate renew 1
    """
    with _authority(directory, config) as authority:
        say(f"wrote {authority.renew(box, days, _request(csr))}")


def rotate(
    step: Annotated[str, typer.Argument(metavar="begin|switch|end", help="Bring trusted.pem to all boxes after each step.")],
    directory: DirectoryOption = None,
    config: ConfigOption = None,
) -> None:
    """Replace the authority: begin trusts a second one, switch lets it sign (then renew each box), end distrusts the first.

    Example: millrace cluster certificate rotate begin
    """
    with _authority(directory, config) as authority:
        if step == "begin":
            authority.begin_rotation()
            say("trusted.pem has both authorities; bring it to all boxes, then `rotate switch`")
        elif step == "switch":
            authority.switch()
            say("the new authority signs; `renew` each box and bring it its file, then `rotate end`")
        elif step == "end":
            authority.end_rotation()
            say("trusted.pem has the new authority only; bring it to all boxes")
        else:
            raise UsageProblem(f"{step!r} is no step; the steps are begin, switch and end")


def show(directory: DirectoryOption = None, config: ConfigOption = None) -> None:
    """List the certificates of the directory and when they expire.

    Example: millrace cluster certificate show
    """
    with _authority(directory, config) as authority:
        found = authority.show()
    now = datetime.datetime.now(datetime.UTC)
    rows = []
    for each in found:
        days = (each.expires - now).days
        state = "expired" if days < 0 else "expires soon" if days < SOON_DAYS else "ok" if each.is_trusted else "not trusted"
        rows.append((each.file, " ".join(each.names) or "-", f"{each.expires:%Y-%m-%d}", str(days), state))
    print_table([Column("FILE"), Column("NAMES"), Column("EXPIRES"), Column("DAYS", True), Column("STATE")], rows)


def _request(path: str | None) -> bytes | None:
    if path is None:
        return None
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise UsageProblem(f"{path}: {error.strerror}") from error
