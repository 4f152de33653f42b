"""The console in a real browser: every page and order, by mouse, by keyboard alone, and without scripts.

Whatever a test does, the browser may ask no other host, and no page may break its Content-Security-Policy or a script.
"""

import contextlib
import json
import re
import time

import pytest
from beanstalk_client import Client, Error
from beanstalk_client.schedules import Scheduler
from beanstalk_client.tasks import Tasks
from beanstalk_client.tasks.failure import describe, report
from programs import find, missing
from visiting import console_at_port

from beanstalk_server import TubeConfig
from beanstalk_server.access.accounts import hash_of_token
from beanstalk_server.settings.sections import ListenerConfig, UserConfig
from harness import servers
from harness.console import demonstration
from harness.waiting import eventually

api = pytest.importorskip("playwright.sync_api")

pytestmark = pytest.mark.slow

AXE = servers.ROOT / "conformance" / "clients" / "node_modules" / "axe-core" / "axe.min.js"
PATIENCE = 15_000  # milliseconds
WIDE, NARROW = {"width": 1280, "height": 800}, {"width": 360, "height": 740}

ODD_TUBE = "a;b()$(rm)/../+x.y//evil.example/<".replace("<", "_")
"""What the protocol allows in a name, where URLs, shells and markup have a meaning for it."""


@pytest.fixture(scope="module")
def chromium():
    program = find("chromium")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def browse(chromium):
    """Opens pages of consoles; at the end, nothing may be wrong with any of them."""
    with contextlib.ExitStack() as stack:
        people = []

        def start(address, mode="mouse", settings=None, **context):
            url = stack.enter_context(console_at_port(address, **(settings or {})))
            people.append(Person(chromium, url, mode, context))
            stack.callback(people[-1].context.close)
            return people[-1]

        yield start
        assert [wrong for person in people for wrong in person.wrong] == []


class Person:
    """Somebody at a browser.

    Attributes:
        wrong: what pages did that they must not.
        expected: a pattern of what the browser may say of responses that are errors.
    """

    def __init__(self, chromium, url, mode="mouse", context=None):
        how = {"viewport": WIDE, "java_script_enabled": mode != "no scripts", "base_url": url} | (context or {})
        self.url, self.mode, self.wrong, self.expected = url, mode, [], r"^$"
        self.context = chromium.new_context(**how)
        self.context.set_default_timeout(PATIENCE)
        self.context.route(lambda asked: not asked.startswith(url), self._refuse)
        self.context.on("console", self._hear)
        self.context.on("weberror", lambda error: self.wrong.append(str(error.error)))
        self.page = self.context.new_page()
        self.page.on("dialog", lambda dialog: (self.wrong.append(dialog.message), dialog.dismiss()))

    def _refuse(self, route):
        self.wrong.append(f"asks {route.request.url}")
        route.abort()

    def _hear(self, message):
        if message.type in ("error", "warning") and not re.search(self.expected, message.text):
            self.wrong.append(f"{message.type}: {message.text}")

    def go(self, path):
        return self.page.goto(path)

    @property
    def text(self):
        return self.page.locator("main").inner_text()

    def until(self, text):
        """Wait until the page says so; load it again and again where no script does."""
        until = time.monotonic() + PATIENCE / 1000
        while not re.search(text, self.text):
            assert time.monotonic() < until, f"not told: {text}; but: {self.text}"
            self.page.wait_for_timeout(200)
            if self.mode == "no scripts":
                self.page.reload()

    # What a hand does, or the keys

    def reach(self, target):
        """Go to it with Tab, as people do who have no mouse."""
        for _ in range(300):
            if target.evaluate("each => each === document.activeElement"):
                return
            self.page.keyboard.press("Tab")
        raise AssertionError(f"Tab does not lead to {target}")

    def _use(self, target, key="Enter"):
        if self.mode == "keys":
            self.reach(target)
            self.page.keyboard.press(key)
        else:
            target.click()

    def press(self, name, within="main"):
        self._use(self.page.locator(within).get_by_role("button", name=name, exact=True).first)

    def follow(self, name):
        self._use(self.page.locator("main").get_by_role("link", name=name).first)

    def open(self, name):
        self._use(self.page.locator("summary", has_text=name))

    def fill(self, label, text):
        field = self.page.locator("main").get_by_label(label, exact=True).first
        if self.mode == "keys":
            self.reach(field)
            self.page.keyboard.press("Control+A")
            self.page.keyboard.insert_text(text)
        else:
            field.fill(text)

    def choose(self, label):
        choice = self.page.get_by_label(re.compile(label))
        if self.mode == "keys":
            self.reach(self.page.locator("input[type=radio]:checked"))
            self.page.keyboard.press("ArrowRight")
            assert choice.is_checked()
        else:
            choice.check()

    def mark(self, number):
        if self.mode == "keys":
            for _ in range(int(number)):
                self.page.keyboard.press("j")
                self.page.keyboard.press("x")
        else:
            for box in self.page.locator("tbody input[type=checkbox]").all()[: int(number)]:
                box.check()
        assert self.page.locator("tbody input:checked").count() == int(number)

    def sure(self, _=""):
        assert self.page.locator(".ask h1").inner_text().endswith("?")
        self._use(self.page.locator(".ask form button"))


