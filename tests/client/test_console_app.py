"""The console at servers: every page, every order, who may what, and what comes from outside."""

import asyncio
import contextlib
import html
import json
import re
import threading
import time

import pytest
from beanstalk_client import Client, DrainingError
from beanstalk_client.console import console, failures, search
from beanstalk_client.console import visit as visit_module
from beanstalk_client.outbox.status import Status
from beanstalk_client.schedules import Scheduler
from beanstalk_client.tasks import Tasks
from beanstalk_client.tasks.failure import describe, report
from visiting import Visitor, bury, put, visiting

from beanstalk_server import TubeConfig
from harness.servers import ROOT

HOSTILE = "<script>alert(1)</script>\u202e\x1b[31m\"'&"


@pytest.fixture
def server(request, run):
    """This server, with the tubes that a test asks for, or beanstalkd."""
    tubes = getattr(request, "param", ())
    return request.getfixturevalue("beanstalkd") if tubes == "beanstalkd" else run(tubes=tubes)


def tubes(**settings):
    """The server of a test has tubes with these settings."""
    return pytest.mark.parametrize("server", [(TubeConfig(**settings),)], indirect=True)


at_beanstalkd = pytest.mark.parametrize("server", ["beanstalkd"], indirect=True)


@pytest.fixture
def queue(server):
    with Client(server.address, encoding=None) as client:
        yield client


@pytest.fixture
def visitor(server):
    return visiting(server.address)


def counts(queue, tube):
    found = queue.stats_tube(tube)
    return tuple(found[f"current-jobs-{state}"] for state in ("ready", "delayed", "buried"))


async def sampled(visitor):
    """Wait until the sampler has seen all tubes."""
    await visitor.get("/")
    user = next(iter(visitor.app.state.users._users.values()))
    for _ in range(3):
        await user.sampler.sample()


PATHS = ["/", "/tubes", "/tube?name=mails", "/failures", "/schedules", "/clients", "/cluster", "/log"]


@pytest.mark.parametrize("path", PATHS)
async def test_pages_are_shown_with_the_headers_that_protect_them(queue, path, visitor):
    put(queue, "mails")
    page = await visitor.get(path)
    assert page.status_code == 200
    policy = page.headers["content-security-policy"]
    assert "unsafe" not in policy and "default-src 'none'" in policy and "frame-ancestors 'none'" in policy
    assert page.headers["x-content-type-options"] == "nosniff" and page.headers["cache-control"] == "no-store"
    assert not re.search(r"<(script|style)(?![^>]*src=)|\son\w+=|\sstyle=", page.text)
    cookie = page.headers["set-cookie"]
    assert "HttpOnly" in cookie and "SameSite=Strict" in cookie and "Secure" not in cookie


@pytest.mark.parametrize("path", PATHS)
@at_beanstalkd
async def test_pages_of_beanstalkd_leave_out_what_it_cannot_answer(queue, visitor, path):
    put(queue, "mails")
    bury(queue, "mails", 2)
    await sampled(visitor)
    assert (await visitor.get(path)).status_code == 200


async def test_the_overview_says_what_is_wrong(queue, visitor):
    put(queue, "mails", count=3)
    bury(queue, "payments", 2)
    queue.pause_tube("mails", 100)
    await sampled(visitor)
    await visitor.get("/")
    assert "2 jobs are buried in 1 tube." in visitor.text
    assert "1 tube with ready jobs is paused." in visitor.text


async def test_the_menu_tells_how_many_jobs_are_buried(queue, visitor):
    badge = re.compile(r'data-go="f".*?</a>', re.DOTALL)
    await sampled(visitor)
    assert "badge" not in badge.search((await visitor.get("/log")).text)[0]
    bury(queue, "mails", 1200)
    await sampled(visitor)
    user = next(iter(visitor.app.state.users._users.values()))
    user.sampler.samples.tubes = None  # the number is of the sample: no page goes through the tubes for it
    for headers in ({}, {"x_live": "1"}):
        shown = badge.search((await visitor.get("/log", **headers)).text)[0]
        assert " ".join(re.sub("<[^>]+>", " ", shown.partition(">")[2]).split()) == "Failures 1.2k buried"


async def test_what_comes_from_outside_is_harmless(queue, visitor):
    body = json.dumps({"task": HOSTILE, "args": [HOSTILE], "kwargs": {HOSTILE: HOSTILE}}).encode()
    ids = put(queue, "mails", body) + put(queue, "mails", HOSTILE.encode()) + put(queue, "mails", b"\xff\x00<script>")
    for job_id in ids:
        page = await visitor.get(f"/job?id={job_id}")
        assert page.status_code == 200
        assert "<script>alert" not in page.text and "\u202e" not in page.text and "\x1b" not in page.text
    await visitor.get(f"/job?id={ids[1]}")
    assert "\\u202e" in visitor.text
    for path in (
        f"/tubes?q={HOSTILE}&only={HOSTILE}&sort={HOSTILE}",
        f"/tube?name={HOSTILE}",
        f"/job?id={HOSTILE}",
    ):
        page = await visitor.http.get(
            path.split("?")[0], params=dict(p.split("=", 1) for p in path.split("?")[1].split("&") if "=" in p)
        )
        assert "<script>alert" not in page.text and "\u202e" not in page.text


async def test_a_body_is_downloaded_as_a_file(queue, visitor):
    (job_id,) = put(queue, "mails", b"<script>alert(1)</script>")
    page = await visitor.get(f"/job/body?id={job_id}")
    assert page.content == b"<script>alert(1)</script>"
    assert page.headers["content-type"] == "application/octet-stream"
    assert page.headers["content-disposition"].startswith("attachment")


# ------------------------------------------------------------------------------------------- orders


