"""The memory of a backlog returns to the system when its jobs are gone, and what remains is intact."""

import asyncio
import mmap
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
    assert process.stop() == 0


class FakeHeap:
    """Stands for the C library: a heap with this many free blocks, and new memory behind it."""

    def __init__(self, free):
        self.end = free * memory_return.BLOCK
        self.next = 16  # as malloc aligns its addresses
        self.taken = set()
        self.returned = []

    def sbrk(self, _):
        return self.end

    def malloc(self, size):
        self.taken.add(self.next)
        self.next += size
        return self.next - size

    def free(self, address):
        self.taken.remove(address)

    def madvise(self, start, size, advice):
        assert any(address <= start and start + size <= address + memory_return.BLOCK for address in self.taken)
        assert start % mmap.PAGESIZE == size % mmap.PAGESIZE == 0
        assert advice == mmap.MADV_DONTNEED
        self.returned.append(start)


class FakeLoop:
    """Calls what is due when the test says so."""

    def __init__(self):
        self.due = []

    def call_later(self, _, callback):
        self.due.append(callback)
        return asyncio.TimerHandle(0, callback, (), self)

    def _timer_handle_cancelled(self, handle):
        pass

    def get_debug(self):
        return False


@pytest.fixture
def sweep(monkeypatch):
    """A heap with free blocks, whose memory is about to be returned, one block in each slice."""
    monkeypatch.setattr(memory_return, "SLICE", 0)
    monkeypatch.setattr(memory_return, "has_glibc", lambda: True)
    heap, loop = FakeHeap(free=100), FakeLoop()
    monkeypatch.setattr(memory_return, "load_library", lambda: heap)
    taken = [2 * memory_return.LEAST]  # by the jobs, as they count it
    returning = memory_return.MemoryReturn(lambda: taken[0])
    returning.start(loop)
    taken[0] = 0
    loop.due.pop()()
    assert not heap.taken, "memory that has just become free may be needed at once"
    loop.due.pop()()
    assert len(heap.taken) == 1
    return returning, heap, loop


@pytest.mark.interpreted  # constants are replaced
def test_each_free_block_is_returned_once_and_freed(sweep):
    returning, heap, loop = sweep
    while loop.due[-1] != returning._look:
        loop.due.pop()()
    assert len(set(heap.returned)) == len(heap.returned) == 100
    assert not heap.taken


@pytest.mark.interpreted
def test_a_stop_frees_the_blocks(sweep):
    returning, heap, _ = sweep
    returning.stop()
    assert not heap.taken


def test_memory_is_left_alone_without_glibc(monkeypatch):
    monkeypatch.setattr(memory_return, "has_glibc", lambda: False)
    returning = memory_return.MemoryReturn(lambda: 0)
    returning.start(FakeLoop())
    assert returning._timer is None
    returning.stop()