# ------------------------------------------------------------------------------------------- a shop with work


def state(queue, job_id):
    try:
        return queue.stats_job(job_id)["state"]
    except Error:
        return "gone"


def counts(queue, tube):
    """Ready, delayed and buried jobs."""
    try:
        found = queue.stats_tube(tube)
    except Error:
        return (0, 0, 0)
    return tuple(found[f"current-jobs-{each}"] for each in ("ready", "delayed", "buried"))


def put(queue, tube, *bodies, **how):
    queue.use(tube)
    return [queue.put(body, **how) for body in bodies]


def bury(queue, tube, *bodies):
    ids = put(queue, tube, *bodies)
    queue.watch(tube)
    for _ in ids:
        queue.bury(queue.reserve(0))
    queue.ignore(tube)
    return ids


def stock(queue, address):
    """Jobs in all states, failures with reports, dead jobs and a schedule; the ids of the first of each."""
    task = json.dumps({"task": "shop.send", "args": ["ada@example.com"], "kwargs": {"subject": "Hello"}}).encode()
    buried = bury(queue, "mails", task, task, task)
    ready = put(queue, "mails", task, b"for Mr. Smith", b"for Mrs. Jones")
    delayed = put(queue, "mails", task, task, delay=3600)
    queue.use("mails.errors")
    for number, job_id in enumerate(buried):
        error = ValueError(f"no mail server for {number}") if number < 2 else KeyError("address")
        queue.put_with(
            report(job_id, "mails", describe(error), 3, by="worker-1", task="shop.send"), key=f"job-{job_id}"
        )
    put(queue, "fragile", task, task)
    queue.watch("fragile")
    for _ in range(2):
        queue.release(queue.reserve(0))
    queue.ignore("fragile")
    put(queue, "paused", b"x")
    queue.pause_tube("paused", 3600)
    tasks = Tasks("{}:{}".format(*address), tube="reports")
    tasks.every("1h")(tasks.task(count_orders))
    Scheduler(tasks.connect, tasks.schedules).run_once()
    tasks.close()
    return {"ready": ready[0], "delayed": delayed[0], "buried": buried[0]}


def count_orders():
    pass


@pytest.fixture
def shop(run):
    server = run(tubes=(TubeConfig(match="fragile", max_tries=1, dead_tube="graves"),), max_job_size=11_000_000)
    with Client(server.address, encoding=None) as queue:
        server.queue, server.made = queue, stock(queue, server.address)
        yield server


# ------------------------------------------------------------------------------------------- every page

