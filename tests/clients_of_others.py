"""Other people's clients, as programs: those in conformance/clients, each with what it needs."""

import shutil
import subprocess
import sys

from programs import missing

from conformance.compare.servers import started
from harness.servers import ROOT

DIRECTORY = ROOT / "conformance" / "clients"

RUNS_WITHIN = 120
"""Seconds that a client may take: many times as long as usual."""


def python(name):
    return [sys.executable, DIRECTORY / f"with_{name}.py"]


def jackd():
    node = shutil.which("node")
    if node is None:
        missing("node", "nodejs.org")
    if not (DIRECTORY / "node_modules" / "jackd").exists():
        missing("jackd", "make conformance/clients/node_modules")
    return [node, DIRECTORY / "with_jackd.mjs"]


def of_debian(interpreter, load, package, program):
    """The command of a client from Debian; skips the test without it."""
    if (
        not shutil.which(interpreter)
        or subprocess.run([interpreter, *load], capture_output=True, check=False).returncode
    ):
        missing(package, f"Debian: apt-get install {package}")
    return [interpreter, DIRECTORY / program]


COMMANDS = {
    "greenstalk": lambda: python("greenstalk"),
    "pystalkd": lambda: python("pystalkd"),
    "jackd": jackd,
    "pheanstalk": lambda: of_debian(
        "php", ["-r", "require 'Pheanstalk/autoload.php';"], "php-pda-pheanstalk", "with_pheanstalk.php"
    ),
    "beaneater": lambda: of_debian("ruby", ["-e", "require 'beaneater'"], "ruby-beaneater", "with_beaneater.rb"),
}


def talk_to(program, name, options=()):
    """Let a client do all that it can with a server that is started for it."""
    with started(program, options) as server:
        tell(name, server.address)


def tell(name, address, *stories):
    """Let a client tell its ordinary stories, or others, to a server."""
    command = [*COMMANDS[name](), *map(str, address), *stories]
    done = subprocess.run(command, capture_output=True, text=True, timeout=RUNS_WITHIN, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
