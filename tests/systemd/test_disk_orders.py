"""`sudo millrace disk …` on an installed box: units follow, also when the processes of the box are in another's hands and say what they like."""

from __future__ import annotations

import pytest

from lab.installed_box import InstalledBox, why_not_installed
from lab.running_box import eventually
from lab.systemd_box import why_not

REASON = why_not() or why_not_installed()
pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.skipif(bool(REASON), reason=REASON)]

FORCED = ["--force", "root-filesystem,same-device"]
"""The machine has no disk to spare."""
PYTHON = "/opt/millrace/current/.venv/bin/python"
EVIL = """
import json, os, select, sys
from appliance.base.layout import BoxLayout
from appliance.ipc.frames import accept, listen_unix

layout = BoxLayout(sys.argv[1])
box = json.loads(open(layout.box_file).read())
order = "\\nExecStartPre=+/bin/sh -c 'id > /run/owned'\\n"
box["listen"] = "0.0.0.0" + order
box["disks"].append({"name": "evil", "path": "/srv/d0" + order, "replacements": 0})
os.unlink(layout.box_file)
with open(os.open(layout.box_file, os.O_WRONLY | os.O_CREAT, 0o600), "w") as file:
    json.dump(box, file)
listening = listen_unix(layout.supervisor_socket)
os.close(os.open("/var/lib/millrace/evil", os.O_CREAT))
clients = []
while True:
    select.select([listening, *clients], [], [])
    if (client := accept(listening)) is not None:
        clients.append(client)
    for client in clients:
        try:
            for frame in client.receive():
                client.send(frame.kind, frame.token, json.dumps({"disk": "evil", "path": "/srv/d0"}).encode())
        except Exception:
            clients.remove(client)
            break
"""
"""What code that runs in a process of the box could do: another box.json, and another supervisor that answers orders."""


def test_an_order_of_root_believes_nothing_that_a_process_of_the_box_wrote(installed: InstalledBox) -> None:
    machine = installed.box
    runtime = machine.output("ls -d /run/millrace/*/").strip().rstrip("/")
    units = "grep -rlE 'owned|evil' /etc/systemd/system || true"
    machine.output(f"mkdir -p /srv/extra && cp -p {runtime}/box.json /var/lib/millrace/box.json.kept")
    machine.path("/var/tmp/evil.py").write_text(EVIL)
    machine.output(f"systemd-run --quiet --unit=evil --uid=millrace {PYTHON} -P /var/tmp/evil.py {runtime}")
    try:
        eventually(lambda: machine.run("test -e /var/lib/millrace/evil", check=False).returncode == 0, "the other supervisor answers")
        refused = installed.millrace("disk", "add", "/srv/extra", *FORCED, check=False)
        assert machine.output(f"cat /run/owned 2>/dev/null; {units}") == ""
        assert refused.returncode == 2 and "disks.json does not say what was ordered of disk evil" in refused.stdout + refused.stderr
    finally:
        machine.output("systemctl stop evil; rm -f /var/lib/millrace/evil /run/owned; rm -rf /etc/systemd/system/millrace-log-*@evil.service.d")
        machine.output(f"mv /var/lib/millrace/box.json.kept {runtime}/box.json; millrace units apply; systemctl restart millrace.target")
        installed.await_all_active()


def test_a_disk_that_root_adds_has_units_and_goes_again(installed: InstalledBox) -> None:
    machine = installed.box
    machine.output("mkdir -p /srv/added && chown root:root /srv/added")
    added = installed.millrace("disk", "add", "/srv/added", *FORCED)
    assert "added disk added: /srv/added" in added.stdout
    installed.await_active("millrace-log-writer@added.service")
    assert machine.output("stat -c '%U %a' /srv/added").split() == ["millrace", "750"]
    assert machine.output(f"stat -c %a {machine.output('ls /run/millrace/*/box.json').strip()}").strip() == "640"
    eventually(lambda: installed.millrace("disk", "remove", "added", check=False).returncode == 0, "it has no partition, and goes")
    assert machine.run("test -e /etc/systemd/system/millrace-log-writer@added.service.d", check=False).returncode == 1
