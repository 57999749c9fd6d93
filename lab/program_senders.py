"""Senders that are programs: rsyslog with its outputs, libraries for JavaScript (`clients/js/told_sender.mjs`), systemd-journal-upload.

A program is fed by a file, by its standard input or by a journal, and ends with its sender. Weak: rsyslog does not report what was confirmed to it; it
keeps what was not answered and sends it again without an end, so all that it was given counts as confirmed.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import IO

from lab import client_packages
from lab.told_senders import Feed, Place, ToldSender

STOP_SECONDS = 20.0
PAUSE_SECONDS = 0.02
PER_WRITE = 20
RESTART_SECONDS = 0.2
OMELASTICSEARCH = Path(sys.prefix) / "peers/usr/lib/x86_64-linux-gnu/rsyslog/omelasticsearch.so"


def missing_command(*names: str) -> str | None:
    """Why these programs cannot be used here."""
    absent = [name for name in names if shutil.which(name) is None]
    return f"{', '.join(absent)}: not there; ./install.sh test unpacks it under .venv/peers" if absent else None


def missing_omelasticsearch() -> str | None:
    return missing_command("rsyslogd") or (None if OMELASTICSEARCH.exists() else "there is no omelasticsearch; ./install.sh test unpacks it under .venv/peers")


class _ProgramSender(ToldSender):
    """A sender with a process."""

    process: subprocess.Popen[str] | None = None

    def start_program(self, *command: str | Path, stdin: int | None = subprocess.DEVNULL, stdout: int | None = None) -> subprocess.Popen[str]:
        with open(self.place.directory / f"{self.place.word}.log", "ab") as log:
            self.process = subprocess.Popen(list(map(str, command)), stdin=stdin, stdout=log if stdout is None else stdout, stderr=log, text=True, bufsize=1)
        return self.process

    def begin_close(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()

    def close(self) -> None:
        if self.process is not None:
            self.process.wait(STOP_SECONDS)


class RsyslogSender(_ProgramSender):
    """What is appended to a file goes out by one action."""

    def __init__(self, place: Place, feed: Feed, action: str, modules: str, template: str = "") -> None:
        super().__init__(place, feed)
        self._action, self._modules, self._template = action, modules, template

    def send_all(self) -> None:
        directory = self.place.directory / self.place.word
        directory.mkdir()
        lines, conf = directory / "lines.log", directory / "rsyslog.conf"
        lines.touch()
        own = 'queue.type="LinkedList" queue.size="1000000" action.resumeRetryCount="-1" action.resumeInterval="1"'
        conf.write_text(f"""
global(workDirectory="{directory}")
module(load="imfile") {self._modules}
{self._template}
input(type="imfile" File="{lines}" Tag="app:" ruleset="out")
ruleset(name="out") {{ action({self._action} {own}) }}
""")
        self.start_program("rsyslogd", "-n", "-f", conf, "-i", directory / "pid")
        with open(lines, "a", buffering=1) as file:
            while numbers := self.feed.take(PER_WRITE):
                file.write("".join(f"{self.text(number)}\n" for number in numbers))
        self.tell(range(self.feed.given))


def omrelp(place: Place, feed: Feed) -> RsyslogSender:
    return RsyslogSender(place, feed, _relp(place), 'module(load="omrelp")')


def omrelp_tls(place: Place, feed: Feed) -> RsyslogSender:
    files = f'tls.caCert="{place.authority.certificate}" tls.myCert="{place.certificate.certificate}" tls.myPrivKey="{place.certificate.private_key}"'
    tls = f'tls="on" {files} tls.authmode="name" tls.permittedpeer=["localhost"]'
    return RsyslogSender(place, feed, f"{_relp(place)} {tls}", 'module(load="omrelp" tls.tlslib="openssl")')


def _relp(place: Place) -> str:
    target = f'target="{place.address.host}" port="{place.address.port}"'
    return f'type="omrelp" {target} template="RSYSLOG_SyslogProtocol23Format" windowSize="2000"'


def omelasticsearch(place: Place, feed: Feed) -> RsyslogSender:
    template = """
