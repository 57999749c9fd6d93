"""The container image: built, unpacked and run, as its configuration says, with a volume for the state and one for the records.

Weak spot: it is run by chroot in namespaces, with the user, mounts and capabilities that an engine gives, and not by one: podman brings 60 packages.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from lab.running_box import ROOT, eventually

pytestmark = [
    pytest.mark.system,
    pytest.mark.deep,
    pytest.mark.skipif(os.geteuid() != 0 or shutil.which("mmdebstrap") is None, reason="an image is built as root, with mmdebstrap"),
]

ENTER = """
mount --bind "$1" "$1"
cd "$1"
for volume in var/lib/millrace srv/millrace/d0; do mount --bind "$1/../volumes/$volume" "$volume"; done
shift
mkdir -p dev proc sys tmp # engines make them
mount -t proc proc proc
mount -t sysfs -o ro sysfs sys
mount -t tmpfs -o mode=755 tmpfs dev
for device in null zero full random urandom tty; do touch dev/$device; mount --bind /dev/$device dev/$device; done
ln -s /proc/self/fd dev/fd
mkdir dev/shm
mount -t tmpfs -o mode=1777,size=1g tmpfs dev/shm
mount -t tmpfs -o mode=1777 tmpfs tmp
ip link set lo up
mkdir -p .before
pivot_root . .before
umount -l /.before
exec chroot . "$@"
"""


class Image:
    """Unpacked in `directory`: the root file system, and its volumes beside it."""

    def __init__(self, directory: Path, archive: Path) -> None:
        self.directory = directory
        (directory / "layout").mkdir()
        subprocess.run(["tar", "-xf", archive, "-C", directory / "layout"], check=True)
        (docker,) = json.loads((directory / "layout/manifest.json").read_text())
        self.config: dict[str, Any] = json.loads((directory / "layout" / docker["Config"]).read_text())["config"]
        self.root = directory / "root"
        self.root.mkdir()
        subprocess.run(["tar", "-xpf", directory / "layout" / docker["Layers"][0], "--numeric-owner", "-C", self.root], check=True)
        for volume in self.config["Volumes"]:  # a new volume begins as the directory that it hides
            shutil.copytree(self.root / volume.lstrip("/"), directory / "volumes" / volume.lstrip("/"))
            status = (self.root / volume.lstrip("/")).stat()
            os.chown(directory / "volumes" / volume.lstrip("/"), status.st_uid, status.st_gid)

    @contextmanager
    def running(self, *arguments: str) -> Iterator[Container]:
        """A container, until the block ends."""
        user, group = self.config["User"].split(":")
        drop = ["setpriv", f"--reuid={user}", f"--regid={group}", "--clear-groups", "--no-new-privs", "--bounding-set=-all", "--"]
        namespaces = ["unshare", "--mount", "--pid", "--net", "--ipc", "--uts", "--fork", "--kill-child", "--propagation", "private"]
        words = [*namespaces, "sh", "-ec", ENTER, "sh", str(self.root), *drop, *self.config["Entrypoint"], *arguments]
        variables = dict(text.split("=", 1) for text in self.config["Env"])
        with (self.directory / "output").open("w") as output:
            process = subprocess.Popen(words, env=variables, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)
        container = Container(self, process)
        try:
            yield container
        finally:
            process.kill()
            process.wait()


class Container:
    def __init__(self, image: Image, process: subprocess.Popen[bytes]) -> None:
        self.image = image
        self.process = process

    @property
    def pid(self) -> int:
        """The host's pid of its process 1."""
        return int(Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()[0])

    def output(self) -> str:
        return (self.image.directory / "output").read_text()

    def await_ready(self) -> None:
        def ready() -> bool:
            assert self.process.poll() is None, self.output()
            return re.search(r"^millrace ready ", self.output(), re.MULTILINE) is not None

        eventually(ready, "the container serves", 90)

    def run(self, *words: str | Path, as_host: bool = False) -> subprocess.CompletedProcess[str]:
        """Execute in it as its user; `as_host`: a program of this machine, in its network."""
        user, group = self.image.config["User"].split(":")
        enter = ["nsenter", "-t", str(self.pid), "-n"]
        if not as_host:
            enter += ["-m", "-p", "-i", "-u", "-r", "-w", "-S", user, "-G", group]
        return subprocess.run([*enter, "--", *words], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False)

    def health(self) -> int:
        return self.run(*self.image.config["Healthcheck"]["Test"][1:]).returncode

    def stop(self) -> int:
        """Exit code after the signal that stops it, with 60 s."""
        os.kill(self.pid, signal.Signals[self.image.config["StopSignal"]])
        return self.process.wait(60)


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Image:
    directory = tmp_path_factory.mktemp("image")
    for verb in ("packages", "image"):
        done = subprocess.run([ROOT / "install.sh", verb, directory / "built"], capture_output=True, text=True, timeout=1200, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    (archive,) = (directory / "built").glob("*.oci.tar")
    return Image(directory, archive)


def test_it_serves_as_its_user_stops_on_its_signal_and_has_its_records_after_the_next_start(image: Image) -> None:
    with image.running() as container:
        container.await_ready()
        eventually(lambda: container.health() == 0, "the health check passes", 30)
        assert Path(f"/proc/{container.pid}").stat().st_uid == int(image.config["User"].split(":")[0]) != 0
        assert container.run("millrace", "topic", "create", "numbers").returncode == 0
        sent = container.run("sh", "-c", "echo one | kcat -b 127.0.0.1:9092 -t numbers -P", as_host=True)
        assert sent.returncode == 0, sent.stderr
        status = container.run("millrace", "status")
        assert status.returncode == 0 and "numbers" in status.stdout, status.stdout + status.stderr
        container.run("sh", "-c", "sleep 0.1 & exec true")  # an orphan: process 1 is to reap it
        eventually(lambda: "Z" not in states(container), "no zombie is left", 10)
        assert container.stop() == 0, container.output()
    with image.running() as container:
        container.await_ready()
        read = container.run("kcat", "-b", "127.0.0.1:9092", "-t", "numbers", "-C", "-o", "beginning", "-e", "-q", as_host=True)
        assert read.stdout == "one\n"
        assert container.stop() == 0


def states(container: Container) -> set[str]:
    script = "for each in /proc/[0-9]*/stat; do sed 's/.*) \\(.\\) .*/\\1/' $each; done 2>/dev/null"
    return set(container.run("sh", "-c", script).stdout.split())
