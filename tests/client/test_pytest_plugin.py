"""The fixtures of `beanstalk_client.pytest_plugin`, in runs of pytest as users have them."""

import os
import re
import shutil
import tomllib

import pytest
from beanstalk_client import Client

from harness.servers import BEANSTALKD, OURS, ROOT, environment_of, imported, start

pytest_plugins = ["pytester"]

ANYIO = "anyio.pytest_plugin"
ASYNCIO = "pytest_asyncio.plugin"

SHOP = """
from beanstalk_client import Tasks

tasks = Tasks("127.0.0.1:1")
cancelled = []


@tasks.task
def cancel_order(number):
    if number == 13:
        raise ValueError("13 is not cancelled")
    cancelled.append(number)
"""


@pytest.fixture
def run(pytester, monkeypatch):
    """Run pytest on a test file; return what became of it."""
    for name, value in environment_of(imported()).items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("TEST_PACKAGE", raising=False)
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")

    def run(content, *options, ini="", path=None, others=()):
        pytester.makeini(f"[pytest]\n{ini}")
        if content is not None:
            pytester.makepyfile(shop=SHOP, test_it=content)
        if path is not None:
            monkeypatch.setenv("PATH", str(path))
        plugins = [f"-p{name}" for name in ("beanstalk_client.pytest_plugin", *others)]  # as entry points do
        return pytester.runpytest_subprocess(*plugins, *options)

    return run


def passed(result, number):
    result.assert_outcomes(passed=number)


BLOCKING = """
from beanstalk_client import Client

names = set()

def test_jobs_are_put_and_reserved_in_a_tube_of_the_test(beanstalk, beanstalk_tube, beanstalk_server):
    beanstalk.put("hello", delay=0)
    beanstalk.put("later", delay=900)
    with Client(beanstalk_server) as other:
        assert beanstalk_tube in other.tubes()
    assert beanstalk.reserve(timeout=0).body == "hello"
    names.add(beanstalk_tube)

def test_the_next_test_has_another_one(beanstalk, beanstalk_tube, beanstalk_server):
    names.add(beanstalk_tube)
    assert len(names) == 2
    with Client(str(beanstalk_server)) as other:
        assert [name for name in other.tubes() if name in names] == [beanstalk_tube]
"""


@pytest.mark.slow
def test_processes_of_a_parallel_run_have_a_server_each(run):
    content = """
import pytest

@pytest.mark.parametrize("number", range(8))
def test_ids_begin_at_one(beanstalk_server, beanstalk, number):
    beanstalk.put("x")
    with open(f"server-{beanstalk_server.port}", "a") as file:
        file.write("x")
"""
    passed(run(content, "-n", "2", others=["xdist.plugin"]), 8)
    assert len([name for name in os.listdir() if name.startswith("server-")]) == 2


@pytest.mark.skipif(shutil.which("beanstalkd") is None, reason="beanstalkd is not installed")
def test_beanstalkd_is_started_where_our_server_is_not_installed(run):
    hidden = """
import importlib.util
find_spec = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == "beanstalk_server" else find_spec(name, *rest)
"""
    content = BLOCKING + "\ndef test_it_is_beanstalkd(beanstalk):\n    assert not beanstalk.knows('put-with')\n"
    result = run(hidden + content)
    passed(result, 3)
    result.stdout.fnmatch_lines(["*install beanstalk-server to test its extensions"])


def test_without_any_server_the_error_says_what_to_install(run, tmp_path):
    hidden = "import importlib.util\nimportlib.util.find_spec = lambda *_: None\n"
    result = run(hidden + "def test_it(beanstalk): ...\n", path=tmp_path)
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(
        ["*install beanstalk-server or beanstalkd, or give a running one with --beanstalk-addr*"]
    )


@pytest.mark.parametrize("program", [OURS, BEANSTALKD])
def test_a_server_that_runs_can_be_named_and_keeps_no_job_of_the_tests(run, program):
    server = start(imported() if program == OURS else program)
    try:
        host, port = server.address
        passed(run(BLOCKING, "--beanstalk-address", f"{host}:{port}"), 2)
        with Client(server.address) as client:
            assert client.tubes() == ["default"]
    finally:
        server.stop()


