"""The pages of topics, messages, groups and disks in a real browser, of one real box, whose other clients are librdkafka's."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from contextlib import suppress

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic
from selenium import webdriver
from selenium.webdriver.common.keys import Keys

from lab.browser import browser, complaints, leave, missing_browser
from lab.console_page import HOSTILE, ConsolePage
from lab.running_box import RunningBox, eventually

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.skipif(missing_browser() is not None, reason=str(missing_browser()))]

MADE = "made-here"


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    with browser(tmp_path_factory.mktemp("profile"), width=390) as made:
        yield made


@pytest.fixture(scope="module")
def admin(shared_box: RunningBox) -> AdminClient:
    return AdminClient({"bootstrap.servers": shared_box.bootstrap})


@pytest.fixture
def page(driver: webdriver.Chrome, shared_box: RunningBox) -> ConsolePage:
    leave(driver)
    return ConsolePage(driver, f"http://{shared_box.http}")


def config_of(admin: AdminClient, topic: str, name: str) -> tuple[str, int]:
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
    found = admin.describe_configs([resource])[resource].result(60)[name]
    return found.value, found.source


def test_disks_are_shown_with_what_lies_on_them_and_one_is_drained_and_taken_back(page: ConsolePage, shared_box: RunningBox, admin: AdminClient) -> None:
    """The first test: few partitions move."""
    topic = "on-disks"
    admin.create_topics([NewTopic(topic, 4)])[topic].result(60)
    page.open("/disks")
    page.wait("#disks-note", "2 online")
    page.wait("#boxes", f"1controller{shared_box.bootstrap}")
    eventually(lambda: "0 B free" not in page.text("#boxes"), "the log-writers have looked at their disks")
    assert "None under way" in page.text("#reassignments")
    page.press("Partitions of d1")
    page.wait("#partitions", topic)
    page.press("Drain: d1")
    page.press("Preview", "dialog")
    page.wait("dialog .preview", "partitions, ")
    page.press("Drain", "dialog")
    page.wait("#disks tbody tr:nth-child(2)", "draining")
    page.press("Take it back: d1")
    page.press("Use it again", "dialog")
    eventually(lambda: "draining" not in page.text("#disks"), "it takes new partitions again", 60)
    assert page.is_quiet()


def test_a_topic_is_created_altered_trimmed_and_deleted(page: ConsolePage, shared_box: RunningBox, admin: AdminClient) -> None:
    page.open("/topics")
    page.press("Create a topic")
    page.type(Name="no/name")
    page.press("Create", "dialog")
    page.wait("dialog .problem", "has characters other than")
    page.type(Name=MADE, Partitions="2", Settings="retention.ms=86400000")
    page.press("Create", "dialog")
    page.wait("#title", f"{MADE}2 partitions")
    page.wait("#settings", "864000001dtopic")
    eventually(lambda: config_of(admin, MADE, "retention.ms") == ("86400000", 1), "it has the setting")

    page.press("Change segment.bytes")
    page.type(Value="wrong")
    page.press("Set", "dialog")
    page.wait("dialog .problem", "segment.bytes")
    page.type(Value="1048576")
    page.press("Set", "dialog")
    page.wait("#settings-note", "2 set on the topic")
    eventually(lambda: config_of(admin, MADE, "segment.bytes")[0] == "1048576", "it has the second setting")
    page.press("retention.ms back to its default")
    page.press("Use the default", "dialog")
    page.wait("#settings-note", "1 set on the topic")
    page.press("Add partitions")
    page.press("Add", "dialog")
    page.wait("#title", f"{MADE}3 partitions")
    eventually(lambda: len(admin.list_topics(MADE, 20).topics[MADE].partitions) == 3, "each acceptor has seen the third")

    producer = Producer({"bootstrap.servers": shared_box.bootstrap})
    for number in range(20):
        producer.produce(MADE, b"%d" % number, partition=0)
    assert producer.flush(60) == 0
    page.wait("#partitions", "01102020")  # leader, in sync, start, end, records
    page.press("Delete records")
    page.type(Before="15", Partition="0")
    page.press("Preview", "dialog")
    page.wait("dialog .preview", "15 records would go")
    page.press("Delete the records", "dialog")
    consumer = Consumer({"bootstrap.servers": shared_box.bootstrap, "group.id": "unused"})
    eventually(lambda: consumer.get_watermark_offsets(TopicPartition(MADE, 0), 20) == (15, 20), "librdkafka sees the new start")
    consumer.close()

    page.press("Delete the topic")
    page.type(Type="made")
    page.press("Delete the topic", "dialog")
    page.wait("dialog .problem", "must be the name")
    page.press("Cancel", "dialog")
    assert page.run("return document.querySelector('dialog')") is None and MADE in admin.list_topics(timeout=20).topics
    page.press("Delete the topic")
    page.type(Type=MADE)
    page.press("Delete the topic", "dialog")
    page.wait("#count", "topic")  # the page goes on to the list
    eventually(lambda: MADE not in admin.list_topics(timeout=20).topics, "each acceptor has seen it go")
    page.open(f"/topics?topic={MADE}")
    page.wait("#trouble", "there is no such topic")
    # The browser notes what was refused: the two names and the value of a setting, and the topic that is gone.
    assert {each["message"].rpartition("status of ")[2][:3] for each in complaints(page.driver)} <= {"400", "404"} and page.is_quiet()


def test_the_list_has_a_filter_and_hides_internal_topics(page: ConsolePage, shared_box: RunningBox, admin: AdminClient) -> None:
    for made in admin.create_topics([NewTopic("listed-one", 2), NewTopic("other", 1)]).values():
        made.result(60)
    consumer = Consumer({"bootstrap.servers": shared_box.bootstrap, "group.id": "makes the topic of offsets"})
    consumer.committed([TopicPartition("other", 0)], 20)
    consumer.close()
    page.open("/topics")
    page.wait("#topics", "listed-one")
    create = page.driver.find_element("id", "create")
    eventually(create.is_displayed, "changes are offered here")
    page.run("document.body.classList.remove('may-change')")
    assert not create.is_displayed(), "only what the box allows is shown"
    field = page.driver.find_element("id", "only")
    field.send_keys("listed")
    page.wait("#count", "1 topic")
    field.clear()
    field.send_keys("__con")
    page.wait("#count", "0 topics")
    page.driver.find_element("id", "internal").send_keys(Keys.SPACE)
    page.wait("#topics", "__consumer_offsetsinternal")
    assert page.is_quiet()


def test_messages_are_paged_shown_as_they_are_and_written(page: ConsolePage, shared_box: RunningBox, admin: AdminClient) -> None:
    topic = "shown-messages"
    admin.create_topics([NewTopic(topic, 2)])[topic].result(60)
    producer = Producer({"bootstrap.servers": shared_box.bootstrap})
    for number in range(120):
        value = json.dumps({"text": HOSTILE, "number": number}).encode() if number % 2 else b"\x00\xff%d" % number
        producer.produce(topic, value, key=HOSTILE, headers=[(HOSTILE, HOSTILE.encode())], partition=1, timestamp=1_700_000_000_000 + number * 1000)
    assert producer.flush(60) == 0
    page.open(f"/messages?topic={topic}&partition=1")
    page.wait("#state", "Offsets 70 to 119 of 0 to 119")
    page.press("← Older")
    page.wait("#state", "Offsets 20 to 69 of 0 to 119")
    page.press("← Older")
    page.wait("#state", "Offsets 0 to 49 of 0 to 119")
    page.press("Newer →")
    page.wait("#state", "Offsets 50 to 99 of 0 to 119")
    assert "from=offset&offset=50" in page.driver.current_url
    rows = page.driver.find_elements("css selector", "#records tr.record")
    rows[1].send_keys(Keys.ENTER)
    whole = page.text("#records .whole")
    assert '"number": 51' in whole and whole.count(HOSTILE) == 3 and "00 ff 35 30" in rows[0].text
    page.open(f"/messages?topic={topic}&partition=1&from=time&time=1700000100000&view=hex&count=20")
    page.wait("#state", "Offsets 100 to 119 of 0 to 119")
    assert page.run("return document.querySelectorAll('#records script, #records img').length") == 0 and page.is_quiet()

    page.run("document.getElementById('producing').open = true")
    for name, text in (("key", "written"), ("headers", "a=b"), ("value", '{"by": "the page"}')):
        page.driver.find_element("id", name).send_keys(text)
    page.run("document.getElementById('to-partition').value = '1'")
    page.press("Write")
    page.wait("#produced", "Written to partition 1 at offset 120")
    consumer = Consumer({"bootstrap.servers": shared_box.bootstrap, "group.id": "unused"})
    consumer.assign([TopicPartition(topic, 1, 120)])
    message = eventually(lambda: consumer.poll(1), "librdkafka reads it")
    assert (message.key(), message.value(), message.headers()) == (b"written", b'{"by": "the page"}', [("a", b"b")])
    consumer.close()
    page.wait("#state", "to 120 of 0 to 120")
    page.open("/messages?topic=no-such-topic")
    page.wait("#trouble", "there is no such topic")
    page.run("document.getElementById('topic').value = arguments[0]", topic)
    page.press("Show")
    page.wait("#state", "This partition has no records")
    assert page.text("#trouble") == "" or not page.driver.find_element("id", "trouble").is_displayed()
    assert [each for each in complaints(page.driver) if "404" not in each["message"]] == [] and page.is_quiet()


def test_a_group_is_shown_and_reset_when_its_members_have_gone(page: ConsolePage, shared_box: RunningBox, admin: AdminClient) -> None:
    topic, group = "read-by-group", f"readers {HOSTILE}"
    admin.create_topics([NewTopic(topic, 2)])[topic].result(60)
    producer = Producer({"bootstrap.servers": shared_box.bootstrap})
    for number in range(100):
        producer.produce(topic, b"%d" % number, partition=number % 2)
    assert producer.flush(60) == 0
    settings = {
        "bootstrap.servers": shared_box.bootstrap,
        "group.id": group,
        "client.id": HOSTILE,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
    }
    consumer = Consumer(settings)
    consumer.subscribe([topic])
    eventually(lambda: consumer.poll(0.5), "the group has a member that reads")
    consumer.commit(offsets=[TopicPartition(topic, 0, 30), TopicPartition(topic, 1, 50)], asynchronous=False)
    page.open("/groups")
    page.wait("#groups", f"{group}stable20")
    page.run("[...document.querySelectorAll('#groups a')].find((each) => each.textContent === arguments[0]).click()", group)
    page.wait("#title", f"{group} stable20 records behind")
    page.wait("#members", f"{HOSTILE}")
    assert f"{topic}: 0, 1" in page.text("#members") and f"{topic}0305020" in page.text("#partitions")
    assert "keeps an hour in memory" in page.text("#lag-note")
    eventually(lambda: page.run("return document.querySelector('#lag polyline')?.getAttribute('points')"), "the lag is drawn")
    page.press("Reset offsets")
    page.press("Preview", "dialog")
    page.wait("dialog .problem", "has 1 members; stop them first")
    consumer.close()
    page.type(To="an offset", Time="7", Topic=topic, Partition="0")
    page.press("Preview", "dialog")
    page.wait("dialog .preview", f"{topic}030743")  # partition 0 goes from 30 to 7, which leaves 43
    page.press("Reset the offsets", "dialog")
    page.wait("#partitions", f"{topic}075043")
    consumer = Consumer(settings)
    assert [each.offset for each in consumer.committed([TopicPartition(topic, 0), TopicPartition(topic, 1)], 20)] == [7, 50]
    consumer.close()
    page.press("Delete the group")
    page.type(Type=group)
    page.press("Delete the group", "dialog")
    page.wait("#count", "group")
    eventually(lambda: group not in {each.group_id for each in admin.list_consumer_groups().result(60).valid}, "the group is gone")
    page.open("/groups?group=no-such-group")
    page.wait("#trouble", "there is no such group")
    assert [each for each in complaints(page.driver) if not {"404", "409"} & set(each["message"].split())] == [] and page.is_quiet()


def test_a_coordinator_that_does_not_answer_is_said_and_the_page_recovers(page: ConsolePage, shared_box: RunningBox) -> None:
    page.open("/groups")
    page.wait("#count", "group")
    pid = shared_box.pid("coordinator")
    os.kill(pid, signal.SIGSTOP)
    try:
        page.wait("#trouble", "asked again every few seconds")
        page.open("/topics")
        page.wait("#topics", "syslog")
        page.open("/groups")
    finally:
        with suppress(ProcessLookupError):  # the watchdog was faster
            os.kill(pid, signal.SIGCONT)
    page.wait("#count", "group")
    eventually(lambda: not page.driver.find_element("id", "trouble").is_displayed(), "the page has recovered")
    assert {each["message"].rpartition("status of ")[2][:3] for each in complaints(page.driver)} <= {"503", "504"} and page.is_quiet()


FLOOD = """
const asked = window.fetch, state = { sent: 0, frames: 0, longest: 0 };
window.flood = state;
const answered = (content) => new Response(content, { headers: { "Content-Type": "application/x-ndjson" } });
const value = (number) => JSON.stringify({ host: "web", severity: number % 3 ? "info" : "err", message: `line ${number} <script>window.harmed = 1</script>` });
const line = (number) => JSON.stringify({ record: { partition: 0, offset: number, timestamp: 1700000000000 + number, value: value(number) } }) + "\\n";
window.fetch = (url, options) => {
  if (String(url).startsWith("api/search/check")) return Promise.resolve(answered('{"marks":[]}'));
  if (!String(url).startsWith("api/search")) return asked(url, options);
  return Promise.resolve(answered(new ReadableStream({ start(controller) {
    let before = performance.now();
    const frame = (at) => {
      state.frames++;
      state.longest = Math.max(state.longest, at - before);
      before = at;
      if (state.sent < 10000) requestAnimationFrame(frame);
    };
    requestAnimationFrame(frame);
    const send = () => {
      let chunk = "";
      for (let number = 0; number < 1000; number++) chunk += line(state.sent++);
      controller.enqueue(new TextEncoder().encode(chunk));
      if (state.sent < 10000) setTimeout(send, 100);
    };
    send();
  } })));
};
"""
"""Ten thousand lines in a second, as the search process streams them; and the frames that the page draws meanwhile."""


def test_a_flood_of_ten_thousand_lines_a_second_is_followed_paused_and_stopped(page: ConsolePage) -> None:
    page.open("/logs")
    eventually(lambda: page.run("return document.getElementById('topic-names') !== null && typeof follow === 'function'"), "the page is there")
    page.run(FLOOD)
    page.run("document.getElementById('topic').value = 'x'; document.getElementById('limit').value = '200'")
    page.press("Follow")
    eventually(lambda: page.run("return document.querySelectorAll('#records tr.record').length") == 200, "lines are shown")
    page.press("Pause")
    page.wait("#state", "paused")
    page.press("Go on")
    page.wait("#state", "10,000 records since")
    eventually(lambda: "line 9999 " in page.text("#records tr.record"), "the newest is on top")
    assert page.run("return document.querySelectorAll('#records tr.record').length") == 200 and "line 9999 " in page.text("#records tr.record.bad")
    assert "passed by unseen" in page.text("#state")
    assert page.run("return window.flood.frames") >= 2, "the page was drawn while they came"
    page.run("document.querySelector('#records tr.record').click()")
    page.wait("#follow", "Go on")
    assert "<script>window.harmed = 1</script>" in page.text("#records .whole")
    page.press("Stop")
    page.wait("#state", "Stopped; 200 records kept")
    assert page.text("#follow") == "Follow" and page.is_quiet()