async def test_marked_jobs_are_kicked_deleted_and_moved(queue, visitor):
    ids = bury(queue, "mails", 4)
    await visitor.get("/tube?name=mails")
    await visitor.order("kick", id=[str(ids[0]), str(ids[1])], back="tube?name=mails")
    assert "Kick 2 selected jobs : 2 jobs" in visitor.text
    assert counts(queue, "mails") == (2, 0, 2)
    await visitor.order("delete", id=str(ids[2]), back="tube?name=mails")
    assert counts(queue, "mails") == (2, 0, 1)
    await visitor.order("move", id=str(ids[3]), to="letters", back="tube?name=mails")
    assert counts(queue, "mails") == (2, 0, 0)
    assert counts(queue, "letters") == (1, 0, 0)
    await visitor.get("/log")
    assert visitor.text.index("Move job") < visitor.text.index("Kick 2 selected jobs")


@pytest.mark.parametrize(
    ("op", "more", "mails", "letters"),
    [
        ("kick", {}, (2500, 0, 0), None),
        ("delete", {}, (0, 0, 0), None),
        ("move", {"to": "letters"}, (0, 0, 0), (0, 0, 2500)),
    ],
)
async def test_all_that_match_are_asked_for_with_their_number_and_done(queue, op, more, mails, letters, visitor):
    bury(queue, "mails", 2500)
    queue.use("mails")
    await visitor.get("/tube?name=mails&state=buried")
    await visitor.order(op, sure=False, scope="all", tube="mails", state="buried", **more)
    assert "2,500 buried jobs of tube mails" in visitor.text
    assert ("This cannot be undone." in visitor.text) == (op == "delete")
    assert counts(queue, "mails") == (0, 0, 2500)
    await visitor.order(op, scope="all", tube="mails", state="buried", **more)
    for action in visitor.app.state.actions.of(""):
        await action.task
        assert (action.state, action.done) == ("done", 2500), action
    assert counts(queue, "mails") == mails
    if letters:
        assert counts(queue, "letters") == letters


@pytest.mark.parametrize(("op", "state", "left"), [("delete", "buried", (0, 2, 0)), ("kick", "delayed", (2, 0, 3))])
@at_beanstalkd
async def test_at_beanstalkd_all_of_a_state_are_done_one_by_one(queue, visitor, op, state, left):
    bury(queue, "mails", 3)
    put(queue, "mails", delay=100, count=2)

    await visitor.order(op, scope="all", tube="mails", state=state)
    for action in visitor.app.state.actions.of(""):
        await action.task
        assert action.state == "done", action
    assert counts(queue, "mails") == left


async def test_tubes_are_paused_resumed_kicked_and_cleared_together(queue, visitor):
    for tube in ("a", "b"):
        bury(queue, tube, 2)

    await visitor.order("pause", tube=["a", "b"], seconds="60", back="tubes")
    assert queue.stats_tube("b")["pause"] == 60
    await visitor.order("resume", tube=["a", "b"], back="tubes")
    assert queue.stats_tube("b")["pause"] == 0
    await visitor.order("pause-until-resumed", tube=["a", "b"], back="tubes")
    assert queue.stats_tube("b")["pause"] == 2**32 - 1 and "Pause 2 tubes until resumed" in visitor.text
    assert "paused until resumed" in visitor.text.split("Selected tubes")[1]
    await visitor.get("/tube?name=a")
    assert "paused until resumed" in visitor.text
    await visitor.order("resume", tube=["a", "b"], back="tubes")
    await visitor.order("kick-tubes", tube=["a", "b"], back="tubes")
    assert counts(queue, "a") == counts(queue, "b") == (2, 0, 0)
    await visitor.order("clear", sure=False, tube=["a", "b"], back="tubes")
    assert "delete 4 jobs" in visitor.text and "cannot be undone" in visitor.text
    await visitor.order("clear", tube=["a", "b"], back="tubes")
    queue.use("default")
    assert {"a", "b"}.isdisjoint(queue.tubes())


async def test_a_job_is_put_and_put_again_with_a_changed_body(queue, visitor):
    await visitor.order("put", tube="mails", body="one\r\ntwo", pri="5", delay="0", ttr="30", key="")
    queue.use("mails")
    job = queue.peek_ready()
    assert job.body == b"one\ntwo" and queue.stats_job(job.id)["pri"] == 5
    await visitor.order("change", id=str(job.id), body="three", pri="", delay="", ttr="")
    new = queue.peek_ready()
    assert (new.body, queue.stats_job(new.id)["pri"], new.id != job.id) == (b"three", 5, True)
    assert counts(queue, "mails") == (1, 0, 0)
    await visitor.order("put", tube="mails", body="x", pri="0", delay="0", ttr="9", key="order-1")
    keyed = queue.peek_keyed("order-1")
    await visitor.order("change", id=str(keyed.id), body="y")
    assert queue.peek_keyed("order-1").body == b"y" and queue.peek_keyed("order-1").id == keyed.id


async def test_a_job_is_buried_with_its_own_priority(queue, visitor):
    (job_id,) = put(queue, "mails", priority=7)
    await visitor.order("bury", id=str(job_id), back=f"job?id={job_id}")
    assert (queue.stats_job(job_id)["state"], queue.stats_job(job_id)["pri"]) == ("buried", 7)


async def test_an_action_is_stopped(queue, visitor):
    bury(queue, "mails", 30)
    await visitor.get("/log")

    async def forever(_):
        from beanstalk_client.console.actions import Step

        while True:
            await asyncio.sleep(0.01)
            yield Step(1)

    user = next(iter(visitor.app.state.users._users.values()))
    action = visitor.app.state.actions.begin("me", "", "go on", None, user.connect, forever)
    await visitor.send("/stop", id=str(action.id))
    assert action.state == "stopped" and action.done > 0


