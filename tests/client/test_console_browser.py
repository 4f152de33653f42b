"""The console in a real browser: every page and order, by mouse, by keyboard alone, and without scripts.

Whatever a test does, the browser may ask no other host, and no page may break its Content-Security-Policy or a script.
"""

import contextlib
import json
import re
import signal
import time

import pytest
from beanstalk_client import Client
from browsing import Person, bury, counts, is_so, look_at, put, state, stock, stock_any
from programs import find
from visiting import console_at_port

from beanstalk_server import TubeConfig
from harness import servers
from harness.console import demonstration
from harness.waiting import eventually

api = pytest.importorskip("playwright.sync_api")

pytestmark = pytest.mark.slow

NARROW = {"width": 360, "height": 740}

ODD_TUBE = "a;b()$(rm)/../+x.y//evil.example/_"
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


def test_the_page_to_sign_in_can_be_used_by_all(browse, shop):
    person = browse(shop.address, "keys", {"login": True}, viewport=NARROW)
    person.go("/tubes")
    look_at(person)
    person.fill("Token", "x")
    assert person.page.url.endswith("/login")


# ------------------------------------------------------------------------------------------- every order

# fmt: off
ORDERS = {
    "kick": ("/job?id={buried}", "press Kick", "buried is ready"),
    "bury": ("/job?id={ready}", "press Bury", "ready is buried"),
    "delete": ("/job?id={ready}", "press Delete…|sure", "ready is gone"),
    "move": ("/job?id={ready}", "fill Destination tube=other|press Move to|sure", "other 1 0 0"),
    "reschedule": (
        "/job?id={delayed}", "fill New delay, such as 90, 30m or 2h=0|press Reschedule in", "delayed is ready"
    ),
    "reprioritize": (
        "/job?id={ready}", "fill New priority; 0 is the most urgent=5|press Reprioritize to", "ready has 5"
    ),
    "put again": (
        "/job?id={delayed}", "open Put again with|fill Body=changed|fill Delay, s=0|press Put again", "mails 4 1 3"
    ),
    "put": ("/tube?name=mails", "open Put a job|fill Body=new|fill Delay, s=9|fill Key=a-1|press Put", "mails 3 3 3"),
    "kick marked": ("/tube?name=mails&state=buried", "mark 2|press Kick", "mails 5 2 1"),
    "kick all": ("/tube?name=mails&state=buried", "choose all 3|press Kick", "mails 6 2 0"),
    "bury marked": ("/tube?name=mails&state=ready", "mark 1|press Bury", "mails 2 2 4"),
    "move all": (
        "/tube?name=mails&state=delayed", "choose all 2|fill Destination tube=other|press Move to|sure", "other 0 2 0"
    ),
    "delete all": ("/tube?name=mails&state=buried", "choose all 3|press Delete…|sure", "mails 3 2 0"),
    "find and delete": (
        "/tube?name=mails&state=ready",
        "fill Text=for mr|press Search ready jobs|until 2 found|choose all found|press Delete…|sure", "mails 1 2 3",
    ),
    "pause": ("/tube?name=mails", "fill Length of the pause in seconds=90|press Pause", "mails paused 90"),
    "pause until resumed": ("/tube?name=mails", "press Pause until resumed", "mails paused 4294967295"),
    "resume": ("/tube?name=paused", "press Resume", "paused paused 0"),
    "clear": ("/tube?name=mails", "press Clear…|sure", "mails 0 0 0"),
    "redrive": ("/tube?name=graves", "press Redrive…|sure", "fragile 2 0 0"),
    "pause marked": ("/tubes?q=mail&sort=name", "until mails.errors|mark 2|press Pause", "mails.errors paused 600"),
    "resume marked": ("/tubes?q=paused", "until 1 tube|mark 1|press Resume", "paused paused 0"),
    "kick a tube": ("/tubes?q=mails&sort=name", "until mails.errors|mark 1|press Kick buried", "mails 6 2 0"),
    "clear marked": ("/tubes?q=mails&sort=name", "until mails.errors|mark 1|press Clear…|sure", "mails 0 0 0"),
    "retry a group": ("/failures", "until no mail server|follow no mail server|press Retry all", "mails 5 2 1"),
    "retry the largest": ("/failures", "until no mail server|press Retry", "mails 5 2 1"),
    "delete a group": ("/failures", "until KeyError|follow KeyError|press Delete all…|sure", "mails 3 2 2"),
    "move a group": (
        "/failures", "until KeyError|follow KeyError|fill Destination tube=other|press Move to|sure", "other 1 0 0"
    ),
    "redrive a dead tube": ("/failures", "until graves|press Redrive tube…|sure", "fragile 2 0 0"),
    "run a schedule": ("/schedules", "press Run now|sure", "reports 1 1 0"),
    "skip a firing": ("/schedules", "press Skip next…|sure", "reports 0 0 0"),
    "drain": ("/cluster", "until version|press Drain…|sure|press End drain mode|until accepts new jobs", "mails 3 2 3"),
}
"""Each with its page, what is done there, and what the server must then say."""
# fmt: on


