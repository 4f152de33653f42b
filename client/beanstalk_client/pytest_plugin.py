"""Fixtures for pytest: a server, clients with a tube of their own, and a queue in memory (docs/testing.md).

    beanstalk_server    a server on a free port, one for each process of the test run: beanstalk-server if it is
                        installed, else beanstalkd, with a warning; or the one at --beanstalk-address
    beanstalk_tube      the name of a tube that only this test uses; its jobs are deleted after the test
    beanstalk           a Client that uses and watches that tube
    async_beanstalk     an AsyncClient that does
    beanstalk_tasks     the Tasks that the ini option `beanstalk_tasks` names, such as shop:tasks
    tasks_in_memory     a queue in memory for these, whose clock the test moves
    run_tasks           runs what is due there; raises what a task raises
    run_worker          runs a worker at beanstalk_server until no job is ready; raises what a task raises

Every run of pytest imports this module where the client is installed, so it imports the rest when a fixture asks.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import socket
import subprocess
import sys
import time
import uuid
import warnings
from collections.abc import AsyncIterator, Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from beanstalk_client.address import Address
    from beanstalk_client.asynchronous import AsyncClient
    from beanstalk_client.blocking import Client
    from beanstalk_client.memory import MemoryQueue
    from beanstalk_client.tasks import Tasks

START_WITHIN = 60.0
"""Seconds until a server must have started."""

PORTS_TRIED = 20
"""Free ports that are tried: beanstalkd cannot be asked to choose one, and another process may be faster."""


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("beanstalk", "beanstalk job queues")
    group.addoption(
        "--beanstalk-address",
        metavar="HOST:PORT",
        help="address of a running server for the fixture beanstalk_server (default: start one)",
    )
    parser.addini("beanstalk_tasks", "module:name of the Tasks object for the fixture beanstalk_tasks", default="")


# Servers


@pytest.fixture(scope="session")
def beanstalk_server(request: pytest.FixtureRequest) -> Iterator[Address]:
    """The address of a server: `Client(beanstalk_server)`, `Tasks(beanstalk_server)`, or as text, host:port. No other
    process of the test run uses it, unless --beanstalk-address names one.
    """
    given = request.config.getoption("--beanstalk-address")
    if given:
        from beanstalk_client.address import read_addresses

        yield read_addresses(given)[0][0]
        return
    with contextlib.ExitStack() as stack:
        yield _start(stack)


def _start(stack: contextlib.ExitStack) -> Address:
    """Start the server that is installed, on a free port; the stack ends it."""
    from beanstalk_client.address import Address

    command = _command()
    # Options of another server may be in the environment: the files, or the cluster, of one in production.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("BEANSTALK_SERVER_")}
    for _ in range(PORTS_TRIED):
        with socket.create_server(("127.0.0.1", 0)) as probe:
            address = Address("127.0.0.1", probe.getsockname()[1])
        line = [*command, "-l", address.host, "-p", str(address.port)]
        silent = subprocess.DEVNULL
        process = subprocess.Popen(line, stdin=silent, stdout=silent, stderr=silent, env=environment)
        stack.callback(_end, process)
        if _answers(process, address):
            return address
    pytest.fail(f"{' '.join(line)} exited with status {process.returncode}", pytrace=False)


def _command() -> list[str]:
    if importlib.util.find_spec("beanstalk_server") is not None:
        return [sys.executable, "-m", "beanstalk_server"]
    beanstalkd = shutil.which("beanstalkd")
    if beanstalkd is not None:
        text = f"the fixture beanstalk_server uses {beanstalkd}: install beanstalk-server to test its extensions"
        warnings.warn(text, pytest.PytestWarning, stacklevel=1)
        return [beanstalkd]
    pytest.fail(
        "no server for the fixture beanstalk_server: install beanstalk-server or beanstalkd, or give a running one "
        "with --beanstalk-address",
        pytrace=False,
    )


def _answers(process: subprocess.Popen[bytes], address: Address) -> bool:
    """Wait until this process answers at an address; return whether it does, and has not ended."""
    from beanstalk_client.blocking import Client

    end = time.monotonic() + START_WITHIN
    while process.poll() is None:
        with contextlib.suppress(OSError), Client(address) as client:
            if client.stats()["pid"] == process.pid:  # another process may have been faster to take the port
                return True
        if time.monotonic() > end:
            pytest.fail(f"no answer from {address} within {START_WITHIN:g} s", pytrace=False)
        time.sleep(0.01)
    return False


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(START_WITHIN)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


# Clients


@pytest.fixture
def beanstalk_tube(beanstalk_server: Address) -> Iterator[str]:
    """The name of a tube that only this test uses. Its jobs are deleted after the test."""
    name = f"test-{uuid.uuid4().hex}"
    yield name
    from beanstalk_client.blocking import Client

    with Client(beanstalk_server, encoding=None, use=name, watch=name) as client:
        _clear(client, name)


def _clear(client: Client[bytes], tube: str) -> None:
    """Delete the jobs of a tube, but for those that another connection has reserved."""
    from beanstalk_client.errors import NotFoundError

    if client.knows("clear-tube"):
        with contextlib.suppress(NotFoundError):  # there is no such tube: the test has put nothing
            client.clear_tube(tube)
        return
    for peek in (client.peek_ready, client.peek_delayed, client.peek_buried):
        with contextlib.suppress(NotFoundError):
            while True:
                client.delete(peek())


@pytest.fixture
def beanstalk(beanstalk_server: Address, beanstalk_tube: str) -> Iterator[Client[str]]:
    """A client that uses and watches `beanstalk_tube`; bodies are text."""
    from beanstalk_client.blocking import Client

    with Client(beanstalk_server, use=beanstalk_tube, watch=beanstalk_tube) as client:
        yield client


def _make_fixture() -> Callable[[Address, str], AsyncIterator[AsyncClient[str]]]:
    """A function of its own for each plugin, because pytest-asyncio marks the function that it is given."""

    async def connected(beanstalk_server: Address, beanstalk_tube: str) -> AsyncIterator[AsyncClient[str]]:
        from beanstalk_client.asynchronous import AsyncClient

        async with AsyncClient(beanstalk_server, use=beanstalk_tube, watch=beanstalk_tube) as client:
            yield client

    return connected


asyncio_fixture: Any = pytest.fixture
with contextlib.suppress(ImportError):  # in its strict mode, it runs only what its own decorator has made
    import pytest_asyncio

    asyncio_fixture = pytest_asyncio.fixture

_asyncio_beanstalk = asyncio_fixture(_make_fixture(), name="_asyncio_beanstalk")
_anyio_beanstalk = pytest.fixture(_make_fixture(), name="_anyio_beanstalk")


@pytest.fixture
def async_beanstalk(request: pytest.FixtureRequest) -> AsyncClient[str]:
    """A client for asyncio that uses and watches `beanstalk_tube`; bodies are text. It needs a plugin for coroutines:
    pytest-asyncio, or that of anyio. Each may be installed beside the other, and would take the other's fixture.
    """
    runner = "anyio" if "anyio_backend" in request.fixturenames else "asyncio"
    client: AsyncClient[str] = request.getfixturevalue(f"_{runner}_beanstalk")
    return client


# Tasks


@pytest.fixture(scope="session")
def beanstalk_tasks(request: pytest.FixtureRequest) -> Tasks:
    """The Tasks of the program under test. Name them in the ini file, or override this fixture."""
    app = request.config.getini("beanstalk_tasks")
    if not app:
        pytest.fail(
            "no Tasks object: set beanstalk_tasks = module:name in the ini file, or override the fixture "
            "beanstalk_tasks",
            pytrace=False,
        )
    from beanstalk_client.program import UsageError
    from beanstalk_client.worker.command import find_tasks

    try:
        return find_tasks(app)
    except UsageError as error:
        pytest.fail(f"beanstalk_tasks: {error}", pytrace=False)


@pytest.fixture
def tasks_in_memory(beanstalk_tasks: Tasks) -> Iterator[MemoryQueue]:
    """A queue in memory, into which the tasks of `beanstalk_tasks` are put; `advance` and `run` move its clock."""
    with beanstalk_tasks.in_memory() as queue:
        yield queue


@pytest.fixture
def run_tasks(tasks_in_memory: MemoryQueue) -> Callable[..., int]:
    """A function that runs what is due within this many seconds, and returns how many runs that were.

    It raises the first exception that a task raises in these runs; with raises=False, they are in
    `tasks_in_memory.errors`. In a coroutine, call `await tasks_in_memory.arun(…)` instead.
    """

    def run(seconds: Any = 0.0, *, raises: bool = True) -> int:
        before = len(tasks_in_memory.errors)
        runs = tasks_in_memory.run(seconds)
        if raises and len(tasks_in_memory.errors) > before:
            raise tasks_in_memory.errors[before]
        return runs

    return run


@pytest.fixture
def run_worker(beanstalk_server: Address, beanstalk_tasks: Tasks) -> Iterator[Callable[..., int]]:
    """A function that runs a worker until no job of `beanstalk_tasks` is ready and none runs, and returns the number of
    runs. Delayed jobs stay. The tasks are put to `beanstalk_server`, and their tubes are cleared after the test.

    It raises the first exception that a task raises, unless it is called with raises=False. In a coroutine, call
    `await asyncio.to_thread(run_worker)`.
    """
    import asyncio

    from beanstalk_client.blocking import Client
    from beanstalk_client.tasks import Middleware
    from beanstalk_client.worker.serving import Group, Worker

    errors: list[BaseException] = []

    class Errors(Middleware):
        def failed(self, run: Any, failure: Any) -> None:  # noqa: ARG002
            errors.append(failure.error)

    def run(*, raises: bool = True) -> int:
        errors.clear()
        worker = Worker(tasks, [Group(tuple(tasks.tubes), 1)], threads=1, burst=True)
        asyncio.run(worker.run())
        if raises and errors:
            raise errors[0]
        return worker.begun

    tasks = beanstalk_tasks
    addresses, watcher = tasks.addresses, Errors()
    tasks.close()
    tasks.addresses = beanstalk_server
    tasks.middleware.append(watcher)
    try:
        yield run
    finally:
        tasks.middleware.remove(watcher)
        tasks.close()
        tasks.addresses = addresses
        with Client(beanstalk_server, encoding=None) as client:
            for tube in tasks.tubes:
                for name in (tube, f"{tube}{tasks.errors or ''}"):
                    client.use(name)
                    _clear(client, name)
