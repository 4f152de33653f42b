"""Which package the tests run on, which tests those are, and what a test may not do.

`--package` says which package: the sources as they are (the default), or the installed package, which must be compiled
or must not be. Tests that run on anything else prove nothing, so pytest stops before the first of them. A worker of
pytest-xdist may have a package of its own, in the environment variable TEST_PACKAGE: then one run has tests on both
(tests/pool.py), and each test runs on the package that it belongs to (tests/selection.py).
"""

import asyncio
import contextlib
import gc
import inspect
import os
import resource
import signal
import sys
from pathlib import Path

import pytest
from effort import PROFILES
from hypothesis import settings
from programs import skipping
from selection import opens_sockets, runs_on

ROOT = Path(__file__).parents[1]

PACKAGES = {
    "sources": "the sources, interpreted",
    "compiled": "the installed package, compiled",
    "pure": "the installed package, interpreted",
}
CPU_SECONDS = 3.0  # a test that uses more is marked `slow`
CPU_LIMIT = 10.0  # what --cpu-limit lets pass: a busy machine needs up to three times as much for the same

# No deadline, because machines are shared.
for name, number in PROFILES.items():
    settings.register_profile(name, deadline=None, max_examples=number)
settings.load_profile("ci")

# What a shell without job control starts in the background ignores SIGINT, and so would the servers and tools that the
# tests start. A handler that does nothing is not inherited.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, lambda *_: None)


def pytest_addoption(parser, pluginmanager):
    meanings = "; ".join(f"{name}: {meaning}" for name, meaning in PACKAGES.items())
    parser.addoption("--package", choices=PACKAGES, default="sources", help=f"what the tests run on ({meanings})")
    parser.addoption("--everything", action="store_true", help="run all tests on the installed package, in a pool")
    parser.addoption("--seed", type=int, help="the order in which files are given out; default: as collected")
    parser.addoption("--minutes", type=float, help="how long files are given out; default: until there are no more")
    parser.addoption("--cpu-limit", action="store_true", help="fail if an unmarked test uses far too much CPU time")
    parser.addoption("--kills", type=int, default=3, help="how often tests/cluster/test_kills.py kills in each way")
    parser.addoption(
        "--pictures", help="where tests/client/test_console_browser.py puts the pictures of docs/console.md"
    )
    # At once: the other conftest.py files, which import the package, are read before the options are.
    given = pluginmanager.get_plugin("pytestconfig").invocation_params.args
    if os.environ.get("TEST_PACKAGE", parser.parse_known_args(given).package) != "sources":
        sources = [ROOT, ROOT / "client"]
        installed = [path for path in sys.path if Path(path or os.getcwd()) not in sources]
        sys.path = [*installed, *map(str, sources)]


def found_package():
    """The package that this process has imported, in the words of PACKAGES."""
    from beanstalk_server.wire import session

    path = Path(session.__file__)
    compiled = path.suffix != ".py"
    place = "the sources" if path.parents[2] == ROOT else "the installed package"
    return f"{place}, {'compiled' if compiled else 'interpreted'}", path.parents[2]


def pytest_configure(config):
    if config.getoption("tx", None) and "PYTEST_XDIST_WORKER" not in os.environ:
        config.pluginmanager.register(Pooled(config))  # the workers have packages, not this process
        return
    asked = PACKAGES[os.environ.get("TEST_PACKAGE", config.getoption("package"))]
    found, path = found_package()
    if found != asked:
        raise pytest.UsageError(f"--package asks for {asked}; what is imported is {found} (from {path})")


def pytest_report_header():
    return "beanstalk_server: {}, from {}".format(*found_package())


# ------------------------------------------------------------------------------------------- which tests there are


def marks_of(item):
    return {mark.name for mark in item.iter_markers()}


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Leave what is collected to no garbage collection, here or in a test: there are a million objects of it."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(tryfirst=True)  # before -m is looked at
def pytest_collection_modifyitems(config, items):
    for item in items:
        if opens_sockets(item.nodeid):
            item.add_marker(pytest.mark.sockets)
    pooled = os.environ.get("TEST_PACKAGE")
    package = pooled or config.getoption("package")
    everything = config.getoption("everything")
    left_out = [item for item in items if not runs_on(package, marks_of(item), pooled, everything)]
    if left_out:
        items[:] = [item for item in items if item not in set(left_out)]
        config.hook.pytest_deselected(items=left_out)


