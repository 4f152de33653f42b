"""Clients that others wrote, with this server and with beanstalkd: the programs in conformance/clients."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import missing

from conformance.servers import started
from harness.servers import BEANSTALKD

DIRECTORY = Path(__file__).parents[2] / "conformance" / "clients"


def command(name):
    if name != "jackd":
        return [sys.executable, str(DIRECTORY / f"with_{name}.py")]
    node = shutil.which("node")
    if node is None:
        missing("node", "nodejs.org")
    if not (DIRECTORY / "node_modules" / "jackd").exists():
        missing("jackd", f"make {DIRECTORY.relative_to(DIRECTORY.parents[1])}/node_modules")
    return [node, str(DIRECTORY / "with_jackd.mjs")]


@pytest.mark.parametrize("name", ["greenstalk", "pystalkd", "jackd"])
@pytest.mark.parametrize("program", ["ours", BEANSTALKD], indirect=True)
def test_a_client_that_others_wrote(name, program):
    arguments = command(name)
    with started(program) as server:
        done = subprocess.run([*arguments, *map(str, server.address)], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
