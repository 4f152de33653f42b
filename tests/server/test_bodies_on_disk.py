"""Bodies on the disk, with sockets: every request for one is answered, and nothing that happens meanwhile leaves
anything hanging."""

import asyncio
import contextlib
import errno
import gc
import socket
import struct
import threading

import pytest

from beanstalk_server import Config, Server
from beanstalk_server.storage.binlog import Binlog
from beanstalk_server.storage.disk import RealDirectory
from harness.waiting import eventually_async


class Disk(RealDirectory):
    """A directory whose reads wait while `open_gate` is not set, and fail if `fails` is."""

    def __init__(self, path):
        super().__init__(path)
        self.gate = threading.Event()
        self.gate.set()
        self.fails = False
        self.reading = 0  # how many reads have begun

    def open(self, name, *, write=False):
        return GatedFile(super().open(name, write=write), self)


class GatedFile:
    def __init__(self, file, disk):
        self._file = file
        self._disk = disk

    def read(self, offset, size):
        self._disk.reading += 1
        assert self._disk.gate.wait(60)
        if self._disk.fails:
            raise OSError(errno.EIO, "Input/output error")
        return self._file.read(offset, size)

    def read_cached(self, offset, size):
        """What the system has in memory: nothing."""

    def __getattr__(self, name):
        return getattr(self._file, name)


class Client:
    """A client in the event loop of the server."""

    def __init__(self, reader, writer):
        self.reader, self.writer = reader, writer

    async def ask(self, data):
        self.writer.write(data)
        return await self.line()

    async def line(self):
        return await asyncio.wait_for(self.reader.readline(), 60)

    async def read(self, size):
        return await asyncio.wait_for(self.reader.readexactly(size), 60)

    async def job(self):
        """The job that a reply brings: its id and its body."""
        word, job_id, size = (await self.line()).split()
        assert word in (b"RESERVED", b"FOUND")
        return int(job_id), (await self.read(int(size) + 2))[:-2]

    async def put(self, body, ttr=60):
        line = await self.ask(b"put 0 0 %d %d\r\n%b\r\n" % (ttr, len(body), body))
        assert line.startswith(b"INSERTED "), line
        return int(line.split()[1])

    async def rest(self):
        """What comes until the server hangs up."""
        with contextlib.suppress(ConnectionError):
            return await asyncio.wait_for(self.reader.read(), 60)

    async def close(self):
        self.writer.close()
        with contextlib.suppress(ConnectionError):
            await self.writer.wait_closed()

    def abort(self):
        """Hang up in a way that cannot be taken for the end of the input."""
        sock = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()


@pytest.fixture
@contextlib.asynccontextmanager
async def served(loop_factory, tmp_path):
    """A server whose bodies of more than ten bytes are on the disk only, its disk, and what connects to it."""
    disk = Disk(tmp_path)
    binlog = Binlog(disk, segment_size=1 << 16, body_threshold=10, body_cache=0)
    server = Server(Config(port=0), _journal=binlog)
    await server.start()
    clients = []

    async def connect():
        clients.append(Client(*await asyncio.open_connection(*server.address)))
        return clients[-1]

    try:
        yield server, disk, connect
    finally:
        disk.gate.set()
        await asyncio.wait_for(server.stop(), 60)
        for client in clients:
            await client.close()
    again = RealDirectory(tmp_path)
    assert again.lock(), "the server has unlocked the directory"
    again.unlock()


async def read_begins(disk, count=1):
    await eventually_async(lambda: disk.reading >= count, "the body is being read")


BODY = b"a body of more than ten bytes"


async def test_a_client_that_waits_for_a_body_keeps_nobody_waiting(served):
    _, disk, connect = served
    worker, other = await connect(), await connect()
    first = await other.put(BODY)
    disk.gate.clear()
    worker.writer.write(b"reserve\r\nlist-tube-used\r\n")
    await read_begins(disk)
    for _ in range(3):
        job_id = await other.put(b"short")
        assert await other.ask(b"reserve-with-timeout 0\r\n") == b"RESERVED %d 5\r\n" % job_id
        assert await other.read(7) == b"short\r\n"
        assert await other.ask(b"delete %d\r\n" % job_id) == b"DELETED\r\n"
    assert await other.ask(b"delete %d\r\n" % first) == b"NOT_FOUND\r\n", "the worker has it"
    disk.gate.set()
    assert await worker.job() == (first, BODY)
    assert await worker.line() == b"USING default\r\n"


