"""The authority of a cluster's boxes (`appliance/security/cluster_authority.py`): openssl and TLS handshakes judge what it signs."""

from __future__ import annotations

import datetime
import ssl
import stat
import subprocess
from pathlib import Path

import pytest

from appliance.base.settings import KafkaListener, default_settings
from appliance.security.cluster_authority import TRUSTED, AuthorityProblem, ClusterAuthority
from appliance.security.tls_contexts import TlsSettings, make_context

NOW = datetime.datetime.now(datetime.UTC).replace(microsecond=0)


@pytest.fixture
def authority(tmp_path: Path) -> ClusterAuthority:
    made = ClusterAuthority(str(tmp_path / "authority"), NOW)
    made.make()
    return made


class Box:
    """What a box has at a time: its certificate and whom it trusts."""

    def __init__(self, directory: Path, authority: ClusterAuthority, broker_id: int) -> None:
        self._directory, self._authority, self.broker_id = directory, authority, broker_id
        self.keystore, self.trusted = directory / f"box{broker_id}.pem", directory / f"trusted{broker_id}.pem"
        self.take_trusted()
        self.take_keystore()

    def take_trusted(self) -> None:
        self.trusted.write_bytes(Path(self._authority.path("trusted.pem")).read_bytes())

    def take_keystore(self) -> None:
        self.keystore.write_bytes(Path(self._authority.path(f"broker-{self.broker_id}.pem")).read_bytes())

    def context(self, *, connects: bool) -> ssl.SSLContext:
        own = {"ssl.keystore.location": str(self.keystore), "ssl.truststore.location": str(self.trusted), "ssl.client.auth": "required"}
        return make_context(TlsSettings.of(KafkaListener("BOXES", "SSL", "::1", 0, "h", 0, dict(own)), default_settings()), connects=connects)


