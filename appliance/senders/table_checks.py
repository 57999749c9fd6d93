"""What this machine says of the tables of senders: time zones, certificates, keys, and the sockets
that are needed.

For the process that starts a box, and for commands; ingest reads the tables from `box.json`. Weak:
what is checked here may have changed when the file is needed; then the listener logs it and keeps
what it had.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from appliance.base.settings import OLD_TABLE_SETTING, Box, SenderSocket
from appliance.base.trusted_files import network_user_problem
from appliance.runtime.run_options import ResolvedOptions, SenderTable
from appliance.senders.listener import Listener, ListenerTransport
from appliance.senders.sender_tables import TableReading, read_tables

ZONE_DIRECTORY = "/usr/share/zoneinfo"


def read_sender_table(options: ResolvedOptions) -> SenderTable:
    """Read and check the tables of senders of a settings file, or the old table that it names."""
    tables, places, problems = options.sender_tables, dict[str, str](), list[str]()
    if options.old_table:
        tables, places, problems = read_old_table(options)
    reading = read_tables(tables, options.settings_file, box_of(options), places)
    problems += [*reading.problems, *machine_problems(reading)]
    if problems:
        return SenderTable(tables, problems=tuple(problems))
    own = reading.own_listeners()
    sockets = tuple(SenderSocket(each.fd_name, each.is_datagram, each.address, each.port, reading.places[each.name]) for each in own)
    secured = [(reading.places[each.name], each) for each in own if each.transport is ListenerTransport.TLS]
    return SenderTable(tables, sockets, (), (lambda: certificate_problems(secured)) if secured else None)


def read_old_table(options: ResolvedOptions) -> tuple[dict[str, Any], dict[str, str], list[str]]:
    """The table of release 0.1 that the settings file names, converted: tables, their lines in the
    old file, problems.
    """
    from appliance.senders.old_table import convert_table

    path = options.old_table
    problem = f"{options.settings_file}: {OLD_TABLE_SETTING}: there are tables of senders in both files; remove those of {path}, and this setting"
    try:
        with open(path, encoding="utf-8-sig") as file:
            converted = convert_table(file.read(), path)
    except OSError as error:
        return {}, {}, [f"{path}: cannot read the table of senders: {error.strerror}; remove {OLD_TABLE_SETTING} if there is none"]
    except UnicodeDecodeError as error:
        return {}, {}, [f"{path}: the table of senders is not UTF-8: {error.reason} at byte {error.start}"]
    return converted.tables, converted.places, [*converted.problems, *([problem] if options.sender_tables else [])]


def box_of(options: ResolvedOptions) -> Box:
    """A box with these options, as far as the tables depend on it."""
    ports = (options.kafka_port, options.syslog_port, options.http_port)
    box = Box("", 0, [], options.state, options.listen, options.advertise, *ports, ingest_port=options.ingest_port, settings=options.settings)
    return box._replace(listeners=options.listeners)


def machine_problems(reading: TableReading) -> list[str]:
    """Time zones and files that this machine does not have."""
    found = []
    for name, where in reading.places.items():
        listener = next(listener for listener in reading.listeners if listener.name == name)
        if listener.time_zone != "UTC" and not os.path.isfile(f"{ZONE_DIRECTORY}/{listener.time_zone}"):
            found.append(f"{where}: time-zone is {listener.time_zone!r}, which this machine does not know; use a name below {ZONE_DIRECTORY}, or UTC")
        files = {"certificate": listener.certificate, "private-key": listener.private_key, "client-ca": listener.client_ca}
        for key, file in files.items():
            if file and not os.path.isabs(file):
                found.append(f"{where}: {key} is {file!r}; write the whole path, beginning with /")
            elif file and not os.access(file, os.R_OK):
                what = "cannot be read by this user" if os.path.exists(file) else "does not exist"
                found.append(f"{where}: {key}: {file} {what}; name a file in PEM form that the user of the box can read")
    return found


def exposed_secrets(reading: TableReading, files: Sequence[str]) -> list[str]:
    """Sentences about files with secrets that every user of this machine can read: keys of
    listeners, and `files` if the tables in them have tokens or shared keys.
    """
    secret = {listener.private_key: "a private key" for listener in reading.listeners if listener.private_key}
    if any(listener.tokens or listener.shared_key for listener in reading.listeners):
        secret |= dict.fromkeys((file for file in files if file), "tokens or keys of senders")
    found = []
    for file, what in secret.items():
        try:
            mode = os.stat(file).st_mode & 0o777
        except OSError:
            continue  # a missing file is reported as such
        if mode & 0o004:
            found.append(f"{file} contains {what}, and every user of this machine can read it (mode {mode:04o}); run chmod o-rwx {file}")
    return found


def certificate_problems(secured: Sequence[tuple[str, Listener]]) -> list[str]:
    """What OpenSSL reports about certificates, keys and authorities. Called in a child process,
    because OpenSSL stays in memory.
    """
    import ssl

    found = []
    for where, listener in secured:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            context.load_cert_chain(listener.certificate, listener.private_key, password=lambda: "")
        except (ssl.SSLError, OSError) as error:
            pair = f"certificate {listener.certificate} and private-key {listener.private_key} do not belong together ({_reason(error)})"
            found.append(f"{where}: {pair}; name a certificate and its key")
        if listener.client_ca:
            try:
                context.load_verify_locations(listener.client_ca)
            except (ssl.SSLError, OSError) as error:
                found.append(f"{where}: client-ca: {listener.client_ca} contains no certificate ({_reason(error)}); name a file in PEM form")
        files = filter(None, (listener.certificate, listener.private_key, listener.client_ca))
        found += [f"{where}: {problem}" for file in files if (problem := network_user_problem(file)) is not None]
    return found


def _reason(error: OSError) -> str:
    return getattr(error, "reason", None) or error.strerror or str(error)
