"""Sends one request, through aiohttp, to where the guard allows: one attempt, redirects included.

An attempt ends within its time and its memory bounds, however a receiver behaves. Of a response it reads the status,
header fields up to a number and a length, and the body up to a limit, without decompressing it. The
status decides; an error in the body behind it does not count.

    the guard       a URL is checked before it is asked for; an address when a socket is made for it, in
                    `_GuardedConnections`, so that there is no moment between the check and the use
    redirects       followed here and not by the library: with the method and the body, but 303 as GET; never from https
                    to http; what a job sets for one origin is not sent to another, but for what describes the body
    proxies         none by default. With one, the proxy finds addresses, and it has to guard them
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import io
import socket
import ssl
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, Final, NamedTuple
from urllib.parse import urljoin, urlsplit
from urllib.request import getproxies, proxy_bypass

try:
    import aiodns  # noqa: F401 which AsyncResolver needs
    import aiohttp
    from aiohttp.abc import AbstractResolver, ResolveResult
    from aiohttp.client_proto import ResponseHandler
    from aiohttp.resolver import AsyncResolver
    from yarl import URL
except ImportError as _error:
    raise ImportError(
        "beanstalk-deliver needs aiohttp and aiodns: pip install './client[deliver]' in a clone of beanstalk-server"
    ) from _error

from beanstalk_client.deliver import signatures
from beanstalk_client.deliver.addresses import Guard, NotAllowedError
from beanstalk_client.deliver.request import Request, RequestError, check_url
from beanstalk_client.deliver.signatures import Secrets
from beanstalk_client.errors import shown
from beanstalk_client.version import VERSION

USER_AGENT: Final = f"beanstalk-deliver/{VERSION}"

KEEP_ALIVE: Final = 2.0
"""Seconds that a connection is kept for the next request to its host."""

BODY_WITHIN: Final = 1.0
"""Seconds that a receiver has for the body of its response: it is read only to use the connection again, and to show
what went wrong."""

MOST_FIELDS: Final = 100
LONGEST_FIELD: Final = 8190
"""Header fields of a response, and the bytes of one."""

MOST_INTERIM: Final = 20
"""Interim responses (1xx) before the response: each is work, and HTTP has no limit of them."""

EXCERPT: Final = 500
"""Characters of a response that are kept where it says what went wrong."""

DNS_CACHE: Final = 10
"""Seconds that addresses of a name are used again."""

_KEEPS_METHOD: Final = (301, 302, 307, 308)
_SEE_OTHER: Final = 303
_DESCRIBES: Final = frozenset(
    {"accept", "accept-language", "content-encoding", "content-language", "content-type", "user-agent"}
)
"""The header fields of a job that another origin is sent too: all others may be credentials."""

_CLOSED: Final = (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError)

Lookup = Callable[[str, int, int], Awaitable[Sequence[str]]]
"""Finds the addresses of a name, given a port and a family."""


class FailedError(Exception):
    """There was no answer.

    Attributes:
        kind: "connect", "dns", "forbidden", "protocol", "redirect", "timeout" or "tls".
        reason: why, in one line.
    """

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(reason)
        self.kind = kind
        self.reason = reason


class Answer(NamedTuple):
    """What a receiver has answered.

    Attributes:
        status: 101, or 200 to 999.
        retry_after: the header field Retry-After; "": there is none.
        excerpt: the beginning of the body, as text in one line, if the status is no success.
    """

    status: int
    retry_after: str
    excerpt: str


class Limits(NamedTuple):
    """Bounds of an attempt.

    Attributes:
        timeout: seconds for all of it; a job may ask for less.
        connect_timeout: seconds until there is a connection, names and TLS included.
        redirects: how many are followed.
        response: bytes of a response's body that are read.
    """

    timeout: float = 30.0
    connect_timeout: float = 10.0
    redirects: int = 3
    response: int = 65_536


class RequestSender:
    """Sends requests. It is made, used and closed on one event loop.

    Args:
        guard: what may be reached.
        secrets: what signs; None: nothing.
        limits: bounds of each attempt.
        tls: which certificates are trusted; None: those that the system does.
        proxies_of_environment: whether to use those that HTTP_PROXY, HTTPS_PROXY and NO_PROXY say.
        lookup: how addresses are found; None: by c-ares, which takes no thread while a name server is silent, so that
            slow names do not delay others.
        clock: seconds since 1970, for signatures.
    """

    def __init__(
        self,
        guard: Guard,
        *,
        secrets: Secrets | None = None,
        limits: Limits | None = None,
        tls: ssl.SSLContext | None = None,
        proxies_of_environment: bool = False,
        lookup: Lookup | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.secrets: Secrets = secrets or Secrets()
        self._guard = guard
        self._limits = limits or Limits()
        self._proxies = getproxies() if proxies_of_environment else {}
        self._clock = clock
        self._resolver = _GuardedConnections(guard, lookup or Names())
        self._trace = aiohttp.TraceConfig()
        self._trace.on_connection_reuseconn.append(_note_reuse)
        context: Any = tls or True
        self._direct = self._session(
            _Connector(
                limit=0,  # those at once are counted elsewhere
                keepalive_timeout=KEEP_ALIVE,
                ttl_dns_cache=DNS_CACHE,
                resolver=self._resolver,
                socket_factory=self._resolver.socket,
                ssl=context,
            )
        )
        # What a proxy connects to is found by the proxy: the address that is seen here is its own.
        self._proxied = (
            self._session(_Connector(limit=0, keepalive_timeout=KEEP_ALIVE, ssl=context)) if self._proxies else None
        )

    def _session(self, connector: aiohttp.TCPConnector) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(
            connector=connector,
            response_class=_Response,
            cookie_jar=aiohttp.DummyCookieJar(),
            skip_auto_headers=("Accept-Encoding", "Content-Type", "User-Agent"),
            auto_decompress=False,
            trust_env=False,  # it would also read passwords from ~/.netrc
            max_line_size=LONGEST_FIELD,
            max_field_size=LONGEST_FIELD,
            max_headers=MOST_FIELDS,
            trace_configs=[self._trace],
        )

    @property
    def reach(self) -> str:
        """Where requests may go, for people."""
        return self._guard.reach

    async def close(self) -> None:
        await self._direct.close()
        if self._proxied is not None:
            await self._proxied.close()
        await self._resolver.close()  # which the connector does only for one that it has made

    def check(self, request: Request) -> None:
        """Check what can be checked of a request before it has a slot.

        Raises:
            NotAllowedError: it may not be sent to where its URL leads.
        """
        self._guard.check_host(request.host, request.port)

    async def send(self, request: Request, id: str) -> Answer:
        """Make one attempt, and follow its redirects.

        Args:
            id: what the receiver knows it by.

        Raises:
            FailedError: there was no answer.
        """
        loop = asyncio.get_running_loop()
        timeout = min(self._limits.timeout, request.timeout or self._limits.timeout)
        ends = loop.time() + timeout
        url, host, port, method, body = request.url, request.host, request.port, request.method, request.body
        headers = dict(request.headers)
        for followed in range(self._limits.redirects + 1):
            try:
                self._guard.check_host(host, port)
            except NotAllowedError as error:
                raise FailedError("forbidden", f"{_led_to(url, followed)}{error}") from None
            answer, location = await self._ask(method, url, host, headers, body, id, ends - loop.time(), timeout)
            if not location:
                return answer
            origin = (urlsplit(url).scheme, host, port)
            try:
                url, host, port = check_url(urljoin(url, location))
            except (RequestError, ValueError) as error:
                raise FailedError("redirect", f"redirect with status {answer.status} refused: {error}") from None
            if origin[0] == "https" and urlsplit(url).scheme == "http":
                raise FailedError("redirect", f"redirect with status {answer.status} refused: from https to http")
            if answer.status == _SEE_OTHER and method != "HEAD":
                method, body = "GET", b""
                headers = {name: each for name, each in headers.items() if not name.lower().startswith("content-")}
            if not _is_same_site(origin, (urlsplit(url).scheme, host, port)):
                headers = {name: each for name, each in headers.items() if name.lower() in _DESCRIBES}
        raise FailedError("redirect", f"more than {self._limits.redirects} redirects")

    async def _ask(
        self,
        method: str,
        url: str,
        host: str,
        headers: Mapping[str, str],
        body: bytes,
        id: str,
        left: float,
        timeout: float,
    ) -> tuple[Answer, str]:
        """Ask for one URL; return the answer, and where it leads to if it is a redirect."""
        fields = {"Accept-Encoding": "identity", "User-Agent": USER_AGENT}
        for name, value in headers.items():
            fields = {each: its for each, its in fields.items() if each.lower() != name.lower()}
            fields[name] = value
        fields.update(signatures.headers(id, int(self._clock()), body, self.secrets.of(url, host)))
        proxy = self._proxy(urlsplit(url).scheme, host)
        session = self._proxied if proxy and self._proxied is not None else self._direct
        ends = asyncio.get_running_loop().time() + left
        repeated = False
        while True:
            trace = SimpleNamespace(reused=False)
            left = ends - asyncio.get_running_loop().time()
            if left <= 0:
                raise FailedError("timeout", f"no response within {timeout:g} s")
            try:
                response = await session.request(
                    method,
                    URL(url, encoded=True),
                    headers=fields,
                    data=io.BytesIO(body) if body else None,
                    allow_redirects=False,
                    proxy=proxy,
                    timeout=aiohttp.ClientTimeout(total=left, connect=min(self._limits.connect_timeout, left)),
                    trace_request_ctx=trace,
                )
                break
            except (aiohttp.ClientError, asyncio.TimeoutError, OSError, ValueError) as error:
                # A connection that was kept has been closed while this was on its way: an accident of timing, and no
                # failure of the receiver. If it has come twice, its id says so.
                if not trace.reused or repeated or not isinstance(error, _CLOSED):
                    raise _failure(error, timeout, self._limits.connect_timeout) from None
                repeated = True
        try:
            location = response.headers.get("Location", "") if response.status in (*_KEEPS_METHOD, _SEE_OTHER) else ""
            content = await self._read(response)
            excerpt = "" if 200 <= response.status <= 299 else _excerpt(content)
            return Answer(response.status, response.headers.get("Retry-After", ""), excerpt), location
        finally:
            response.close()  # nothing happens if all of it has been read

    async def _read(self, response: aiohttp.ClientResponse) -> bytes:
        """The beginning of the body; what is wrong with it does not count."""
        content = bytearray()

        async def read() -> None:
            while len(content) <= self._limits.response:
                part = await response.content.readany()
                if not part:
                    return
                content.extend(part)

        with contextlib.suppress(Exception):  # also RuntimeError, which the library raises for a closed connection
            await asyncio.wait_for(read(), BODY_WITHIN)
        return bytes(content[: self._limits.response])

    def _proxy(self, scheme: str, host: str) -> str | None:
        if not self._proxies or proxy_bypass(host):
            return None
        return self._proxies.get(scheme)


class _GuardedConnections(AbstractResolver):
    """Finds addresses and makes sockets, both only of addresses that the guard allows."""

    def __init__(self, guard: Guard, lookup: Lookup) -> None:
        self._guard = guard
        self._lookup = lookup

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """The addresses of a name that may be connected to.

        Raises:
            NotAllowedError: there are some, and none of them may.
            OSError: there are none.
        """
        refusal: NotAllowedError | None = None
        allowed: list[ResolveResult] = []
        for address in await self._lookup(host, port, family):
            try:
                self._guard.check_address(address)
            except NotAllowedError as error:
                refusal = refusal or error
                continue
            allowed.append(
                ResolveResult(
                    hostname=host,
                    host=address,
                    port=port,
                    family=socket.AF_INET6 if ":" in address else socket.AF_INET,
                    proto=socket.IPPROTO_TCP,
                    flags=socket.AI_NUMERICHOST | socket.AI_NUMERICSERV,
                )
            )
        if allowed:
            return allowed
        raise refusal or OSError(None, "the host name has no address")

    def socket(self, address_info: tuple[Any, ...]) -> socket.socket:
        """A socket for an address: the last moment to look at it, and the one that counts."""
        family, kind, protocol, _, address = address_info
        self._guard.check_address(str(address[0]))
        return socket.socket(family, kind, protocol)

    async def close(self) -> None:
        if isinstance(self._lookup, Names):
            await self._lookup.close()


class Names:
    """Finds addresses as /etc/hosts and the name servers of /etc/resolv.conf say.

    Args:
        options: of aiodns, instead of what the system is set to.
    """

    def __init__(self, **options: Any) -> None:
        self._resolver = AsyncResolver(**options)

    async def __call__(self, host: str, port: int, family: int) -> Sequence[str]:
        return [each["host"] for each in await self._resolver.resolve(host, port, socket.AddressFamily(family))]

    async def close(self) -> None:
        await self._resolver.close()


class _Connector(aiohttp.TCPConnector):
    """Makes connections whose protocol is `_Protocol`."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._factory = functools.partial(_Protocol, loop=self._loop)  # type: ignore[assignment]


