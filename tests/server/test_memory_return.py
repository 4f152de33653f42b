"""The memory of a backlog returns to the system when its jobs are gone, and what remains is intact."""

import re

import pytest

from beanstalk_server.server import memory_return
from harness.caller import Caller
from harness.waiting import eventually

COUNT = 15_000
SIZE = 4_000
KEPT = 500
"""One job in this many stays."""

needs_glibc = pytest.mark.skipif(not memory_return.has_glibc(), reason="only glibc keeps free memory")


def resident(pid):
    """Bytes of memory that a process has."""
    with open(f"/proc/{pid}/status") as file:
        return int(re.search(r"VmRSS:\s+(\d+)", file.read())[1]) << 10


def ask(caller, requests, reply):
    """Send requests in pieces; every reply begins like this."""
    for start in range(0, len(requests), 100):
        piece = requests[start : start + 100]
        caller.send(b"".join(piece))
        for _ in piece:
            assert caller.line().startswith(reply)


def body(number):
    return b"%d " % number * (SIZE // len(b"%d " % number))


@needs_glibc
def test_the_memory_of_a_backlog_is_returned_and_the_other_jobs_are_intact(launch):
    process = launch("-p", "0")
    caller = Caller(process.address)
    before = resident(process.pid)
    bodies = [body(number) for number in range(1, COUNT + 1)]
    ask(caller, [b"put 0 0 60 %d\r\n%b\r\n" % (len(each), each) for each in bodies], b"INSERTED ")
    assert resident(process.pid) > before + COUNT * SIZE * 0.8
    ask(caller, [b"delete %d\r\n" % number for number in range(1, COUNT) if number % KEPT], b"DELETED")
    eventually(lambda: resident(process.pid) < before + COUNT * SIZE // 3, "the memory is returned")
    for number in range(KEPT, COUNT + 1, KEPT):
        assert caller.ask(b"peek %d\r\n" % number) == b"FOUND %d %d\r\n" % (number, len(bodies[number - 1]))
        assert caller.read(len(bodies[number - 1]) + 2) == bodies[number - 1] + b"\r\n"
    caller.close()
    assert process.stop() == 0