@pytest.mark.parametrize("mode", ["mouse", "keys", "no scripts"])
@pytest.mark.parametrize("order", ORDERS)
def test_every_order_is_given(browse, shop, order, mode):
    give(browse(shop.address, mode), order, shop.queue, shop.made)


def give(person, order, queue, made):
    path, steps, wanted = ORDERS[order]
    person.go(path.format(**made))
    for step in steps.split("|"):
        verb, _, rest = step.partition(" ")
        getattr(person, verb)(*rest.split("=", 1))
    eventually(lambda: is_so(queue, made, wanted), f"{order}: {person.text}")
    person.go("/log")
    person.until("done")
    assert person.page.locator(".state.failed, .state.stopped").count() == 0


def test_what_takes_long_tells_how_far_it_is_and_is_stopped(browse, shop):
    put(shop.queue, "many", *[b"%d of many" % number for number in range(3000)])
    person = browse(shop.address)
    person.go("/tube?name=many")
    person.fill("Text", "2999 of")
    person.press("Search ready jobs")
    person.until(r"[1-9]\d* of 3,000 ready jobs searched")
    person.press("Stop")
    person.until("0 found: stopped")
    person.go("/tube?name=many")
    person.choose("all 3,000")
    person.press("Delete…")
    person.sure()
    person.until("3,000 jobs")
    assert counts(shop.queue, "many") == (0, 0, 0)


# ------------------------------------------------------------------------------------------- keys, and live pages


