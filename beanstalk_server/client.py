"""A greenstalk client with the commands that beanstalkd does not have (docs/protocol-extensions.md).

    from beanstalk_server.client import Client, TooLateError

    with Client(("127.0.0.1", 11300)) as queue:
        queue.put_keyed("space-42", "delete space 42", delay=24 * 3600)
        ...
        queue.cancel_keyed("space-42")

Where the server asks who is there (docs/access.md), it speaks TLS and gives a token:

    with Client(("queue.example.com", 11301), tls=True, token=os.environ["QUEUE_TOKEN"], use="mails") as queue:
        queue.put("hello")

Needs greenstalk: `pip install 'beanstalk-server[client]'`. The server never imports this module. Must never keep a
token, nor show one: neither in `repr` nor in an error.
"""

from __future__ import annotations

import contextlib
import datetime
import math
import re
import socket
import ssl
from collections.abc import Iterable, Iterator
from typing import TypeVar, overload

import greenstalk
from greenstalk import DEFAULT_DELAY, DEFAULT_PRIORITY, DEFAULT_TTR, DEFAULT_TUBE, ConnectionTarget, Job, JobOrID, TBody

MAX_TIMEOUT = 2**31 - 1
"""The longest timeout of a command, in seconds; 68 years."""

MAX_SECONDS = 2**32 - 1
"""The longest duration of an attribute, in seconds; 136 years. The latest moment as well, in 2106."""


class ExistsError(greenstalk.BeanstalkdError):
    """A job of the tube already has the key, or had it and the key is held. Nothing was changed."""

    def __init__(self, values: list[bytes]) -> None:
        #: The id of that job.
        self.id: int = int(values[0])


class TooLateError(greenstalk.BeanstalkdError):
    """The job is no longer delayed (when it is replaced: reserved, or done and its key held). Nothing was changed."""


class UnauthorizedError(greenstalk.BeanstalkdError):
    """The server does not know this token, or asks for one and got none. It has closed the connection."""


class ForbiddenError(greenstalk.BeanstalkdError):
    """This user lacks the right that the command asks for. Nothing was changed, and the connection goes on."""


class OtherShardError(greenstalk.BeanstalkdError):
    """The other tube is in another shard of the cluster, to which no job can move. Nothing was changed."""


KEY = r"[A-Za-z0-9+/;.$_()][-A-Za-z0-9+/;.$_()]{0,199}"
"""The pattern of a valid key; the rules are those of tube names."""

TOKEN = r"[!-~]+"
"""The pattern of a token that can be sent: one word of a command line. Which ones are valid, the server knows."""

PAGE_ENTRIES = 1000
"""How many entries of a list are asked for at a time: the most that a page has."""

ENTRY_FIELD = r'([-a-z]+): (?:"((?:[^"\\]|\\.)*)"|(\d+))'
"""The pattern of a key of an entry, and its text or its number."""

ALPN_PROTOCOL = "beanstalk"

_Number = TypeVar("_Number", int, float)

ERROR_RESPONSES = {
    b"EXISTS": ExistsError,
    b"FORBIDDEN": ForbiddenError,
    b"OTHER_SHARD": OtherShardError,
    b"TOO_LATE": TooLateError,
    b"UNAUTHORIZED": UnauthorizedError,
}


