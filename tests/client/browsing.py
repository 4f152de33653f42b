"""Somebody at a browser who visits a console, by mouse, by keyboard alone or without scripts; and a shop to look at."""

import contextlib
import json
import re
import time

from beanstalk_client import Error
from beanstalk_client.schedules import Scheduler
from beanstalk_client.tasks import Tasks
from beanstalk_client.tasks.failure import describe, report
from programs import missing

from harness.servers import ROOT

AXE = ROOT / "conformance" / "clients" / "node_modules" / "axe-core" / "axe.min.js"
PATIENCE = 15_000  # milliseconds
WIDE = {"width": 1280, "height": 800}


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
        # A pattern, as the browser would wait for this process to be asked about each request.
        self.context.route(re.compile(f"^(?!{re.escape(url)}(/|$))"), self._refuse)
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
            self.page.wait_for_load_state()
            # Before it has painted a page, the browser drops what is typed.
            while not self.page.evaluate("performance.getEntriesByName('first-contentful-paint').length"):
                self.page.wait_for_timeout(50)
            self.reach(target)
            self.page.keyboard.press(key)
        else:
            target.click()

    def press(self, name, within="main", *, stays=False):
        """Press a button, and wait for the page that it leads to, unless it stays on its page."""
        button = self.page.locator(within).get_by_role("button", name=name, exact=True).first
        with contextlib.nullcontext() if stays else self.page.expect_navigation():
            self._use(button)

    def follow(self, name):
        with self.page.expect_navigation():
            self._use(self.page.locator("main").get_by_role("link", name=name).first)

    def open(self, name):
        self._use(self.page.locator("summary", has_text=name))

    def fill(self, label, text):
        fields, page = self.page.locator("main").locator("input, textarea, select"), self.page
        named = page.get_by_label(label, exact=True).or_(page.get_by_role("textbox", name=label, exact=True))
        field = fields.and_(named).first
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
        with self.page.expect_navigation():
            self._use(self.page.locator(".ask form button"))


def look_at(person):
    """Note what sticks out of the window, and what axe-core finds that is serious."""
    page = person.page
    page.wait_for_load_state()
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


# ------------------------------------------------------------------------------------------- a shop with work


def is_so(queue, made, wanted):
    name, *rest = wanted.split()
    if rest[0] == "is":
        return state(queue, made[name]) == rest[1]
    if rest[0] == "has":
        return queue.stats_job(made[name])["pri"] == int(rest[1])
    if rest[0] == "paused":
        return queue.stats_tube(name)["pause"] == int(rest[1])
    return counts(queue, name) == tuple(map(int, rest))


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


TASK = json.dumps({"task": "shop.send", "args": ["ada@example.com"], "kwargs": {"subject": "Hello"}}).encode()


def stock_any(queue):
    """Jobs in all states; the ids of the first of each."""
    buried = bury(queue, "mails", TASK, TASK, TASK)
    ready = put(queue, "mails", TASK, b"for Mr. Smith", b"for Mrs. Jones")
    delayed = put(queue, "mails", TASK, TASK, delay=3600)
    return {"ready": ready[0], "delayed": delayed[0], "buried": buried[0]}


def stock(queue, address):
    """Failures with reports, dead jobs and a schedule, too."""
    made = stock_any(queue)
    queue.use("mails.errors")
    for number in range(3):
        job_id = made["buried"] + number
        error = ValueError(f"no mail server for {number}") if number < 2 else KeyError("address")
        queue.put_with(
            report(job_id, "mails", describe(error), 3, by="worker-1", task="shop.send"), key=f"job-{job_id}"
        )
    put(queue, "fragile", TASK, TASK)
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
    return made


def count_orders():
    pass
