"""Serves HTTP/1.1 connections: one request after the other, parsed and written by h11.

All resources of a connection are bounded, also without authentication:

    what                              bound             beyond it
    --------------------------------  ----------------  -----------------------------------------------
    connections                       MAX_CONNECTIONS   the connection that has been idle longest is evicted, or
                                                        one whose client does not read; none with a request
    the line and headers of a request MAX_HEADERS       431
    its body                          0 bytes           413
    the time for a request            REQUEST_TIME      408; closed, if nothing of it has come
    the time between two requests     IDLE_TIME         closed
    unprocessed input                 MAX_UNDONE        reading is paused
    the time for the answer           ANSWER_TIME       closed
    work in a round of the event loop one turn          waits for its turn

After an error, the output ends, and the client's further input is read and dropped for LINGER_TIME: a socket that is
closed with unread input sends a reset, which overtakes the answer.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from email.utils import formatdate
from http import HTTPStatus
from typing import Any, Final, cast

import h11

from beanstalk_server.access.rights import User
from beanstalk_server.admin.site import METHODS, Answer, Request, RequestPolicy, Site, say
from beanstalk_server.events import event

MAX_CONNECTIONS: Final = 64
JUST_COME: Final = 1.0
"""Seconds."""

MAX_HEADERS: Final = 16384
"""Bytes."""

MAX_UNDONE: Final = 32768
"""Bytes: more than the headers of a request may have."""

REQUEST_TIME: Final = 10
"""Seconds from the first byte of a request, or from the beginning of a connection, to the end of the request."""

IDLE_TIME: Final = 150
"""Seconds: Prometheus asks each minute, or more often."""

ANSWER_TIME: Final = 60
"""Seconds from the request to the last byte of the answer that the system has taken."""

LINGER_TIME: Final = 2
"""Seconds."""

LINGER_LIMIT: Final = 1 << 18
"""Bytes that are dropped meanwhile, before the connection is closed."""

PIECE: Final = 65536
"""Bytes of an answer that are written in one turn, give or take one piece of a page."""

# What a connection waits for
REQUEST: Final = 0
ANSWER: Final = 1
HANG_UP: Final = 2
NOTHING: Final = 3

log = logging.getLogger("beanstalk_server")


class HttpConnection(asyncio.Protocol):
    """One connection.

    Args:
        policy: of the listener.
        user: authenticated by a certificate or a uid.
        name: what the log calls the client; "" for the address that it has connected from.
    """

    def __init__(
        self, connections: HttpConnections, policy: RequestPolicy, user: User | None = None, name: str = ""
    ) -> None:
        self._connections = connections
        self._policy = policy
        self._user = user
        self._name = name
        self._state = NOTHING
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEADERS)
        self._transport: asyncio.Transport | None = None
        self._request: h11.Request | None = None  # whose end has not come
        self._has_begun = False  # something of the next request has come
        self._undone = 0  # bytes that have come and are not done, or a few more
        self._is_unread = False  # nothing is read from the client
        self._answer: Answer | None = None  # that is being sent
        self._left: list[bytes] = []  # of its pieces, last first
        self._is_paused = False  # nothing can be written
        self._has_ended = False  # the client will send nothing more
        self._dropped = 0  # bytes that have come since the last answer
        self._timer: Any = None
        self.queued = False  # it has been promised a turn
        self.since = 0.0  # when it has come, or has been answered last

    @property
    def is_idle(self) -> bool:
        """Whether it waits for something that its client should send."""
        return self._state != ANSWER and not self.queued

    @property
    def is_stuck(self) -> bool:
        """Whether its client does not read what it is answered."""
        return self._state == ANSWER and self._is_paused

    # What the event loop or TLS calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(PIECE)
        self._name = self._name or self._connections.name_of(self._transport)
        self._connections.add(self)
        self._await_request(REQUEST_TIME)

    def data_received(self, data: bytes) -> None:
        if self._state == HANG_UP:
            self._dropped += len(data)
            if self._dropped > LINGER_LIMIT:
                self.abort()
            return
        if self._state == NOTHING:
            return
        self._http.receive_data(data)
        self._undone += len(data)
        if self._undone > MAX_UNDONE and not self._is_unread:
            self._is_unread = True
            self._channel.pause_reading()
        if self._state == REQUEST:
            if not self._has_begun:
                self._has_begun = True
                self._set_timer(REQUEST_TIME)
            self._connections.enqueue(self)

    def eof_received(self) -> bool:
        self._has_ended = True
        if self._state in (HANG_UP, NOTHING):
            return False
        self._http.receive_data(b"")
        if self._state == REQUEST:
            self._connections.enqueue(self)
        return True  # it gets the answers to what it has asked

    def pause_writing(self) -> None:
        self._is_paused = True

    def resume_writing(self) -> None:
        self._is_paused = False
        if self._state == ANSWER:
            self._connections.enqueue(self)

    def connection_lost(self, _: Exception | None) -> None:
        if self._transport is None:
            return
        self._transport = None
        self._state = NOTHING
        self._stop_timer()
        self._end_answer()
        self._connections.remove(self)

    def take_turn(self) -> None:
        """Read a request, or send a part of an answer."""
        if self._transport is None or self._transport.is_closing():
            return
        if self._state == REQUEST:
            self._read_request()
        elif self._state == ANSWER and self._answer is not None:
            self._send_piece()

    @property
    def _channel(self) -> asyncio.Transport:
        assert self._transport is not None, "it is connected"
        return self._transport

    # Requests

    def _await_request(self, limit: float) -> None:
        self._state = REQUEST
        self._has_begun = False
        self._set_timer(limit)

    def _read_request(self) -> None:
        """Read what has come, up to the end of a request."""
        while self._state == REQUEST:
            try:
                found = self._http.next_event()
            except h11.RemoteProtocolError as error:
                self._refuse(error.error_status_hint, str(error))
                return
            if found is h11.NEED_DATA or found is h11.PAUSED:
                self._undone = 0
                self._read()
                return
            if isinstance(found, h11.Request):
                self._request = found
                refusal = refusal_of(found)
                if refusal is not None:
                    self._refuse(*refusal)
            elif isinstance(found, h11.EndOfMessage):
                self._ask()
                return  # and if there is another request, it waits for the next turn
            else:  # it has hung up
                self._state = NOTHING
                self._channel.close()

    def _ask(self) -> None:
        """Have the request answered that has come."""
        request = self._request
        assert request is not None, "its end has come"
        path = path_of(request.target)
        if not path:
            self._refuse(400, "invalid request target")
            return
        headers: dict[str, list[str]] = {}
        for key, value in request.headers:
            headers.setdefault(key.decode("ascii"), []).append(value.decode("latin-1"))
        self._state = ANSWER
        self._undone = len(self._http.trailing_data[0])
        self._set_timer(ANSWER_TIME)
        method = request.method.decode("ascii")
        self._connections.site.answer(Request(method, path, headers, self._policy, self._user, self._name), self._send)

    def _refuse(self, status: int, text: str, *headers: tuple[str, str]) -> None:
        """Answer what is no request, or none that may be read to its end, and close."""
        self._state = ANSWER
        self._set_timer(ANSWER_TIME)
        self._send(say(status, text, *headers), closes=True)

    # Answers

    def _send(self, answer: Answer, *, closes: bool = False) -> None:
        self._connections.site.requests[answer.status] += 1
        self._answer = answer
        if self._transport is None or self._transport.is_closing():
            self._end_answer()
            return
        headers = [
            ("Date", formatdate(usegmt=True)),
            ("Content-Type", answer.content_type),
            ("Content-Length", str(sum(map(len, answer.pieces)))),
            *answer.headers,
        ]
        if closes or self._connections.is_closing:
            headers.append(("Connection", "close"))
        reason = HTTPStatus(answer.status).phrase.encode("ascii")
        self._write(h11.Response(status_code=answer.status, headers=headers, reason=reason))
        request, self._request = self._request, None
        if request is None or request.method != b"HEAD":
            self._left = list(reversed(answer.pieces))
        self._send_piece()

    def _write(self, part: h11.Event) -> int:
        """Send a part of an answer; return its size."""
        data = self._http.send(part)
        if data:
            self._channel.write(data)
        return 0 if data is None else len(data)

    def _send_piece(self) -> None:
        """Send as much of the answer as is sent in one turn, if the client takes it."""
        size = 0
        while self._left:
            if self._is_paused or self._channel.is_closing():
                return  # in the one case it goes on when the client reads, in the other it is about to end
            if size >= PIECE:
                self._connections.enqueue(self)
                return
            size += self._write(h11.Data(data=self._left.pop()))
        self._write(h11.EndOfMessage())
        self._end_answer()
        self._begin_anew()

    def _begin_anew(self) -> None:
        """Wait for the next request, or hang up."""
        channel = self._channel
        http = self._http
        if http.our_state is h11.DONE and http.their_state is h11.DONE:
            http.start_next_cycle()
            self._connections.note_use(self)
            self._await_request(IDLE_TIME)
            if self._undone or self._has_ended:
                self._has_begun = self._undone > 0
                self._connections.enqueue(self)
            if not self._undone:
                self._read()
            return
        self._state = HANG_UP
        self._set_timer(LINGER_TIME)
        if self._has_ended or (not self._undone and http.their_state in (h11.DONE, h11.MUST_CLOSE)):
            channel.close()  # nothing is on its way
        else:
            channel.write_eof()
            self._read()

    def _read(self) -> None:
        if self._is_unread:
            self._is_unread = False
            self._channel.resume_reading()

    def _end_answer(self) -> None:
        answer, self._answer = self._answer, None
        self._left = []
        if answer is not None and answer.on_end is not None:
            answer.on_end()

    # The end

    def _set_timer(self, limit: float) -> None:
        self._stop_timer()
        self._timer = self._connections.call_later(limit, self._expire)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _expire(self) -> None:
        """Close: the time is over."""
        if self._state == REQUEST and self._has_begun:
            self._refuse(408, f"incomplete request after {REQUEST_TIME} s")
        else:
            self.abort()

    def abort(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()


class HttpConnections:
    """All connections.

    Args:
        site: answers.
        name_of: the log's name of a transport's peer.
        on_end: called when a connection is gone.
    """

    def __init__(self, site: Site, name_of: Callable[[asyncio.Transport], str], on_end: Callable[[], object]) -> None:
        self.site = site
        self.name_of = name_of
        self.is_closing = False  # each answer is the last at its connection
        self.call_later: Callable[..., Any]
        self.time: Callable[[], float]
        self._call_soon: Callable[..., Any]
        self._turns: deque[HttpConnection] = deque()
        self._on_end = on_end
        self._all: dict[HttpConnection, None] = {}  # those that have been idle longest come first
        self._emptied = asyncio.Event()

    def __len__(self) -> int:
        return len(self._all)

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Use this event loop from now on."""
        self.call_later = loop.call_later
        self.time = loop.time
        self._call_soon = loop.call_soon

    async def stop(self) -> None:
        """Close all of them; return when they are gone."""
        self.is_closing = True
        while self._all:
            self._emptied.clear()
            for connection in list(self._all):
                connection.abort()
            await self._emptied.wait()

    def enqueue(self, connection: HttpConnection) -> None:
        """Promise a turn: in each round of the event loop, one of them has one."""
        if not connection.queued:
            connection.queued = True
            self._turns.append(connection)
            if len(self._turns) == 1:
                self._call_soon(self._serve)

    def _serve(self) -> None:
        connection = self._turns[0]  # it stays there, so that it is not served twice in a round
        connection.queued = False
        try:
            connection.take_turn()
        except Exception:
            log.exception("an HTTP connection failed; this is a bug in the server", event("bug-in-http"))
            connection.abort()
        self._turns.popleft()
        if self._turns:
            self._call_soon(self._serve)

    def add(self, connection: HttpConnection) -> None:
        """Add a connection. If there are too many, evict an idle one, or one whose client does not read.

        A connection younger than JUST_COME is evicted only if all are idle. If all have requests, none is evicted: the
        file limit bounds their number, and each is answered soon.
        """
        connection.since = self.time()
        if len(self._all) >= MAX_CONNECTIONS:
            idle = [each for each in self._all if each.is_idle]
            if idle and len(idle) < MAX_CONNECTIONS and connection.since - idle[0].since < JUST_COME:
                idle = []
            idle = idle or [each for each in self._all if each.is_stuck]
            if idle:
                del self._all[idle[0]]
                idle[0].abort()
        self._all[connection] = None

    def note_use(self, connection: HttpConnection) -> None:
        """Note that a connection has had a request."""
        if connection in self._all:
            connection.since = self.time()
            del self._all[connection]
            self._all[connection] = None

    def remove(self, connection: HttpConnection) -> None:
        """Remove a closed connection."""
        self._all.pop(connection, None)
        if not self._all:
            self._emptied.set()
        self._on_end()


def refusal_of(request: h11.Request) -> tuple[Any, ...] | None:
    """Why a request is not read any further: its status, a text and headers; None if it is."""
    fields = sum(len(name) + len(value) + 4 for name, value in request.headers)
    if len(request.method) + len(request.target) + fields > MAX_HEADERS:  # h11 bounds what is incomplete, and no more
        return 431, f"request line and headers too long: the limit is {MAX_HEADERS} bytes"
    if request.method.decode("ascii") not in METHODS:
        return 405, "method not allowed: use GET or HEAD", ("Allow", ", ".join(METHODS))
    for name, value in request.headers:
        if name == b"transfer-encoding" or (name == b"content-length" and value.strip(b"0")):
            return 413, "request body not allowed"
    return None


def path_of(target: bytes) -> str:
    """The path that a request asks for, without its query; "" if the target is not one of a resource."""
    text = target.decode("latin-1")
    for scheme in ("http://", "https://"):
        if text[: len(scheme)].lower() == scheme:
            text = "/" + text[len(scheme) :].partition("/")[2]
    path = text.partition("?")[0].partition("#")[0]
    return path if path.startswith("/") else ""