async def test_what_the_server_refuses_is_told(queue, visitor):
    put(queue, "mails")
    await visitor.order("drain")
    assert "drains" in visitor.text
    await visitor.order("put", tube="mails", body="x")
    assert "the server is in drain mode" in visitor.text
    await visitor.order("undrain")
    assert (await visitor.get("/job?id=99")).status_code == 404
    assert (await visitor.get("/tube?name=nowhere")).status_code == 404
    assert "nowhere" not in queue.tubes()


async def test_jobs_are_found_by_body_and_key_and_all_of_them_deleted(queue, visitor):
    put(queue, "mails", b"for Mr. SMITH", count=3)
    put(queue, "mails", b"for Mrs. Jones", count=30)
    queue.put_with(b"-", key="smith-1")
    await visitor.get("/tube?name=mails")
    await visitor.send("/search", name="mails", state="ready", text="smith")
    (search,) = visitor.app.state.searches._searches.values()
    await search.task
    assert (search.state, search.seen, len(search.found)) == ("done", 34, 4)
    await visitor.get(f"/search?id={search.id}")
    assert "34 of 34 ready jobs searched, 4 found" in visitor.text
    await visitor.order("delete", scope="search", search=str(search.id), state="ready")
    assert counts(queue, "mails") == (30, 0, 0)


async def test_failures_are_filtered_by_tube_and_by_text_of_task_and_error(queue, visitor):
    for tube, task, error in (("mails", "shop.send", "no mail server for 4711"), ("letters", "shop.print", "no paper")):
        (job_id,) = bury(queue, tube)
        queue.use(f"{tube}.errors")
        queue.put_with(report(job_id, tube, describe(OSError(error)), 3, by="w", task=task), key=f"job-{job_id}")
    bury(queue, "others", 2)
    await sampled(visitor)
    await visitor.get("/failures")
    for query, tubes in (
        ("", ["others", "letters", "mails"]),
        ("tube=mails", ["mails"]),
        ("q=NO", ["letters", "mails"]),
        ("q=4711", ["mails"]),
        ("q=print", ["letters"]),
        ("tube=letters&q=no", ["letters"]),
        ("tube=letters&q=4711", []),
        ("tube=nowhere", []),
    ):
        page = await visitor.get(f"/failures?{query}")
        assert re.findall(r'<td data-h="tube"><a href="/tube\?name=(\w+)"', page.text) == tubes, query
        assert ("No failure matches." in visitor.text) == (not tubes)
        back = set(map(html.unescape, re.findall(r'name="back" value="([^"]*)"', page.text)))
        assert back <= {"failures" + f"?{query}" * bool(query)}
    hostile = await visitor.http.get("/failures", params={"q": HOSTILE, "tube": HOSTILE})
    assert "<script>alert" not in hostile.text and "\u202e" not in hostile.text


async def test_failures_are_grouped_by_the_reports_of_workers_and_retried(queue, visitor):
    ids = bury(queue, "mails", 3)
    queue.use("mails.errors")
    for number, job_id in enumerate(ids):
        error = ValueError(f"order {number}: {HOSTILE}") if number < 2 else KeyError("x")
        body = report(job_id, "mails", describe(error), 3, by="worker", task="shop.send")
        queue.put_with(json.dumps(json.loads(body) | {"traceback": ["in send"]}).encode(), key=f"job-{job_id}")

    await sampled(visitor)
    await visitor.get("/failures")
    user = next(iter(visitor.app.state.users._users.values()))
    assert [(len(group.jobs), group.task) for group in user.failures.groups] == [(2, "shop.send"), (1, "shop.send")]
    assert "<script>alert" not in visitor.page.text and "KeyError" in visitor.text
    key = user.failures.groups[0].key
    await visitor.get(f"/failure?key={key}")
    assert "ValueError" in visitor.text and "<script>alert" not in visitor.page.text
    assert "in send" in visitor.text, "the example has its traceback, which the list does not keep"
    await visitor.order("kick", scope="group", group=key, back="failures")
    assert counts(queue, "mails") == (2, 0, 1)


async def test_schedules_are_shown_run_and_skipped(server, queue):
    address = "{}:{}".format(*server.address)
    tasks = Tasks(address, tube="reports")

    @tasks.every("1h")
    @tasks.task
    def count():
        pass

    Scheduler(tasks.connect, tasks.schedules).run_once()

    async with visiting(server.address) as visitor:
        page = await visitor.get("/schedules")
        fields = {
            name: re.search(f'name="{name}" value="([^"]*)"', page.text)[1]
            for name in ("group", "schedule", "tube", "moment")
        }
        assert fields["schedule"] == "count" and "every 3600 s" in visitor.text
        assert '<td class="when" data-h="last">\N{EN DASH}</td>' in page.text, "it was planned a moment ago"
        await visitor.order("run", back="schedules", **fields)
        assert counts(queue, "reports") == (1, 1, 0)
        await visitor.order("skip", back="schedules", **fields)
        assert counts(queue, "reports") == (1, 0, 0)
        Scheduler(tasks.connect, tasks.schedules).run_once()
        assert counts(queue, "reports") == (1, 0, 0), "what is skipped stays so"
        assert "skipped" in visitor.text
        await visitor.order("skip", back="schedules", **fields)
        assert "no such job" in visitor.text
    tasks.close()


async def test_outboxes_are_shown(queue, visitor):
    queue.use("outbox")
    for name, status in (
        ("shop", Status(3, 2, 65.0, 10, 0, time.time())),
        ("stopped", Status(0, 0, 0.0, 0, 0, time.time() - 600)),
    ):
        queue.put_with(status.encode(), key=f"status/{name}", at=time.time() + 10_000)
    queue.put_with(b"{}", key="status/nonsense", at=time.time() + 10_000)
    await visitor.get("/schedules")
    assert re.search("shop 3 1m ?5s 2 ", visitor.text)
    assert "stopped no relay renews it" in visitor.text and "nonsense" not in visitor.text