class Client(greenstalk.Client[TBody]):
    """A greenstalk client that can cancel, reschedule and replace jobs, and reserve several at once.

    The methods defined here accept fractions of a second; greenstalk's own methods cut them to whole seconds.

    :param address: A pair of host and port, the path of a UNIX socket, or a socket that is connected already.
    :param encoding: The encoding of job bodies; None for bytes.
    :param use: The tube to use after connecting.
    :param watch: The tubes to watch after connecting. ``default`` is ignored if it is not included.
    :param tls: How to speak TLS: a context (which also has the certificate of this client, if the server asks for one),
        or True to trust the authorities that the system trusts. False for a plain connection.
    :param server_name: The name that the server's certificate must have; by default the host of the address.
    :param token: The token of a user, sent before anything else; "" for none. Without TLS, whoever is on the way can
        read it. It is not kept.

    An :class:`UnauthorizedError` is raised if the server does not take the token, an ``ssl.SSLError`` if the two cannot
    agree on TLS or the server's certificate is not good.
    """

    @overload
    def __init__(
        self: Client[bytes],
        address: ConnectionTarget,
        encoding: None,
        use: str = DEFAULT_TUBE,
        watch: str | Iterable[str] = DEFAULT_TUBE,
        *,
        tls: ssl.SSLContext | bool = False,
        server_name: str | None = None,
        token: str = "",
    ) -> None: ...

    @overload
    def __init__(
        self: Client[str],
        address: ConnectionTarget,
        encoding: str = "utf-8",
        use: str = DEFAULT_TUBE,
        watch: str | Iterable[str] = DEFAULT_TUBE,
        *,
        tls: ssl.SSLContext | bool = False,
        server_name: str | None = None,
        token: str = "",
    ) -> None: ...

    def __init__(
        self,
        address: ConnectionTarget,
        encoding: str | None = "utf-8",
        use: str = DEFAULT_TUBE,
        watch: str | Iterable[str] = DEFAULT_TUBE,
        *,
        tls: ssl.SSLContext | bool = False,
        server_name: str | None = None,
        token: str = "",
    ) -> None:
        if token and not re.fullmatch(TOKEN, token):
            raise ValueError("a token is one word of printable ASCII characters")  # and does not belong in a message
        sock = _connect(address)
        try:
            if tls is not False:
                context = _default_context() if tls is True else tls
                sock = context.wrap_socket(sock, server_hostname=server_name or _host(address))
            if token:
                _authenticate(sock, token)
            super().__init__(sock, encoding, use, watch)  # type: ignore[misc]  # one of its overloads
            self._address = self._address if isinstance(address, socket.socket) else address
        except BaseException:
            if hasattr(self, "_reader"):
                self._reader.close()
            sock.close()
            raise

    def fileno(self) -> int:
        """The file descriptor of the connection, for selectors: there is something to read when it is lost."""
        return self._sock.fileno()

    def _send_cmd(self, cmd: bytes, expected: bytes) -> list[bytes]:
        self._sock.sendall(cmd + b"\r\n")
        line = self._reader.readline()
        if line and not (line.endswith(b"\r\n") and line.strip()):
            raise ConnectionError("Unexpected EOF reading a reply")  # which greenstalk takes for a bug of its own
        with _reading(), _our_errors():
            return greenstalk._parse_response(line, expected)

    def _read_chunk(self, size: int) -> bytes:
        with _reading():
            if size < 0:
                raise ValueError("less than nothing")  # which a reader takes for everything
            data = self._reader.read(size + 2)
            if len(data) < size + 2:
                raise ConnectionError("Unexpected EOF reading chunk")
            return greenstalk._parse_chunk(data, size)

    def _int_cmd(self, cmd: bytes, expected: bytes) -> int:
        with _reading():
            return super()._int_cmd(cmd, expected)

    def _job_cmd(self, cmd: bytes, expected: bytes) -> Job[TBody]:
        with _reading():
            job_id, size = map(int, self._send_cmd(cmd, expected))
        return Job(job_id, self._decode(self._read_chunk(size)))

    def _stats_cmd(self, cmd: bytes) -> greenstalk.Stats | greenstalk.StatsJob | greenstalk.StatsTube:
        with _reading():
            return super()._stats_cmd(cmd)

    def _list_cmd(self, cmd: bytes) -> list[str]:
        with _reading():
            return super()._list_cmd(cmd)

    def using(self) -> str:
        """Returns the tube currently being used by the client."""
        with _reading():
            return super().using()

    def put_keyed(
        self,
        key: str,
        body: TBody,
        priority: int = DEFAULT_PRIORITY,
        delay: float = DEFAULT_DELAY,
        ttr: float = DEFAULT_TTR,
    ) -> int:
        """Inserts a job with a key into the currently used tube and returns the job ID.

        An :class:`ExistsError` is raised if a live job of this tube has the key.

        :param key: The name of the job, by the rules of tube names.
        :param body: The data representing the job.
        :param priority: An integer between 0 and 4,294,967,295 where 0 is the most urgent.
        :param delay: The number of seconds to delay the job for.
        :param ttr: The maximum number of seconds the job can be reserved for before timing out.
        """
        return self._int_cmd(self._put(b"put-keyed " + _key(key), body, priority, delay, ttr), b"INSERTED")

    def replace_keyed(
        self,
        key: str,
        body: TBody,
        priority: int = DEFAULT_PRIORITY,
        delay: float = DEFAULT_DELAY,
        ttr: float = DEFAULT_TTR,
    ) -> int:
        """Replaces the body, priority, delay and TTR of the job with this key, or inserts it. Returns the job ID.

        A :class:`TooLateError` is raised if a worker has reserved the job.

        :param key: The name of the job, by the rules of tube names.
        :param body: The data representing the job.
        :param priority: An integer between 0 and 4,294,967,295 where 0 is the most urgent.
        :param delay: The number of seconds to delay the job for, from now.
        :param ttr: The maximum number of seconds the job can be reserved for before timing out.
        """
        return self._insert(self._put(b"replace-keyed " + _key(key), body, priority, delay, ttr))

    def put_with(
        self,
        body: TBody,
        priority: int = DEFAULT_PRIORITY,
        delay: float = DEFAULT_DELAY,
        ttr: float = DEFAULT_TTR,
        *,
        key: str = "",
        replace: bool = False,
        at: float | datetime.datetime | None = None,
        tries: int = 0,
        backoff: float = 0,
        ttl: float = 0,
        hold: float = 0,
    ) -> int:
        """Inserts a job into the currently used tube, and demands something special of it. Returns the job ID.

        What is 0 or not given is as the policy of the tube says. An :class:`ExistsError` or a :class:`TooLateError` is
        raised as in :meth:`put_keyed` and :meth:`replace_keyed`; a ``ValueError``, before anything is sent, if the
        attributes do not go together or are out of range.

        :param body: The data representing the job.
        :param priority: An integer between 0 and 4,294,967,295 where 0 is the most urgent.
        :param delay: The number of seconds to delay the job for.
        :param ttr: The maximum number of seconds the job can be reserved for before timing out.
        :param key: The name of the job, by the rules of tube names.
        :param replace: Whether to replace the job that has this key.
        :param at: When the job is to be ready by the server's wall clock, instead of a delay: Unix time in seconds, or
            a datetime, which without a time zone is local time.
        :param tries: How often it may be released, time out or lose its worker, before it is buried or goes to the dead
            tube.
        :param backoff: The number of seconds to delay it for after the first of these, doubled with each further one.
        :param ttl: The number of seconds for which it may be ready, before it is deleted or goes to the dead tube.
        :param hold: The number of seconds for which its key stays taken when it has been deleted.
        """
        if (replace or hold) and not key:
            raise ValueError("replace and hold are about a key: it must be given")
        if at is not None and delay:
            raise ValueError("at and delay: only one of them may be given")
        attributes = [b" key=%b" % _key(key)] if key else []
        if replace:
            attributes.append(b" replace=1")
        if at is not None:
            attributes.append(b" at=%b" % _moment(at))
        if tries:
            attributes.append(b" tries=%d" % _within("tries", tries))
        for name, duration in (("backoff", backoff), ("ttl", ttl), ("hold", hold)):
            if duration:
                attributes.append(b" %b=%b" % (name.encode(), _seconds(_within(name, duration))))
        return self._insert(self._put(b"put-with", body, priority, delay, ttr, b"".join(attributes)))

    def cancel(self, job: JobOrID[TBody]) -> None:
        """Deletes a job that is still delayed, so that no worker ever receives it.

        A :class:`TooLateError` is raised if it is ready, reserved or buried.

        :param job: The job or job ID to cancel.
        """
        self._send_cmd(b"cancel %d" % _to_id(job), b"CANCELLED")

    def cancel_keyed(self, key: str) -> None:
        """Deletes the job with this key in the currently used tube, if it is still delayed.

        :param key: The name of the job.
        """
        self._send_cmd(b"cancel-keyed %b" % _key(key), b"CANCELLED")

    def reschedule(self, job: JobOrID[TBody], delay: float) -> None:
        """Gives a job that is still delayed another delay.

        A :class:`TooLateError` is raised if it is ready, reserved or buried.

        :param job: The job or job ID to reschedule.
        :param delay: The number of seconds to delay the job for, from now.
        """
        self._send_cmd(b"reschedule %d %b" % (_to_id(job), _seconds(delay)), b"RESCHEDULED")

    def reschedule_keyed(self, key: str, delay: float) -> None:
        """Gives the job with this key in the currently used tube another delay, if it is still delayed.

        :param key: The name of the job.
        :param delay: The number of seconds to delay the job for, from now.
        """
        self._send_cmd(b"reschedule-keyed %b %b" % (_key(key), _seconds(delay)), b"RESCHEDULED")

    def peek_keyed(self, key: str) -> Job[TBody]:
        """Returns the job with this key in the currently used tube.

        :param key: The name of the job.
        """
        return self._peek_cmd(b"peek-keyed %b" % _key(key))

    def reserve_batch(self, limit: int, timeout: float | None = None) -> list[Job[TBody]]:
        """Reserves the most urgent jobs from the tubes on the watch list, at least one. Returns the reserved jobs.

        This blocks until a job can be reserved. If a ``timeout`` is given and passes before that, a
        :class:`TimedOutError <greenstalk.TimedOutError>` is raised.

        :param limit: The maximum number of jobs to reserve.
        :param timeout: The maximum number of seconds to wait.
        """
        wait = _seconds(MAX_TIMEOUT if timeout is None else timeout)
        count = self._int_cmd(b"reserve-batch %d %b" % (limit, wait), b"RESERVED_BATCH")
        found = [self._read_reserved() for _ in range(count)]  # read everything first: decoding may fail
        return [Job(job_id, self._decode(body)) for job_id, body in found]

    def clear_tube(self, tube: str) -> int:
        """Deletes all ready, delayed and buried jobs of a tube. Returns how many.

        :param tube: The tube to clear.
        """
        return self._int_cmd(b"clear-tube %b" % tube.encode("ascii"), b"CLEARED")

    def redrive(self, tube: str, limit: int) -> int:
        """Sends jobs of a dead tube back to the tubes that they have come from, ready. Returns how many.

        :param tube: The dead tube.
        :param limit: The maximum number of jobs to send back.
        """
        return self._int_cmd(b"redrive %b %d" % (tube.encode("ascii"), limit), b"REDRIVEN")

    def list_jobs(self, tube: str, state: str = "ready") -> Iterator[dict[str, int | str]]:
        """Iterates over what the server tells of the jobs of a tube in one state, in their order, without their bodies.

        Pages are asked for as they are needed. Jobs may come and go meanwhile; those that stay where they are are given
        once each. If the tube goes, there are no more; a :class:`NotFoundError <greenstalk.NotFoundError>` is raised if
        there is none at the beginning.

        :param tube: The tube.
        :param state: ``ready``, ``delayed``, ``reserved`` or ``buried``.
        """
        following = "0"
        while following:
            arguments = (tube.encode("ascii"), state.encode("ascii"), following.encode("ascii"), PAGE_ENTRIES)
            try:
                page = self._page(b"list-jobs %b %b %b %d" % arguments)
            except greenstalk.NotFoundError:
                if following == "0":
                    raise
                return
            following, entries = page
            yield from entries

    def stats_tubes(self, first: str = "", prefix: str = "") -> Iterator[dict[str, int | str]]:
        """Iterates over the statistics of the tubes, in the order of their names, and asks for pages as it needs them.

        Tubes may come and go meanwhile; those that stay are given once each.

        :param first: The name to begin with; by default the first one that there is, or that has the prefix.
        :param prefix: What the names must begin with.
        """
        following = max(first, prefix) or "-"
        while following:
            command = b"stats-tubes %b %d" % (following.encode("ascii"), PAGE_ENTRIES)
            following, entries = self._page(command)
            for entry in entries:
                name = entry["name"]
                if not str(name).startswith(prefix):
                    return
                yield entry

    def _page(self, command: bytes) -> tuple[str, list[dict[str, int | str]]]:
        """Ask for a page: return where the next one begins ("" if there is none), and its entries."""
        with _reading():
            lines = self._read_chunk(self._int_cmd(command, b"OK")).decode("ascii").split("\n")
            _, following, _, *entries = lines[:-1]
            return following.split('"')[1], [_entry(line) for line in entries]

    def list_clients(self) -> list[dict[str, int | str]]:
        """Returns all clients of the server, each with its name, user, state and figures."""
        with _reading():
            lines = self._read_chunk(self._int_cmd(b"list-clients", b"OK")).decode().split("\n")
            if lines[0] != "---":
                raise ValueError("no list")
            return [_entry(line) for line in lines[1:-1] if line != "[]"]

    def move_jobs(self, tube: str, state: str, target: str, limit: int) -> int:
        """Moves the first jobs of a tube in one state to another tube. Returns how many.

        They keep their IDs, states, priorities and deadlines. An :class:`OtherShardError` is raised if the other tube
        is in another shard of a cluster.

        :param tube: The tube that they are in.
        :param state: ``ready``, ``delayed`` or ``buried``.
        :param target: The other tube. It need not exist.
        :param limit: The maximum number of jobs to move, at least 1.
        """
        line = f"move-jobs {tube} {state} {target} {limit}"
        return self._int_cmd(line.encode("ascii"), b"MOVED")

    def drain(self) -> None:
        """Puts the server into drain mode: it takes no new jobs, and everything else goes on."""
        self._send_cmd(b"drain", b"DRAINING")

    def undrain(self) -> None:
        """Ends drain mode."""
        self._send_cmd(b"undrain", b"NOT_DRAINING")

    def _insert(self, command: bytes) -> int:
        """Send a put that may replace a job, and return the id of the job."""
        try:
            return self._int_cmd(command, b"INSERTED")
        except greenstalk.UnknownResponseError as error:
            if error.status != b"REPLACED":
                raise
            with _reading():
                return int(error.values[0])

    def _put(
        self, command: bytes, body: TBody, priority: int, delay: float, ttr: float, attributes: bytes = b""
    ) -> bytes:
        if isinstance(body, str):
            if self.encoding is None:
                raise TypeError("Unable to encode string with no encoding set")
            data = body.encode(self.encoding)
        else:
            data = body
        arguments = (command, priority, _seconds(delay), _seconds(ttr), len(data), attributes, data)
        return b"%b %d %b %b %d%b\r\n%b" % arguments

    def _read_reserved(self) -> tuple[int, bytes]:
        with _reading():
            job_id, size = map(int, greenstalk._parse_response(self._reader.readline(), b"RESERVED"))
        return job_id, self._read_chunk(size)

    def _decode(self, body: bytes) -> TBody:
        return body if self.encoding is None else body.decode(self.encoding)  # type: ignore[return-value]