COROUTINE = """
import asyncio
import pytest

@pytest.mark.{plugin}
async def test_commands_are_awaited(async_beanstalk, beanstalk_tube):
    await async_beanstalk.put("hello")
    job = await async_beanstalk.reserve(timeout=0)
    assert job.body == "hello"
    assert (await async_beanstalk.stats_tube(beanstalk_tube))["current-jobs-reserved"] == 1
"""


def test_each_test_has_clients_with_a_tube_of_its_own_also_with_pytest_asyncio(run):
    passed(run(BLOCKING + COROUTINE.format(plugin="asyncio"), others=[ASYNCIO]), 3)


@pytest.mark.parametrize("others", [[ANYIO], [ANYIO, ASYNCIO]], ids=["alone", "beside pytest-asyncio"])
def test_the_asynchronous_client_works_with_anyio(run, others):
    backend = "@pytest.fixture\ndef anyio_backend():\n    return 'asyncio'\n"
    passed(run(COROUTINE.format(plugin="anyio") + backend, others=others), 1)


MEMORY = """
import pytest
import shop

def test_an_order_is_cancelled_when_it_is_due(tasks_in_memory, run_tasks):
    shop.cancel_order.key("order-17").delay("15m").put(17)
    assert run_tasks(899) == 0
    assert run_tasks(1) == 1
    assert shop.cancelled == [17]

def test_a_paid_order_is_not(tasks_in_memory, run_tasks):
    shop.cancel_order.key("order-18").delay("15m").put(18)
    assert shop.cancel_order.cancel("order-18")
    assert run_tasks("1h") == 0

def test_an_exception_of_a_task_is_raised(tasks_in_memory, run_tasks):
    shop.cancel_order.put(13)
    with pytest.raises(ValueError, match="13 is not cancelled"):
        run_tasks()
    shop.cancel_order.put(13)
    assert run_tasks(raises=False) == 1
"""


def test_tasks_run_in_memory_and_the_test_moves_the_clock(run):
    passed(run(MEMORY, ini="beanstalk_tasks = shop:tasks"), 3)


WORKER = """
import pytest
import shop

def test_orders_are_cancelled(run_worker):
    for number in (17, 18):
        shop.cancel_order.put(number)
    assert run_worker() == 2
    assert shop.cancelled == [17, 18]
    assert run_worker() == 0

def test_an_exception_of_a_task_is_raised(run_worker):
    shop.cancel_order.put(13)
    with pytest.raises(ValueError, match="13 is not cancelled"):
        run_worker()
    shop.cancel_order.put(13)
    assert run_worker(raises=False) == 1

def test_the_jobs_of_other_tests_are_gone(run_worker, beanstalk):
    assert beanstalk.stats_tube("default")["current-jobs-delayed"] == 0
    assert str(shop.tasks.addresses) != "127.0.0.1:1"
"""


def test_a_worker_runs_until_the_queue_is_empty(run):
    passed(run(WORKER, ini="beanstalk_tasks = shop:tasks"), 3)


@pytest.mark.parametrize(
    ("ini", "said"),
    [
        ("", "*beanstalk_tasks = module:name in the ini file*"),
        ("beanstalk_tasks = shop:cancelled", "*beanstalk_tasks: shop:cancelled is a* not a Tasks object*"),
    ],
)
def test_tasks_that_are_not_found_are_an_error(run, ini, said):
    result = run("def test_it(tasks_in_memory): ...\n", ini=ini)
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines([said])


def test_pytest_finds_the_plugin_by_its_entry_point():
    project = tomllib.loads((ROOT / "client" / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["pytest11"] == {"beanstalk": "beanstalk_client.pytest_plugin"}


PAGE = (ROOT / "docs" / "testing.md").read_text()


def test_the_listings_of_the_page_run(run, pytester):
    for name, text in re.findall(r"```python\n# (\w+\.py)\n(.*?)```", PAGE, re.DOTALL):
        (pytester.path / name).write_text(text)
    (ini,) = re.findall(r"```ini\n\[pytest\]\n(.*?)```", PAGE, re.DOTALL)
    passed(run(None, ini=ini), 5)


def test_the_server_takes_no_options_of_another_one_from_the_environment(run, monkeypatch, tmp_path):
    monkeypatch.setenv("BEANSTALK_SERVER_BINLOG", str(tmp_path))
    passed(run("def test_it(beanstalk): assert beanstalk.put('x')"), 1)
    assert list(tmp_path.iterdir()) == []