@tubes(match="mails", max_tries=1, dead_tube="graves")
async def test_jobs_of_dead_tubes_are_failures_and_redriven(queue, visitor):
    put(queue, "mails", b'{"task": "send"}', 2)
    queue.watch("mails")
    for _ in range(2):
        queue.release(queue.reserve(0))

    await sampled(visitor)
    await visitor.get("/failures")
    assert "graves" in visitor.text and "dead, from mails" in visitor.text and "released by a worker" in visitor.text
    await visitor.order("redrive", tube="graves", back="failures")
    assert counts(queue, "mails") == (2, 0, 0)


async def test_after_an_order_the_page_shows_what_has_come_of_it(queue, visitor):
    put(queue, "mails")
    await sampled(visitor)
    await visitor.order("drain", back="cluster")
    assert "End drain mode" in visitor.text
    await visitor.order("pause", tube="mails", seconds="60", back="tubes")
    assert "paused" in visitor.text.split("Selected tubes")[1]


async def test_the_page_of_what_an_order_has_removed_gives_way(queue, visitor):
    (job_id,) = put(queue, "mails")
    queue.use("default")
    page = await visitor.get(f"/job?id={job_id}")
    assert page.text.count('name="back" value="tube?name=mails') == 2  # to delete and move it; to change its body
    await visitor.order("delete", id=str(job_id), back="tube?name=mails&state=ready")
    assert visitor.page.status_code == 200 and "1 tube" in visitor.text and "Delete" in visitor.text
    assert (await visitor.get("/tube?name=mails")).status_code == 404


async def test_a_group_says_what_holds_it_up_and_its_jobs_can_be_deleted(run):
    server = run()
    with Client(server.address, encoding=None, use="mails", watch="mails") as queue:
        queue.put_with(b"x", group="mails/1")
        buried = queue.reserve(0)
        queue.bury(buried)
        queue.put_with(b"y", group="mails/1", delay=100)
        after = queue.put_with(b"z", after="mails/1")

        async with visiting(server.address) as visitor:
            await visitor.get(f"/job?id={buried.id}")
            assert "/group?name=mails/1" in visitor.page.text.replace("%2F", "/")
            await visitor.get("/group?name=mails/1")
            assert "Buried jobs keep the group open" in visitor.text and f"job {buried.id}" in visitor.text
            await visitor.order("cancel-group", sure=False, name="mails/1", back="group?name=mails/1")
            assert "Delete 2 jobs of group mails/1" in visitor.text
            assert queue.stats_job(after)["state"] == "delayed"
            await visitor.order("cancel-group", name="mails/1", back="group?name=mails/1")
            assert queue.stats_job(after)["state"] == "ready"
            await visitor.get("/group?name=mails/none")
            assert visitor.page.status_code == 404


@tubes(match=("mails",), measures=True)
async def test_a_tube_that_is_measured_shows_its_percentiles_and_ages(queue, visitor):
    for tube in ("mails", "other"):
        put(queue, tube)

    await visitor.get("/tube?name=mails")
    assert "Percentiles" in visitor.text and "0 / 0 / 0" in visitor.text
    assert "<dt>oldest ready</dt>" in visitor.page.text and "<dt>overdue</dt><dd>0s</dd>" in visitor.page.text
    await visitor.get("/tube?name=other")
    assert "Percentiles" not in visitor.text


@pytest.mark.parametrize("count", [0, 3])
@tubes(match=("mails",), max_jobs=2)
async def test_a_tube_with_a_policy_says_what_it_has_done(queue, visitor, count):
    for _ in range(count):
        with contextlib.suppress(DrainingError):
            put(queue, "mails")

    queue.use("mails")
    await visitor.get("/tube?name=mails")
    assert visitor.page.status_code == 200
    assert ("puts refused: too many jobs" in visitor.text) is (count == 3)


async def test_what_is_not_done_leads_back_to_the_page_that_asked(queue, visitor):
    put(queue, "mails")
    await visitor.get("/log")
    for asked, link in (
        ("http://localhost/tube?name=mails", 'href="/tube?name=mails">Back'),
        ("http://localhost.evil/tube", ""),
        ("javascript:alert(1)", ""),
        ("http://[", ""),
        ("http://localhost//evil/", ""),
    ):
        await visitor.get("/job?id=nonsense", referer=asked)
        assert visitor.page.status_code == 400
        assert link in visitor.page.text
        assert (">Back<" in visitor.page.text) is bool(link)


# ------------------------------------------------------------------------------------------- who may


async def test_a_form_needs_the_value_of_its_own_cookie(queue, visitor):
    put(queue, "mails")
    await visitor.get("/log")
    assert (await visitor.order("drain", csrf="0" * 64)).status_code == 403
    other = Visitor(visitor.app)
    await other.get("/tube?name=mails")
    assert (await visitor.order("drain", csrf=other.csrf)).status_code == 403
    assert queue.stats()["draining"] == "false"


async def test_a_form_is_refused_before_it_is_parsed(monkeypatch, visitor):
    parsed = []
    monkeypatch.setattr(visit_module, "_read_form", parsed.append)
    await visitor.get("/tube?name=default")
    own = visitor.csrf
    assert (await visitor.send("/order", csrf="0" * 64, body="x" * 1_000_000)).status_code == 403
    assert (await visitor.send("/order", csrf="", body=f"&csrf={own}")).status_code == 403
    too_large = {"content-length": str(visit_module.MAX_FORM + 1)}
    assert (await visitor.send("/order", headers=too_large, csrf=own)).status_code == 413
    assert parsed == []