def _entry(line: str) -> dict[str, int | str]:
    """An entry of a page, from its line. In text, a backslash stands before quotation marks and backslashes."""
    fields = re.findall(ENTRY_FIELD, line)
    return {key: int(number) if number else re.sub(r"\\(.)", r"\1", text) for key, text, number in fields}


def _connect(address: ConnectionTarget) -> socket.socket:
    """Connect as greenstalk does."""
    if isinstance(address, socket.socket):
        return address
    if isinstance(address, str):
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.connect(address)
        except BaseException:
            sock.close()
            raise
        return sock
    sock = socket.create_connection(address)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    return sock


def _host(address: ConnectionTarget) -> str | None:
    return address[0] if isinstance(address, tuple) else None


def _default_context() -> ssl.SSLContext:
    """What tls=True stands for: TLS 1.2 or newer, and a certificate of an authority that the system trusts."""
    context = ssl.create_default_context()
    context.set_alpn_protocols([ALPN_PROTOCOL])
    return context


def _authenticate(sock: socket.socket, token: str) -> None:
    """Send the token, and read the answer to it: the server says nothing more before it is asked."""
    sock.sendall(b"auth %b\r\n" % token.encode("ascii"))
    with sock.makefile("rb") as reader, _our_errors():
        greenstalk._parse_response(reader.readline(), b"AUTHENTICATED")


