"""`python -m beanstalk_client.outbox`: its options and errors, and the program with a database and a server."""

import subprocess
import sys

import pytest
import sqlalchemy
from beanstalk_client import Client
from beanstalk_client.outbox.command import main
from beanstalk_client.outbox.sqlalchemy import Outbox, outbox_table

from harness.servers import ROOT
from harness.waiting import eventually

JOBS = """
from beanstalk_client.tasks import Tasks
tasks = Tasks("beanstalk://127.0.0.1:{port}")
"""


class Shop:
    """A program in a directory, with a database."""

    def __init__(self, directory, port):
        (directory / "outbox_jobs.py").write_text(JOBS.format(port=port))
        self.directory = directory
        self.url = f"sqlite:///{directory}/shop.db"
        self.engine = sqlalchemy.create_engine(self.url)
        metadata = sqlalchemy.MetaData()
        self.rows = outbox_table(metadata)
        metadata.create_all(self.engine)

    def put(self, *bodies):
        outbox = Outbox()
        with self.engine.begin() as connection, outbox.using(connection):
            for body in bodies:
                outbox.client("mail").put(body)

    def run(self, *options, monkeypatch):
        monkeypatch.chdir(self.directory)
        monkeypatch.delitem(sys.modules, "outbox_jobs", raising=False)
        monkeypatch.syspath_prepend(str(self.directory))
        return main([self.url, "outbox_jobs:tasks", *options])


@pytest.fixture
def shop(tmp_path, run):
    shop = Shop(tmp_path, run().address[1])
    yield shop
    shop.engine.dispose()


def test_sends_what_waits(shop, monkeypatch, capsys):
    shop.put(b"a", b"b")
    assert shop.run("--status", monkeypatch=monkeypatch) == 0
    assert capsys.readouterr().out.startswith("2 rows waiting, the oldest for 0.")
    assert shop.run("--once", monkeypatch=monkeypatch) == 0
    with Client(f"127.0.0.1:{port_of(shop)}", watch="mail", encoding=None) as queue:
        assert [queue.reserve(0).body, queue.reserve(0).body] == [b"a", b"b"]


def port_of(shop):
    return int((shop.directory / "outbox_jobs.py").read_text().partition("127.0.0.1:")[2].partition('"')[0])


def test_retries_failed_rows(shop, monkeypatch, capsys):
    shop.put(b"a")
    with shop.engine.begin() as connection:
        connection.execute(shop.rows.update().values(failed="JobTooBigError"))
    assert shop.run("--retry-failed", monkeypatch=monkeypatch) == 0
    assert capsys.readouterr().out == "1 failed row will be sent again\n"


def test_runs_until_a_signal(shop):
    shop.put(b"a")
    line = [sys.executable, "-m", "beanstalk_client.outbox", "$SHOP_DATABASE", "outbox_jobs:tasks", "--poll", "0.01"]
    environment = {"SHOP_DATABASE": shop.url, "PYTHONPATH": str(ROOT / "client")}
    relay = subprocess.Popen(line, cwd=shop.directory, env=environment, stderr=subprocess.PIPE, text=True)
    try:
        with shop.engine.connect() as connection:
            counted = sqlalchemy.select(sqlalchemy.func.count()).select_from(shop.rows)
            eventually(lambda: connection.execute(counted).scalar() == 0, "the row is sent")
    finally:
        relay.terminate()
        _, errors = relay.communicate(timeout=60)
    assert (relay.returncode, errors) == (0, "")


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("nonsense", "DATABASE_URL: "),
        ("nosuch://x", "DATABASE_URL: "),
        ("$NOWHERE_AT_ALL", "no variable NOWHERE_AT_ALL"),
        ("oracle+oracledb://x", "DATABASE_URL: "),
        ("postgresql://u:p@ss:secret@h:abc/x", "DATABASE_URL: must be an SQLAlchemy URL\n"),
    ],
)
def test_a_bad_url_is_a_usage_error(shop, monkeypatch, capsys, url, told):
    shop.url = url
    assert shop.run("--status", monkeypatch=monkeypatch) == 2
    assert told in capsys.readouterr().err


def test_a_database_that_fails_is_told_in_one_line(shop, monkeypatch, capsys):
    shop.url = f"sqlite:///{shop.directory}/other.db"
    assert shop.run("--once", monkeypatch=monkeypatch) == 1
    assert (
        "the database: OperationalError: (sqlite3.OperationalError) no such table: beanstalk_outbox\n"
        in capsys.readouterr().err
    )