class _Protocol(ResponseHandler):
    """Feeds the parser the lines of a head one by one: it drops a head if an error follows in the same bytes.

    What comes while no response is awaited closes the connection: the library would take it for the next response.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self._is_in_head = False

    def set_response_params(self, **params: Any) -> None:
        self._is_in_head = True
        super().set_response_params(**params)

    def feed_data(self, data: Any, size: int = 0) -> None:
        self._is_in_head = data[0].code <= 199  # interim: another head follows
        super().feed_data(data, size)

    def data_received(self, data: bytes) -> None:
        begin = 0
        while self._is_in_head and (end := data.find(b"\n", begin) + 1):
            super().data_received(data[begin:end])
            begin = end
        if begin == len(data) and data:
            return
        if data and not self._is_in_head and (self._payload is None or self._payload.is_eof()):
            self.force_close()
            self.close()
        else:
            super().data_received(data[begin:])


class _Response(aiohttp.ClientResponse):
    """A response that comes behind a few interim ones, or not at all."""

    async def start(self, connection: Any) -> aiohttp.ClientResponse:
        protocol = connection.protocol
        read = protocol.read
        left = MOST_INTERIM

        async def read_few() -> Any:
            nonlocal left
            message, payload = await read()
            if 100 <= message.code <= 199:
                left -= 1
                if left < 0:
                    raise FailedError("protocol", f"more than {MOST_INTERIM} interim responses")
            return message, payload

        protocol.read = read_few
        try:
            return await super().start(connection)
        finally:
            del protocol.read


async def _note_reuse(_: aiohttp.ClientSession, context: Any, __: Any) -> None:
    context.trace_request_ctx.reused = True


def _is_same_site(origin: tuple[str, str, int], other: tuple[str, str, int]) -> bool:
    """Whether credentials for one origin may be sent to another: the same, or its own https."""
    return origin == other or (
        origin[1] == other[1] and (origin[0], origin[2], other[0], other[2]) == ("http", 80, "https", 443)
    )


def _led_to(url: str, followed: int) -> str:
    return f"redirect to {urlsplit(url).netloc}: " if followed else ""


def _failure(error: Exception, timeout: float, connect_timeout: float) -> FailedError:
    """What an exception of the library is called here."""
    cause = getattr(error, "os_error", error)
    if isinstance(cause, NotAllowedError):
        return FailedError("forbidden", str(cause))
    if isinstance(error, aiohttp.ConnectionTimeoutError):
        return FailedError("timeout", f"no connection within {min(connect_timeout, timeout):g} s")
    if isinstance(error, asyncio.TimeoutError):
        return FailedError("timeout", f"no response within {timeout:g} s")
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return FailedError("dns", f"cannot resolve the host name: {_reason(cause)}")
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return FailedError("tls", f"certificate verification failed: {_reason(error.certificate_error)}")
    if isinstance(error, (aiohttp.ClientSSLError, ssl.SSLError)):
        return FailedError("tls", f"TLS handshake failed: {_reason(cause)}")
    if isinstance(error, aiohttp.ClientConnectorError):
        return FailedError("connect", f"cannot connect: {_reason(cause)}")
    if isinstance(error, aiohttp.ServerDisconnectedError):
        return FailedError("connect", "connection closed before a response")
    if isinstance(error, aiohttp.ClientResponseError):
        return FailedError("protocol", f"the response is not HTTP: {_reason(error.message)}")
    if isinstance(error, (aiohttp.ClientOSError, OSError)):
        return FailedError("connect", f"connection lost: {_reason(cause)}")
    return FailedError("protocol", f"{type(error).__name__}: {_reason(error)}")


def _reason(what: object) -> str:
    return shown(getattr(what, "strerror", None) or what)


def _excerpt(content: bytes) -> str:
    return shown(content[: 4 * EXCERPT].decode(errors="replace").strip(), EXCERPT)
