"""A PostgreSQL of its own for tests, in a temporary directory."""

import contextlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import psycopg
import pytest

from harness.servers import unused_port
from harness.waiting import eventually

_OPTIONS = ["-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories=", "-c", "fsync=off"]


def _as_user(*words):
    """A command line that runs as a user which PostgreSQL does not refuse."""
    if os.geteuid():
        return [str(word) for word in words]
    return ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups", *map(str, words)]


@contextlib.contextmanager
def postgres():
    """Run a server; yield its port. The database and the user are `postgres`, without a password."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    if not found:
        pytest.skip("postgresql is not installed")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory:
        if not os.geteuid():
            shutil.chown(directory, "postgres", "postgres")
        data, port = Path(directory) / "data", unused_port()
        initdb = _as_user(found[-1] / "initdb", "-D", data, "-U", "postgres", "-A", "trust", "--no-sync")
        subprocess.run(initdb, check=True, capture_output=True, cwd="/")
        line = _as_user(found[-1] / "postgres", "-D", data, "-p", port, *_OPTIONS)
        server = subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd="/")
        try:

            def answers():
                with contextlib.suppress(psycopg.OperationalError):
                    psycopg.connect(f"host=127.0.0.1 port={port} user=postgres").close()
                    return True
                return False

            eventually(answers, "PostgreSQL accepts connections")
            yield port
        finally:
            server.terminate()
            server.wait(60)