@pytest.mark.parametrize(
    ("headers", "status"),  # of which requests are refused, tests/client/test_console_security.py has the table
    [
        ({"sec-fetch-site": "cross-site"}, 403),
        ({"host": "evil.example", "sec-fetch-site": "same-origin", "origin": "http://evil.example"}, 421),
    ],
)
async def test_other_sites_change_nothing(queue, headers, status, visitor):
    put(queue, "mails")
    await visitor.get("/tube?name=mails")
    assert (await visitor.order("drain", headers=headers)).status_code == status
    assert queue.stats()["draining"] == "false"


async def test_a_read_only_console_shows_no_form_and_takes_none(server, queue):
    (job_id,) = put(queue, "mails")

    async with visiting(server.address, read_only=True) as visitor:
        for path in (*PATHS, f"/job?id={job_id}"):
            page = await visitor.get(path)
            assert 'action="/order"' not in page.text or "<button name" not in page.text
        await visitor.get("/tube?name=mails")
        page = await visitor.order("delete", id=str(job_id))
        assert page.status_code == 403 and queue.stats_job(job_id)


async def test_below_a_base_path_all_links_are(server, queue):
    put(queue, "mails")

    async with visiting(server.address, base_path="/queue") as visitor:
        for prefix in ("/queue", ""):  # a proxy that leaves it, and one that takes it away
            page = await visitor.http.get(f"{prefix}/tubes")
            assert page.status_code == 200
            links = re.findall(r'(?:href|action|src)="([^"]*)"', page.text)
            assert links and all(link.startswith(("/queue/", "#")) for link in links)
            assert "Path=/queue" in page.headers.get("set-cookie", "Path=/queue")


@pytest.mark.parametrize(
    ("base", "paths"),  # with a proxy that leaves the base path, and with one that takes it away
    [("/tube", ["/tube/tubes", "/tubes"]), ("/t", ["/tubes", "/t/tubes", "/t/", "/t"])],
)
async def test_a_base_path_may_be_the_beginning_of_another_path(server, base, paths):
    async with visiting(server.address, base_path=base) as visitor:
        for path in paths:
            assert (await visitor.http.get(path, follow_redirects=True)).status_code == 200, path


async def test_it_is_mounted_in_other_applications_as_its_page_says(server):
    from flask import Flask
    from starlette.applications import Starlette

    page = (ROOT / "docs" / "console.md").read_text()
    names = {"app": Starlette(), "flask_app": Flask("shop")}
    names["flask_app"].add_url_rule("/", view_func=lambda: "the shop")
    for listing in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        exec(listing.replace("127.0.0.1:11300", "{}:{}".format(*server.address)), names)
    for app in (names["app"], names["application"]):
        visitor = Visitor(app)
        page = await visitor.get("/queue/login")
        assert page.status_code == 200 and 'href="/queue/static/console.css"' in page.text
        assert (await visitor.get("/queue/static/console.css")).status_code == 200
    assert (await visitor.get("/")).text == "the shop"
    for app in (names["app"], names["application"]):
        await app.routes[0].app.state.close()


async def test_browsers_are_told_to_use_tls_for_the_names_of_the_console_only(server):
    async with visiting(server.address, hsts=True, hosts=["queue.example.com"]) as visitor:
        named = await visitor.get("/", host="queue.example.com")
        assert named.headers["strict-transport-security"] == "max-age=31536000"
        for host in ("localhost:11380", "127.0.0.1"):
            assert "strict-transport-security" not in (await visitor.get("/", host=host)).headers


@pytest.mark.parametrize(
    "settings", [{}, {"anyone": True, "login": True}, {"anyone": True, "user_header": "X-User"}], ids=str
)
def test_it_is_not_made_unless_it_is_said_who_may_use_it(settings):
    with pytest.raises(
        ValueError,
        match=r"^console\(\): (login=True, user_header=NAME or )?anyone=True (is required|cannot be combined)",
    ):
        console("127.0.0.1:1", **settings)


async def test_behind_a_proxy_it_wants_one_name(server):
    async with visiting(server.address, user_header="X-User") as visitor:
        assert (await visitor.get("/")).status_code == 403
        assert (await visitor.get("/", x_user="ada")).status_code == 200
        names = [("x-user", "mallory"), ("x-user", "ada")]
        assert (await visitor.http.get("/", headers=names)).status_code == 403
        far = Visitor(visitor.app)
        far.http._transport.client = ("203.0.113.5", 1)
        assert (await far.get("/", x_user="ada")).status_code == 403


async def test_a_server_that_is_away_is_told_and_comes_back(run):
    async with visiting("127.0.0.1:1") as visitor:
        page = await visitor.get("/")
        assert page.status_code == 200
        await sampled(visitor)
        await visitor.get("/")
        assert "The server does not answer" in visitor.text
        assert (await visitor.get("/tube?name=mails")).status_code == 503


@pytest.mark.parametrize(
    "path",
    ["/?did=" + "9" * 5000, "/tube?name=default&from=-", "/tube?name=default&from=7", "/job?id=" + "9" * 5000],
)
async def test_a_malformed_query_is_no_fault_of_the_console(path, visitor):
    assert (await visitor.get(path)).status_code in (200, 400)


async def test_malformed_headers_and_places_to_go_back_to_are_refused(visitor):
    assert (await visitor.send("/order", op="resume", headers={"origin": "http://["}, tube="t")).status_code == 403
    await visitor.get("/log")
    page = await visitor.send("/order", follow=False, op="resume", tube="default", back="//[")
    assert page.status_code == 303 and page.headers["location"].startswith("/?did=")


