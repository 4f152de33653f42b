"""Receivers of deliveries that behave as badly as they are told: one HTTP server, whose paths are its ways."""

import asyncio
import contextlib
import gzip
import ssl

import trustme

BOMB = gzip.compress(b"\0" * 100_000_000, 9)
"""100 MB, in 97 kB."""


class Asked:
    """A request that has come."""

    def __init__(self, method, target, headers, body):
        self.method = method
        self.target = target
        self.headers = headers
        self.body = body


def response(status=200, body=b"", **headers):
    fields = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    return f"HTTP/1.1 {status} whatever\r\nContent-Length: {len(body)}\r\n{fields}\r\n".encode() + body


async def endlessly(writer, data):
    """Write as long as anybody reads."""
    while not writer.is_closing():
        writer.write(data)
        await writer.drain()
        await asyncio.sleep(0)


class Receiver:
    """An HTTP server on loopback. `ways` are functions by path: of the request and the writer, or bytes to answer.

    Attributes:
        asked: all requests, in order.
        connections: how many there have been.
        unbounded: True if somebody has read more of an answer than anybody should.
    """

    def __init__(self, ways=None, tls=None):
        self.ways = dict(ways or {})
        self.asked = []
        self.connections = 0
        self.now = 0  # requests that are not answered yet
        self.most = 0
        self.written = 0
        self._tls = tls
        self._tasks = set()
        self._server = None

    async def __aenter__(self):
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._tls, limit=2**20)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_):
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def url(self, path="/", host="127.0.0.1"):
        return f"http{'s' if self._tls else ''}://{host}:{self.port}{path}"

    def targets(self):
        return [each.target for each in self.asked]

    async def _serve(self, reader, writer):
        self.connections += 1
        task = asyncio.current_task()
        self._tasks.add(task)
        try:
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, ssl.SSLError):
                await self._converse(reader, writer)
        except asyncio.CancelledError:
            pass
        finally:
            self._tasks.discard(task)
            writer.transport.abort()

    async def _converse(self, reader, writer):
        way = self.ways.get("connection")
        if way is not None:
            await way(None, writer)
            return
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            line, *fields = head.split("\r\n")[:-2]
            method, target, _ = line.split(" ")
            headers = {}
            for field in fields:
                name, _, value = field.partition(":")
                assert name.lower() not in headers, name
                headers[name.lower()] = value.strip()
            body = await reader.readexactly(int(headers.get("content-length", 0)))
            asked = Asked(method, target, headers, body)
            self.asked.append(asked)
            self.now += 1
            self.most = max(self.most, self.now)
            try:
                way = self.ways.get(target.partition("?")[0], response())
                if isinstance(way, bytes):
                    writer.write(way)
                    await writer.drain()
                elif await way(asked, writer):
                    return
            finally:
                self.now -= 1


def authority():
    return trustme.CA()


def server_tls(authority, *names):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(*names).configure_cert(context)
    return context


def client_tls(authority):
    context = ssl.create_default_context()
    authority.configure_trust(context)
    return context


# Ways to misbehave. True: the connection is closed.


async def never(asked, writer):
    """Answers nothing."""
    await asyncio.Event().wait()


async def drip(asked, writer):
    """A header, byte by byte."""
    writer.write(b"HTTP/1.1 200 OK\r\nX: ")
    while True:
        writer.write(b"x")
        await writer.drain()
        await asyncio.sleep(0.005)


async def endless_headers(asked, writer):
    writer.write(b"HTTP/1.1 200 OK\r\n")
    await endlessly(writer, b"X-Header: x\r\n" * 100)


async def endless_header(asked, writer):
    writer.write(b"HTTP/1.1 200 OK\r\nX: ")
    await endlessly(writer, b"x" * 4096)


async def endless_status_line(asked, writer):
    writer.write(b"HTTP/1.1 200 ")
    await endlessly(writer, b"x" * 4096)


async def endless_body(asked, writer):
    writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
    await endlessly(writer, b"x" * 65_536)


async def endless_chunks(asked, writer):
    writer.write(b"HTTP/1.1 500 No\r\nTransfer-Encoding: chunked\r\n\r\n")
    await endlessly(writer, b"1\r\nx\r\n" * 1000)


async def endless_interim(asked, writer):
    """A storm of 1xx."""
    await endlessly(writer, b"HTTP/1.1 103 Early\r\n\r\n" * 10)


async def silent_body(asked, writer):
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nx")
    await writer.drain()
    await asyncio.Event().wait()


async def close(asked, writer):
    return True


async def reset(asked, writer):
    import socket
    import struct

    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    return True


def then_reset(data):
    async def way(asked, writer):
        writer.write(data)
        await writer.drain()
        return await reset(asked, writer)

    return way


def then_close(data):
    async def way(asked, writer):
        writer.write(data)
        await writer.drain()
        writer.close()
        return True

    return way
