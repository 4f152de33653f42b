"""Writes the data of one server into a directory of `data`; README.md has the commands.

    python tests/upgrades/write.py TO BINLOG_OR_ENGINE FEATURES COMMAND …

In the COMMAND, {port} is the server's port, {binlog} its directory, {url} that of the engine, and {links} another port.
"""

import contextlib
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from harness.engines import CLUSTER, Alone
from harness.postgres import Postgres
from harness.servers import accepts, unused_port
from harness.waiting import eventually
from tests.upgrades import dumps, jobs


class Program:
    """A server that a command starts, and a connection to it."""

    def __init__(self, command, places):
        self.port = unused_port()
        words = [word.format(port=self.port, links=unused_port(), **places) for word in command]
        self.process = subprocess.Popen(words, cwd="/", stdin=subprocess.DEVNULL)

    def __enter__(self):
        eventually(lambda: accepts(self.port), "the server listens")
        return jobs.Server(f"127.0.0.1:{self.port}")

    def __exit__(self, *error):
        self.process.terminate()
        self.process.wait()


def write(to, kind, features, command):
    to.mkdir()
    with contextlib.ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        directory = place / "binlog"
        directory.mkdir()
        places = {"binlog": directory}
        if kind != "binlog":
            engine = {"redis": Alone, "postgresql": Postgres}[kind](place / "engine", 0, ALONE[kind])
            stack.callback(engine.close)
            places["url"] = engine.url
        with Program(command, places) as server:
            jobs.put(server, features)
        if kind == "redis":
            (to / "redis.json").write_text(dumps.dump_redis(engine.primary()))
        elif kind == "postgresql":
            (to / "postgresql.sql").write_text(dumps.dump_postgresql(engine.primary(), CLUSTER))
        else:
            shutil.copytree(directory, to / "binlog", ignore=shutil.ignore_patterns("lock", "spare.*"))
        with Program(command, places) as server:
            (to / "told.json").write_text(jobs.as_text(jobs.tell(server)))


ALONE = {"redis": ["--appendfsync", "always"], "postgresql": {"synchronous_standby_names": ""}}
"""The settings of an engine without replicas."""

if __name__ == "__main__":
    write(Path(sys.argv[1]), sys.argv[2], sys.argv[3].split(), sys.argv[4:])
