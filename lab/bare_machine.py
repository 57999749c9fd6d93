"""A machine on which nothing is installed: Debian's minbase in a directory, entered in namespaces of its own.

`BareMachine(directory).make()` calls debootstrap (root, network); `run` executes a command in it. The machine uses
the package sources and certificates of this one: the Debian mirror, proxies, the configuration of pip, npm and
Maven. It has its own mount table, processes, /tmp, /run and /dev/shm, which end with the command. Kernel, network
and devices are this machine's. Weak spot: it knows Debian only.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

CERTIFICATES = Path("/usr/local/share/ca-certificates")
COPIED = ("/etc/resolv.conf", "/etc/hosts", "/etc/pip.conf", "/root/.config/pip/pip.conf", "/root/.npmrc", "/root/.m2/settings.xml")
TAKEN_OVER = re.compile(r"(?i)(https?|no|all|ftp)_proxy|(pip|npm_config|maven|uv)_\w+|\w*(ca|cert|cacert)s?_\w*|\w*_(cert|cafile|certs)")
"""Names of variables that tell package clients where to go."""
OUTSIDE = ("PIP_FIND_LINKS",)
"""Variables that name directories of this machine."""
MIRROR = "http://deb.debian.org/debian"

_ENTER = """
mount --bind "$1" "$1"; cd "$1"
mount -t proc proc proc
mount --rbind /sys sys
mount --rbind /dev dev
mount -t tmpfs -o mode=755 tmpfs run
for memory in tmp dev/shm; do mount -t tmpfs -o mode=1777 tmpfs $memory; done
mkdir -p .before
pivot_root . .before
umount -l /.before
exec chroot . /bin/bash -c "$2"
"""


class BareMachine:
    """`root` is its root directory."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def make(self) -> None:
        """Install the base system of this machine's Debian release."""
        subprocess.run(
            ["debootstrap", "--variant=minbase", "--include=ca-certificates", _release(), str(self.root), _mirror()],
            check=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
        proxies = [file for file in Path("/etc/apt/apt.conf.d").glob("*") if "proxy" in file.read_text(errors="replace").lower()]
        for path in (*map(Path, COPIED), *proxies, *CERTIFICATES.glob("*.crt")):
            if path.is_file():
                target = self.root / path.relative_to("/")
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(path, target)
        self.run("update-ca-certificates >/dev/null", 120)

    def run(self, script: str, seconds: float, log: Path | None = None) -> int:
        """Run a bash script as root, with its output in `log`; return its exit code."""
        variables = {name: value for name, value in os.environ.items() if TAKEN_OVER.fullmatch(name) and name not in OUTSIDE}
        plain = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "LANG": "C.UTF-8", "TERM": "dumb"}
        namespaces = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--propagation", "private"]
        with open(log or os.devnull, "wb") as output:
            command = [*namespaces, "sh", "-ec", _ENTER, "sh", str(self.root), script]
            return subprocess.run(
                command, env=variables | plain, stdin=subprocess.DEVNULL, stdout=output, stderr=output, timeout=seconds, check=False
            ).returncode

    def clone(self, source: Path, directory: str) -> None:
        """Copy a Git tree to `directory` of the machine, as it was committed last."""
        target = self.root / directory.lstrip("/")
        subprocess.run(["git", "clone", "-q", "--no-local", str(source), str(target)], check=True)

    def read(self, path: str) -> str:
        return (self.root / path.lstrip("/")).read_text(errors="replace")

    def remove(self) -> None:
        shutil.rmtree(self.root, ignore_errors=True)


def missing() -> str:
    """Why there can be no bare machine here, or an empty text."""
    if os.geteuid() != 0:
        return "a bare machine needs root"
    return "" if shutil.which("debootstrap") else "a bare machine needs debootstrap"


def _release() -> str:
    fields = dict(line.split("=", 1) for line in Path("/etc/os-release").read_text().splitlines() if "=" in line)
    return shlex.split(fields.get("VERSION_CODENAME", "bookworm"))[0]


def _mirror() -> str:
    """The mirror that this machine's apt takes its release from."""
    for file in (Path("/etc/apt/sources.list"), *sorted(Path("/etc/apt/sources.list.d").glob("*"))):
        text = file.read_text(errors="replace") if file.is_file() else ""
        found = re.search(r"^(?:deb(?: \[[^\]]*\])?|URIs:) (\S+/debian/?)\s", text, re.MULTILINE)
        if found:
            return found[1]
    return MIRROR
