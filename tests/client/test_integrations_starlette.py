"""An application of FastAPI or Starlette has a client, and the shop of the examples works."""

import contextlib
import json
import os
import re
import shlex
import sqlite3
import subprocess
import sys
import types
import urllib.request
from importlib import util
from pathlib import Path

import pytest
from beanstalk_client import Client
from beanstalk_client.deliver import Request
from beanstalk_client.integrations.starlette import client_of, lifespan
from beanstalk_client.schedules.scheduler import GROUP
from consuming import SERVERS, running
from listings import Program
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.testclient import TestClient
from working import WorkerProcess

from harness.servers import ROOT, accepts, unused_port
from harness.waiting import eventually
from tests.server.recipes import blocks

pytest.importorskip("fastapi")


@pytest.mark.sockets
def test_requests_share_a_client_which_is_closed_at_the_end():
    clients = set()

    async def put(request):
        clients.add(client_of(request))
        return PlainTextResponse(str(await client_of(request).put("x")))

    @contextlib.asynccontextmanager
    async def other(app):
        yield {"other": 1}

    async def look(request):
        return PlainTextResponse(str(request.state.other))

    routes = [Route("/put", put), Route("/look", look)]
    with running(SERVERS[0]) as server:
        app = Starlette(routes=routes, lifespan=lifespan(server.address, also=other, use="mail"))
        with TestClient(app) as web:
            assert [web.get("/put").text, web.get("/put").text, web.get("/look").text] == ["1", "2", "1"]
        (client,) = clients
        assert not client.is_connected


def test_an_application_without_a_client_is_told_so():
    async def put(request):
        return PlainTextResponse(str(client_of(request)))

    with TestClient(Starlette(routes=[Route("/", put)])) as web, pytest.raises(RuntimeError, match="has no client"):
        web.get("/")


def test_an_application_starts_without_the_queue():
    with TestClient(Starlette(lifespan=lifespan("127.0.0.1:1"))) as web:
        assert web.get("/").status_code == 404


@pytest.fixture
def shop(monkeypatch, tmp_path):
    """The application of the example, and its tasks."""
    monkeypatch.setenv("SHOP_DATABASE", str(tmp_path / "shop.db"))
    directory = ROOT / "examples" / "shop"
    monkeypatch.syspath_prepend(str(directory))
    loaded = {}
    for name in ("tasks", "app"):
        spec = util.spec_from_file_location(name, directory / f"{name}.py")
        loaded[name] = util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, name, loaded[name])
        spec.loader.exec_module(loaded[name])
    return loaded["app"], loaded["tasks"]


def test_an_order_is_cancelled_unless_it_is_paid(shop):
    application, shop = shop
    with shop.tasks.in_memory(now=1_800_000_000) as queue, TestClient(application.app) as web:
        assert web.put("/orders/17").json() == web.put("/orders/18").json() == {"state": "ordered"}
        assert web.put("/orders/18").status_code == 409
        queue.run("10m")
        assert web.post("/orders/17/payment").json() == {"state": "paid"}
        queue.run("10m")
        assert [web.get(f"/orders/{number}").json()["state"] for number in (17, 18)] == ["paid", "cancelled"]
        assert web.post("/orders/18/payment").json() == {"detail": "order 18 is cancelled"}
        assert web.get("/orders/19").status_code == 404
        queue.run("1d")
        mails = web.get("/mails").json()
    assert mails == [
        "thank you for order 17",
        "thank you for order 18",
        "order 17 is paid",
        "order 18 is cancelled",
        "0 ordered, 1 paid, 1 cancelled",
    ]


@pytest.mark.sockets
def test_the_shop_shows_its_queue(shop):
    application, shop = shop
    with running(SERVERS[0]) as server:
        shop.tasks.addresses = server.address
        application.app.router.lifespan_context = lifespan(server.address, also=application.close_tasks)
        with TestClient(application.app) as web:
            web.put("/orders/17")
            assert web.get("/queue").json() == {"ready": 1, "delayed": 1, "buried": 0}
            assert web.post("/orders/17/payment").json() == {"state": "paid"}
            assert web.get("/queue").json() == {"ready": 2, "delayed": 0, "buried": 0}


@pytest.mark.slow
@pytest.mark.sockets
def test_the_shop_is_two_processes_that_see_each_others_changes(tmp_path):
    """The commands of the page, but for what installs the programs, and for the minute that a customer has to pay."""
    (_, worker), (_, web), (_, customer), (_, printed) = blocks(ROOT / "docs" / "web.md", "FastAPI and Starlette")[1:]
    port = unused_port()
    with running(SERVERS[0]) as server, contextlib.ExitStack() as stack:
        log = stack.enter_context((tmp_path / "log").open("a+"))
        host, queue_port = server.address
        environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT / "client"),
            "PYTHONDONTWRITEBYTECODE": "1",
            "BEANSTALK_URL": f"{host}:{queue_port}",
            "SHOP_DATABASE": str(tmp_path / "shop.db"),
        }

        def start(block):
            line = (
                block.splitlines()[-1]
                .replace("1m", "1h")
                .replace("beanstalk-worker ", f"{sys.executable} -m beanstalk_client.worker ")
            )
            line = line.replace("uvicorn ", f"{sys.executable} -m uvicorn --port {port} ")
            process = subprocess.Popen(
                ["env", *shlex.split(line)],
                cwd=ROOT / "examples" / "shop",
                env=environment,
                stdout=log,
                stderr=log,
            )
            stack.callback(process.wait)
            stack.callback(process.kill)

        def ask(method, path):
            request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", method=method)
            with urllib.request.urlopen(request, timeout=60) as response:
                return json.load(response)

        start(worker)
        start(web)
        eventually(lambda: accepts(port), "the application listens", 60)
        for method, path in re.findall(r"curl -X (\w+) localhost:8000(\S+)", customer):
            ask(method, path)
        with Client(server.address, use="shop") as queue:
            queue.kick_job(queue.peek_keyed("order-18"))  # the customer's time is over
            eventually(lambda queue=queue: GROUP in queue.tubes(), "the worker plans the report", 60)
        eventually(lambda: len(ask("GET", "/mails")) == 4, "all mails are sent", 60)
        assert sorted(ask("GET", "/mails")) == sorted(line.removeprefix("mail: ") for line in printed.splitlines())
        assert ask("GET", "/orders/17") == {"state": "paid"}
        assert ask("GET", "/orders/18") == {"state": "cancelled"}
        eventually(lambda: set(printed.splitlines()) <= set((tmp_path / "log").read_text().splitlines()), "the mails")