def test_keys_lead_everywhere(browse, shop):
    put(shop.queue, "many", *[b"%d" % number for number in range(120)])
    person = browse(shop.address, "keys")
    person.go("/")
    press, page = person.page.keyboard.press, person.page
    for key, path in zip("tfscnlo", ("tubes", "failures", "schedules", "clients", "cluster", "log", ""), strict=True):
        press("g")
        press(key)
        page.wait_for_url(f"**/{path}")
        page.wait_for_load_state()
    press("?")
    assert page.locator("#help").is_visible()
    press("Escape")
    assert not page.locator("#help").is_visible()
    person.go("/tube?name=many")
    press("j"), press("j"), press("x"), press("k"), press("x")
    assert page.locator("[data-marked]").inner_text() == "2 selected"
    assert page.locator("tr.on").get_attribute("data-row") == page.locator("tbody tr").first.get_attribute("data-row")
    press("]")
    page.wait_for_url("**from=*")
    page.wait_for_load_state()
    press("[")
    page.wait_for_url(lambda url: "from=" not in url)
    page.wait_for_load_state()
    press("/")
    assert page.evaluate("document.activeElement.id") == "text"
    page.keyboard.type("j?")
    assert page.locator("#text").input_value() == "j?"
    press("Escape"), press("i")
    page.keyboard.type(str(shop.made["buried"]))
    press("Enter")
    page.wait_for_url("**/job?id=*")
    person.go("/tube?name=many")
    press("j"), press("Enter")
    page.wait_for_url("**/job?id=*")
    page.wait_for_load_state()
    press("Shift+Tab" if page.evaluate("document.activeElement.id") else "Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to content"


def test_a_page_is_live_and_keeps_marks_focus_and_order(browse, shop):
    person = browse(shop.address)
    page = person.page
    person.go("/tubes?sort=name")
    person.until("paused")
    page.get_by_label("Select tube mails", exact=True).check()
    page.locator("tbody a", has_text="reports").first.focus()
    put(shop.queue, "mails", *[b"x"] * 40)
    page.locator("tr[data-row=mails] td", has_text=re.compile("^43$")).wait_for()
    assert page.get_by_label("Select tube mails", exact=True).is_checked()
    assert page.evaluate("document.activeElement.textContent") == "reports"
    assert page.locator("#alive").inner_text() == "live"


def test_a_live_page_keeps_the_focus_in_its_row(browse, shop):
    """Or Enter would delete what another row tells of."""
    person = browse(shop.address)
    person.go("/failures")
    person.until("KeyError")
    button = person.page.locator("tr", has_text="KeyError").get_by_role("button", name="Delete…")
    row = "document.activeElement.closest('tr')?.dataset.row"
    button.focus()
    found = person.page.evaluate(row)
    bury(shop.queue, "others", b"x")
    person.until("others")
    assert person.page.evaluate(row) == found


def so(page, script):
    """Wait until it is true; the policy of the pages refuses what `wait_for_function` does."""
    until = time.monotonic() + 30
    while not page.evaluate(script):
        assert time.monotonic() < until, f"not so: {script}"
        page.wait_for_timeout(100)


def rows(page):
    return page.locator("main tbody tr").evaluate_all("all => all.map(each => each.dataset.row)")


def test_rows_keep_their_places_while_the_page_is_used(browse, shop):
    person = browse(shop.address)
    page = person.page
    page.clock.install()
    person.go("/tubes?q=s")
    person.until("paused")
    before = rows(page)
    assert before[-1] == "schedules"
    put(shop.queue, "schedules", *[b"x"] * 40)
    put(shop.queue, "news", *[b"x"] * 60)
    told = page.locator("tr[data-row=schedules] td", has_text=re.compile("^4\\d$"))
    told.first.wait_for()
    page.locator("tr[data-row=news]").wait_for()
    assert rows(page) == ["news", *before]
    page.clock.run_for(31_000)  # without a movement
    so(page, "[...document.querySelectorAll('tbody tr')].findIndex((each) => each.dataset.row === 'schedules') === 1")


def test_columns_keep_their_widths(browse, shop):
    person = browse(shop.address)
    page = person.page
    person.go("/tubes?q=mails")
    person.until("mails")
    widths = "[...document.querySelectorAll('#t-list th')].map((each) => each.getBoundingClientRect().left)"
    before = page.evaluate(widths)
    put(shop.queue, "mails", *[b"x"] * 2000)
    page.locator("tr[data-row=mails] td", has_text="2,003").first.wait_for()
    assert page.evaluate(widths) == before


def test_a_live_page_keeps_selected_text_and_the_focus_of_a_heading(browse, shop):
    person = browse(shop.address, "keys")
    page = person.page
    person.go("/clients")
    person.until("beanstalk-console")
    heading = page.locator("#c-list button[data-sort=name]")
    person.reach(heading)
    page.keyboard.press("Enter")
    page.evaluate("window.seen = document.querySelector('#c-list tbody tr')")
    so(page, "!window.seen.isConnected")  # its age has changed
    assert page.evaluate("document.activeElement.dataset.sort") == "name"
    page.evaluate("getSelection().selectAllChildren(window.seen = document.querySelector('#c-list tbody td'))")
    page.locator("#alive", has_text="paused").wait_for()
    assert page.evaluate("window.seen.isConnected && getSelection().toString()")
    page.evaluate("getSelection().removeAllRanges()")
    so(page, "!window.seen.isConnected")


def test_the_badge_of_the_menu_is_live(browse, shop):
    person = browse(shop.address)
    person.go("/log")
    badge = person.page.locator("[data-go=f] .badge")
    person.page.locator(".badge", has_text="3").wait_for()
    bury(shop.queue, "others", b"x")
    person.page.locator(".badge", has_text="4").wait_for()
    assert badge.inner_text().split() == ["4", "buried"]


def test_a_theme_is_kept_and_there_when_a_page_is_painted(browse, shop):
    person = browse(shop.address, color_scheme="light")
    page = person.page
    colour = "getComputedStyle(document.body).backgroundColor"
    person.go("/")
    light = page.evaluate(colour)
    page.get_by_label("Theme").select_option("dark")
    dark = page.evaluate(colour)
    assert dark != light
    page.route("**/console.js", lambda route: route.abort())
    person.expected = "Failed to load"
    person.go("/tubes")  # nothing else than the first script sets it
    assert page.evaluate(colour) == dark
    page.unroute("**/console.js")
    person.go("/tubes")
    assert page.get_by_label("Theme").input_value() == "dark"
    page.get_by_label("Theme").select_option("system")
    assert page.evaluate(colour) == light
    page.emulate_media(color_scheme="dark")
    assert page.evaluate(colour) == dark


def test_keys_can_be_switched_off(browse, shop):
    person = browse(shop.address, "keys")
    page = person.page
    person.go("/failures")
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.id") == "q"
    page.keyboard.press("Escape")
    page.keyboard.press("?")
    page.get_by_label("Single-key shortcuts").select_option("off")
    page.keyboard.press("Escape")
    person.go("/failures")
    page.keyboard.press("/")
    page.keyboard.press("?")
    assert page.evaluate("document.activeElement.id") != "q" and not page.locator("#help").is_visible()


def test_failures_are_filtered_and_the_filter_is_in_the_url(browse, shop):
    person = browse(shop.address)
    person.go("/failures")
    person.until("KeyError")
    person.fill("Error or task", "no mail")
    person.page.keyboard.press("Enter")
    person.page.wait_for_url("**q=no*")
    person.until("1 group of 3")
    assert "KeyError" not in person.text
    person.fill("Error or task", "")
    with person.page.expect_navigation():
        person.page.get_by_label("Tube", exact=True).select_option("graves")
    person.until("1 group of 3")
    assert "tube=graves" in person.page.url


def test_a_table_is_sorted_by_its_headings(browse, shop):
    person = browse(shop.address, "keys")
    person.go("/tube?name=mails&state=ready")
    ids = [int(each) for each in person.page.locator("tbody tr").evaluate_all("all => all.map(e => e.dataset.row)")]
    for order in (sorted(ids), sorted(ids, reverse=True)):
        person.press("id", stays=True)
        found = person.page.locator("tbody tr").evaluate_all("all => all.map(e => e.dataset.row)")
        assert list(map(int, found)) == order


# ------------------------------------------------------------------------------------------- hostile text

BODIES = {
    "script": b"<script>hacked=1</script><img src=x onerror=hacked=1>",
    "markup in JSON": json.dumps(
        {"task": "</pre><svg/onload=hacked=1>", "args": ["</textarea><script>hacked=1"]}
    ).encode(),
    "control characters": b"\x1b[31mred\x07\x00\x85" + "\u0085\u2028\u2029".encode(),
    "right to left": "abc \u202e cba \u2066\u2067\u200f\u061c".encode(),
    "half of UTF-8": "größe ü".encode()[:-1],
    "no text": bytes(range(256)),
    "deep": b"[" * 50_000,
    "a long line": b"w" * 60_000,
    "10 MB": b"<b>" + b"x" * 10_000_000,
    "nothing": b"",
}


@pytest.mark.parametrize("body", BODIES)
def test_bodies_are_shown_as_harmless_text_and_downloaded_as_they_are(browse, shop, body):
    (job_id,) = put(shop.queue, "odd", BODIES[body])
    person = browse(shop.address, viewport=NARROW)
    for path in ("/tube?name=odd", f"/job?id={job_id}"):
        person.go(path)
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]", person.text)
        assert person.page.evaluate("window.hacked") is None
        assert person.page.locator("main :is(script, img, svg[onload], b:not([class]) b)").count() == 0
        look_at(person)
    with person.page.expect_download() as download:
        person.page.get_by_role("link", name="download").click()
    assert download.value.path().read_bytes() == BODIES[body]