template(name="document" type="list" option.jsonf="on") { property(outname="message" name="msg" format="jsonf") }
template(name="id" type="string" string="%uuid%")
"""
    server = f'server="http://{place.address.host}" serverport="{place.address.port}" searchIndex="relayed" searchType=""'
    ids = 'bulkmode="on" bulkid="id" dynbulkid="on" writeoperation="create"'
    return RsyslogSender(place, feed, f'type="omelasticsearch" {server} {ids} template="document"', 'module(load="omelasticsearch")', template)


class NodeSender(_ProgramSender):
    """One of the libraries that `told_sender.mjs` knows."""

    def __init__(self, place: Place, feed: Feed, library: str, forgets: bool = False) -> None:
        super().__init__(place, feed)
        self._library = library
        self.forgets = forgets

    def send_all(self) -> None:
        script, address = client_packages.SOURCES / "js" / "told_sender.mjs", self.place.address
        arguments = (self._library, address.host, str(address.port), client_packages.JS)
        process = self.start_program(client_packages.NODE, script, *arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert process.stdin is not None and process.stdout is not None
        listening = threading.Thread(target=self._listen, args=(process.stdout,), daemon=True)
        listening.start()
        with process.stdin:
            while numbers := self.feed.take(PER_WRITE):
                process.stdin.write("".join(f"{self.text(number)}\n" for number in numbers))
        listening.join()
        assert process.wait(STOP_SECONDS) == 0, "node ended with an error"

    def _listen(self, said: IO[str]) -> None:
        with said:
            for line in said:
                self.tell_text(line)


winston_elasticsearch = partial(NodeSender, library="winston-elasticsearch")
winston_loki = partial(NodeSender, library="winston-loki")
npm_fluent = partial(NodeSender, library="fluent-logger", forgets=True)


class JournalSender(_ProgramSender):
    """systemd-journal-upload follows a journal that systemd-journal-remote writes, is started again when it ends, and goes on where its state file says."""

    def send_all(self) -> None:
        journal = self.place.directory / f"{self.place.word}.journal"
        writer = subprocess.Popen([_path("systemd-journal-remote"), f"--output={journal}", "-"], stdin=subprocess.PIPE, stderr=subprocess.DEVNULL)
        assert writer.stdin is not None
        next_start = 0.0
        with writer.stdin:
            while numbers := self.feed.take(PER_WRITE):
                writer.stdin.write(b"".join(map(self._entry, numbers)))
                writer.stdin.flush()
                if journal.exists() and (self.process is None or self.process.poll() is not None) and time.monotonic() >= next_start:
                    next_start = time.monotonic() + RESTART_SECONDS
                    self._upload(journal, "--follow=yes")
        writer.wait(STOP_SECONDS)
        self.begin_close()
        self.close()
        while self._upload(journal, "--follow=no").wait() != 0:
            time.sleep(PAUSE_SECONDS)
        self.tell(range(self.feed.given))

    def _upload(self, journal: Path, follow: str) -> subprocess.Popen[str]:
        state = self.place.directory / f"{self.place.word}.state"
        url = f"http://{self.place.address}"
        return self.start_program(_path("systemd-journal-upload"), follow, f"--url={url}", f"--file={journal}", f"--save-state={state}")

    def _entry(self, number: int) -> bytes:
        now_us = time.time_ns() // 1000
        fields = {
            "__CURSOR": f"s=6a8;i={number:x};b=f0",
            "__REALTIME_TIMESTAMP": now_us + number,
            "__MONOTONIC_TIMESTAMP": now_us + number,
            "_BOOT_ID": "f0" * 16,
            "_HOSTNAME": "web-1",
            "PRIORITY": 6,
            "SYSLOG_IDENTIFIER": "app",
            "MESSAGE": self.text(number),
        }
        return "".join(f"{name}={value}\n" for name, value in fields.items()).encode() + b"\n"


def _path(program: str) -> str:
    found = shutil.which(program)
    assert found is not None, f"{program} is not there"
    return found
