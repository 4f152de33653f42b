"""Relays, the server and the database of an outbox are killed under load: each committed row becomes one job.

`pytest -m slow -rP --kills 1000 tests/client/test_outbox_kills.py` kills this many times, and prints what it has found.
"""

import contextlib
import math
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict

import pytest
import sqlalchemy
from beanstalk_client import Client
from beanstalk_client.errors import Error, TimedOutError
from beanstalk_client.outbox.sqlalchemy import Outbox, outbox_table
from beanstalk_client.tasks import Tasks
from sqlalchemy.exc import DBAPIError

from harness.postgres import single_postgres
from harness.servers import ROOT, Restartable, command, imported, unused_port
from harness.waiting import eventually

pytestmark = pytest.mark.slow

PRODUCERS = 3
RELAYS = 3
WITHIN = 60.0

JOBS = """
from beanstalk_client.tasks import Tasks
tasks = Tasks("beanstalk://127.0.0.1:{port}")
"""


class Killed:
    """A shop with an outbox, relays and a worker."""

    def __init__(self, directory, database, seed):
        self.rng = random.Random(seed)
        self.directory, self.database = directory, database
        self.url = f"postgresql+psycopg://postgres@127.0.0.1:{database.port}/postgres"
        program, port = imported(), unused_port()
        line = [*command(program), "-l", "127.0.0.1", "-p", str(port), "-b", str(directory / "binlog"), "-f0"]
        (directory / "binlog").mkdir()
        self.server = Restartable(program, line, port, address=("127.0.0.1", port))
        (directory / "outbox_jobs.py").write_text(JOBS.format(port=port))
        metadata = sqlalchemy.MetaData()
        self.rows = outbox_table(metadata)
        self.engine = sqlalchemy.create_engine(self.url, pool_pre_ping=True)
        metadata.create_all(self.engine)
        self.relays = [self.relay() for _ in range(RELAYS)]
        self.is_over = threading.Event()
        self.committed, self.unknown, self.undone = set(), set(), set()
        self.jobs = defaultdict(set)  # by what was put: the ids of its jobs

    def relay(self):
        line = [sys.executable, "-m", "beanstalk_client.outbox", "$SHOP", "outbox_jobs:tasks", "--poll", "0.05"]
        environment = os.environ | {"SHOP": self.url, "PYTHONPATH": f"{ROOT / 'client'}:{self.directory}"}
        return subprocess.Popen(line, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def produce(self, number):
        outbox = Outbox()
        put = Tasks(outbox=outbox).task(name="shop.note", tube="shop")(lambda what: what)
        rng = random.Random(number)
        count = 0
        while not self.is_over.is_set():
            names = []
            is_committing = False
            try:
                with self.engine.connect() as connection, outbox.using(connection):
                    for _ in range(rng.choice((1, 1, 5))):
                        count += 1
                        names.append(f"{number}.{count}")
                        call = put.key(f"{number}.{count}") if rng.random() < 0.5 else put
                        call.put(names[-1])
                    if rng.random() < 0.3:
                        connection.rollback()
                        self.undone.update(names)
                        continue
                    is_committing = True
                    connection.commit()
                    self.committed.update(names)
            except DBAPIError:
                (self.unknown if is_committing else self.undone).update(names)
                self.is_over.wait(0.05)
            self.is_over.wait(rng.random() * 0.01)

    def work(self):
        """Take all jobs, and delete them."""
        while not (self.is_over.is_set() and not self.left):
            with contextlib.suppress(Error, OSError), Client(self.server.address, watch="shop", encoding=None) as queue:
                while True:
                    try:
                        job = queue.reserve(0.2)
                    except TimedOutError:
                        break
                    self.jobs[job.body.partition(b'"args":["')[2].partition(b'"')[0].decode()].add(job.id)
                    queue.delete(job)

    @property
    def left(self):
        """How many rows are not sent, and how many jobs are not taken; infinite if that cannot be asked now."""
        with contextlib.suppress(DBAPIError, Error, OSError):
            with self.engine.connect() as connection:
                count = sqlalchemy.select(sqlalchemy.func.count()).select_from(self.rows)
                rows = connection.execute(count).scalar()
            with Client(self.server.address) as queue:
                found = queue.stats_tube("shop")
                return rows + found["current-jobs-ready"] + found["current-jobs-reserved"]
        return math.inf

    def kill(self):
        """Kill a relay, the server or the database, and start it again; return which."""
        what = self.rng.choice(("relay", "relay", "relay", "relay", "server", "server", "database"))
        if what == "relay":
            number = self.rng.randrange(RELAYS)
            self.relays[number].kill()
            self.relays[number].wait()
            self.relays[number] = self.relay()
        else:
            victim = self.server if what == "server" else self.database
            victim.kill()
            eventually(lambda: _started(victim), f"the {what} starts again", WITHIN)
        return what

    def close(self):
        self.is_over.set()
        for relay in self.relays:
            relay.send_signal(signal.SIGKILL)
            relay.wait()
        self.server.kill()
        self.engine.dispose()


def _started(server):
    with contextlib.suppress(Exception):
        server.start()
        return True
    return False


def test_each_committed_row_becomes_one_job(tmp_path, request):
    times = request.config.getoption("kills")
    began = time.monotonic()
    kinds = Counter()
    with single_postgres(fsync="on") as database:
        shop = Killed(tmp_path, database, times)
        try:
            threads = [threading.Thread(target=shop.produce, args=[number]) for number in range(PRODUCERS)]
            worker = threading.Thread(target=shop.work)
            for thread in [*threads, worker]:
                thread.start()
            for _ in range(times):
                time.sleep(shop.rng.uniform(0.05, 0.5))  # real time: so long the load goes on
                kinds[shop.kill()] += 1
            shop.is_over.set()
            for thread in threads:
                thread.join(WITHIN)
            left = shop.left
            while left:  # as long as they become fewer
                before = left
                eventually(
                    lambda before=before: shop.left < before, f"fewer than {before} rows and jobs are left", WITHIN
                )
                left = shop.left
            worker.join(WITHIN)
        finally:
            shop.close()
    found = set(shop.jobs)
    doubled = {name: ids for name, ids in shop.jobs.items() if len(ids) > 1}
    print(
        f"killed {times} times ({', '.join(f'{count} × {kind}' for kind, count in kinds.items())}): "
        f"{len(shop.committed):,} jobs committed, {len(shop.undone):,} rolled back, {len(shop.unknown):,} unknown; "
        f"{len(shop.committed - found)} lost, {len(doubled)} doubled, {len(found & shop.undone)} of a rollback "
        f"({time.monotonic() - began:.0f} s)"
    )
    assert len(shop.committed) > 5 * times
    assert not shop.committed - found
    assert not doubled
    assert not found & shop.undone
