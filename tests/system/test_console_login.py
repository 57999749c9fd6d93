"""Users of the console, of one real box with an authorizer: over HTTP, with curl, and in a real browser; what they do is done as them."""

from __future__ import annotations

import json
import re
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from ssl import create_default_context
from typing import Any, NamedTuple
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import HTTPCookieProcessor, HTTPSHandler, ProxyHandler, Request, build_opener

import pytest
from confluent_kafka import Producer
from selenium.webdriver.common.keys import Keys

from appliance.base.clock import SystemClock
from appliance.base.model import AUDIT_TOPIC
from appliance.client.address import Address
from appliance.client.connection import ClientConnection
from appliance.client.messages import PRODUCE, BatchToProduce, ClientProduceRequest, TopicToProduce
from appliance.command import acl, user
from appliance.command import topic as topic_command
from lab.browser import browser, complaints, leave, missing_browser, show_as
from lab.console_page import PrefixProxy, prefix_proxy
from lab.openid_proxy import OpenIdProxy, missing_proxy, openid_proxy
from lab.raw_transactions import transactional_batch
from lab.running_box import ROOT, RunningBox, eventually, start_box
from services.console.kafka_routes import CHANGES
from services.console.persons import Role, role_needed

pytestmark = [pytest.mark.system, pytest.mark.slow]
PASSWORD = "correct horse battery staple"
PROXY = "127.0.0.2"
"""A proxy on this machine; other clients have 127.0.0.1."""
TOOLS = """
if (arguments[0]) document.querySelector('#person').textContent = arguments[0];
const boxes = ['#time-zone', '#person', '#theme'].map((each) => document.querySelector(each).getBoundingClientRect());
const middles = boxes.map((each) => (each.top + each.bottom) / 2);
return [Math.max(...middles) - Math.min(...middles) < 4, boxes[2].right > innerWidth - 30 && document.documentElement.scrollWidth <= innerWidth];
"""
ROLES = {"vera": "viewer", "otto": "operator", "anna": "admin"}


class Answer(NamedTuple):
    status: int
    headers: list[tuple[str, str]]
    body: bytes

    @property
    def document(self) -> Any:
        return json.loads(self.body)

    @property
    def cookie(self) -> str:
        return next((text.partition(";")[0] for name, text in self.headers if name.lower() == "set-cookie"), "")