PAGES = [
    "/", "/tubes", "/tubes?q=nowhere", "/tube?name=mails&state=ready", "/tube?name=mails&state=delayed",
    "/tube?name=mails&state=buried", "/tube?name=mails&state=reserved", "/job?id={ready}", "/job?id={buried}",
    "/failures", "/schedules", "/clients", "/cluster", "/log",
]  # fmt: skip
LOOKS = {
    "light": {"color_scheme": "light"},
    "dark": {"color_scheme": "dark"},
    "narrow": {"viewport": NARROW, "color_scheme": "light"},
    "narrow and dark": {"viewport": NARROW, "color_scheme": "dark"},
    "no scripts": {"viewport": NARROW, "mode": "no scripts"},
}


def look_at(person):
    """Note what sticks out of the window, and what axe-core finds that is serious."""
    page = person.page
    width = page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
    if width[0] > width[1]:
        person.wrong.append(f"{page.url} scrolls sideways: {width}")
    if person.mode == "no scripts":
        return
    if not AXE.exists():
        missing("axe-core", "make conformance/clients/node_modules")
    page.evaluate(AXE.read_text())
    found = page.evaluate("axe.run({resultTypes: ['violations']})")["violations"]
    person.wrong += [
        f"{page.url}: {each['id']}: {node['html'][:200]}: {node['failureSummary'][:300]}"
        for each in found
        if each["impact"] in ("serious", "critical")
        for node in each["nodes"]
    ]


@pytest.mark.parametrize("look", LOOKS)
def test_every_page_can_be_used_by_all(browse, shop, look):
    person = browse(shop.address, **LOOKS[look])
    person.go("/failures")
    person.until("no mail server")
    for path in PAGES:
        assert person.go(path.format(**shop.made)).status == 200
        look_at(person)
    person.go("/failures")
    person.follow("no mail server")
    look_at(person)
    person.go("/tube?name=mails&state=ready")
    person.choose("all 3")
    person.press("Delete…")
    look_at(person)  # Sure?
    person.go("/tube?name=mails&state=ready")
    person.fill("Text", "smith")
    person.press("Search ready jobs")
    person.until("1 found")
    look_at(person)
    person.expected = "404"
    assert person.go("/job?id=99999").status == 404
    look_at(person)


# ------------------------------------------------------------------------------------------- every order