def recipe(monkeypatch, title, address):
    """The modules of a recipe of the page, by name; each may import those before it."""
    modules = {}
    for language, text in blocks(ROOT / "docs" / "web.md", title):
        if language == "sh":
            continue
        name = re.match(r"# (\w+)\.py\n", text)[1]
        modules[name] = types.ModuleType(name)
        monkeypatch.setitem(sys.modules, name, modules[name])
        exec(text.replace("127.0.0.1:11300", "{}:{}".format(*address)), modules[name].__dict__)
    return modules


UNAVAILABLE = "Answer 503 while the queue is down"


@pytest.mark.sockets
def test_the_answer_is_503_without_a_queue(monkeypatch):
    app = recipe(monkeypatch, UNAVAILABLE, ("127.0.0.1", unused_port()))["reminders"].app
    with TestClient(app) as web:
        answer = web.put("/orders/17/reminder")
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")


@pytest.mark.sockets
def test_the_answer_is_503_while_the_queue_takes_no_jobs_and_a_repetition_makes_no_second_job(monkeypatch):
    with running(SERVERS[0]) as server, Client(server.address) as queue:
        app = recipe(monkeypatch, UNAVAILABLE, server.address)["reminders"].app
        with TestClient(app) as web:
            assert [web.put("/orders/17/reminder").status_code for _ in range(2)] == [202, 202]
            assert queue.stats()["current-jobs-delayed"] == 1
            queue.drain()
            assert web.put("/orders/18/reminder").status_code == 503


@pytest.mark.sockets
def test_a_page_shows_the_progress_of_a_task(monkeypatch, tmp_path):
    title = "Show the progress of a task"
    with running(SERVERS[0]) as server:
        Program(ROOT / "docs" / "web.md", title, tmp_path, server.address)  # files for the worker
        app = recipe(monkeypatch, title, server.address)["pages"].app
        with TestClient(app) as web:
            assert 'action="/reports"' in web.get("/").text
            page = web.post("/reports?pages=3").url.path
            assert web.get(page).text.endswith('<progress value="0"></progress><p>waits for a worker</p>')
            worker = WorkerProcess(server, tmp_path, program=(tmp_path / "reports.py").read_text())
            try:
                eventually(lambda: " of 3</p>" in web.get(page).text, "the page shows a progress")
                eventually(lambda: web.get(page).text == "<p>a report of 3 pages</p>", "the page shows the report")
            finally:
                worker.close()
            assert web.get("/reports/99").text == "<p>There is no such report.</p>"


@pytest.mark.sockets
def test_a_callback_is_put_and_cancelled(monkeypatch):
    with running(SERVERS[0]) as server, Client(server.address, use="webhooks") as queue:
        app = recipe(monkeypatch, "Put a callback", server.address)["callbacks"].app
        with TestClient(app) as web:
            assert [web.put("/orders/17").status_code for _ in range(2)] == [202, 202]
            assert Request.from_body(queue.peek_delayed().body.encode()).url == "https://example.com/orders/17/expired"
            answers = [web.post("/orders/17/payment").json() for _ in range(2)]
            assert answers == [{"cancelled": True}, {"cancelled": False}]
            assert queue.stats()["current-jobs-delayed"] == 0


@pytest.mark.sockets
def test_one_lifespan_has_a_database_a_client_and_tasks(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    with running(SERVERS[0]) as server, Client(server.address) as queue:
        shop = recipe(monkeypatch, "One lifespan for the database, the client and the tasks", server.address)["shop"]
        with TestClient(shop.app) as web:
            assert [web.put("/orders/17").json() for _ in range(2)] == [{"waiting": 1}] * 2
            assert queue.stats()["current-connections"] == 3
        eventually(lambda: queue.stats()["current-connections"] == 1, "both clients of the application are closed")
        with contextlib.closing(sqlite3.connect("shop.db")) as database:
            assert database.execute("SELECT number FROM orders").fetchall() == [(17,)]


def test_every_recipe_is_run():
    headings = re.findall(r"^### (.*)$", (ROOT / "docs" / "web.md").read_text(), re.MULTILINE)
    source = Path(__file__).read_text()
    assert headings
    assert [heading for heading in headings if f'"{heading}"' not in source] == []
