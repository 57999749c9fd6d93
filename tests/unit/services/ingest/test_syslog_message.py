"""Messages as RFC 5424, RFC 3164 and real senders write them, and what is made of them."""

from __future__ import annotations

from datetime import datetime

import pytest

from services.ingest.protocols.syslog.syslog_message import (
    BAD_PRIORITY,
    BAD_STRUCTURED_DATA,
    BAD_TIMESTAMP,
    EMPTY,
    INCOMPLETE_HEADER,
    NO_PRIORITY,
    SyslogMessage,
    SyslogParser,
    read_structured_data,
)


def ms(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp() * 1000)


ARRIVAL_MS = ms("2024-10-11T22:14:20Z")
TIME = "2024-10-11T22:14:15Z"


def parse(raw: bytes) -> SyslogMessage:
    message = SyslogParser().parse(raw, ARRIVAL_MS)
    assert message.raw is raw, "the raw bytes are always at hand"
    return message


def header(message: SyslogMessage) -> tuple[bytes | None, ...]:
    return message.host, message.app, message.proc_id, message.msg_id


# -- RFC 5424


def test_the_first_example_of_rfc_5424() -> None:
    message = parse(b"<34>1 2003-10-11T22:14:15.003Z mymachine.example.com su - ID47 - \xef\xbb\xbf'su root' failed for lonvick on /dev/pts/8")
    assert (message.facility, message.severity) == (4, 2)
    assert message.instant == (ms("2003-10-11T22:14:15.003Z"), b"2003-10-11T22:14:15.003Z")
    assert header(message) == (b"mymachine.example.com", b"su", None, b"ID47")
    assert (message.structured_data, message.message, message.parse_error) == (b"", b"'su root' failed for lonvick on /dev/pts/8", None)


def test_structured_data_of_several_elements_ends_before_the_message() -> None:
    data = b'[exampleSDID@32473 iut="3" eventSource="Application" eventID="1011"][examplePriority@32473 class="high"]'
    message = parse(b"<165>1 2003-10-11T22:14:15.003Z mymachine evntslog - ID47 " + data + b" An application event log entry...")
    assert (message.structured_data, message.message) == (data, b"An application event log entry...")


def test_structured_data_without_a_message() -> None:
    message = parse(b'<165>1 2003-10-11T22:14:15.003Z mymachine evntslog - ID47 [a@1 b="c"]')
    assert (message.structured_data, message.message, message.parse_error) == (b'[a@1 b="c"]', b"", None)


@pytest.mark.parametrize(
    ("data", "value"),
    [
        (rb'[x v="a \"quoted\" word"]', 'a "quoted" word'),
        (rb'[x v="ends in a backslash \\"]', "ends in a backslash \\"),
        (rb'[x v="a \] bracket"]', "a ] bracket"),
        (rb'[x v="a bare ] bracket"]', "a bare ] bracket"),
        (rb'[x v="C:\windows\new"]', r"C:\windows\new"),
        (rb'[x v="\\\\\""]', '\\\\"'),
        (rb'[x v=""]', ""),
        (rb'[x v="two [x v=] in one"]', "two [x v=] in one"),
        ('[x v="größer"]'.encode(), "größer"),
        (b'[x v="two\nlines"]', "two\nlines"),
    ],
)
def test_escapes_in_structured_data(data: bytes, value: str) -> None:
    message = parse(b"<13>1 - - - - - " + data + b' text] with "quotes" and ]')
    assert (message.structured_data, message.message) == (data, b'text] with "quotes" and ]')
    assert read_structured_data(data.decode()) == {"x": {"v": value}}


def test_a_repeated_name_in_structured_data_is_a_list() -> None:
    assert read_structured_data('[origin ip="10.0.0.1" ip="10.0.0.2" software="x"][empty]') == {
        "origin": {"ip": ["10.0.0.1", "10.0.0.2"], "software": "x"},
        "empty": {},
    }


