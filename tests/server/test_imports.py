"""What is imported, and when: a start costs little more than the event loop."""

import json
import subprocess
import sys

import pytest

from harness.servers import environment_of, imported

EVENT_LOOP = {"asyncio", "uvloop"}
OF_ACCESS = {
    "beanstalk_server.access.accounts",
    "beanstalk_server.settings.rules",
    "beanstalk_server.server.front.pending",
    "beanstalk_server.server.front.proxy_header",
    "beanstalk_server.server.reload",
    "beanstalk_server.server.front.tls",
    "ipaddress",
    "tomllib",
}
OF_OPERATORS = {"h11", "beanstalk_server.admin"}
OF_THE_BINLOG = {"beanstalk_server.storage.binlog", "crc32c", "secrets", "tqdm"}
SCRIPT = """
import json, sys
before = set(sys.modules)
{}
print(json.dumps(sorted(set(sys.modules) - before)))
"""


def imports(work):
    """The modules that Python imports for this work."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", SCRIPT.format(work)],
        env=environment_of(imported()),
        stdout=subprocess.PIPE,
        timeout=60,
        check=True,
    )
    return set(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["--bogus"], ["binlog", "verify", "/nowhere"]])
def test_commands_without_an_event_loop_do_not_import_one(arguments):
    assert not imports(f"from beanstalk_server.cli.server import main; main({arguments})") & EVENT_LOOP


def test_a_server_without_a_binlog_imports_no_binlog():
    modules = imports("import beanstalk_server.cli.process as p; p.server_of(p.Config(port=0))")
    assert modules >= EVENT_LOOP
    assert not modules & (OF_THE_BINLOG | {"argparse", "ctypes"})


def test_a_server_that_lets_everybody_in_imports_nothing_that_knows_users():
    modules = imports(
        "import asyncio, beanstalk_server as b\nasync def main():\n    async with b.Server(b.Config(port=0)): pass\n"
        "asyncio.run(main())"
    )
    assert "beanstalk_server.server.front.listener_policy" in modules
    assert not modules & OF_ACCESS


@pytest.mark.parametrize("settings", ["port=0", "port=0, binlog='.'"])
def test_a_server_without_http_imports_nothing_for_operators(settings, tmp_path):
    modules = imports(
        f"import asyncio, os, beanstalk_server as b\nos.chdir({str(tmp_path)!r})\nasync def main():\n"
        f"    async with b.Server(b.Config({settings})): pass\nasyncio.run(main())"
    )
    assert "beanstalk_server.server.server" in modules
    assert not modules & OF_OPERATORS
    assert not [module for module in modules if ".admin" in module or "http" in module]


def test_a_server_alone_imports_nothing_of_a_cluster_also_with_http():
    modules = imports(
        "import asyncio, beanstalk_server as b\n"
        "async def main():\n"
        "    async with b.Server(b.Config(port=0, http='127.0.0.1:0')) as server: server._http.scrapes\n"
        "asyncio.run(main())"
    )
    assert "beanstalk_server.server.figures" in modules
    assert not [module for module in modules if ".cluster" in module or module.split(".")[0] == "redis"]
    assert "beanstalk_client" not in modules


@pytest.mark.parametrize(
    ("url", "other"), [("redis://h", {"psycopg", "postgresql"}), ("postgresql://h/queue", {"redis", "resp"})]
)
def test_a_cluster_imports_one_kind_of_engine(url, other):
    modules = imports(f"from beanstalk_server.cluster.engine.choice import connect_to; connect_to({url!r}, 'x', 1)")
    assert not other & {part for module in modules for part in module.split(".")}


def test_the_package_imports_the_server_when_it_is_asked_for():
    assert not imports("import beanstalk_server; beanstalk_server.Config()") & EVENT_LOOP
    assert "asyncio" in imports("from beanstalk_server import Server, StartError")
    with pytest.raises(ImportError):
        from beanstalk_server import Nothing  # noqa: F401