ODD_BODIES = ["\n\n two lines \n", "</textarea>&amp;&lt;\"'", "größe\t\U0001f600", '{"a": [1]}']


@pytest.mark.parametrize("body", ODD_BODIES, ids=["lines", "markup", "more", "JSON"])
def test_a_body_that_is_put_again_is_as_it_was(browse, shop, body):
    (job_id,) = put(shop.queue, "odd", body.encode())
    person = browse(shop.address)
    person.go(f"/job?id={job_id}")
    person.open("Put again with")
    person.press("Put again")
    eventually(lambda: state(shop.queue, job_id) == "gone", "it has been put again")
    shop.queue.use("odd")
    assert shop.queue.peek_ready().body == body.encode()


def test_a_body_of_10_mb_is_put(browse, shop):
    person = browse(shop.address)
    person.go("/tube?name=mails")
    person.open("Put a job")
    person.page.evaluate("document.querySelector('.put textarea').value = 'x'.repeat(10_000_000)")
    person.fill("Priority", "0")
    person.press("Put")
    person.until("is in tube mails")
    shop.queue.use("mails")
    assert shop.queue.peek_ready().body == b"x" * 10_000_000


@pytest.mark.parametrize("name", [ODD_TUBE, "/", "..", "$(id)", "+a+b;c", "x" * 200])
def test_tubes_of_odd_names_are_like_others(browse, shop, name):
    (job_id,) = bury(shop.queue, name, b"x")
    person = browse(shop.address, viewport=NARROW)
    person.go("/tubes?sort=name")
    person.until(re.escape(name))
    person.page.locator("tbody a").get_by_text(name, exact=True).click()
    person.until("buried")
    look_at(person)
    person.mark(1)
    person.press("Kick")
    person.until("Kick job")
    assert state(shop.queue, job_id) == "ready"
    assert person.page.locator("h1").inner_text().endswith(name)
    person.fill("Length of the pause in seconds", "7")
    person.press("Pause")
    person.until("Pause tube")
    assert shop.queue.stats_tube(name)["pause"] == 7