async def test_a_call_with_many_arguments_is_shown_in_part(queue, visitor):
    calls = [{"task": "t", "args": [1] * 20_000}, {"task": "t", "kwargs": {f"name{each}": 1 for each in range(4000)}}]
    ids = [put(queue, "calls", json.dumps(call, separators=(",", ":")).encode())[0] for call in calls]
    for job_id in ids:
        await visitor.get(f"/job?id={job_id}")
        assert visitor.page.text.count("<th>") <= 100
        assert "Only the first 100 are shown" in visitor.text


async def test_a_live_page_says_that_the_server_is_away(queue, visitor):
    await sampled(visitor)
    await visitor.get("/", x_live="1")
    assert "does not answer" not in visitor.text
    sampler = visitor.app.state.users.of("").sampler
    await sampler._client.close()
    await sampler.sample()
    await visitor.get("/", x_live="1")
    assert "does not answer" in visitor.text


async def test_the_form_to_put_a_delayed_job_again_has_its_delay(queue, visitor):
    (job_id,) = put(queue, "later", delay=5000)
    await visitor.get(f"/job?id={job_id}")
    assert 4900 < int(re.search('name="delay" value="([0-9]+)"', visitor.page.text)[1]) <= 5000


async def test_no_more_jobs_are_deleted_than_were_confirmed(queue, visitor):
    put(queue, "mails", count=3)
    asked = {"scope": "all", "tube": "mails", "state": "ready"}
    await visitor.order("delete", sure=False, **asked)
    fields = dict(re.findall('<input type="hidden" name="([a-z]+)" value="([^"]*)">', visitor.page.text))
    put(queue, "mails", count=4)
    await visitor.send("/order", **fields)
    assert counts(queue, "mails") == (4, 0, 0)


async def test_a_view_of_failures_reads_few_bytes_and_decodes_them_in_a_thread(queue, monkeypatch, visitor):
    bury(queue, "mails", 30, b'{"task": "' + b"x" * 10_000 + b'", "args": [], "kwargs": {}}')
    bury(queue, "letters", 1, b"x" * (failures.MAX_BODY - 1))
    monkeypatch.setattr(failures, "MAX_READ", 100_000)
    threads = set()
    for name in ("_read_bodies", "group"):
        real = getattr(failures, name)

        def recorded(given, real=real):
            threads.add(threading.get_ident())
            return real(given)

        monkeypatch.setattr(failures, name, recorded)

    await sampled(visitor)
    found = visitor.app.state.users.of("").failures
    await found.refresh(30)
    assert found.unread == 31 - failures.BATCH
    await found.refresh(30)
    assert found.unread == 0 and sum(len(each.jobs) for each in found.groups) == 31
    assert threads and threading.get_ident() not in threads


def test_a_search_asks_for_few_bytes_at_once(monkeypatch):
    monkeypatch.setattr(search, "MAX_BATCH", 250)
    jobs = [{"id": number, "size": size} for number, size in enumerate((100, 100, 100, 900, 0, 250))]
    assert [[job["id"] for job in some] for some in search._by_bytes(jobs)] == [[0, 1], [2], [3], [4, 5]]


async def test_failures_are_looked_at_up_to_a_number_shared_by_all_tubes(queue, monkeypatch, visitor):
    monkeypatch.setattr(failures, "MAX_BODIES", 12)
    for name in ("letters", "mails", "parcels"):
        bury(queue, name, 9)

    await sampled(visitor)
    await visitor.get("/failures")
    found = visitor.app.state.users.of("").failures
    assert [(group.tube, len(group.jobs)) for group in found.groups] == [
        ("letters", 4),
        ("mails", 4),
        ("parcels", 4),
    ]
    assert found.is_partial


async def test_a_form_whose_sender_has_gone_is_no_fault_of_the_console(visitor):
    await visitor.get("/tube?name=default")
    sent = []

    async def receive():
        return {"type": "http.disconnect"}

    async def send(message):
        sent.append(message)

    headers = [(b"host", b"localhost")]
    scope = {"type": "http", "method": "POST", "path": "/order", "query_string": b"", "headers": headers}
    await visitor.app({**scope, "http_version": "1.1", "scheme": "http", "root_path": ""}, receive, send)
    assert sent[0]["status"] == 400


async def test_a_search_reads_large_bodies_slowly(queue, monkeypatch, visitor):
    monkeypatch.setattr(search, "BYTES_A_SECOND", 10_000)
    put(queue, "mails", b"x" * 100, 26)
    began = time.monotonic()
    await visitor.send("/search", name="mails", state="ready", text="x")
    await visitor.app.state.searches.find("", 1).task
    assert time.monotonic() - began >= 0.25


@pytest.mark.parametrize("path", ["/xyz", "/tubes/none", "/order", "/<script>alert(1)"])
async def test_a_path_without_a_page_leads_to_the_others(server, path):
    async with visiting(server.address, base_path="/queue") as visitor:
        page = await visitor.get(path)
        assert page.status_code in (404, 405) and page.headers["content-type"].startswith("text/html")
        assert f"The console has no page /queue{path}." in visitor.text
        assert 'href="/queue/failures"' in page.text and 'href="/queue/static/console.css"' in page.text
        assert "<script>alert" not in page.text
        page = await visitor.get("/static/none.js")
        assert (page.status_code, page.text) == (404, "There is no such file.\n")