@pytest.mark.parametrize("data", [b"[", b"[]", b'[x v="a', b'[x v="a"', b"[x v=a]", b'[x v="a"]text', b'[x v="ends\\"]', b"nothing of the kind", b""])
def test_malformed_structured_data_keeps_the_message_and_is_marked(data: bytes) -> None:
    raw = b"<13>1 2024-10-11T22:14:15Z host app - - " + data
    message = parse(raw)
    assert message.parse_error == BAD_STRUCTURED_DATA
    assert header(message) == (b"host", b"app", None, None)
    assert message.message == data


def test_all_fields_nil() -> None:
    message = parse(b"<0>1 - - - - - -")
    assert message == SyslogMessage(0, 0, None, None, None, None, None, b"", b"", message.raw, None)


def test_logger_writes_nil_for_no_time_and_time_quality_by_default() -> None:
    message = parse(b"<13>1 - - root - - - disk d3 is warm")
    assert (message.instant, message.app, message.message) == (None, b"root", b"disk d3 is warm")
    raw = b'<13>1 2024-10-11T22:14:15.123456+00:00 box root - - [timeQuality tzKnown="1" isSynced="1" syncAccuracy="289"] disk d3 is warm'
    message = parse(raw)
    assert read_structured_data(message.structured_data.decode())["timeQuality"]["syncAccuracy"] == "289"


def test_rsyslog_ends_a_message_with_a_line_feed_and_doubles_the_space_of_relayed_ones() -> None:
    message = parse(b"<13>1 2024-10-11T22:14:15.123456+00:00 host app 12 - -  relayed from RFC 3164\n")
    assert message.message == b"relayed from RFC 3164"


def test_an_indent_is_not_a_doubled_space() -> None:
    assert parse(b"<13>1 - h a - - -     at Foo.bar").message == b"    at Foo.bar"


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\0", b"\n\0"])
def test_line_ends_at_the_end_are_not_part_of_the_message(end: bytes) -> None:
    assert parse(b"<13>1 - h a - - - text" + end).message == b"text"
    assert parse(b"<13>Oct 11 22:14:15 h a: text" + end).message == b"text"


def test_line_feeds_inside_a_message_are_kept() -> None:
    assert parse(b"<13>1 - h a - - - one\ntwo\n").message == b"one\ntwo"


def test_bytes_that_are_not_utf8_are_kept() -> None:
    assert parse(b"<13>1 - h\xff a - - - caf\xe9").message == b"caf\xe9"


def test_a_bad_time_is_marked_and_the_rest_is_read() -> None:
    message = parse(b"<13>1 2024-13-11T22:14:15Z host app 1 id - text")
    assert (message.parse_error, message.instant, message.message) == (BAD_TIMESTAMP, None, b"text")
    assert header(message) == (b"host", b"app", b"1", b"id")


@pytest.mark.parametrize("raw", [b"<13>1 -", b"<13>1 2024-10-11T22:14:15Z", b"<13>1 2024-10-11T22:14:15Z host app", b"<13>1 - - - - -"])
def test_a_header_that_ends_early_is_marked(raw: bytes) -> None:
    assert parse(raw).parse_error == INCOMPLETE_HEADER


def test_the_digit_one_alone_does_not_make_a_message_rfc_5424() -> None:
    message = parse(b"<13>1 packet was lost on its way here today")
    assert (message.message, message.parse_error) == (b"1 packet was lost on its way here today", None)
    assert parse(b"<13>1 packet lost").message == b"1 packet lost"


# -- RFC 3164


