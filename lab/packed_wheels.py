"""Wheels of what is installed in .venv already, and ZooKeeper's jars, for an installation without a network: no download.

Every package that pyproject.toml lists, and those that they need, are packed again as their RECORD names them; commands and byte code are left out, since pip
makes them.
"""

from __future__ import annotations

import base64
import hashlib
import re
import shutil
import tomllib
import zipfile
from collections.abc import Sequence
from importlib.metadata import Distribution, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from appliance.cluster.zookeeper_server import find_jars
from lab.running_box import ROOT

PIPELINE_EXTRAS = ("pipeline", "delta", "postgresql")
"""As install/packages.sh has them."""


def needed_packages(*extra_names: str, more: Sequence[str] = ()) -> list[Distribution]:
    """What pyproject.toml wants installed, alone or with some of its extras, `more` packages, and all that those want."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [Requirement(line) for line in project["dependencies"] + [line for name in extra_names for line in project["optional-dependencies"][name]]]
    wanted += map(Requirement, more)
    found: dict[str, Distribution] = {}
    while wanted:
        requirement = wanted.pop()
        name = canonicalize_name(requirement.name)
        extras = requirement.extras or {""}
        if (requirement.marker is not None and not requirement.marker.evaluate({"extra": ""})) or name in found:
            continue
        package = distribution(requirement.name)
        found[name] = package
        for line in package.requires or ():
            further = Requirement(line)
            if further.marker is None or any(further.marker.evaluate({"extra": extra}) for extra in extras):
                further.marker = None
                wanted.append(further)
    return list(found.values())


def is_packed(path: str) -> bool:
    return not (path.startswith("..") or path.endswith((".pyc", "/RECORD", "/INSTALLER", "/REQUESTED", "/direct_url.json")))


def pack(package: Distribution, directory: Path) -> Path:
    """One wheel; nothing is compressed, because it is read again at once."""
    tags = re.findall(r"^Tag: (\S+)-(\S+)-(\S+)$", package.read_text("WHEEL") or "", re.MULTILINE)
    tag = "-".join(".".join(dict.fromkeys(part)) for part in zip(*tags, strict=True))
    name = re.sub(r"[-_.]+", "_", package.metadata["Name"])
    wheel = directory / f"{name}-{package.version}-{tag}.whl"
    record = []
    with zipfile.ZipFile(wheel, "w") as archive:
        for file in package.files or ():
            if not is_packed(str(file)):
                continue
            data = Path(str(file.locate())).read_bytes()
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            record.append(f"{file},sha256={digest},{len(data)}\n")
            archive.write(str(file.locate()), str(file))  # with its mode: PySpark starts scripts
            if ".dist-info/" in str(file):
                place = str(file).split("/")[0]
        archive.writestr(f"{place}/RECORD", "".join([*record, f"{place}/RECORD,,\n"]))
    return wheel


def pack_jars(directory: Path) -> None:
    (directory / "zookeeper").mkdir()
    for jar in find_jars():
        shutil.copy(jar, directory / "zookeeper")


def pack_all(directory: Path, with_spark: bool = False, more: Sequence[str] = ()) -> list[Path]:
    """Wheels of everything that an installation needs; with Spark those of `install.sh --pipeline`; and of `more` packages."""
    directory.mkdir(parents=True, exist_ok=True)
    pack_jars(directory)
    return [pack(package, directory) for package in needed_packages(*(PIPELINE_EXTRAS if with_spark else ()), more=more)]