class Place:
    """Its Kafka clients log in; vera looks, otto changes records, anna everything; each has rights of its own in the box."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        settings = {
            "listeners": "CLIENTS://127.0.0.1:0",
            "listener.security.protocol.map": "CLIENTS:SASL_PLAINTEXT",
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "auto.create.topics.enable": False,
            "transaction.partition.verification.enable": False,
            **{f"http.role.{role}": f"User:{name}" for name, role in ROLES.items()},
            "http.proxy.networks": PROXY,
            "http.proxy.user.header": "X-Forwarded-User",
        }
        self.box: RunningBox = start_box(directory / "box", disks=1, settings=settings)
        self.data = str(directory / "box" / "d0")
        for name in ROLES:
            self.set_password(name, PASSWORD)
        for topic in ("logs", "secret"):
            topic_command.create(topic, partitions=1, data=self.data)
        acl.add("User:vera", ["Read"], topic="logs", data=self.data)
        acl.add("User:otto", ["Read", "Write", "Delete"], topic="logs", data=self.data)
        acl.add("User:otto", ["Describe"], topic="secret", data=self.data)
        acl.add("User:anna", ["All"], topic="*", data=self.data)
        acl.add("User:anna", ["All"], cluster=True, data=self.data)

    def set_password(self, name: str, password: str) -> None:
        path = self.directory / "password"
        path.write_text(f"{password}\n")
        user.add(name, password_file=str(path), data=self.data)
        path.unlink()

    def ask(self, path: str, method: str = "GET", body: str | None = None, source: str = "127.0.0.1", **headers: str) -> Answer:
        with closing(HTTPConnection(self.box.http.host, self.box.http.port, timeout=60, source_address=(source, 0))) as connection:
            connection.request(method, path, body, {"X-Millrace": "test", **{name.replace("_", "-"): text for name, text in headers.items()}})
            answer = connection.getresponse()
            return Answer(answer.status, answer.getheaders(), answer.read())

    def log_in(self, name: str, password: str = PASSWORD) -> Answer:
        form = urlencode({"user": name, "password": password, "next": "/topics"})
        return self.ask("/login", "POST", form, Content_Type="application/x-www-form-urlencoded")

    def change(self, path: str, given: dict[str, Any], session: Session) -> Answer:
        return self.ask(path, "POST", json.dumps(given), Content_Type="application/json", Cookie=session.cookie, X_Millrace_Token=session.token)

    def session(self, name: str) -> Session:
        answer = eventually(lambda: found if (found := self.log_in(name)).status == 303 else None, f"the acceptor knows {name}")
        return Session(answer.cookie, self.ask("/api/rights", Cookie=answer.cookie).document["token"])

    def count(self, name: str) -> int:
        return int(self.box.counters("console").values.get(name, 0))


class Session(NamedTuple):
    cookie: str
    token: str


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    made = Place(tmp_path_factory.mktemp("login"))
    yield made
    assert made.box.stop() == 0
    assert made.box.leftovers() == []


@pytest.fixture(scope="module")
def sessions(place: Place) -> dict[str, Session]:
    return {name: place.session(name) for name in ROLES}


def test_each_person_reads_what_its_rights_allow(place: Place, sessions: dict[str, Session]) -> None:
    def asked(name: str, path: str) -> Answer:
        return place.ask(path, Cookie=sessions[name].cookie)

    def answers(name: str, path: str, status: int) -> None:
        """When the acceptor has the last entry."""
        eventually(lambda: asked(name, path).status == status, f"{name} gets {status} for {path}")

    def names(name: str, path: str) -> set[str]:
        return {topic["name"] for topic in asked(name, path).document["topics"]}

    secret = {"topic": "secret", "value": "by anna"}
    eventually(lambda: place.change("/api/records/produce", secret, sessions["anna"]).status == 200, "anna may")
    for name, may_read in (("vera", (200, 403)), ("otto", (200, 403)), ("anna", (200, 200))):
        for topic, status in zip(("logs", "secret"), may_read, strict=True):
            answers(name, f"/api/records?topic={topic}", status)
            answers(name, f"/api/search?topic={topic}&count=1", status)
    eventually(lambda: names("anna", "/api/topics") >= {"logs", "secret"}, "the console has them in a sample")
    assert names("vera", "/api/topics") == names("vera", "/api/overview") == {"logs"} and names("otto", "/api/topics") == {"logs", "secret"}
    assert place.ask("/api/topics").status == place.ask("/api/search?topic=logs").status == 401
    assert place.ask("/healthz").status == place.ask("/metrics").status == place.ask("/topics").status == 200
    assert place.box.get_local("/api/topics")[0] == 200, "the Unix socket is as it was"


def test_a_change_needs_the_role_and_the_right_and_the_audit_names_the_person(place: Place, sessions: dict[str, Session]) -> None:
    for name in ("vera", "otto"):
        for path in CHANGES:
            if role_needed(path) > Role[ROLES[name].upper()]:
                refused = place.change(path, {"topic": "logs", "confirm": "logs"}, sessions[name])
                assert refused.status == 403 and "needs the role" in refused.document["error"], (name, path)
    assert place.change("/api/records/produce", {"topic": "logs", "value": "by otto"}, sessions["otto"]).status == 200
    denied = place.change("/api/records/produce", {"topic": "secret", "value": "x"}, sessions["otto"])
    assert denied.status == 403 and "authoriz" in denied.document["error"].lower(), denied.body
    assert place.change("/api/topic/create", {"topic": "by-anna", "partitions": 1}, sessions["anna"]).status == 200
    trimmed = place.change("/api/topic/trim", {"topic": "logs", "offset": 1, "execute": True}, sessions["otto"])
    assert trimmed.status == 200, trimmed.body
    assert place.change("/api/topic/delete", {"topic": AUDIT_TOPIC, "confirm": AUDIT_TOPIC}, sessions["anna"]).status == 400
    drained = place.change("/api/disk/drain", {"disk": "d0"}, sessions["otto"])
    assert drained.status == 403 and "it needs Alter on the cluster" in drained.document["error"], drained.body
    assert "fit on no other disk" in place.change("/api/disk/drain", {"disk": "d0"}, sessions["anna"]).document["error"]
    (disk,) = place.ask("/api/disks", Cookie=sessions["vera"].cookie).document["disks"]
    assert {held["topic"] for held in disk["held"]} <= {"logs"} and disk["partitions"] > len(disk["held"])
    for words in (
        "audit.disk.order: User:anna from 127.0.0.1 (listener console): drain disk 'd0'",
        "audit.login: User:otto from 127.0.0.1 (listener console)",
        "audit.topic.created: User:anna from 127.0.0.1 (listener console)",
        "audit.records.deleted: User:otto from 127.0.0.1 (listener console)",
    ):
        eventually(lambda words=words: words in place.box.messages, words)
    assert "User:local" not in "".join(line for line in place.box.messages.splitlines() if "by-anna" in line)


def test_transactions_settings_audit_and_alarms_are_those_that_a_person_may_see(place: Place, sessions: dict[str, Session]) -> None:
    """An open transaction of anna's does not seem to hang to those that do not see its id, and needs rights to be aborted."""

    def asked(name: str, path: str) -> Answer:
        return place.ask(path, Cookie=sessions[name].cookie)

    def status(name: str, path: str, wanted: int) -> Answer:
        return eventually(lambda: found if (found := asked(name, path)).status == wanted else None, f"{name} gets {wanted} for {path}")

    login = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "SCRAM-SHA-256", "sasl.username": "anna", "sasl.password": PASSWORD}
    acl.add("User:anna", ["All"], transactional_id="*", data=place.data)
    producer = Producer({"bootstrap.servers": place.box.bootstrap, "transactional.id": "payments", **login})
    producer.init_transactions(60)
    producer.begin_transaction()
    producer.produce("logs", b"open")
    assert producer.flush(30) == 0
    eventually(lambda: [each["state"] for each in asked("anna", "/api/transactions").document["transactions"]] == ["Ongoing"], "anna sees it")
    assert [asked(name, "/api/transactions").document["count"] for name in ("vera", "otto")] == [0, 0]
    for name in ("vera", "otto", "anna"):
        found = status(name, "/api/producers?topic=logs&minutes=0", 200).document
        assert (found["hanging_count"], "Describe on all transactional ids" in str(found["refusals"])) == (0, name != "anna"), found
    (open_one,) = [each for each in found["producers"] if each["start_offset"] is not None]
    hung = {"topic": "logs", "partition": 0, "producer_id": open_one["producer_id"], "minutes": 0}
    named = {"transactional_id": "payments", "confirm": "payments"}
    assert "needs the role operator" in place.change("/api/transaction/abort", named, sessions["vera"]).document["error"]
    for given in (hung, named):
        refused = place.change("/api/transaction/abort", given, sessions["otto"])
        assert (refused.status, refused.document["code"]) == (403, "TRANSACTIONAL_ID_AUTHORIZATION_FAILED"), refused.body
    assert place.change("/api/transaction/abort", hung, sessions["anna"]).document["code"] == "INVALID_TXN_STATE", "it does not hang"
    assert place.change("/api/transaction/abort", named, sessions["anna"]).status == 200
    for path, holds in (("/api/settings", '"http.role.admin"'), ("/api/audit", "audit.login")):
        eventually(lambda path=path, holds=holds: holds in asked("anna", path).body.decode(), f"anna reads {path}")  # type: ignore[misc]
        assert all("AUTHORIZATION_FAILED" in status(name, path, 403).document["code"] for name in ("vera", "otto"))
    unseen = asked("otto", "/api/audit").document["error"]
    acl.add("User:otto", ["Describe"], topic=AUDIT_TOPIC, data=place.data)
    seen = eventually(lambda: found if (found := asked("otto", "/api/audit")).document["error"] != unseen else None, "otto sees the topic")
    assert (seen.status, seen.document["code"]) == (403, "TOPIC_AUTHORIZATION_FAILED"), "to describe it is not to read it"
    alarms = asked("vera", "/api/alarms").document
    assert "secret" not in json.dumps([alarms["present"], alarms["past"]]) and alarms["push"]["target"] == ""
    now = alarms["now_ms"]
    assert set(asked("vera", f"/api/history?from={now - 600_000}&to={now}").document) >= {"time_ms", "lag_records"}