async def test_a_job_says_who_has_reserved_it_and_a_client_what_it_watches(server, queue, visitor):
    (job_id,) = put(queue, "mails")
    name = "shop-worker/web-3/4711"
    with Client(server.address, encoding=None, watch="mails", name=name) as worker:
        worker.reserve(0)
        page = await visitor.get(f"/job?id={job_id}")
        assert f"{name} reserved it 0 s ago" in page.text and "/clients?q=shop-worker" in page.text
        assert f"<td>{name}</td>" in (await visitor.get("/tube?name=mails&state=reserved")).text
        page = await visitor.get("/clients")
        assert "<td>beanstalk-console/" in page.text
        for text in ("web-3/4711", "mails"):
            page = await visitor.get(f"/clients?q={text}&only=workers")
            assert f"<td>{name}</td>" in page.text and ">mails</a>" in page.text
        assert "No client matches" in (await visitor.get("/clients?q=none")).text


@pytest.mark.parametrize("live", ["", "1"])
@tubes(match=("mails",), measures=True)
async def test_what_only_the_whole_page_of_a_tube_has_is_in_no_part_that_is_renewed(queue, visitor, live):
    put(queue, "mails")
    await visitor.get("/tube?name=mails")
    page = await visitor.get("/tube?name=mails", x_live=live)
    renewed = re.search('id="u-cards" data-live.*?</section>', page.text, re.DOTALL)[0]
    assert "next job has waited" in renewed and "Percentiles" not in renewed
    assert ("Percentiles" in page.text) is not bool(live)


async def test_a_worker_that_holds_a_job_is_not_idle(server, queue):
    put(queue, "mails", count=2)
    with Client(server.address, encoding=None, watch="mails") as worker, Client(server.address) as idle:
        worker.reserve(0)
        idle.stats()

        async with visiting(server.address) as visitor:
            page = await visitor.get("/clients")
            rows = [
                re.sub(r"<[^>]+>", "", row).split()[1:]
                for row in re.sub("</td>", " ", page.text).split("<tr data-row=")[1:]
            ]
            found = {tuple(row[1:-1]) if row[0] == "\u2013" else tuple(row) for row in rows}
            assert any("working" in row and "worker" in row for row in found), found
            assert any("mails" in row and "producer" in row for row in found), found
            assert not any("default" in row for row in found), found


STAMP = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC"


async def test_all_times_have_their_zone(queue, visitor):
    (job_id,) = bury(queue, "mails")
    (delayed,) = put(queue, "mails", delay=5000)
    queue.use("mails.errors")
    told = report(job_id, "mails", describe(ValueError("x")), 3, by="worker", task="shop.send")
    queue.put_with(told, key=f"job-{job_id}")
    await sampled(visitor)
    await visitor.order("put", tube="mails", body="x")
    await visitor.get("/failures")
    key = next(iter(visitor.app.state.users._users.values())).failures.groups[0].key
    for path, number in {
        "/log": 1,
        "/failures": 2,
        f"/failure?key={key}": 3,
        f"/job?id={job_id}": 2,
        f"/job?id={delayed}": 1,
        "/tube?name=mails&state=delayed": 1,
    }.items():
        await visitor.get(path)
        times = re.findall(r"\d{4}-\d\d-\d\d.\d\d:\d\d", visitor.text)
        assert len(times) == len(re.findall(STAMP, visitor.text)) >= number, path


@pytest.mark.parametrize(
    ("typed", "delay"), [("3600", 3600), ("2h", 7200), ("0", 0), ("later", None), ("", None), ("-1", None)]
)
async def test_a_delayed_job_is_rescheduled(queue, typed, delay, visitor):
    (job_id,) = put(queue, "mails", delay=6000)
    page = await visitor.get(f"/job?id={job_id}")
    assert 'value="reschedule"' in page.text and re.search(rf"Due {STAMP} , in 1h (39|40)m", visitor.text)
    await visitor.order("reschedule", id=str(job_id), delay=typed, back=f"job?id={job_id}")
    found = queue.stats_job(job_id)
    if delay is None:
        assert visitor.page.status_code == 400 and "Bad delay" in visitor.text
        assert 'aria-invalid="true"' in visitor.page.text and f'value="{typed}"' in visitor.page.text
        assert 5900 < found["time-left"] <= 6000
    else:
        assert re.search(rf"Reschedule job {job_id} to {STAMP} : 1 job", visitor.text)
        assert found["state"] == ("delayed" if delay else "ready") and delay - 60 <= found["time-left"] <= delay


async def test_all_delayed_jobs_are_rescheduled_and_others_passed_over(queue, visitor):
    put(queue, "mails", count=20, delay=60)
    queue.put(b"", delay=100_000)
    ids = [*put(queue, "others", delay=60), *put(queue, "others")]
    page = await visitor.get("/tube?name=mails&state=delayed")
    assert 'value="reschedule"' in page.text and len(re.findall(STAMP, visitor.text)) == 21
    await visitor.order("reschedule", sure=False, scope="all", tube="mails", state="delayed", delay="1h")
    assert "Reschedule all 21 delayed jobs of tube mails" in visitor.text and "and 16 more" in visitor.text
    await visitor.order("reschedule", scope="all", tube="mails", state="delayed", delay="1h")
    for action in visitor.app.state.actions.of(""):
        await action.task
        assert (action.state, action.done) == ("done", 21), action
    assert {3500 < job["time-left"] <= 3600 for job in queue.list_jobs("mails", "delayed")} == {True}
    await visitor.order("reschedule", id=[str(each) for each in ids], delay="1h", tube="others", state="delayed")
    assert "1 job; 1 skipped" in visitor.text


@at_beanstalkd
async def test_a_job_of_beanstalkd_has_no_button_to_reschedule_or_reprioritize_it(queue, visitor):
    (job_id,) = put(queue, "mails", delay=60)

    for path in (f"/job?id={job_id}", "/tube?name=mails&state=delayed"):
        page = await visitor.get(path)
        assert re.search(STAMP, visitor.text)
        assert 'value="reschedule"' not in page.text and 'value="reprioritize"' not in page.text
    await visitor.order("reprioritize", id=str(job_id), pri="5")
    assert "This server does not support reprioritize" in visitor.text


