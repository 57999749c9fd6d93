"""The Debian package without the packages of Python: units, settings, documents, control files."""

from __future__ import annotations

import gzip
import hashlib
import re
import shutil
import subprocess
from itertools import pairwise
from pathlib import Path

import pytest

from appliance.command.unit_installation import plan_of_settings
from tests.support.install_functions import TREE, run_functions

pytestmark = pytest.mark.slow

BUILD = """
stage_code() {{ mkdir -p "$1/appliance" "$1/.venv/bin" && echo "# code" >"$1/appliance/code.py" && ln -s ../nowhere "$1/link"; }}
stage_manual() {{ :; }}
git_here() {{ false; }}
umask {umask}
SETTINGS_FILE=/etc/millrace/millrace.toml
mkdir -p "{out}" && echo '{{}}' >"{out}/millrace.cdx.json" && set_source_date && make_deb "{out}" "$SCRATCH"
"""


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A package whose code is one file."""
    if shutil.which("dpkg-deb") is None or not Path("/usr/bin/python3").exists():
        pytest.skip("packages are built on Debian")
    return build(tmp_path_factory.mktemp("package"), "022")


def build(directory: Path, umask: str) -> Path:
    answer = run_functions(directory, BUILD.format(umask=umask, out=directory / "out"))
    assert answer.code == 0, answer.output
    (built,) = (directory / "out").glob("*.deb")
    return built


@pytest.fixture(scope="module")
def unpacked(package: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("root")
    subprocess.run(["dpkg-deb", "-R", package, root], check=True)
    return root


def test_two_builds_are_equal_and_belong_to_root(package: Path, tmp_path: Path) -> None:
    assert build(tmp_path, "077").read_bytes() == package.read_bytes()
    listed = subprocess.run(["dpkg-deb", "-c", package], check=True, capture_output=True, text=True).stdout.splitlines()
    assert {line.split()[1] for line in listed} == {"root/root"}
    assert {line[:10] for line in listed} == {"drwxr-xr-x", "-rw-r--r--", "lrwxrwxrwx"}


def test_it_is_named_by_its_version_and_later_commits_are_later_versions(package: Path, tmp_path: Path) -> None:
    fields = dict(
        line.split(": ", 1)
        for line in subprocess.run(["dpkg-deb", "-f", package], check=True, capture_output=True, text=True).stdout.splitlines()
        if line[0] != " "
    )
    assert package.name == f"millrace_{fields['Version']}_{fields['Architecture']}.deb"
    assert re.fullmatch(r"python3 \(>= 3\.(\d+)~\), python3 \(<< 3\.(\d+)~\), default-jre-headless \| .*", fields["Depends"])
    code = "git_here() { false; }; for SOURCE_DATE_EPOCH in 1795884748 1795884749; do deb_version; done; files_version() { echo 0.3.0+gfff; }; deb_version"
    versions = run_functions(tmp_path, code).lines
    for older, newer in pairwise(versions):
        assert subprocess.run(["dpkg", "--compare-versions", older, "lt", newer], check=False).returncode == 0, (older, newer)


def test_units_are_those_of_the_tree_without_what_needs_spark(unpacked: Path) -> None:
    placed = {path.name: path.read_text() for path in (unpacked / "usr/lib/systemd/system").iterdir()}
    suffixes = (".service", ".socket", ".target", ".slice")
    assert set(placed) == {path.name for path in (TREE / "systemd").iterdir() if path.suffix in suffixes and "-load" not in path.name}
    for name, text in placed.items():
        assert (
            "/current" not in text and "JAVA_HOME" not in text and "@" not in re.sub(r"%?@(0|%i|DISK|system-service|privileged|resources)|\w@\w*", "", text)
        ), name
        for document in re.findall(r"^Documentation=file:(/[^#\n]*)", text, re.MULTILINE):
            assert (unpacked / document.lstrip("/")).is_file(), (name, document)
    assert "ExecStart=/usr/lib/millrace/.venv/bin/python -P -m services.console\n" in placed["millrace-console.service"]
    for name in ("tmpfiles.d/millrace.conf", "sysusers.d/millrace.conf", "sysctl.d/60-millrace.conf"):
        assert (unpacked / "usr/lib" / name).is_file()


def test_its_settings_are_a_conffile_that_units_can_be_made_of(unpacked: Path, tmp_path: Path) -> None:
    assert (unpacked / "DEBIAN/conffiles").read_text() == "/etc/millrace/millrace.toml\n"
    settings = unpacked / "etc/millrace/millrace.toml"
    box, _ = plan_of_settings(str(settings), str(tmp_path))
    assert (box.listen, [disk.path for disk in box.disks], box.state_directory) == ("127.0.0.1", ["/srv/millrace/d0"], "/var/lib/millrace")
    text = settings.read_text()
    assert "install.sh" not in text and "/current" not in text and "/usr/share/doc/millrace/docs/settings.md" in text
    assert "systemctl enable --now millrace.target" in text


def test_each_file_is_in_its_sums_and_scripts_are_shell(unpacked: Path) -> None:
    files = {str(path.relative_to(unpacked)): path for path in unpacked.rglob("*") if path.is_file() and not path.is_symlink() and path.parent.name != "DEBIAN"}
    sums = dict(reversed(line.split("  ", 1)) for line in (unpacked / "DEBIAN/md5sums").read_text().splitlines())
    assert sums == {name: hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest() for name, path in files.items()}
    for name in ("preinst", "postinst", "prerm", "postrm"):
        assert subprocess.run(["dash", "-n", unpacked / "DEBIAN" / name], check=False).returncode == 0
    assert "* Built from these sources" in gzip.decompress((unpacked / "usr/share/doc/millrace/changelog.gz").read_bytes()).decode()


def test_the_installer_leaves_a_machine_with_the_package_alone(tmp_path: Path) -> None:
    answer = run_functions(tmp_path, f'PACKAGED="{tmp_path}"; problem() {{ echo "$2"; }}; check_prefix')
    assert answer.output == "the Debian package millrace is installed; remove it first: apt-get remove millrace (records, state and settings stay)\n"
