"""The stories of the examples: each prints what its docstring promises, in virtual time."""

import asyncio
import os
import sys
from datetime import UTC, datetime, timedelta
from importlib import util
from pathlib import Path

import pytest
from virtual import World
from virtual_client import connect

from beanstalk_server import Config
from beanstalk_server.access.policies import Policies
from beanstalk_server.cli.command_line import parse
from beanstalk_server.queue.units import SECOND
from harness.in_thread import ServerThread

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"

BEGAN = datetime(2027, 1, 5, 8, tzinfo=UTC)


def load(name):
    """An example as a module."""
    spec = util.spec_from_file_location(f"examples_{name}", EXAMPLES / f"{name}.py")
    module = util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def promised(module):
    """The lines that its docstring promises."""
    text = module.__doc__.partition("It prints:\n\n")[2]
    return [line.strip() for line in text.strip().splitlines()]


@pytest.fixture
def world():
    """A server with the policies of the examples; its wall clock says that day 0 begins."""
    config = parse(["--config", str(EXAMPLES / "policies.toml")], {})
    world = World(policies={name: Policies(config.tubes).of(name) for each in config.tubes for name in each.match})
    offset = round(BEGAN.timestamp()) * SECOND - world.now
    world.info.clock_offset = lambda: offset
    yield world
    world.check()


def clock(world):
    """The moment of its wall clock."""
    return BEGAN.fromtimestamp((world.now + world.info.clock_offset()) / SECOND, UTC)


def test_a_reminder_on_days_23_28_and_29_is_called_off(capsys):
    module = load("reminders")
    with module.tasks.in_memory() as queue:
        began = datetime.fromtimestamp(queue.now, UTC)

        async def until(number):
            await queue.arun((began + timedelta(days=number)).timestamp() - queue.now)

        asyncio.run(module.story(began, timedelta(days=1), until))
        assert queue.now == (began + timedelta(days=30)).timestamp()
        assert queue.jobs() == []
    assert capsys.readouterr().out.splitlines() == promised(module)


def test_a_payment_is_tried_again_for_a_day_and_then_looked_at_by_a_person(world, capsys):
    module = load("payment")
    queue = connect(world, use=module.PAYMENTS, watch=module.PAYMENTS)
    dead = connect(world, use=module.DEAD)
    module.story(module.Payments(queue, dead, 60), lambda: world.now / SECOND)
    assert capsys.readouterr().out.splitlines() == promised(module)
    queue.close()
    dead.close()


def test_an_email_is_sent_once_though_three_producers_ask(world, capsys):
    module = load("confirmation")
    clients = [connect(world, use=module.TUBE, watch=module.TUBE) for _ in range(4)]
    module.story(*clients, "17")
    assert capsys.readouterr().out.splitlines() == promised(module)
    world.sleep(299)
    module.ask(clients[0], "the shop", "17")
    world.sleep(2)
    module.ask(clients[0], "the shop", "17")
    assert capsys.readouterr().out.splitlines() == [
        "the shop asks for the e-mail: it has been requested already",
        "the shop asks for the e-mail",
    ]
    for client in clients:
        client.close()


def test_a_callback_comes_at_its_second_and_one_that_is_called_off_does_not(monkeypatch, capsys):
    """In real time, because a program sends it; a second takes half a second."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), str(ROOT / "client")]))
    module = load("http_callback")
    server = ServerThread(Config(port=0), asyncio.new_event_loop)
    try:
        module.story(f"127.0.0.1:{server.address[1]}", 0.5)
    finally:
        server.stop()
    assert capsys.readouterr().out.splitlines() == promised(module)
