"""The layout of the container image, around a root file system of one file; and its settings."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

from appliance.base.settings import read_settings_file
from tests.support.install_functions import TREE, run_functions

sys.path.insert(0, str(TREE / "install"))
import image


@pytest.fixture(scope="module")
def layout(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, bytes], bytes]:
    """The files of an image, and its root file system."""
    directory = tmp_path_factory.mktemp("image")
    with tarfile.open(directory / "root.tar", "w") as root:
        users = b"root:x:0:0::/root:/bin/sh\nmillrace:x:998:997::/var/lib/millrace:/usr/sbin/nologin\n"
        image.add_file(root, "./etc/passwd", io.BytesIO(users), len(users), 7)
    image.write_image(directory / "root.tar", "0.2.0~dev0+2026.gabc", "amd64", 86400, directory / "image.tar")
    with tarfile.open(directory / "image.tar") as archive:
        files = {member.name: archive.extractfile(member).read() for member in archive}  # type: ignore[union-attr]
    return files, (directory / "root.tar").read_bytes()


def read(files: dict[str, bytes], descriptor: dict[str, Any]) -> Any:
    data = files["blobs/" + descriptor["digest"].replace(":", "/")]
    assert (len(data), hashlib.sha256(data).hexdigest()) == (descriptor["size"], descriptor["digest"].removeprefix("sha256:"))
    return data


def test_the_index_leads_to_a_layer_that_is_the_root(layout: tuple[dict[str, bytes], bytes]) -> None:
    files, root = layout
    assert json.loads(files["oci-layout"]) == {"imageLayoutVersion": "1.0.0"}
    (entry,) = json.loads(files["index.json"])["manifests"]
    assert entry["annotations"]["org.opencontainers.image.ref.name"] == "0.2.0-dev0-2026.gabc"
    manifest = json.loads(read(files, entry))
    config = json.loads(read(files, manifest["config"]))
    (layer,) = manifest["layers"]
    assert gzip.decompress(read(files, layer)) == root
    assert config["rootfs"]["diff_ids"] == [f"sha256:{hashlib.sha256(root).hexdigest()}"]
    (docker,) = json.loads(files["manifest.json"])
    assert [docker["Config"], *docker["Layers"]] == [f"blobs/sha256/{each['digest'].removeprefix('sha256:')}" for each in (manifest["config"], layer)]


def test_a_container_is_not_root_and_has_its_data_in_volumes(layout: tuple[dict[str, bytes], bytes]) -> None:
    files, _ = layout
    config = json.loads(files[json.loads(files["manifest.json"])[0]["Config"]])
    assert config["created"] == "1970-01-02T00:00:00Z"
    assert config["config"]["User"] == "998:997"
    assert set(config["config"]["Volumes"]) == {image.STATE, image.DISK} and "9092/tcp" in config["config"]["ExposedPorts"]
    assert config["config"]["Entrypoint"][:3] == ["/usr/bin/tini", "--", "/usr/bin/millrace"]


def test_the_settings_of_the_image_are_those_of_the_package_on_all_addresses(tmp_path: Path) -> None:
    (tmp_path / "etc/millrace").mkdir(parents=True)
    (tmp_path / "etc/millrace/millrace.toml").write_text(run_functions(tmp_path, "for_debian write_settings").output)
    (line,) = [line for line in image.CUSTOMIZED.splitlines() if line.startswith("sed ")]
    subprocess.run(["sh", "-c", line, "sh", tmp_path], check=True)
    read_settings = read_settings_file(str(tmp_path / "etc/millrace/millrace.toml"))
    assert {name: read_settings.box[name] for name in ("listen", "syslog-port", "data")} == {"listen": "0.0.0.0", "syslog-port": 5514, "data": [image.DISK]}


@pytest.mark.parametrize("words", [[], [""], ["--help"], ["one", "two"]])
def test_the_verb_wants_a_directory(words: list[str]) -> None:
    done = subprocess.run([TREE / "install.sh", "image", *words], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "install.sh: image wants the directory of the .deb: sudo ./install.sh image DIR\n")