def test_a_person_elsewhere_ends_a_transaction_that_hangs(place: Place) -> None:
    """Only boxes may write the marker: the console, which is a box's, does it for the person."""
    acl.add("User:anna", ["All"], transactional_id="*", data=place.data)
    batch = transactional_batch(987_654, 0, 0, b"hangs", timestamp_ms=SystemClock.wall_ms() - 60_000)
    with closing(ClientConnection(Address(place.box.layout.kafka_socket, 0))) as local:
        produced = local.request(PRODUCE, ClientProduceRequest("of no coordinator", -1, 20_000, (TopicToProduce("logs", (BatchToProduce(0, batch),)),)))
    assert produced.topics[0].partitions[0].error_code == 0
    proxied = {"source": PROXY, "X_Forwarded_User": "anna", "X_Forwarded_For": "192.0.2.66", "X_Forwarded_Proto": "https"}

    def hanging() -> list[int]:
        return [each["producer_id"] for each in place.ask("/api/producers?topic=logs&minutes=0", **proxied).document.get("producers", []) if each["hangs"]]

    eventually(lambda: hanging() == [987_654], "anna sees it, and all transactional ids")
    given = json.dumps({"topic": "logs", "partition": 0, "producer_id": 987_654, "minutes": 0})
    token = place.ask("/api/rights", **proxied).document["token"]
    ended = place.ask("/api/transaction/abort", "POST", given, Content_Type="application/json", X_Millrace_Token=token, **proxied)
    assert ended.status == 200, ended.body
    eventually(lambda: hanging() == [], "it hangs no more")


