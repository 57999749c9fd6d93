"""The file of the ingest table, and what this machine says of it: time zones, certificates and keys, the sockets that it wants.

For who starts a box, and for commands; ingest itself gets the text by `box.json`. Weak: what is found here may have changed when the file is needed; then
the listener says so in its log, and goes on with what it had.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from appliance.base.settings import Box, SenderSocket
from appliance.runtime.run_options import ResolvedOptions
from appliance.runtime.sender_table import SenderTable
from appliance.senders.ingest_table import TableReading, read_table
from appliance.senders.listener import Listener, Transport

FILE_SETTING = "ingest.table.file"
ZONE_DIRECTORY = "/usr/share/zoneinfo"


def read_sender_table(options: ResolvedOptions) -> SenderTable:
    """What a start needs to know; nothing where no file is named."""
    path = str(options.settings[FILE_SETTING])
    if not path:
        return SenderTable()
    text, problem = read_file(path)
    if problem is not None:
        return SenderTable(problems=(f"{path}: {problem}; give another with the setting {FILE_SETTING}",))
    reading = read_table(text, path, box_of(options))
    own = own_listeners(reading)
    problems = tuple(all_problems(reading, path))
    sockets = tuple(
        SenderSocket(listener.fd_name, listener.is_datagram, listener.address, listener.port, f"{path}:{reading.lines[listener.name]}") for listener in own
    )
    secured = [(f"{path}:{reading.lines[listener.name]}", listener) for listener in own if listener.transport is Transport.TLS]
    return SenderTable(text, () if problems else sockets, problems, (lambda: certificate_problems(secured)) if secured and not problems else None)


def read_file(path: str) -> tuple[str, str | None]:
    """The text, or why it cannot be read."""
    try:
        with open(path, encoding="utf-8-sig") as file:  # editors of Windows put a byte order mark before the first line
            return file.read(), None
    except OSError as error:
        return "", f"cannot read the ingest table: {error.strerror}"
    except UnicodeDecodeError as error:
        return "", f"the ingest table is not UTF-8: {error.reason} at byte {error.start}"


def box_of(options: ResolvedOptions) -> Box:
    """A box with these options, as far as a table looks at one."""
    ports = (options.kafka_port, options.syslog_port, options.http_port)
    return Box("", 0, [], options.state, options.listen, options.advertise, *ports, ingest_port=options.ingest_port, settings=options.settings)


def own_listeners(reading: TableReading) -> list[Listener]:
    """Those that the table brings."""
    return [listener for listener in reading.listeners if not listener.is_built_in]


def all_problems(reading: TableReading, path: str) -> list[str]:
    """What is wrong with a table here, in the order of its lines; certificates apart."""
    found = [*reading.problems, *machine_problems(reading, path)]
    return sorted(found, key=lambda problem: int(problem[len(path) + 1 :].partition(":")[0]))


def machine_problems(reading: TableReading, path: str) -> list[str]:
    """Time zones and files that this machine does not have."""
    found = []
    for listener in own_listeners(reading):
        where = f"{path}:{reading.lines[listener.name]}"
        if listener.time_zone != "UTC" and not os.path.isfile(f"{ZONE_DIRECTORY}/{listener.time_zone}"):
            found.append(f"{where}: time-zone is {listener.time_zone!r}, which this machine does not know; use a name below {ZONE_DIRECTORY}, or UTC")
        files = {"certificate": listener.certificate, "private-key": listener.private_key, "client-ca": listener.client_ca}
        for option, file in files.items():
            if file and not os.path.isabs(file):
                found.append(f"{where}: {option} is {file!r}; give the whole path, from / on")
            elif file and not os.access(file, os.R_OK):
                what = "cannot be read by this user" if os.path.exists(file) else "is not there"
                found.append(f"{where}: {option} {file} {what}; name a file in PEM form that the user of the box may read")
    return found


def certificate_problems(secured: Sequence[tuple[str, Listener]]) -> list[str]:
    """What OpenSSL says against certificates, keys and authorities. To be asked in a process that may grow."""
    import ssl

    found = []
    for where, listener in secured:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            context.load_cert_chain(listener.certificate, listener.private_key, password=lambda: "")
        except (ssl.SSLError, OSError) as error:
            reason = getattr(error, "reason", None) or error.strerror or str(error)
            found.append(
                f"{where}: {listener.certificate} and {listener.private_key} are no certificate with its key ({reason}); give those that belong together"
            )
        if listener.client_ca:
            try:
                context.load_verify_locations(listener.client_ca)
            except (ssl.SSLError, OSError) as error:
                reason = getattr(error, "reason", None) or error.strerror or str(error)
                found.append(f"{where}: client-ca {listener.client_ca} holds no certificate ({reason}); give a file in PEM form")
    return found