async def test_a_client_that_shuts_down_its_sending_side_gets_the_body_and_then_the_end(served):
    _, disk, connect = served
    worker = await connect()
    job_id = await worker.put(BODY)
    disk.gate.clear()
    worker.writer.write(b"peek-ready\r\nreserve\r\nreserve\r\n")
    worker.writer.write_eof()
    await read_begins(disk)
    disk.gate.set()
    assert [await worker.job(), await worker.job()] == [(job_id, BODY)] * 2
    assert await worker.line() == b"TIMED_OUT\r\n"
    assert await worker.rest() == b""


@pytest.mark.parametrize("how", ["abort", "close"])
async def test_the_job_of_a_client_that_hangs_up_during_a_read_goes_to_the_next(served, how):
    server, disk, connect = served
    worker, other = await connect(), await connect()
    job_id = await other.put(BODY)
    disk.gate.clear()
    worker.writer.write(b"reserve\r\n")
    await read_begins(disk)
    other.writer.write(b"reserve\r\n")
    await eventually_async(lambda: server.broker.waiting == 1, "the other waits")
    if how == "abort":
        worker.abort()
        await eventually_async(lambda: server.broker.jobs[job_id].reserves == 2, "the other has it")
    else:  # it may have shut down its sending side only: it has the job until it has been sent its answer
        await worker.close()
    disk.gate.set()
    assert await other.job() == (job_id, BODY)
    assert server.broker.connections == 1


async def test_a_stop_awaits_the_read_that_is_under_way(served):
    server, disk, connect = served
    workers = [await connect() for _ in range(5)]
    for _ in workers:
        await workers[0].put(BODY)
    disk.gate.clear()
    workers[0].writer.write(b"reserve\r\n")
    await read_begins(disk)
    for worker in workers[1:]:
        worker.writer.write(b"reserve\r\n")
    await eventually_async(lambda: server.broker.reserved == 5, "all jobs are reserved")
    stopping = asyncio.ensure_future(server.stop())
    await eventually_async(lambda: not server.connections.open, "the connections are closed")
    assert not stopping.done(), "a read is under way"
    disk.gate.set()
    await asyncio.wait_for(stopping, 60)
    assert not any([await worker.rest() for worker in workers])


async def test_a_body_that_cannot_be_read_ends_the_server_and_its_client_gets_nothing(served, caplog, tmp_path):
    server, disk, connect = served
    worker, other = await connect(), await connect()
    await other.put(BODY)
    await other.put(BODY)
    disk.fails = True
    worker.writer.write(b"reserve\r\n")
    assert not await worker.rest()
    assert not await other.rest()
    await asyncio.wait_for(server.failed.wait(), 60)
    assert server.failure.errno == errno.EIO
    assert "the journal failed" in caplog.text
    assert "Input/output error, at offset " in caplog.text
    assert f", the put of job 1: '{tmp_path}/segment.0000000001'" in caplog.text
    assert "Traceback" not in caplog.text


async def test_a_journal_that_fails_during_a_read_leaves_nothing_hanging(served, monkeypatch):
    server, disk, connect = served
    worker, other = await connect(), await connect()
    await other.put(BODY)
    disk.gate.clear()
    worker.writer.write(b"reserve\r\n")
    await read_begins(disk)

    def fail(*arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(server.journal._writer, "write", fail)
    other.writer.write(b"put 0 0 60 1\r\nx\r\n")
    await asyncio.wait_for(server.failed.wait(), 60)
    assert not await other.rest()
    assert not await worker.rest()
    disk.gate.set()


async def test_nothing_is_left_of_clients_and_jobs_without_the_cycle_collector(served):
    kinds = ("Session", "Connection", "Job", "ReservedDelivery", "BatchDelivery", "FoundDelivery", "_Request", "Place")

    def left():
        names = [type(found).__name__ for found in gc.get_objects()]
        return {kind: names.count(kind) for kind in kinds}

    server, _, connect = served

    async def alone():
        await eventually_async(lambda: not server.connections.open, "no client is connected")
        await eventually_async(lambda: server.journal._fetches.task is None, "nothing is read")
        await eventually_async(lambda: server.journal._upkeep is None, "nothing is cleaned")

    gc.collect()
    before = left()
    gc.disable()
    try:
        for first in range(1, 60, 3):
            worker, other = await connect(), await connect()
            other.writer.write(b"reserve\r\n")
            for _ in range(3):
                await worker.put(BODY)
            worker.writer.write(b"reserve-batch 2 0\r\npeek %d\r\nquit\r\n" % first)
            await worker.rest()
            other.abort()
        cleaner = await connect()
        while server.broker.jobs:
            for job_id in list(server.broker.jobs):
                await cleaner.ask(b"delete %d\r\n" % job_id)
        await cleaner.close()
        await alone()
        assert left() == before
    finally:
        gc.enable()
