"""What the names of clients are made of. When servers get them is in test_core.py."""

import os
import socket
import sys

import pytest
from beanstalk_client import names
from beanstalk_client.names import own_name
from beanstalk_client.replies import is_name
from hypothesis import given
from hypothesis import strategies as st


@pytest.fixture
def machine(monkeypatch):
    """A process on a machine whose names the test gives."""
    names._name.cache_clear()
    monkeypatch.setattr(socket, "gethostname", lambda: "web-3.example.com")
    monkeypatch.setattr(os, "getpid", lambda: 4711)
    monkeypatch.setattr(names, "program", "")
    yield monkeypatch
    names._name.cache_clear()


@pytest.mark.parametrize(
    ("arguments", "program"),
    [
        (["/srv/shop-worker.py", "--fast"], "shop-worker"),
        (["/usr/bin/gunicorn"], "gunicorn"),
        (["/srv/shop/__main__.py"], "shop"),
        (["/srv/-my shop é"], "my-shop--"),
        (["-c"], "python"),
        ([""], "python"),
        ([], "python"),
    ],
)
def test_a_name_has_the_program_the_host_and_the_process(machine, arguments, program):
    machine.setattr(sys, "argv", arguments)
    assert own_name() == f"{program}/web-3/4711"


def test_a_role_takes_the_place_of_the_program_and_a_program_that_of_its_file(machine):
    machine.setattr(sys, "argv", ["/srv/manage.py"])
    machine.setattr(names, "program", "beanstalk-worker")
    assert own_name() == "beanstalk-worker/web-3/4711"
    assert own_name("beanstalk-console") == "beanstalk-console/web-3/4711"


def test_a_process_that_was_forked_has_another_name(machine):
    before = own_name("shop")
    machine.setattr(os, "getpid", lambda: 4712)
    assert (before, own_name("shop")) == ("shop/web-3/4711", "shop/web-3/4712")


@given(st.text(), st.text(max_size=64))
def test_every_program_on_every_host_has_a_name_that_servers_take(program, host):
    with pytest.MonkeyPatch.context() as patch:
        names._name.cache_clear()
        patch.setattr(socket, "gethostname", lambda: host)
        assert is_name(own_name(program))
    names._name.cache_clear()
