"""Builds a container image out of the Debian package: `image.py PACKAGE.deb IMAGE.tar`.

Needs root and mmdebstrap, which makes a root of this machine's Debian, from the sources of its apt, and
installs the package with what it depends on. IMAGE.tar is one layer in an OCI image layout, with the
`manifest.json` of `docker save` beside it: `podman load`, `docker load` and `skopeo copy oci-archive:`
take it. SOURCE_DATE_EPOCH is the time of what is in it. Process 1 is tini, because `millrace run` reaps
its own children only. Weak: the health check is Docker's; an OCI image has none, so podman needs
`--health-cmd`.

Sources: OCI Image Format Specification 1.0; Docker Image Specification 1.2.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO

INCLUDED = "tini,ca-certificates,default-jre-headless,systemd-standalone-sysusers,systemd-standalone-tmpfiles"
"""Beside what the package depends on; the last two instead of systemd."""
SETTINGS = "/etc/millrace/millrace.toml"
STATE, DISK = "/var/lib/millrace", "/srv/millrace/d0"
PORTS = ("9092/tcp", "5514/tcp", "5514/udp", "8080/tcp", "8081/tcp")
HEALTHY = 'exec 3<>/dev/tcp/127.0.0.1/8080 && printf "GET /readyz HTTP/1.0\\r\\n\\r\\n" >&3 && head -n 1 <&3 | grep -q " 200 "'
CUSTOMIZED = f"""
set -e
chroot "$1" apt-get install -y -qq --no-install-recommends /tmp/millrace.deb
rm "$1/tmp/millrace.deb"
sed -i -e 's/^listen = .*/listen = "0.0.0.0"/' -e 's/^syslog-port = .*/syslog-port = 5514 # UDP and TCP/' "$1{SETTINGS}"
chroot "$1" install -d -o millrace -g millrace -m 0750 {DISK}
find "$1/usr/share/doc" ! -type d ! -name copyright -delete
rm -rf "$1"/usr/share/man/* "$1"/usr/share/locale/* "$1"/usr/share/info/* "$1"/var/log/* "$1"/var/cache/* "$1"/var/lib/dpkg/*-old
"""
CHUNK = 1 << 20
NANOSECONDS = 1_000_000_000


def apt_options() -> str:
    """Return how this machine's apt downloads: proxies, and whether it believes dates."""
    words = ["apt-config", "dump"]
    dumped = subprocess.run(words, check=True, capture_output=True, text=True).stdout
    return "".join(f"{line}\n" for line in dumped.splitlines() if re.match(r"Acquire::(https?|ftp|Check-[\w-]+)\b", line))


def make_root(package: Path, archive: Path) -> None:
    """Write the root file system as a tar. Raises CalledProcessError; what mmdebstrap prints is shown."""
    fields = dict(line.split("=", 1) for line in Path("/etc/os-release").read_text().splitlines() if "=" in line)
    found = (Path("/etc/apt/sources.list"), *sorted(Path("/etc/apt/sources.list.d").glob("*")))
    sources = [path for path in found if path.suffix in (".list", ".sources") and path.is_file() and path.stat().st_size]
    options = archive.with_name("apt.conf")
    options.write_text(apt_options())
    hook = archive.with_name("customize")
    hook.write_text(f"#!/bin/sh\n{CUSTOMIZED}")
    hook.chmod(0o755)
    words = ["mmdebstrap", "--verbose", "--mode=root", "--variant=minbase", f"--include={INCLUDED}", f"--aptopt={options}", "--skip=output/dev"]
    words += [f"--customize-hook=upload '{package}' /tmp/millrace.deb", f"--customize-hook={hook}"]
    subprocess.run([*words, fields["VERSION_CODENAME"].strip('"'), str(archive), *map(str, sources)], check=True, stdin=subprocess.DEVNULL)


def user_of(archive: Path) -> str:
    """Return `UID:GID` of the user millrace: numbers, because an orchestrator cannot know the names."""
    with tarfile.open(archive) as root:
        file = root.extractfile("./etc/passwd")
        assert file is not None
        fields = next(line.split(":") for line in file.read().decode().splitlines() if line.startswith("millrace:"))
    return f"{fields[2]}:{fields[3]}"


def copy_digested(source: BinaryIO, *targets: Any) -> None:
    """Feed everything to files and hashes."""
    while chunk := source.read(CHUNK):
        for target in targets:
            (target.update if hasattr(target, "update") else target.write)(chunk)


def digest_of(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        copy_digested(file, digest)
    return digest.hexdigest()


def configuration(version: str, architecture: str, user: str, diff_id: str, created: str) -> dict[str, Any]:
    """Return what a container of this image runs, and as whom."""
    labels = {"title": "Millrace", "description": "A log appliance that speaks Kafka", "version": version, "licenses": "Apache-2.0"}
    return {
        "created": created,
        "architecture": architecture,
        "os": "linux",
        "config": {
            "User": user,
            "ExposedPorts": {port: {} for port in PORTS},
            "Env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG=C.UTF-8", "PYTHONDONTWRITEBYTECODE=1", "MALLOC_ARENA_MAX=2"],
            "Entrypoint": ["/usr/bin/tini", "--", "/usr/bin/millrace", "run", "--config", SETTINGS],
            "Volumes": {STATE: {}, DISK: {}},
            "WorkingDir": "/",
            "Labels": {f"org.opencontainers.image.{name}": text for name, text in labels.items()},
            "StopSignal": "SIGTERM",
            "Healthcheck": {"Test": ["CMD", "bash", "-c", HEALTHY], "Interval": 30 * NANOSECONDS, "Timeout": 5 * NANOSECONDS, "StartPeriod": 60 * NANOSECONDS},
        },
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{diff_id}"]},
        "history": [{"created": created, "created_by": "install.sh image"}],
    }


def write_image(archive: Path, version: str, architecture: str, epoch: int, image: Path) -> None:
    """Write the layout of an image whose one layer is the root file system in `archive`."""
    layer = archive.with_name("layer.tar.gz")
    uncompressed = hashlib.sha256()
    with archive.open("rb") as root, layer.open("wb") as file, gzip.GzipFile("", "wb", 6, file, mtime=0) as compressed:
        copy_digested(root, uncompressed, compressed)
    created = datetime.fromtimestamp(epoch, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    config = as_json(configuration(version, architecture, user_of(archive), uncompressed.hexdigest(), created))
    oci, layer_digest, layer_bytes = "application/vnd.oci.image", digest_of(layer), layer.stat().st_size
    manifest = as_json({
        "schemaVersion": 2,
        "mediaType": f"{oci}.manifest.v1+json",
        "config": {"mediaType": f"{oci}.config.v1+json", "digest": f"sha256:{sha256(config)}", "size": len(config)},
        "layers": [{"mediaType": f"{oci}.layer.v1.tar+gzip", "digest": f"sha256:{layer_digest}", "size": layer_bytes}],
    })  # fmt: skip
    tag = re.sub(r"[^\w.-]", "-", version)
    named = {"org.opencontainers.image.ref.name": tag, "io.containerd.image.name": f"docker.io/library/millrace:{tag}"}
    index = {"mediaType": f"{oci}.manifest.v1+json", "digest": f"sha256:{sha256(manifest)}", "size": len(manifest), "annotations": named}
    docker = [{"Config": f"blobs/sha256/{sha256(config)}", "RepoTags": [f"millrace:{tag}"], "Layers": [f"blobs/sha256/{layer_digest}"]}]
    files = {
        "oci-layout": as_json({"imageLayoutVersion": "1.0.0"}),
        "index.json": as_json({"schemaVersion": 2, "mediaType": f"{oci}.index.v1+json", "manifests": [index]}),
        "manifest.json": as_json(docker),
        **{f"blobs/sha256/{sha256(blob)}": blob for blob in (config, manifest)},
    }
    with tarfile.open(image, "w") as output:
        for name, data in sorted(files.items()):
            add_file(output, name, io.BytesIO(data), len(data), epoch)
        with layer.open("rb") as file:
            add_file(output, f"blobs/sha256/{layer_digest}", file, layer_bytes, epoch)


def as_json(document: object) -> bytes:
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def add_file(output: tarfile.TarFile, name: str, file: BinaryIO, size_bytes: int, epoch: int) -> None:
    info = tarfile.TarInfo(name)
    info.size, info.mtime = size_bytes, epoch
    output.addfile(info, file)


def main(words: list[str]) -> int:
    if len(words) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    package, image = Path(words[0]).absolute(), Path(words[1]).absolute()
    if os.geteuid() != 0 or shutil.which("mmdebstrap") is None:
        print("an image is built as root, with mmdebstrap: sudo apt-get install mmdebstrap", file=sys.stderr)
        return 1
    _, version, architecture = package.stem.split("_")
    with tempfile.TemporaryDirectory(dir=image.parent) as scratch:
        archive = Path(scratch) / "root.tar"
        try:
            make_root(package, archive)
        except subprocess.CalledProcessError as error:
            print(f"{error.cmd[0]} failed with exit code {error.returncode}; its message is above", file=sys.stderr)
            return 1
        write_image(archive, version, architecture, int(os.environ["SOURCE_DATE_EPOCH"]), Path(scratch) / "image")
        (Path(scratch) / "image").rename(image)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
