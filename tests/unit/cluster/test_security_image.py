"""The security image's file, and how a process follows it."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from appliance.base.logging import Logger, Severity
from appliance.cluster.security_image import (
    AuthorizerFollower,
    SecurityImage,
    SecurityImageUnreadable,
    read_security_image,
    write_security_image,
)
from appliance.security.acl import AclBinding, AclOperation, AclPermission, AclResource, PatternType
from appliance.security.authorizer import Authorizer
from lab.scratch_layout import make_layout, remove_layout

BINDING = AclBinding(AclResource.TOPIC, "logs-ä", PatternType.PREFIXED, "User:alice", "*", AclOperation.READ, AclPermission.ALLOW)


def test_an_image_is_read_as_it_was_written_and_by_its_owner_alone(tmp_path: Path) -> None:
    path = str(tmp_path / "image")
    assert read_security_image(path) is None
    image = SecurityImage(7, frozenset({BINDING, BINDING._replace(name="x")}))
    write_security_image(path, image)
    assert read_security_image(path) == image
    assert stat.S_IMODE((tmp_path / "image").stat().st_mode) == 0o600


def test_damage_is_recognised() -> None:
    encoded = SecurityImage(7, frozenset({BINDING})).encode()
    for position in range(len(encoded)):
        if position in (6, 7):
            continue  # reserved
        damaged = bytearray(encoded)
        damaged[position] ^= 1
        with pytest.raises(SecurityImageUnreadable):
            SecurityImage.decode(bytes(damaged))
    with pytest.raises(SecurityImageUnreadable):
        SecurityImage.decode(encoded[:-1])


def test_a_follower_installs_each_new_image_and_keeps_the_last_one_if_the_file_is_damaged() -> None:
    layout, changes = make_layout(), []
    follower = AuthorizerFollower(layout, Authorizer(), Logger("test", Severity.CRITICAL), lambda: changes.append(follower.generation))
    rights = follower.authorizer.rights_of("User:alice", "10.0.0.1")
    try:
        follower.load()
        assert not follower.has_image and not rights.allows(AclOperation.READ, AclResource.TOPIC, "logs-ä1")
        write_security_image(layout.security_image_file, SecurityImage(1, frozenset({BINDING})))
        follower.load()
        follower.load()
        assert rights.allows(AclOperation.READ, AclResource.TOPIC, "logs-ä1") and changes == [1]
        Path(layout.security_image_file).write_bytes(b"damaged")
        follower.load()
        assert rights.allows(AclOperation.READ, AclResource.TOPIC, "logs-ä1")
        write_security_image(layout.security_image_file, SecurityImage(2))
        follower.load()
        assert not rights.allows(AclOperation.READ, AclResource.TOPIC, "logs-ä1") and changes == [1, 2]
    finally:
        remove_layout(layout)


def test_a_follower_reads_only_the_header_of_the_image_in_use(capfd: pytest.CaptureFixture[str]) -> None:
    """Acceptors load it after each change of the metadata image, and it may have megabytes."""
    layout = make_layout()
    follower = AuthorizerFollower(layout, Authorizer(), Logger("test"))
    image = Path(layout.security_image_file)
    try:
        write_security_image(layout.security_image_file, SecurityImage(1, frozenset({BINDING})))
        follower.load()
        image.write_bytes(image.read_bytes()[:-1])  # damaged, which reading all of it would report
        follower.load()
        assert follower.generation == 1 and capfd.readouterr().err == ""
    finally:
        remove_layout(layout)