ORDERS = {
    "kick": ("/job?id={buried}", "press Kick", lambda q, made: state(q, made["buried"]) == "ready"),
    "bury": ("/job?id={ready}", "press Bury", lambda q, made: state(q, made["ready"]) == "buried"),
    "delete": ("/job?id={ready}", "press Delete…|sure", lambda q, made: state(q, made["ready"]) == "gone"),
    "move": (
        "/job?id={ready}",
        "fill Destination tube=other|press Move to|sure",
        lambda q, _: counts(q, "other") == (1, 0, 0),
    ),
    "put again": (
        "/job?id={delayed}",
        "open Put it again|fill Body=changed|press Put again",
        lambda q, made: state(q, made["delayed"]) == "gone" and counts(q, "mails") == (4, 1, 3),
    ),
    "put": (
        "/tube?name=mails",
        "open Put a job|fill Body=new|fill Key=order-1|fill Delay, s=0|press Put",
        lambda q, _: (q.use("mails"), q.peek_keyed("order-1").body)[1] == b"new",
    ),
    "kick marked": (
        "/tube?name=mails&state=buried",
        "mark 2|press Kick",
        lambda q, _: counts(q, "mails") == (5, 2, 1),
    ),
    "kick all": (
        "/tube?name=mails&state=buried",
        "choose all 3|press Kick",
        lambda q, _: counts(q, "mails") == (6, 2, 0),
    ),
    "bury marked": ("/tube?name=mails&state=ready", "mark 1|press Bury", lambda q, _: counts(q, "mails") == (2, 2, 4)),
    "move all": (
        "/tube?name=mails&state=delayed",
        "choose all 2|fill Destination tube=other|press Move to|sure",
        lambda q, _: counts(q, "other") == (0, 2, 0),
    ),
    "delete all": (
        "/tube?name=mails&state=buried",
        "choose all 3|press Delete…|sure",
        lambda q, _: counts(q, "mails") == (3, 2, 0),
    ),
    "find and delete": (
        "/tube?name=mails&state=ready",
        "fill Text=for mr|press Search ready jobs|until 2 found|choose all that|press Delete…|sure",
        lambda q, _: counts(q, "mails") == (1, 2, 3),
    ),
    "pause": (
        "/tube?name=mails",
        "fill Seconds of a pause=90|press Pause",
        lambda q, _: q.stats_tube("mails")["pause"] == 90,
    ),
    "resume": ("/tube?name=paused", "press Resume", lambda q, _: q.stats_tube("paused")["pause"] == 0),
    "clear": ("/tube?name=mails", "press Clear…|sure", lambda q, _: counts(q, "mails") == (0, 0, 0)),
    "redrive": ("/tube?name=graves", "press Redrive…|sure", lambda q, _: counts(q, "fragile") == (2, 0, 0)),
    "pause marked tubes": (
        "/tubes?q=mail&sort=name",
        "until mails.errors|mark 2|press Pause",
        lambda q, _: q.stats_tube("mails")["pause"] == q.stats_tube("mails.errors")["pause"] == 600,
    ),
    "resume marked tubes": (
        "/tubes?q=paused",
        "until 1 tube|mark 1|press Resume",
        lambda q, _: q.stats_tube("paused")["pause"] == 0,
    ),
    "kick a tube": (
        "/tubes?q=mails&sort=name",
        "until mails.errors|mark 1|press Kick buried",
        lambda q, _: counts(q, "mails") == (6, 2, 0),
    ),
    "clear marked tubes": (
        "/tubes?q=mails&sort=name",
        "until mails.errors|mark 1|press Clear…|sure",
        lambda q, _: counts(q, "mails") == (0, 0, 0),
    ),
    "retry a group": (
        "/failures",
        "until no mail server|follow no mail server|press Retry all",
        lambda q, _: counts(q, "mails") == (5, 2, 1),
    ),
    "retry the worst group": (
        "/failures",
        "until no mail server|press Retry",
        lambda q, _: counts(q, "mails") == (5, 2, 1),
    ),
    "delete a group": (
        "/failures",
        "until KeyError|follow KeyError|press Delete all…|sure",
        lambda q, _: counts(q, "mails") == (3, 2, 2),
    ),
    "move a group": (
        "/failures",
        "until KeyError|follow KeyError|fill Destination tube=other|press Move to|sure",
        lambda q, _: counts(q, "other") == (1, 0, 0),
    ),
    "redrive a dead tube": (
        "/failures",
        "until graves|press Redrive tube…|sure",
        lambda q, _: counts(q, "fragile") == (2, 0, 0),
    ),
    "run a schedule": ("/schedules", "press Run now|sure", lambda q, _: counts(q, "reports") == (1, 1, 0)),
    "skip a firing": ("/schedules", "press Skip next…|sure", lambda q, _: counts(q, "reports") == (0, 0, 0)),
    "drain": (
        "/cluster",
        "until version|press Drain…|sure|press End drain mode",
        lambda q, _: q.stats()["draining"] == "false",
    ),
}
"""Each with its page, what is done there, and what the server must then say."""


@pytest.mark.parametrize("mode", ["mouse", "keys", "no scripts"])
@pytest.mark.parametrize("order", ORDERS)
def test_every_order_is_given(browse, shop, order, mode):
    path, steps, is_done = ORDERS[order]
    person = browse(shop.address, mode)
    person.go(path.format(**shop.made))
    for step in steps.split("|"):
        verb, _, rest = step.partition(" ")
        getattr(person, verb)(*rest.split("=", 1))
    eventually(lambda: is_done(shop.queue, shop.made), f"{order}: {person.text}")
    person.go("/log")
    person.until("done")
    assert "failed" not in person.text
