"""One account for each sender: bounded, and nothing that was counted is lost when one has to go."""

from __future__ import annotations

import gc
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.base.clock import ManualClock
from appliance.base.layout import BoxLayout
from appliance.senders import sender_accounts
from appliance.senders.sender_accounts import OTHERS, SenderAccounts, SenderFigures, add_figures, read_senders, senders_file
from services.ingest.records.ingest_ledger import SenderLedgers


def received(accounts: SenderAccounts) -> dict[str, int]:
    return {known.host: known.received for known in accounts.figures()}


def test_the_sender_seen_longest_ago_is_folded_and_its_open_account_still_counts() -> None:
    accounts = SenderAccounts(senders_max=2)
    first, second = accounts.of("a"), accounts.of("b")
    for at_ms, book in ((2, first), (1, second)):
        book.seen(at_ms)
        book.received += 10
        book.refuse("busy", 3)
    accounts.of("c").received += 1
    assert received(accounts) == {"a": 10, "c": 1, OTHERS: 10} and accounts.others.reasons == {"busy": 3}
    second.received += 5
    assert received(accounts)[OTHERS] == 15
    second.received += 1
    del second, book
    gc.collect()
    assert received(accounts)[OTHERS] == 16 and len(accounts) == 2


@given(st.lists(st.tuples(st.sampled_from("abcdefg"), st.integers(1, 9), st.booleans()), max_size=40))
def test_no_line_is_lost_however_many_senders_come(steps: list[tuple[str, int, bool]]) -> None:
    accounts = SenderAccounts(senders_max=3)
    held = {}
    for at_ms, (host, count, keep) in enumerate(steps):
        book = held.get(host) or accounts.of(host)
        book.seen(at_ms + 1)
        book.received += count
        if keep:
            held[host] = book
    assert len(accounts) <= 3 and sum(received(accounts).values()) == sum(count for _, count, _ in steps)
    again = SenderAccounts(accounts.figures(), senders_max=3)
    assert sorted(again.figures()) == sorted(accounts.figures())


def figures(host: str, count: int, last_seen_ms: int = 0) -> SenderFigures:
    return SenderFigures(host, count, count, 0, 0, 0, {}, [], last_seen_ms)


def test_several_ingests_have_one_list_the_busiest_first_and_the_others_last() -> None:
    total = add_figures([figures("a", 1, 5), figures(OTHERS, 99), figures("b", 4), figures("a", 2, 3)])
    assert [(known.host, known.received, known.last_seen_ms) for known in total] == [("b", 4, 0), ("a", 3, 5), (OTHERS, 99, 0)]
    assert total[1].silent_ms(9) == 4


def test_the_next_incarnation_continues_from_the_last_written_counts(tmp_path: Path) -> None:
    layout, clock = BoxLayout(str(tmp_path)), ManualClock()
    (tmp_path / "net").mkdir()
    books = SenderLedgers(layout, "ingest@0", clock)
    assert not read_senders(senders_file(layout, "ingest@0"))
    book = books.of(b"10.0.0.1", "relp")
    book.received += 7
    book.refuse("busy", 2)
    assert books.write_changes() and not books.write_changes(), "nothing is written where nothing came"
    book.received += 1  # not written: this incarnation is killed now
    again = SenderLedgers(layout, "ingest@0", clock)
    held = again.of(b"10.0.0.1", "dmz")
    assert (held.received, held.refused, held.reasons, sorted(held.listeners), held.last_seen_ms) == (7, 2, {"busy": 2}, ["dmz", "relp"], clock.wall_ms())
    again.close()
    assert read_senders(senders_file(layout, "ingest@0")) == [held.figures()]


def test_a_foreign_file_contains_no_account(tmp_path: Path) -> None:
    file = tmp_path / "senders.json"
    for text in ("", "{", "3", '[["a"]]', '[["a",1,1,1,1,1,[],[],1]]', '[["a",1,1,1,1,1,{},[],"x"]]'):
        file.write_text(text)
        assert read_senders(str(file)) == []
    file.write_text('[["a",1,1,0,0,0,{},["http"],9],["b"]]')
    assert [known.host for known in read_senders(str(file))] == ["a"]


def test_an_account_file_that_is_a_link_a_fifo_or_too_long_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, link, fifo = (tmp_path / name for name in ("senders", "link", "fifo"))
    file.write_text('[["a",1,1,0,0,0,{},["http"],9]]')
    link.symlink_to(file)
    os.mkfifo(fifo)
    assert read_senders(str(link)) == [] and len(read_senders(str(file))) == 1
    monkeypatch.setattr(sender_accounts, "FILE_BYTES_MAX", 8)
    assert read_senders(str(file)) == []
    assert read_senders(str(fifo)) == []


def test_the_addresses_of_a_network_are_counted_together_and_folding_goes_on_with_the_count() -> None:
    accounts = SenderAccounts(senders_max=2)
    one, two = accounts.of("2001:db8::1"), accounts.of("2001:db8::2")
    one.network.records += 3
    assert two.network.records == 3 and not accounts.of("2001:db8:0:1::1").network.records
    accounts.of("192.0.2.1")
    for folded in (one, two):
        folded.network.records += 1
    assert accounts.of("2001:db8::1").network.records == 5