def shake_hands(client: Box, server: Box) -> dict[str, object]:
    """Return what the server sees. Raises ssl.SSLError."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = server.context(connects=False).wrap_bio(to_server, to_client, server_side=True)
    theirs = client.context(connects=True).wrap_bio(to_client, to_server, server_hostname=f"box{server.broker_id}.example")
    for _ in range(4):
        for end in (theirs, ours):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                pass
    return dict(ours.getpeercert() or {})


def test_openssl_accepts_what_it_signs_and_keys_are_closed_to_others(authority: ClusterAuthority) -> None:
    file = authority.issue(7, ["10.0.0.7", "fd00::7", "Box7.Example", "10.0.0.7"])
    trusted = authority.path("trusted.pem")
    for purpose in ("sslserver", "sslclient"):
        command = ["openssl", "verify", "-x509_strict", "-purpose", purpose, "-CAfile", trusted, "-verify_ip", "fd00::7", file]
        subprocess.run(command, check=True, capture_output=True, timeout=60)
    shown = subprocess.run(["openssl", "x509", "-in", file, "-noout", "-subject", "-ext", "subjectAltName"], capture_output=True, check=True, timeout=60).stdout
    assert b"CN = broker-7" in shown and b"IP Address:10.0.0.7, IP Address:FD00:0:0:0:0:0:0:7, DNS:box7.example\n" in shown
    modes = {name: stat.S_IMODE(Path(authority.path(name)).stat().st_mode) for name in ("authority.key", "broker-7.pem", "trusted.pem", ".")}
    assert modes == {"authority.key": 0o600, "broker-7.pem": 0o600, "trusted.pem": 0o644, ".": 0o700}


def test_the_authority_is_replaced_while_boxes_reach_each_other_at_every_step(tmp_path: Path, authority: ClusterAuthority) -> None:
    for number in (1, 2):
        authority.issue(number, [f"box{number}.example"])
    boxes = [Box(tmp_path, authority, number) for number in (1, 2)]

    def all_reach() -> None:
        for client, server in (boxes, boxes[::-1]):
            assert shake_hands(client, server)["subjectAltName"] == (("DNS", f"box{client.broker_id}.example"),)

    all_reach()
    authority.begin_rotation()
    for box in boxes:
        box.take_trusted()
        all_reach()
    authority.switch()
    with pytest.raises(AuthorityProblem, match=r"broker-1\.pem, broker-2\.pem is still signed by the former authority"):
        authority.end_rotation()
    for box in boxes:
        authority.renew(box.broker_id)
        box.take_keystore()
        all_reach()
    authority.end_rotation()
    for box in boxes:
        box.take_trusted()
        all_reach()
    assert [(each.file, each.is_trusted) for each in authority.show()] == [("authority.pem", True), ("broker-1.pem", True), ("broker-2.pem", True)]


def test_after_the_replacement_certificates_of_the_former_authority_are_refused(tmp_path: Path, authority: ClusterAuthority) -> None:
    for number in (1, 2):
        authority.issue(number, [f"box{number}.example"])
    old, new = Box(tmp_path, authority, 1), Box(tmp_path, authority, 2)
    authority.begin_rotation()
    authority.switch()
    authority.renew(1)
    authority.renew(2)
    authority.end_rotation()
    old.take_trusted()
    new.take_trusted()
    new.take_keystore()
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(old, new)


def test_an_interrupted_switch_signs_nothing_wrong_and_goes_on(authority: ClusterAuthority) -> None:
    authority.begin_rotation()
    Path(authority.path("next.key")).rename(authority.path("authority.key"))  # and the power fails
    with pytest.raises(AuthorityProblem, match="run it again"):
        authority.issue(1, ["box1"])
    authority.switch()
    authority.issue(1, ["box1"])
    authority.end_rotation()


def test_a_request_gives_its_key_and_no_names(tmp_path: Path, authority: ClusterAuthority) -> None:
    key, request = tmp_path / "key", tmp_path / "csr"
    command = ["openssl", "req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", str(key), "-out", str(request)]
    subprocess.run([*command, "-subj", "/CN=broker-9", "-addext", "subjectAltName=DNS:elsewhere"], check=True, capture_output=True, timeout=60)
    file = authority.issue(3, ["box3"], 10, request.read_bytes())
    assert file.endswith("/broker-3.crt.pem")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file, key)  # they belong together
    authority.renew(3, 10, request.read_bytes())
    assert [(each.names, (each.expires - NOW).days) for each in authority.show() if each.file == "broker-3.crt.pem"] == [(("box3",), 10)]
    damaged = request.read_bytes().replace(b"MI", b"MJ", 1)
    with pytest.raises(AuthorityProblem, match="request"):
        authority.issue(3, ["box3"], 10, damaged)


@pytest.mark.parametrize("name", ["*", "*.example", "a b", "", "-a", "a..b", "a/b", "1.2.3", "10.0.0.0/8", "x" * 64, "ä"])
def test_names_that_are_no_hosts_are_refused(authority: ClusterAuthority, name: str) -> None:
    with pytest.raises(AuthorityProblem, match="is no host name and no address"):
        authority.issue(1, [name])


def test_what_is_there_is_not_overwritten_and_an_open_directory_is_refused(tmp_path: Path, authority: ClusterAuthority) -> None:
    with pytest.raises(AuthorityProblem, match="is there already"):
        authority.make()
    with pytest.raises(AuthorityProblem, match="`init` makes an authority"):
        ClusterAuthority(str(tmp_path / "none"), NOW).issue(1, ["a"])
    with pytest.raises(AuthorityProblem, match="has no certificate of box 4"):
        authority.renew(4)
    with pytest.raises(AuthorityProblem, match="before the certificate would"):
        ClusterAuthority(authority.directory, NOW + datetime.timedelta(days=3600)).issue(1, ["a"])
    Path(authority.directory).chmod(0o770)
    with pytest.raises(AuthorityProblem, match="others may write to it"):
        ClusterAuthority(authority.directory, NOW)


def test_what_is_put_in_place_of_the_checked_directory_is_neither_read_nor_written(authority: ClusterAuthority, tmp_path: Path) -> None:
    """Another user may do so if the parent is that user's, or before `init` has made the directory."""
    there, away, theirs = Path(authority.directory), tmp_path / "away", tmp_path / "theirs"
    trusted = (there / TRUSTED).read_bytes()
    there.rename(away)
    theirs.mkdir()
    there.symlink_to(theirs)
    authority.issue(1, ["10.0.0.1"])
    authority.begin_rotation()
    assert not list(theirs.iterdir()) and (away / "broker-1.pem").exists() and (away / TRUSTED).read_bytes().startswith(trusted)
    there.unlink()
    theirs.rename(there)
    late = ClusterAuthority(str(tmp_path / "late"), NOW)
    (tmp_path / "late").mkdir(mode=0o700)
    with pytest.raises(FileExistsError):
        late.make()