@pytest.mark.parametrize(("typed", "priority"), [("0", 0), (str(2**32 - 1), 2**32 - 1), (str(2**32), None), ("", None)])
async def test_a_job_is_reprioritized(queue, typed, priority, visitor):
    (job_id,) = put(queue, "mails")
    before = queue.stats_job(job_id)["pri"]
    page = await visitor.get(f"/job?id={job_id}")
    assert 'value="reprioritize"' in page.text
    await visitor.order("reprioritize", id=str(job_id), pri=typed, back=f"job?id={job_id}")
    if priority is None:
        assert visitor.page.status_code == 400 and "Bad pri" in visitor.text
        assert f'name="pri" value="{typed}" aria-invalid="true"' in visitor.page.text
    else:
        assert f"Reprioritize job {job_id} to {priority} : 1 job" in visitor.text
    assert queue.stats_job(job_id)["pri"] == (before if priority is None else priority)


async def test_marked_and_all_jobs_are_reprioritized_and_reserved_ones_passed_over(server, queue, visitor):
    ids = put(queue, "mails", count=21)
    with Client(server.address, encoding=None, watch="mails") as worker:
        held = worker.reserve(0).id
        page = await visitor.get(f"/job?id={held}")
        assert 'value="reprioritize"' not in page.text
        page = await visitor.get("/tube?name=mails&state=ready")
        assert 'value="reprioritize"' in page.text
        marked = [str(held), *map(str, ids[-2:])]
        await visitor.order("reprioritize", id=marked, pri="7", tube="mails", state="ready")
        assert "2 jobs; 1 skipped" in visitor.text
        assert [queue.stats_job(int(each))["pri"] == 7 for each in marked] == [False, True, True]
        await visitor.order("reprioritize", sure=False, scope="all", tube="mails", state="ready", pri="9")
        assert "Reprioritize all 20 ready jobs of tube mails to 9" in visitor.text and "and 15 more" in visitor.text
        await visitor.order("reprioritize", scope="all", tube="mails", state="ready", pri="9")
        assert {job["pri"] for job in queue.list_jobs("mails", "ready")} == {9}
        await visitor.order("reprioritize", scope="all", tube="mails", state="reserved", pri="9")
        assert "Reserved jobs keep their priority" in visitor.text


async def test_what_was_typed_is_kept_after_an_error(queue, visitor):
    body = f"first\nsecond {HOSTILE.replace(chr(0x1B), '')}"
    kept = re.compile(r'<textarea name="body"[^>]*>\n(.*?)</textarea>', re.DOTALL)

    def typed():
        return html.unescape(kept.search(visitor.page.text)[1])

    for wrong in ({"pri": "high"}, {"key": "no key"}, {"ttr": str(2**32)}, {"delay": "-5"}):
        (name, value), *_ = wrong.items()
        page = await visitor.order("put", tube="mails", body=body, back="tube?name=mails", **wrong)
        assert page.status_code == 400 and typed() == body, wrong
        assert re.search(rf'name="{name}" value="{value}" aria-invalid="true"', page.text), wrong
        assert 'role="alert"' in page.text and 'href="/tube?name=mails"' in page.text
    queue.drain()
    page = await visitor.order("put", tube="mails", body=body, pri="7", back="tube?name=mails")
    assert page.status_code == 409 and typed() == body and 'name="pri" value="7"' in page.text
    assert "in drain mode" in visitor.text
    queue.undrain()
    fields = dict(re.findall('<input type="hidden" name="([a-z]+)" value="([^"]*)">', page.text))
    fields.pop("csrf")
    await visitor.order("put", body=typed(), pri="7", delay="", ttr="", key="", **fields)
    queue.use("mails")
    assert queue.peek_ready().body == body.encode()
    page = await visitor.order("change", id="999", body=body, back="tubes")
    assert page.status_code == 409 and typed() == body
    page = await visitor.order("pause", tube="mails", seconds="long", back="tubes")
    assert page.status_code == 400 and 'name="seconds" value="long" aria-invalid="true"' in page.text


async def test_a_confirmation_shows_the_jobs_and_their_error(queue, visitor):
    ids = bury(queue, "mails", 7, json.dumps({"task": HOSTILE + "x" * 500, "args": []}).encode())
    (large,) = put(queue, "mails", b"y" * 20_000)
    queue.use("mails.errors")
    for each in ids:
        told = report(each, "mails", describe(ValueError(HOSTILE)), 3, by="worker", task="shop.send")
        queue.put_with(told, key=f"job-{each}")

    await sampled(visitor)
    await visitor.get("/failures")
    key = next(iter(visitor.app.state.users._users.values())).failures.groups[0].key
    for fields in (
        {"scope": "group", "group": key},
        {"id": [str(each) for each in ids]},
        {"scope": "all", "tube": "mails", "state": "buried"},
    ):
        page = await visitor.order("delete", sure=False, **fields)
        assert "Delete 7 jobs" in visitor.text and "and 2 more" in visitor.text
        assert [f"job?id={each}" in page.text for each in ids] == [True] * 5 + [False] * 2
        assert "ValueError" in visitor.text
        assert "<script>alert" not in page.text and "\u202e" not in page.text
        assert "x" * 200 not in page.text
    await visitor.order("delete", sure=False, id=[str(large), "999"])
    assert f"job {large} 20.0 kB" in visitor.text and "job 999 (gone)" in visitor.text
    await visitor.order("clear", sure=False, tube=["mails", "mails.errors"])
    assert "tube mails tube mails.errors" in visitor.text
    assert len(queue.tubes()) >= 2 and counts(queue, "mails") == (1, 0, 7)