# ------------------------------------------------------------------------------------------- servers


def test_a_server_that_goes_and_comes_back(browse, restartable):
    address = "127.0.0.1", restartable.port
    with Client(address, encoding=None) as queue:
        put(queue, "mails", b"x")
    person = browse(address)
    person.expected = "503"
    person.go("/")
    person.until("mails")
    restartable.kill()
    person.until("The server does not answer")
    assert person.go("/tube?name=mails").status == 503
    person.until("does not answer")
    person.go("/")
    restartable.start()
    person.page.get_by_text("The server does not answer").wait_for(state="detached")
    assert person.go("/tube?name=mails").status == 200


def test_a_slow_server_holds_up_no_page_of_what_has_been_sampled(browse, beanstalkd):
    with Client(beanstalkd.address, encoding=None) as queue:
        put(queue, "mails", b"x")
    person = browse(beanstalkd.address)
    person.expected = "503"
    person.go("/tubes")
    person.until("mails")
    beanstalkd.send_signal(signal.SIGSTOP)
    began = time.monotonic()
    for path in ("/cluster", "/log", "/tubes", "/"):
        assert person.go(path).status == 200
    assert time.monotonic() - began < 5
    person.until("does not answer: no answer for . s")
    beanstalkd.send_signal(signal.SIGCONT)
    person.page.get_by_text("The server does not answer").wait_for(state="detached")


@pytest.mark.parametrize("mode", ["mouse", "no scripts"])
def test_pages_of_a_stock_beanstalkd(browse, beanstalkd, mode):
    with Client(beanstalkd.address, encoding=None) as queue:
        made = stock_any(queue)
    person = browse(beanstalkd.address, mode, viewport=NARROW)
    person.go("/tubes")
    person.until("mails")
    for path in PAGES:
        assert person.go(path.format(**made)).status == 200
        look_at(person)


@pytest.mark.parametrize("order", ["kick", "bury", "delete", "move", "put again", "kick all", "delete all", "pause"])
def test_orders_to_a_stock_beanstalkd(browse, beanstalkd, order):
    with Client(beanstalkd.address, encoding=None) as queue:
        give(browse(beanstalkd.address, "no scripts"), order, queue, stock_any(queue))


# ------------------------------------------------------------------------------------------- pictures

PICTURES = {
    "overview": ("/", "light"),
    "tube": ("/tube?name=payments&state=buried", "light"),
    "failures": ("/failures", "dark"),
    "job": (None, "dark"),
}
"""The pictures of docs/console.md, each with its page; None for the page of the first job of the one before."""


def test_pictures_of_the_document_can_be_made(chromium, request, tmp_path):
    """With --pictures docs/console, they are made anew; then work goes on for some minutes before, for the charts."""
    asked = request.config.getoption("pictures")
    directory = asked or tmp_path
    with demonstration(servers.INTERPRETED, 0) as shown:
        person = Person(chromium, shown.url.rstrip("/"), context={"viewport": {"width": 1200, "height": 760}})
        person.go("/tube?name=payments")
        person.page.wait_for_timeout(240_000 if asked else 5_000)
        person.go("/failures")
        person.until("CardDeclined")
        for name, (path, scheme) in PICTURES.items():
            person.page.emulate_media(color_scheme=scheme)
            if path:
                person.go(path)
            else:
                person.follow("CardDeclined")
                person.page.locator("a[data-open]").first.click()
            person.page.wait_for_load_state()
            person.page.wait_for_timeout(2500)
            wide = "[...document.querySelectorAll('.card')].filter((each) => each.scrollWidth > each.clientWidth)"
            assert person.page.evaluate(f"{wide}.map((each) => each.textContent)") == []
            place = "(root) => { for (const each of document.querySelectorAll('pre')) each.textContent = "
            person.page.evaluate(f"{place} each.textContent.replaceAll(root, '/srv') }}", str(servers.ROOT))
            person.page.screenshot(path=f"{directory}/{name}.png")
        person.context.close()
    assert person.wrong == []


