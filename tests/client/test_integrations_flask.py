"""An application of Flask has a client for each thread."""

import _thread
import re
import threading

import pytest
from beanstalk_client.integrations.flask import Beanstalk
from consuming import SERVERS, running
from flask import Flask

from harness.servers import ROOT
from harness.waiting import eventually

pytestmark = pytest.mark.sockets


@pytest.fixture
def app():
    with running(SERVERS[0]) as server:
        app = Flask("shop")
        app.config["BEANSTALK_URL"] = "beanstalk://{}:{}".format(*server.address)
        app.config["BEANSTALK_OPTIONS"] = {"use": "mail"}
        yield app


def test_each_thread_has_a_client_which_is_closed_with_it(app):
    beanstalk = Beanstalk(app)
    clients = []

    @app.get("/put")
    def put():
        clients.append(beanstalk.client)
        return str(beanstalk.client.put("x"))

    def ask():
        assert [app.test_client().get("/put").text for _ in range(2)] in (["1", "2"], ["3", "4"])

    for _ in range(2):
        thread = threading.Thread(target=ask)
        thread.start()
        thread.join()
        del thread
    assert clients[0] is clients[1] is not clients[2] is clients[3]
    with app.app_context():
        assert beanstalk.client.stats_tube("mail")["current-jobs-ready"] == 4
        assert beanstalk.client.stats()["current-connections"] == 1
        beanstalk.client.close()


def test_a_thread_that_a_server_in_c_has_made_leaves_no_client(app):
    beanstalk = Beanstalk(app)

    def ask():
        with app.app_context():
            beanstalk.client.put("x")

    for _ in range(3):
        _thread.start_new_thread(ask, ())
    with app.app_context():
        eventually(lambda: beanstalk.client.stats_tube("mail")["total-jobs"] == 3, "they have put")
        eventually(lambda: beanstalk.client.stats()["current-connections"] == 1, "their clients are closed")
        beanstalk.client.close()


def test_an_application_that_was_not_told_of_is_named(app):
    beanstalk = Beanstalk()
    with app.app_context(), pytest.raises(RuntimeError, match="not initialized for the application shop"):
        beanstalk.client  # noqa: B018
    app.config["BEANSTALK_URL"] = "http://x"
    with pytest.raises(ValueError, match="bad URL"):
        beanstalk.init_app(app)


def test_the_listings_of_the_page_are_applications():
    page = (ROOT / "docs" / "web.md").read_text()
    listings = dict(re.findall(r"```python\n# (\w+\.py)\n(.*?)```", page, re.DOTALL))
    for name, routes in (("main.py", ["/mails"]), ("wsgi.py", ["/mails/<address>"])):
        space = {"__name__": name.removesuffix(".py")}
        exec(listings[name], space)
        app = space["app"]
        found = (
            [each.path for each in app.routes]
            if name == "main.py"
            else [str(each) for each in app.url_map.iter_rules()]
        )
        assert set(routes) <= set(found)
