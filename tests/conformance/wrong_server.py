"""A small server of the beanstalk protocol, which can be made wrong in one thing."""

import socket
import socketserver
import threading
from contextlib import contextmanager, suppress

STATS = "current-jobs-ready current-jobs-reserved current-jobs-delayed current-jobs-buried".split()


class WrongServer(socketserver.ThreadingTCPServer):
    """Has one tube, `default`, and jobs that are ready: put, peek, delete and lists. Each connection is a thread.

    Args:
        fault: answers a command instead of it: gets the connection and the line, returns True if it did.
    """

    daemon_threads = True
    block_on_close = False
    allow_reuse_address = True

    def __init__(self, fault):
        super().__init__(("127.0.0.1", 0), Connection)
        self.fault = fault
        self.jobs = {}
        self.last = 0
        self.has_hung = self.hangs = False
        self.instance = 1

    @property
    def address(self):
        return self.server_address


class Connection(socketserver.StreamRequestHandler):
    def handle(self):
        while line := self.rfile.readline():
            if not self.server.fault(self, line):
                self.reply(*line.split())

    def send(self, data):
        with suppress(OSError):  # the client has closed
            self.wfile.write(data)

    def close(self):
        self.connection.shutdown(socket.SHUT_RDWR)

    def yaml(self, *lines):
        data = "".join(f"{line}\n" for line in ("---", *lines)).encode()
        self.send(b"OK %d\r\n%b\r\n" % (len(data), data))

    def reply(self, command, *arguments):
        jobs = self.server.jobs
        match command:
            case b"put":
                self.server.last += 1
                jobs[self.server.last] = self.rfile.read(int(arguments[3]) + 2)
                self.send(b"INSERTED %d\r\n" % self.server.last)
            case b"peek-ready" if jobs:
                number = min(jobs)
                self.send(b"FOUND %d %d\r\n%b" % (number, len(jobs[number]) - 2, jobs[number]))
            case b"peek-ready" | b"peek-delayed" | b"peek-buried":
                self.send(b"NOT_FOUND\r\n")
            case b"delete":
                self.send(b"DELETED\r\n" if jobs.pop(int(arguments[0]), None) else b"NOT_FOUND\r\n")
            case b"use":
                self.send(b"USING default\r\n")
            case b"list-tube-used":
                self.send(b"USING default\r\n")
            case b"list-tubes":
                self.yaml("- default")
            case b"pause-tube":
                self.send(b"PAUSED\r\n")
            case b"stats":
                self.yaml(
                    'version: "1.13"', 'hostname: "h"', f"pid: {self.server.instance}", *(f"{key}: 0" for key in STATS)
                )
            case _:
                self.send(b"UNKNOWN_COMMAND\r\n")


@contextmanager
def wrong_server(fault=lambda connection, line: False):
    with WrongServer(fault) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def answers(wrong, reply):
    """A fault: this command gets this reply, and the connection stays open."""

    def fault(connection, line):
        if not line.startswith(wrong):
            return False
        connection.send(reply)
        return True

    return fault


def closes_at(wrong):
    """A fault: this command ends the connection."""

    def fault(connection, line):
        if not line.startswith(wrong):
            return False
        connection.close()
        return True

    return fault


def hangs(wrong, until_missing=None):
    """A fault: with this command, the server stops answering any client.

    Args:
        until_missing: a file that is made then; once it is missing, the server answers again, as another process would.
    """

    def fault(connection, line):
        server = connection.server
        if line.startswith(wrong) and not server.has_hung:
            server.has_hung = server.hangs = True
            if until_missing:
                until_missing.touch()
        if server.hangs and until_missing and not until_missing.exists():
            server.hangs = False
            server.instance += 1
        return server.hangs

    return fault


def floods(wrong):
    """A fault: this command gets garbage until the client closes."""

    def fault(connection, line):
        if not line.startswith(wrong):
            return False
        with suppress(OSError):
            while True:
                connection.connection.sendall(1000 * b"\xff\0garbage")
        return True

    return fault
