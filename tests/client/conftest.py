"""The fixtures of the clients' tests: servers of both kinds, and one that says what a script says."""

import asyncio
import contextlib

import pytest
from beanstalk_client import session
from beanstalk_client.tasks import Tasks
from consuming import SERVERS, running
from django.conf import settings as django_settings
from fake_network import Loops, connected
from scripted_server import ScriptedServer
from shells import Asyncio, Blocking

from beanstalk_server import Config
from harness import servers
from harness.in_thread import ServerThread

with pytest.MonkeyPatch.context() as patch:  # programs that tests start have no project
    patch.setenv("DJANGO_SETTINGS_MODULE", "django_shop.settings")
    django_settings.SECRET_KEY  # noqa: B018 it is read now


@pytest.fixture
def run():
    """Starts this server in threads, and stops them when the test is over."""
    with contextlib.ExitStack() as stack:

        def start(**settings):
            port = {} if "listeners" in settings else {"port": 0}
            server = ServerThread(Config(**(port | settings)), asyncio.new_event_loop)
            stack.callback(server.stop)
            return server

        yield start


@pytest.fixture
def beanstalkd():
    """Debian's beanstalkd."""
    process = servers.start(servers.BEANSTALKD)
    yield process
    process.kill()


@pytest.fixture(params=["ours", "beanstalkd"])
def either(request):
    """A server of each kind."""
    if request.param == "ours":
        return request.getfixturevalue("run")()
    return request.getfixturevalue("beanstalkd")


@pytest.fixture(params=[Blocking, Asyncio], ids=["blocking", "asyncio"])
def connect(request):
    """Makes a client of each kind, which is connected, with the calls of the blocking one."""
    return request.param


@pytest.fixture
def unnamed(monkeypatch):
    """Clients have no names by default."""
    monkeypatch.setattr(session, "own_name", lambda: "")


@pytest.fixture
def scripted(unnamed):
    """Starts servers that say what scripts say, to clients without names."""
    with contextlib.ExitStack() as stack:

        def start(*scripts):
            server = ScriptedServer(*scripts)
            stack.callback(server.close)
            return server

        yield start


@pytest.fixture
def loop_factory():
    """Event loops with a network in memory. An error that no task has retrieved, or a task that is left over, fails."""
    loops = Loops()
    yield loops
    assert loops.complaints == []


@pytest.fixture
def net(loop_factory):
    """The network in memory of the test's event loop."""
    return loop_factory.network


@pytest.fixture
@contextlib.asynccontextmanager
async def client(net):
    """A client for asyncio that is connected in this network."""
    async with connected(net) as (client, _):
        yield client


@pytest.fixture
@contextlib.asynccontextmanager
async def peer(net):
    """The other end of the connection of `client`, which stands before it."""
    yield net.peers[0]  # noqa: PT022 a fixture of a coroutine is a generator


@pytest.fixture
def restartable(tmp_path):
    """A server that keeps its jobs, and may be killed."""
    port, binlog = servers.unused_port(), tmp_path / "binlog"
    binlog.mkdir()
    line = [*servers.command(servers.imported()), "-l", "127.0.0.1", "-p", str(port), "-b", str(binlog)]
    server = servers.Restartable(servers.imported(), line, port)
    yield server
    server.kill()


@pytest.fixture(scope="module", params=SERVERS)
def server(request):
    """A server of each kind, as a process."""
    with running(request.param) as server:
        yield server


@pytest.fixture(scope="module")
def our_server():
    """This server, as a process."""
    with running(SERVERS[0]) as server:
        yield server


@pytest.fixture
def tasks():
    """The tasks of a program, which a test adds."""
    return Tasks()


@pytest.fixture
def queue(tasks):
    """A queue in memory for these tasks."""
    with tasks.in_memory() as queue:
        yield queue


def served(program):
    process = servers.start(program)
    yield process.address
    process.stop()


@pytest.fixture(scope="module")
def ours():
    """The address of this server as a process."""
    yield from served(servers.imported())


@pytest.fixture(scope="module")
def stock():
    """The address of Debian's beanstalkd as a process."""
    yield from served(servers.BEANSTALKD)


@pytest.fixture(params=["ours", "stock"])
def address(request):
    """The address of a server of each kind."""
    return request.getfixturevalue(request.param)