@pytest.mark.parametrize(
    ("raw", "expected_header", "text"),
    [
        (b"<34>Oct 11 22:14:15 mymachine su: 'su root' failed", (b"mymachine", b"su", None), b"'su root' failed"),
        (b"<34>Oct 11 22:14:15 mymachine sshd[4711]: Accepted", (b"mymachine", b"sshd", b"4711"), b"Accepted"),
        (b"<34>Oct 11 22:14:15 mymachine sshd[4711] Accepted", (b"mymachine", b"sshd", b"4711"), b"Accepted"),
        (b"<34>Oct 11 22:14:15 sshd[4711]: no host, as glibc sends it", (None, b"sshd", b"4711"), b"no host, as glibc sends it"),
        (b"<34>Oct 11 22:14:15 su: no host", (None, b"su", None), b"no host"),
        (b"<34>Oct 11 22:14:15 mymachine no tag here", (b"mymachine", None, None), b"no tag here"),
        (b"<34>Oct 11 22:14:15 10.0.0.7 kernel: [12.3] usb 1-1: new", (b"10.0.0.7", b"kernel", None), b"[12.3] usb 1-1: new"),
        (b"<34>Oct 11 22:14:15 fe80::1 app: text", (b"fe80::1", b"app", None), b"text"),
        (b"<34>Oct 11 22:14:15 host http://example.org/ is up", (b"host", None, None), b"http://example.org/ is up"),
        (b"<34>Oct 11 22:14:15 host app:text", (b"host", b"app", None), b"text"),
        (b"<34>Oct 11 22:14:15 host app:", (b"host", b"app", None), b""),
        (b"<34>Oct 11 22:14:15 host", (b"host", None, None), b""),
        (b"<34>Oct 11 22:14:15 host postfix/smtpd[12]: NOQUEUE", (b"host", b"postfix/smtpd", b"12"), b"NOQUEUE"),
        (b"<34>Oct 11 22:14:15 host app[]: no pid", (b"host", b"app", None), b"no pid"),
        (b"<34>Oct 11 22:14:15 host app:  two spaces", (b"host", b"app", None), b" two spaces"),
        (b"<34>Oct 11 2024 22:14:15 host app: year", (b"host", b"app", None), b"year"),
        (b"<34>Oct 11 22:14:15 2024 host app: year", (b"host", b"app", None), b"year"),
        (b"<34>2024 Oct 11 22:14:15 host app: year", (b"host", b"app", None), b"year"),
        (b"<34>Oct 11 22:14:15 UTC host app: zone", (b"host", b"app", None), b"zone"),
        (b"<34>2024-10-11T22:14:15+00:00 host app[7]: rsyslog's ISO time", (b"host", b"app", b"7"), b"rsyslog's ISO time"),
        (b"<38>2024-10-11T22:14:15 localhost prg00000[1234]: seq: 0000000000, thread: 1", (b"localhost", b"prg00000", b"1234"), b"seq: 0000000000, thread: 1"),
        (b"<34>2024-10-11 22:14:15 host app: a space for the T", (b"host", b"app", None), b"a space for the T"),
        (b"<34>Oct 11 22:14:15 2001:db8::7 app: a host that begins like a year", (b"2001:db8::7", b"app", None), b"a host that begins like a year"),
        (b'<34>Oct 11 22:14:15 host {"level":"info","msg":"JSON"}', (b"host", None, None), b'{"level":"info","msg":"JSON"}'),
        (b'<34>Oct 11 22:14:15 {"level":"info","msg":"JSON"}', (None, None, None), b'{"level":"info","msg":"JSON"}'),
        (b"<34>Oct 11 22:14:15 date=2024-10-11 time=22:14:15 type=traffic", (None, None, None), b"date=2024-10-11 time=22:14:15 type=traffic"),
        (b"<34>Oct 11 22:14:15 [2024-10-11 22:14:15] started", (None, None, None), b"[2024-10-11 22:14:15] started"),
        (b'<34>Oct 11 22:14:15 host @cee: {"a": 1}', (b"host", None, None), b'@cee: {"a": 1}'),
        (b"<34> Oct 11 22:14:15 host app[7]: behind a space", (b"host", b"app", b"7"), b"behind a space"),
        (b"<34>Oct 11 22:14:15  app[7]: an empty host", (None, b"app", b"7"), b"an empty host"),
        (b"<34>Oct 11 22:14:15 host  app[7]: two spaces", (b"host", b"app", b"7"), b"two spaces"),
        (b"<34>Oct 11 22:14:15 Message forwarded from aix1: sshd[7]: text", (b"aix1", b"sshd", b"7"), b"text"),
        (b"<34>Oct 11 22:14:15 Message forwarded", (b"Message", None, None), b"forwarded"),
        (b"<34>Oct 11 22:14:15 last message repeated 3 times", (None, None, None), b"last message repeated 3 times"),
        (b"<34>2024-10-11T22:14:15Z:app: a colon behind the time", (None, b"app", None), b"a colon behind the time"),
    ],
)
def test_rfc_3164_in_the_forms_that_senders_use(raw: bytes, expected_header: tuple[bytes | None, ...], text: bytes) -> None:
    for message in (parse(raw), parse(raw)):
        assert message.instant is not None and message.instant.time_ms == ms(TIME)
        assert (header(message)[:3], message.message, message.parse_error) == (expected_header, text, None)
        assert message.msg_id is None


