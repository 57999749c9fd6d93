"""A piece of disk work ends with its result or with one failure, whatever ended its thread."""

from __future__ import annotations

import _thread
import errno
import threading

import pytest

from appliance.base.errors import DiskFull, OutOfDescriptors, OutOfThreads, StorageFailed
from appliance.storage.file_io import SyncFailed
from services.log_writer.background.background_task import BackgroundTask


def _raising(failure: BaseException) -> None:
    raise failure


def test_a_result_is_brought_back_by_the_caller_of_finish() -> None:
    results: list[tuple[int, str]] = []
    may_end = threading.Event()
    task = BackgroundTask("work", "work")
    task.start(lambda: may_end.wait(20) and threading.current_thread().name, lambda name: results.append((threading.get_ident(), str(name))))
    assert task.is_running and not task.has_ended and not task.join(0)
    may_end.set()
    assert task.join(20) and task.has_ended and not results
    task.finish()
    assert results == [(threading.get_ident(), "work")] and not task.has_ended


@pytest.mark.parametrize(
    ("raised", "expected", "message"),
    [
        (OSError(errno.EIO, "Input/output error"), StorageFailed, "could not flush it: input/output error"),
        (OSError(errno.ENOSPC, "No space left on device"), DiskFull, "could not flush it: no space left on device"),
        (OSError(errno.EMFILE, "Too many open files"), OutOfDescriptors, "could not flush it: too many open files"),
        (DiskFull("said by the work"), DiskFull, "said by the work"),
        (ValueError("a fault of ours"), ValueError, "a fault of ours"),
        (SystemExit(), OutOfThreads, "could not flush it: its thread ended before its work"),
    ],
)
def test_a_failure_is_raised_once_and_its_result_is_not_used(raised: BaseException, expected: type[Exception], message: str) -> None:
    results: list[object] = []
    task = BackgroundTask("work", "flush it")
    task.start(lambda: _raising(raised), results.append)
    task.join()
    with pytest.raises(expected, match=f"^{message}$") as failure:
        task.finish()
    assert type(failure.value) is expected and not task.has_ended and not results
    task.start(lambda: 7, results.append)
    task.join()
    task.finish()
    assert results == [7]


def test_the_thread_itself_reports_a_failed_sync_and_its_end() -> None:
    """No later sync reports that failure, and the process may end before its next turn."""
    called: list[str] = []
    task = BackgroundTask("work", "flush it", lambda: called.append("ended"), lambda: called.append("sync failed"))
    task.start(lambda: _raising(SyncFailed(errno.ENOSPC, "No space left on device")))
    task.join()
    assert called == ["sync failed", "ended"]
    with pytest.raises(StorageFailed) as failure:
        task.finish()
    assert not isinstance(failure.value, DiskFull), "a failed sync is never repeated"


def test_work_that_no_thread_could_be_started_for_was_not_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[str] = []
    task = BackgroundTask("work", "flush it", lambda: called.append("ended"))
    with monkeypatch.context() as patch:
        patch.setattr(_thread, "start_new_thread", lambda *_: _raising(RuntimeError("can't start new thread")))
        task.start(lambda: called.append("worked"))
    assert task.has_ended and called == ["ended"]
    with pytest.raises(OutOfThreads, match="could not flush it: could not start thread work: can't start new thread"):
        task.finish()


def test_the_end_of_a_thread_that_died_before_its_work_is_reported_by_finish() -> None:
    """Otherwise the word that says since when the disk is waited for would stay, and a healthy disk would count as hung."""
    called: list[str] = []
    task = BackgroundTask("work", "flush it", lambda: called.append("ended"))
    task.start(lambda: _raising(SystemExit()))
    task.join()
    assert not called and task.has_ended
    with pytest.raises(OutOfThreads):
        task.finish()
    assert called == ["ended"]
