"""The fixtures of the tests that go through sockets."""

import asyncio
import contextlib
import tempfile
from pathlib import Path

import pytest
import uvloop
from on_directory import Beanstalkd

from beanstalk_server import Config
from harness import servers
from harness.in_thread import ServerThread


@pytest.fixture(params=["uvloop", pytest.param("asyncio", marks=pytest.mark.slow)])
def loop_factory(request):
    return uvloop.new_event_loop if request.param == "uvloop" else asyncio.new_event_loop


@pytest.fixture
def run(loop_factory):
    """Starts servers in threads, and stops them when the test is over."""
    with contextlib.ExitStack() as stack:

        def start(**settings):
            port = {} if "listeners" in settings else {"port": 0}
            server = ServerThread(Config(**(port | settings)), loop_factory)
            stack.callback(server.stop)
            return server

        yield start


@pytest.fixture
def open_path():
    """A directory that other users reach, which tmp_path is not."""
    with tempfile.TemporaryDirectory() as name:
        path = Path(name)
        path.chmod(0o755)
        yield path


@pytest.fixture
def launch():
    """Starts server processes, and ends those that a test has left."""
    with contextlib.ExitStack() as stack:

        def start(*options, **keywords):
            process = servers.launch(*options, **keywords)
            stack.callback(process.kill)
            return process

        yield start


@pytest.fixture
def launch_beanstalkd():
    with contextlib.ExitStack() as stack:

        def start(directory, *options):
            server = Beanstalkd(directory, *options)
            stack.callback(server.kill)
            return server

        yield start