def test_a_time_alone_is_enough_without_priority() -> None:
    message = parse(b"Oct 11 22:14:15 host app: text")
    assert (message.facility, message.severity, message.parse_error) == (1, 5, None)
    assert header(message)[:2] == (b"host", b"app")


def test_json_behind_the_priority_is_the_message() -> None:
    message = parse(b'<13>{"level":"info","msg":"text"}')
    assert (header(message), message.message, message.parse_error) == ((None, None, None, None), b'{"level":"info","msg":"text"}', None)


def test_spaces_behind_the_priority_stay_where_no_time_follows() -> None:
    assert parse(b"<13>   indented text").message == b"   indented text"


def test_a_priority_alone_is_enough_without_time() -> None:
    assert header(parse(b"<13>app[7]: text")) == (None, b"app", b"7", None)
    message = parse(b"<13>just some text")
    assert (message.message, message.instant, message.parse_error) == (b"just some text", None, None)
    assert parse(b"<13>").parse_error is None


@pytest.mark.parametrize(
    ("raw", "expected_header", "sequence", "time"),
    [
        (b"<189>123: *Oct 11 22:14:15.123 UTC: %SYS-5-CONFIG_I: Configured", (None, b"SYS", None, b"SYS-5-CONFIG_I"), b"123", "2024-10-11T22:14:15.123Z"),
        (b"<189>123: router1: Oct 11 22:14:15: %SYS-5-CONFIG_I: Configured", (b"router1", b"SYS", None, b"SYS-5-CONFIG_I"), b"123", TIME),
        (b"<189>router1: 123: .Oct 11 22:14:15 CEST: %SYS-5-CONFIG_I: Configured", (b"router1", b"SYS", None, b"SYS-5-CONFIG_I"), b"123", TIME),
        (b"<189>Oct 11 22:14:15: %SYS-5-CONFIG_I: Configured", (None, b"SYS", None, b"SYS-5-CONFIG_I"), None, TIME),
        (b"<189>Oct 11 22:14:15 fw1 %SYS-5-CONFIG_I: Configured", (b"fw1", b"SYS", None, b"SYS-5-CONFIG_I"), None, TIME),
        (b"<166>Oct 11 2024 22:14:15 fw1 : %SYS-5-CONFIG_I: Configured", (b"fw1", b"SYS", None, b"SYS-5-CONFIG_I"), None, TIME),
        (b"<189>: 2024 Oct 11 22:14:15 UTC: %SYS-5-CONFIG_I: Configured", (None, b"SYS", None, b"SYS-5-CONFIG_I"), None, TIME),
        (b"<189>42: 3w2d: %SYS-5-CONFIG_I: Configured", (None, b"SYS", None, b"SYS-5-CONFIG_I"), b"42", None),
        (b"<166>2024-10-11T22:14:15Z: %SYS-5-CONFIG_I: Configured", (None, b"SYS", None, b"SYS-5-CONFIG_I"), None, TIME),
        (b"<166>2024-10-11T22:14:15Z fw1 : %SYS-5-CONFIG_I: Configured", (b"fw1", b"SYS", None, b"SYS-5-CONFIG_I"), None, TIME),
        (b"<113>2024-10-11T22:14:15Z fw1  %SYS-5-CONFIG_I: Configured", (b"fw1", b"SYS", None, b"SYS-5-CONFIG_I"), None, TIME),
    ],
)
def test_cisco_styles(raw: bytes, expected_header: tuple[bytes | None, ...], sequence: bytes | None, time: str | None) -> None:
    message = parse(raw)
    assert (header(message), message.message, message.parse_error) == (expected_header, b"%SYS-5-CONFIG_I: Configured", None)
    assert (message.instant and message.instant.time_ms) == (ms(time) if time else None)
    assert message.structured_data == (b'[meta sequenceId="%b"]' % sequence if sequence else b"")