# ------------------------------------------------------------------------------------------- what a test may not do

_without_sockets = None  # the test that runs, if it is not marked `sockets`
FORBIDDEN = ("socket.connect", "socket.bind", "subprocess.Popen", "os.fork", "os.posix_spawn")


def _look(event, _):
    if _without_sockets is not None and event in FORBIDDEN:
        raise RuntimeError(f"{event} in {_without_sockets}, which is not marked `sockets` (tests/selection.py)")


sys.addaudithook(_look)


def _cpu_seconds():
    return sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    global _without_sockets
    _without_sockets = None if item.get_closest_marker("sockets") else item.nodeid
    item.stash[_BEGAN] = _cpu_seconds()
    try:
        return (yield)
    finally:
        _without_sockets = None


_BEGAN = pytest.StashKey[float]()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_makereport(item, call):
    if call.when == "teardown" and not item.get_closest_marker("slow"):
        used = _cpu_seconds() - item.stash[_BEGAN]
        if used > CPU_SECONDS:
            item.user_properties.append(("cpu_seconds", used))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup():
    return (yield from skipping())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call():
    return (yield from skipping())


async def _run_coroutine(test, given):
    async with contextlib.AsyncExitStack() as stack:
        for name, value in given.items():
            if isinstance(value, contextlib._AsyncGeneratorContextManager):
                given[name] = await stack.enter_async_context(value)
        await test(**given)


def pytest_pyfunc_call(pyfuncitem):
    """Run a test that is a coroutine function in an event loop of its own: that of `loop_factory`, if it uses it.

    A fixture may be an async generator with `asynccontextmanager`: it runs in the event loop, around the test.
    """
    if inspect.iscoroutinefunction(pyfuncitem.obj):
        given = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
        with asyncio.Runner(loop_factory=pyfuncitem.funcargs.get("loop_factory")) as runner:
            runner.run(_run_coroutine(pyfuncitem.obj, given))
        return True
    return None


class Pooled:
    """The run of a pool, in the process that gives out the tests: its scheduler, and what is told at its end."""

    def __init__(self, config):
        self.config, self.pool, self.greedy = config, None, {}

    @pytest.hookimpl
    def pytest_sessionstart(self, session):
        self.session = session

    @pytest.hookimpl
    def pytest_xdist_make_scheduler(self, config, log):
        from pool import Pool

        minutes = config.getoption("minutes")
        self.pool = Pool(config, log, config.getoption("seed"), None if minutes is None else minutes * 60)
        return self.pool

    @pytest.hookimpl
    def pytest_runtest_logreport(self, report):
        self.session.testscollected = self.pool.number  # pytest-xdist has counted those of one worker
        if report.when == "teardown" and "cpu_seconds" in dict(report.user_properties):
            self.greedy[report.nodeid] = dict(report.user_properties)["cpu_seconds"]

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session):
        if session.exitstatus == 0 and (self.pool is None or self.pool.never_run() != []):
            session.exitstatus = pytest.ExitCode.INTERNAL_ERROR  # workers have ended before their tests
        if session.exitstatus == 0 and len(self.pool.left_out) == self.pool.number:
            session.exitstatus = pytest.ExitCode.NO_TESTS_COLLECTED
        most = max(self.greedy.values(), default=0.0)
        if most > CPU_LIMIT and self.config.getoption("cpu_limit") and session.exitstatus == 0:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    @pytest.hookimpl
    def pytest_terminal_summary(self, terminalreporter):
        for nodeid, seconds in sorted(self.greedy.items()):
            terminalreporter.write_line(
                f"{nodeid} used {seconds:.1f} s of CPU time: mark it `slow`, or make it cheaper"
            )
        if self.pool is not None and self.pool.never_run() is None:
            terminalreporter.write_line("no test was run: not all workers could collect their tests")
        for nodeid in (self.pool is not None and self.pool.never_run()) or []:
            terminalreporter.write_line(f"{nodeid} was not run: its worker ended before it did")
        if self.pool is not None and self.pool.left_out:
            files = sorted({nodeid.split("::")[0] for nodeid in self.pool.left_out})
            terminalreporter.write_line(
                f"time was over: left out {len(self.pool.left_out)} tests of {len(files)} files:"
            )
            for file in files:
                terminalreporter.write_line(f"    {file}")
