"""The listings of docs/coming-from.md run, with a server and a worker."""

import pytest
from listings import Program

from harness import servers
from harness.servers import ROOT

pytestmark = pytest.mark.slow

PAGE = ROOT / "docs" / "coming-from.md"


@pytest.fixture
def address():
    process = servers.start(servers.imported())
    yield process.address
    process.stop()


def test_greenstalk(tmp_path, address):
    assert Program(PAGE, "greenstalk", tmp_path, address).run("producer.py") == "hello\n"


def test_rq(tmp_path, address):
    program = Program(PAGE, "RQ", tmp_path, address)
    assert program.run("order.py") == "nobody is reminded of order 17\n"
    until = {"order 16 is not paid"}
    log = program.work("-m", "beanstalk_client.worker", "shop:tasks", "--at-once", "10", until=until)
    assert "order 17" not in log


def test_a_sorted_set(tmp_path, address):
    program = Program(PAGE, "A Redis sorted set, and libraries around one", tmp_path, address)
    assert program.run("delays.py").splitlines() == ["True", "called off, and nobody ever gets it", "1", "order-18"]