def test_cisco_counts_messages_and_numbers_them() -> None:
    message = parse(b"<189>123: router1: 000345: *Oct 11 22:14:15.123: %SYS-5-CONFIG_I: Configured")
    assert header(message) == (b"router1", b"SYS", None, b"SYS-5-CONFIG_I")
    assert read_structured_data(message.structured_data.decode()) == {"meta": {"sequenceId": ["123", "000345"]}}


def test_cisco_names_a_class_in_small_letters() -> None:
    message = parse(b"<166>:Oct 11 22:14:15 EDT: %ASA-session-6-302013: Built")
    assert (header(message), message.message) == ((None, b"ASA", None, b"ASA-session-6-302013"), b"%ASA-session-6-302013: Built")


@pytest.mark.parametrize("time", ["Oct 11 22:14:15.000 UTC", "2024 Oct 11 22:14:15 CEST", "Oct 11 22:14:15 "])
@pytest.mark.parametrize("host", [None, b"router1"])
def test_ios_xr_says_which_node_and_which_process(time: str, host: bytes | None) -> None:
    message = parse(b"<189>123: " + (host + b" " if host else b"") + f"RP/0/RSP0/CPU0:{time}: config[65720]: %MGBL-SYS-5-CONFIG_I : Configured".encode())
    assert header(message) == (host, b"config", b"65720", b"MGBL-SYS-5-CONFIG_I")
    assert (message.instant and message.instant.time_ms, message.message) == (ms(TIME), b"%MGBL-SYS-5-CONFIG_I : Configured")
    assert read_structured_data(message.structured_data.decode()) == {"meta": {"sequenceId": "123"}, "cisco": {"node": "RP/0/RSP0/CPU0"}}


def test_meraki_writes_seconds() -> None:
    message = parse(b"<134>1 1728684855.774247467 branch-7 flows src=10.0.0.7 dst=10.0.0.8")
    assert (header(message), message.message, message.parse_error) == ((b"branch-7", None, None, None), b"flows src=10.0.0.7 dst=10.0.0.8", None)
    assert message.instant == (1_728_684_855_774, b"2024-10-11T22:14:15.774Z")


def test_a_percent_sign_does_not_make_a_message_cisco() -> None:
    message = parse(b"<13>Oct 11 22:14:15 host app: see %SYS-5-CONFIG_I: for more")
    assert (header(message), message.message) == ((b"host", b"app", None, None), b"see %SYS-5-CONFIG_I: for more")


# -- neither


@pytest.mark.parametrize(
    ("raw", "parse_error"),
    [
        (b"", EMPTY),
        (b"\n", EMPTY),
        (b"some text", NO_PRIORITY),
        (b'{"json": 1}', NO_PRIORITY),
        (b"<192>Oct 11 22:14:15 host app: text", BAD_PRIORITY),
        (b"<999>1 - - - - - - text", BAD_PRIORITY),
        (b"<>text", BAD_PRIORITY),
        (b"<abc>text", BAD_PRIORITY),
        (b"<13 text", BAD_PRIORITY),
        (b"<-1>text", BAD_PRIORITY),
        (b"<0013>text", BAD_PRIORITY),
        (b"<", BAD_PRIORITY),
        (b"\x00\xff\xfe", NO_PRIORITY),
    ],
)
def test_what_cannot_be_parsed_is_kept_whole_and_marked_with_priority_13(raw: bytes, parse_error: str) -> None:
    message = parse(raw)
    assert (message.facility, message.severity, message.parse_error) == (1, 5, parse_error)
    assert message.message == raw.rstrip(b"\n")
    assert header(message) == (None, None, None, None)


def test_a_padded_priority_is_a_priority() -> None:
    assert parse(b"<013>Oct 11 22:14:15 host app: text").severity == 5
    assert parse(b"<007>1 - h a - - - text").severity == 7


def test_every_priority_has_its_facility_and_severity() -> None:
    for priority in range(192):
        for raw in (b"<%d>1 - - - - - - x" % priority, b"<%d>x" % priority):
            message = parse(raw)
            assert message.facility * 8 + message.severity == priority
