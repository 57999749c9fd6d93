"""Keeps the keys of one issuer of tokens at the newest, from a file or by HTTPS, in a thread.

The document is read at the start, every `refresh` and when a token names an unknown key, but not twice within
`PAUSE_SECONDS`; a file is read when it has changed, too. A document that cannot be read leaves the last keys in use;
the problem is logged once until it changes, and each failure is counted. Owned by one acceptor. Weak: an issuer that
sends its document slower and slower holds the thread, and the last keys are used meanwhile.
"""

from __future__ import annotations

import os
import threading
import time
from typing import Final

from appliance.base.logging import Logger
from appliance.runtime.background_thread import BackgroundThread, ThreadRefused
from appliance.security.oauth import KEYS_BYTES_MAX, KeysAbsent, KeySet, TokenRefused, TokenRules, VerifiedToken
from appliance.shm.counters import Counter

PAUSE_SECONDS: Final = 10.0
FILE_SECONDS: Final = 1.0
TIMEOUT_SECONDS: Final = 10.0
"""of each step of a download"""


class TokenKeys:
    """`sweep` once a second. `verify` is called by the thread of logins."""

    def __init__(self, url: str, refresh_ms: int, log: Logger, failures: Counter) -> None:
        self._url = url
        self._place = url.partition("?")[0]
        """for the log: what follows may be a secret"""
        self._path = url.removeprefix("file://") if url.startswith("file:") else ""
        self._refresh_seconds = refresh_ms / 1000
        self._log = log
        self._failures = failures
        self._failed_count = 0
        self._counted = 0
        self._keys: KeySet | None = None
        self._read_at = 0.0
        """When the document was read last, or could not be."""
        self._problem = ""
        self._logged: str | None = None
        """The problem that was logged last, '' for none."""
        self._wanted = threading.Event()
        self._ends = threading.Event()
        self._thread: BackgroundThread | None = None

    @property
    def has_keys(self) -> bool:
        return self._keys is not None

    def verify(self, token: str, rules: TokenRules) -> VerifiedToken:
        """Return the user of a token. Raises TokenRefused, or KeysAbsent if the keys are about to be read (again)."""
        keys = self._keys
        if keys is None:
            self._wanted.set()
            raise KeysAbsent("the keys of tokens could not be read yet")
        try:
            return keys.verify(token, rules)
        except KeysAbsent as absent:
            if time.monotonic() - self._read_at < PAUSE_SECONDS:
                raise TokenRefused(str(absent)) from None
            self._wanted.set()
            raise

    def sweep(self) -> None:
        """Start the thread if there is none, and log what it met."""
        if self._thread is None or not self._thread.is_alive():
            thread = BackgroundThread(self._run, "token-keys")
            try:
                thread.start()
                self._thread = thread
            except ThreadRefused:  # it is counted and logged; the next sweep tries again
                return
        failed = self._failed_count
        if failed > self._counted:
            self._failures.add(failed - self._counted)
            self._counted = failed
        problem = self._problem
        if problem != self._logged and (problem or self._keys is not None):
            self._logged = problem
            if problem:
                use = "no token can be verified" if self._keys is None else "the last ones are used"
                self._log.error(f"could not read the keys of tokens from {self._place}: {problem}; {use}. Check sasl.oauthbearer.jwks.endpoint.url")
            else:
                self._log.info(f"read {len(self._keys or ())} keys of tokens from {self._place}")

    def close(self) -> None:
        """A thread that waits for a server ends with the process."""
        self._ends.set()
        self._wanted.set()

    def _run(self) -> None:
        while not self._ends.is_set():
            self._wanted.clear()
            mark = self._mark()
            try:
                self._keys = KeySet.parse(self._read())
                self._problem = ""
            except Exception as error:  # it comes from outside, through libraries, and the thread must go on
                self._problem = getattr(error, "strerror", None) or str(error) or type(error).__name__
                self._failed_count += 1
            self._read_at = time.monotonic()
            self._wait(mark)

    def _wait(self, mark: tuple[int, ...] | None) -> None:
        """Until the document is to be read again."""
        began = time.monotonic()
        end = began + (PAUSE_SECONDS if self._problem else self._refresh_seconds)
        while (left := end - time.monotonic()) > 0 and not self._ends.wait(min(left, FILE_SECONDS)):
            if self._path and self._mark() != mark:
                return
            if self._wanted.is_set() and time.monotonic() - began >= PAUSE_SECONDS:
                return

    def _mark(self) -> tuple[int, ...] | None:
        """What changes with a file; None without one."""
        try:
            status = os.stat(self._path) if self._path else None
        except OSError:
            return None
        return None if status is None else (status.st_ino, status.st_size, status.st_mtime_ns)

    def _read(self) -> bytes:
        if self._path:
            with open(self._path, "rb") as file:
                return file.read(KEYS_BYTES_MAX + 1)
        return _download(self._url)


def _download(url: str) -> bytes:
    """Return what the issuer serves at `url`, without redirections and proxies: only the settings say where keys come from. Raises OSError."""
    import urllib.error
    import urllib.request

    class _NoRedirect(urllib.request.HTTPRedirectHandler):
        def redirect_request(self, *_: object) -> None:
            return None

    try:
        with urllib.request.build_opener(_NoRedirect, urllib.request.ProxyHandler({})).open(url, timeout=TIMEOUT_SECONDS) as answer:
            return bytes(answer.read(KEYS_BYTES_MAX + 1))
    except urllib.error.HTTPError as error:
        error.close()
        raise OSError(f"its server answered {error.code}") from None
    except urllib.error.URLError as error:
        raise OSError(f"{error.reason}") from None