def test_csrf_fixation_and_a_stolen_cookie(place: Place, sessions: dict[str, Session]) -> None:
    anna = sessions["anna"]
    topic = {"topic": "stolen", "partitions": 1}
    for token in ("", sessions["otto"].token, "0" * 64):
        assert place.change("/api/topic/create", topic, anna._replace(token=token)).status == 403
    posted = {"Content_Type": "application/json", "Cookie": anna.cookie, "X_Millrace_Token": anna.token}
    assert place.ask("/api/topic/create", "POST", json.dumps(topic), Origin="http://evil.example", **posted).status == 403
    name = anna.cookie.partition("=")[0]
    planted = f"{name}={'A' * 43}"
    assert place.ask("/api/rights", Cookie=planted).status == 401
    answer = place.ask("/login", "POST", urlencode({"user": "anna", "password": PASSWORD}), Content_Type="application/x-www-form-urlencoded", Cookie=planted)
    assert answer.status == 303 and answer.cookie != planted and place.ask("/api/rights", Cookie=planted).status == 401
    stolen = Session(answer.cookie, place.ask("/api/rights", Cookie=answer.cookie).document["token"])
    form = {"Content_Type": "application/x-www-form-urlencoded", "Cookie": stolen.cookie}
    assert place.ask("/logout", "POST", "", **form).status == 403
    assert place.ask("/logout", "POST", urlencode({"token": stolen.token}), **form).status == 303
    assert place.change("/api/topic/create", topic, stolen).status == 401
    assert place.change("/api/topic/create", topic, anna).status == 200, "the other session of the same person goes on"


def test_only_the_proxy_names_users(place: Place) -> None:
    spoofed = place.count('console.refused{reason="proxy_header"}')
    assert place.ask("/api/rights", X_Forwarded_User="anna").status == 401
    assert place.ask("/api/rights", X_Forwarded_User="anna", X_Forwarded_For=PROXY).status == 401
    assert place.count('console.refused{reason="proxy_header"}') == spoofed + 2
    proxied = {"source": PROXY, "X_Forwarded_User": "anna", "X_Forwarded_For": "192.0.2.66", "X_Forwarded_Proto": "https"}
    rights = place.ask("/api/rights", **proxied)
    assert rights.document["person"] == {"user": "anna", "role": "admin"}, rights.body
    body = json.dumps({"topic": "by-proxy", "partitions": 1})
    created = place.ask("/api/topic/create", "POST", body, Content_Type="application/json", X_Millrace_Token=rights.document["token"], **proxied)
    assert created.status == 200, created.body
    words = "audit.topic.created: User:anna from 192.0.2.66 (listener console)"
    eventually(lambda: words in place.box.messages, words)


