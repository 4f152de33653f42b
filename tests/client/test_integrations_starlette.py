"""An application of FastAPI or Starlette has a client, and the shop of the examples works."""

import contextlib
import json
import os
import re
import shlex
import subprocess
import sys
import urllib.request
from importlib import util

import pytest
from beanstalk_client import Client
from beanstalk_client.integrations.starlette import client_of, lifespan
from beanstalk_client.schedules.scheduler import GROUP
from consuming import SERVERS, running
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.testclient import TestClient

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