@contextlib.contextmanager
def _reading() -> Iterator[None]:
    """Raise a ConnectionError for a reply that no server gives: what comes after it cannot be told either."""
    try:
        yield
    except (ValueError, LookupError, AssertionError, MemoryError) as error:
        raise ConnectionError("The server's reply makes no sense") from error


@contextlib.contextmanager
def _our_errors() -> Iterator[None]:
    """Raise the errors of this module for the replies that greenstalk does not know."""
    try:
        yield
    except greenstalk.UnknownResponseError as error:
        if error.status in ERROR_RESPONSES:
            raise ERROR_RESPONSES[error.status](error.values) from None
        raise


def _key(key: str) -> bytes:
    """Encode a key. A bad one is refused here, because the server would read the body after it as commands."""
    if not re.fullmatch(KEY, key):
        raise greenstalk.BadFormatError([key.encode()])
    return key.encode("ascii")


def _seconds(duration: float) -> bytes:
    """Encode a duration: whole seconds, or with milliseconds, rounded up so that no job is early."""
    if duration == int(duration):
        return b"%d" % duration
    milliseconds = math.ceil(round(duration * 1000, 6))  # 1.1 seconds are 1100.0000000000002 milliseconds
    return b"%d.%03d" % divmod(milliseconds, 1000)


def _moment(at: float | datetime.datetime) -> bytes:
    """Encode a moment as Unix time."""
    return b"%.9f" % _within("at", at.timestamp() if isinstance(at, datetime.datetime) else at)


def _within(name: str, number: _Number) -> _Number:
    """The value of an attribute. A bad one is refused here, as a bad key is."""
    if not 0 <= number <= MAX_SECONDS:
        raise ValueError(f"{name} is {number}: must be from 0 to {MAX_SECONDS}")
    return number


def _to_id(job: JobOrID[TBody]) -> int:
    return job.id if isinstance(job, Job) else job