def test_a_brute_force_is_slowed_down_and_others_are_served(place: Place, sessions: dict[str, Session]) -> None:
    """Twelve at a time from one address, through the proxy, against a name that others log in by."""
    failures, ends, statuses = place.count("console.login_failures"), threading.Event(), []
    form = urlencode({"user": "vera", "password": "guess"})

    def guess() -> None:
        while not ends.is_set():
            more = {"X_Forwarded_For": "192.0.2.99", "X_Forwarded_Proto": "https", "Content_Type": "application/x-www-form-urlencoded"}
            statuses.append(place.ask("/login", "POST", form, PROXY, **more).status)

    threads = [threading.Thread(target=guess) for _ in range(12)]
    began = time.monotonic()
    for thread in threads:
        thread.start()
    try:
        eventually(lambda: 401 in statuses and 429 in statuses, "guesses are refused")
        for _ in range(20):
            assert place.ask("/api/records?topic=logs", Cookie=sessions["vera"].cookie).status == 200
            assert place.ask("/healthz").status == 200
        assert place.log_in("vera").status == 303, "the right password is not delayed"
    finally:
        ends.set()
        for thread in threads:
            thread.join()
    checked, took = place.count("console.login_failures") - failures, time.monotonic() - began
    assert set(statuses) == {401, 429} and checked <= 4 + 4 * took, "and ever more slowly"
    words = "audit.login.failed: User:vera from 192.0.2.99 (listener console)"
    eventually(lambda: words in place.box.messages, words)


def test_a_changed_password_ends_the_sessions_of_the_old_one(place: Place) -> None:
    place.set_password("temp", PASSWORD)
    assert place.log_in("temp").status in (401, 403), "it has no role"
    place.set_password("otto", PASSWORD + "!")
    otto = eventually(lambda: found if (found := place.log_in("otto", PASSWORD + "!")).status == 303 else None, "the acceptor has the new one")
    assert place.ask("/api/records?topic=logs", Cookie=otto.cookie).status == 200
    place.set_password("otto", PASSWORD)
    eventually(lambda: place.ask("/api/records?topic=logs", Cookie=otto.cookie).status == 401, "the session ends")
    assert place.ask("/api/rights", Cookie=otto.cookie).status == 401


def test_the_commands_of_the_documentation(place: Place, tmp_path: Path) -> None:
    page = (ROOT / "docs" / "security.md").read_text()
    section = page.partition("## Users of the console")[2].partition("\n## ")[0]
    (script,) = re.findall(r"```sh\n(.*?)```", section, re.DOTALL)
    added, _, script = script.replace("http://127.0.0.1:8080", f"http://{place.box.http}").partition("\n")
    (tmp_path / "anna.password").write_text(f"{PASSWORD}\n")
    assert added == "millrace user add anna --password-file anna.password", "which is done"
    done = subprocess.run(["bash", "-euo", "pipefail", "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0 and '{"topic":"made"}' in done.stdout, done


@pytest.mark.skipif(missing_browser() is not None, reason=str(missing_browser()))
def test_a_person_logs_in_and_out_in_a_browser_without_any_script(place: Place, sessions: dict[str, Session], tmp_path: Path) -> None:
    """Behind a proxy with a prefix, which passes the name on by which the browser knows it."""
    with prefix_proxy(place.box.http, keeps_host=True) as (origin, asked), browser(tmp_path, width=390) as driver:

        def text(selector: str) -> str:
            return str(driver.execute_script("return document.querySelector(arguments[0])?.textContent ?? ''", selector))

        def fill_in(name: str) -> None:
            driver.find_element("name", "user").send_keys(name)
            driver.find_element("name", "password").send_keys(PASSWORD, Keys.ENTER)

        driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
        driver.get(f"{origin}/login?next=/topics")
        fill_in("vera")
        eventually(lambda: driver.current_url == f"{origin}/topics", "the login leads to the page")
        (cookie,) = driver.get_cookies()
        assert (cookie["httpOnly"], cookie["sameSite"], cookie["secure"]) == (True, "Strict", False)
        driver.get(f"{origin}/login")
        driver.find_element("css selector", ".login button").send_keys(Keys.ENTER)
        eventually(lambda: driver.get_cookies() == [] and driver.find_elements("name", "password"), "it is logged out")
        driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})

        driver.get(f"{origin}/topics")
        eventually(lambda: "/login?next=%2Ftopics" in driver.current_url, "without a session the page leads to the login")
        fill_in("vera")
        eventually(lambda: text("#person") == "vera · viewer", "the page says so")
        eventually(lambda: "logs" in text("#topics") and "secret" not in text("#topics"), "it shows what vera may see")
        assert "User:vera is viewer here" in text("#rights") and not driver.find_element("id", "create").is_displayed()
        assert driver.execute_script("return document.cookie") == ""
        driver.delete_all_cookies()
        driver.get(f"{origin}/topics?topic=logs")
        eventually(lambda: driver.find_elements("name", "password"), "log in again")
        fill_in("otto")
        eventually(lambda: text("#person") == "otto · operator" and "logs" in text("#title"), "back on the page of the topic")
        eventually(lambda: "needs the role admin" in text("#rights"), "why topics are not changed")
        eventually(driver.find_element("id", "trim").is_displayed, "an operator deletes records")
        assert not driver.find_element("id", "delete").is_displayed() and not driver.find_element("id", "grow").is_displayed()
        assert driver.execute_script("return document.documentElement.scrollWidth <= innerWidth")
        for name in (None, "x" * 255):
            for width in (1440, 390):
                show_as(driver, width)
                assert driver.execute_script(TOOLS, name) == [True, True], "time zone, person and theme are in one row, at the right, also of a long name"
        post = "const done = arguments[0]; postJson('/api/records/produce', { topic: 'logs', value: 'by the page' }).then(done, (error) => done(error.message))"
        assert driver.execute_async_script(post)["partition"] == 0, "the page sends the token"
        complained = [each["message"] for each in complaints(driver) if origin in each["message"]]
        assert [words for words in complained if "status of 401" not in words] == [], "the browser notes what needed a login"
        leave(driver)
    assert [path for path in asked if not path.startswith(f"{PrefixProxy.prefix}/") and path != "/favicon.ico"] == []