# ------------------------------------------------------------------------------------------- how it looks


@pytest.mark.parametrize("path", ["/failures", "/schedules", "/tube?name=mails&state=buried", "/clients", "/"])
def test_all_that_can_be_pressed_is_in_a_narrow_window(browse, shop, path):
    person = browse(shop.address, viewport=NARROW)
    person.go("/failures")
    person.until("no mail server")
    person.go(path)
    outside = person.page.evaluate(
        """[...document.querySelectorAll('nav a, [name=op]')].filter((each) => {
            const place = each.getBoundingClientRect();
            return place.width && (place.left < 0 || place.right > innerWidth);
        }).map((each) => each.textContent)"""
    )
    assert outside == [] and person.page.locator("nav a").count() >= 7


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_state_has_one_colour_in_cards_and_charts(browse, shop, scheme):
    person = browse(shop.address, color_scheme=scheme)
    person.go("/")
    person.page.locator("#o-charts polyline.buried").first.wait_for(state="attached")
    found = person.page.evaluate(
        """Object.fromEntries(['ready', 'reserved', 'delayed', 'buried'].map((name) => [name, [
            getComputedStyle(document.querySelector(`#o-cards .${name} dd`)).color,
            getComputedStyle(document.querySelector(`#o-charts polyline.${name}`)).stroke,
            getComputedStyle(document.querySelector(`#o-charts li.${name}`), '::before').backgroundColor,
        ]]))"""
    )
    assert all(len(set(colours)) == 1 for colours in found.values()), found
    assert len({colours[0] for colours in found.values()}) == 4, found


def test_an_error_is_shown_in_the_form_and_nothing_typed_is_lost(browse, shop):
    person = browse(shop.address)
    person.expected = "400|403|409|Failed to fetch|ERR_"
    page = person.page
    person.go("/tube?name=mails")
    person.open("Put a job")
    person.fill("Body", "  two\nlines ")
    person.fill("Priority", "high")
    person.press("Put", stays=True)
    person.until("Bad pri 'high'")
    assert page.url.endswith("/tube?name=mails") and page.locator("[aria-invalid]").get_attribute("name") == "pri"
    person.fill("Priority", "5")
    shop.queue.drain()
    person.press("Put", stays=True)
    person.until("in drain mode")
    assert page.locator("[role=alert]").count() == 1 and page.locator("[aria-invalid]").count() == 0
    shop.queue.undrain()
    page.route("**/order", lambda route: route.abort())
    person.press("Put", stays=True)
    person.until("The console does not answer")
    page.unroute("**/order")
    assert page.get_by_label("Body", exact=True).input_value() == "  two\nlines "
    page.evaluate("document.querySelector('.put input[name=csrf]').value = 'of a console that was restarted'")
    person.press("Put", stays=True)
    person.until("is in tube mails")
    assert page.get_by_label("Body", exact=True).input_value() == ""


def test_buttons_that_cannot_work_are_disabled(browse, shop):
    person = browse(shop.address)
    person.go("/tube?name=mails&state=delayed")

    def disabled():
        return [each.inner_text() for each in person.page.locator("main form button[name=op]:disabled").all()]

    assert {"Kick", "Bury", "Reschedule in", "Move to", "Delete…"} <= set(disabled())
    person.mark(1)
    assert disabled() == ["Reschedule in", "Reprioritize to", "Move to"]
    person.fill("New delay, such as 90, 30m or 2h", "2h")
    person.fill("New priority; 0 is the most urgent", "5")
    person.fill("Destination tube", "letters")
    assert disabled() == []
    person.press("Reschedule in")
    person.until("Reschedule job")
    shop.queue.use("mails")
    assert shop.queue.stats_job(shop.made["delayed"])["time-left"] > 7000
