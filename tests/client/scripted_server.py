"""A server that says what a script says: to each connection the next script, and to each request the next reply."""

import contextlib
import socket
import struct
import threading

CLOSE = object()
"""Instead of a reply: the connection is closed."""

RESET = object()
"""Instead of a reply: the connection is reset."""

SILENCE = object()
"""Instead of a reply: nothing, until the client goes."""

WITHIN = 60
"""Seconds that a client may take."""

ASKED = b"list-extensions\r\n"
"""The question which extensions the server has."""


def extensions(*names):
    """The reply of a server that has these, each in its version 1."""
    document = "".join(["---\n", *(f"{name}: 1\n" for name in names)]).encode()
    return b"OK %d\r\n%b\r\n" % (len(document), document)


class ScriptedServer:
    """Listens on a port of this machine.

    Args:
        scripts: one for each connection: tuples of a request, which must be what the client sends, and replies.

    Attributes:
        address: where it listens.
        said: what clients have said, one entry for each connection.
        problems: what clients have said that was not in the script.
    """

    def __init__(self, *scripts):
        self._scripts = list(scripts)
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address = self._listening.getsockname()
        self.said = []
        self.problems = []
        self._open = []
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self):
        for script in self._scripts:
            try:
                sock, _ = self._listening.accept()
            except OSError:
                return
            self._open.append(sock)
            sock.settimeout(WITHIN)
            self.said.append(b"")
            with contextlib.suppress(OSError):
                self._follow(sock, script)
        self._listening.close()

    def _follow(self, sock, script):
        for request, *replies in script:
            if not self._hear(sock, request):
                return
            for reply in replies:
                if reply is SILENCE:
                    while sock.recv(1000):
                        pass
                    return
                if reply is RESET:
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                if reply in (CLOSE, RESET):
                    sock.close()
                    return
                sock.sendall(reply)

    def _hear(self, sock, request):
        heard = b""
        while len(heard) < len(request):
            data = sock.recv(len(request) - len(heard))
            if not data:
                return False
            heard += data
            self.said[-1] += data
        if heard != request:
            self.problems.append((request, heard))
            sock.close()
        return heard == request

    def close(self):
        self._listening.close()
        for sock in self._open:
            sock.close()
        assert not self.problems