class Browser:
    """What a browser keeps, without scripts: cookies, and the way from the proxy to the provider and back."""

    def __init__(self, proxy: OpenIdProxy) -> None:
        self.origin = proxy.origin
        context = HTTPSHandler(context=create_default_context(cafile=str(proxy.authority)))
        self._opener = build_opener(ProxyHandler({}), context, HTTPCookieProcessor())

    def ask(self, path: str, body: bytes | None = None, **headers: str) -> tuple[int, str, bytes]:
        """Status, the address where the way ended, and the body."""
        request = Request(self.origin + path, body, {name.replace("_", "-"): text for name, text in headers.items()})
        try:
            with self._opener.open(request, timeout=60) as answer:
                return answer.status, answer.url, answer.read()
        except HTTPError as error:
            with error:
                return error.code, error.url, error.read()

    def open(self, path: str, **headers: str) -> tuple[int, str]:
        """As a person does with a link."""
        return self.ask(path, Accept="text/html", **headers)[:2]


@pytest.mark.skipif(missing_proxy() is not None, reason=str(missing_proxy()))
def test_users_of_a_real_proxy_of_openid_connect_are_those_that_it_has_authenticated(place: Place, tmp_path: Path) -> None:
    forged = {"X_Millrace": "test", "X_Forwarded_User": "otto", "X_Forwarded_For": "192.0.2.1"}
    with openid_proxy(tmp_path / "proxy", place.box.http, PROXY) as proxy:
        anna, mallory = Browser(proxy), Browser(proxy)
        assert anna.ask("/api/rights", **forged)[0] == 401, "the proxy lets nothing through before the login"
        proxy.authenticate("anna")
        assert anna.open("/topics", **forged) == (200, f"{proxy.origin}/topics"), "to the provider, and back"
        rights = json.loads(anna.ask("/api/rights", **forged)[2])
        assert rights["person"] == {"user": "anna", "role": "admin"}, "what a browser sends is replaced"
        topic = json.dumps({"topic": "by-openid", "partitions": 1}).encode()
        wanted = {"Content_Type": "application/json", "X_Millrace_Token": rights["token"], **forged}
        assert anna.ask("/api/topic/create", topic, Origin="http://evil.example", **wanted)[0] == 403
        assert anna.ask("/api/topic/create", topic, Origin=proxy.origin, **wanted)[0] == 200
        words = "audit.topic.created: User:anna from 127.0.0.1 (listener console): topic by-openid"
        eventually(lambda: words in place.box.messages, words)
        proxy.authenticate("mallory")
        mallory.open("/topics")
        status, _, refused = mallory.ask("/api/rights", X_Millrace="test", X_Forwarded_User="anna")
        assert status == 403 and b"User:mallory has no role" in refused
    assert place.ask("/api/rights", X_Forwarded_User="anna").status == 401, "past the proxy"
