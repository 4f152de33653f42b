"""Checks each request before its page: Host, origin, CSRF value, session, proxy; limits sign-ins.

    Host             an address, localhost, or a name that the console was given: no DNS rebinding
    Sec-Fetch-Site   a change comes from a page of the console's own origin; where a browser does not send it, Origin
                     must be that of Host. Only navigations may come from other sites
    csrf             each form has a value that belongs to the cookie of who got the form
    session          with --login: a token of the queue, in memory, for 12 hours; the cookie is random, and new at login
    user header      behind a proxy: only from the networks that are trusted

Must never log or show a token, a cookie, or the value of a form.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import ipaddress
import secrets
import time
import weakref
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlsplit

from beanstalk_client.address import Address

LIFE: Final = 12 * 3600.0
"""Seconds that a session lasts."""

MAX_SESSIONS: Final = 1000
"""Maximum number of sessions; beyond it, the oldest one of the token with most sessions is evicted."""

MAX_ATTEMPTS: Final = 64
MAX_ATTEMPTS_OF_ADDRESS: Final = 32
"""Maximum number of tokens that are checked at a time: of all clients, and of one address."""

PAUSE: Final = 0.5
SPACING: Final = 0.01
MAX_PAUSE: Final = 10.0
"""Seconds from the check of a wrong token to its answer, between two such answers, and the longest such time."""

COOKIE: Final = "beanstalk_console"

POLICY: Final = "; ".join(
    [
        "default-src 'none'",
        "style-src 'self'",
        "script-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
    ]
)

HEADERS: Final = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",  # with no-referrer, browsers send "null" as the Origin of a form
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
"""What each response has."""

SAFE: Final = ("GET", "HEAD")


def refusal(method: str, headers: Mapping[str, str], hosts: Iterable[str]) -> tuple[int, str] | None:
    """Why a request is not taken, as a status and a sentence; None if it is.

    Args:
        headers: with names in lower case.
        hosts: the names that the console was given.
    """
    host = headers.get("host", "")
    if not is_good_host(host, hosts):
        return 421, "This host name is not allowed: start the console with --host NAME, or mount it with hosts=[NAME]."
    site = headers.get("sec-fetch-site", "")
    if method in SAFE:
        navigates = headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") == "document"
        if site in ("cross-site", "same-site") and not navigates:
            return 403, "Refused: another site sent this request."
        return None
    if site and site != "same-origin":
        return 403, "Refused: another site sent this form."
    origin = headers.get("origin")
    if origin is not None and origin.partition("://")[2].lower() != host.lower():
        return 403, "Refused: another site sent this form."
    return None


def is_good_host(host: str, hosts: Iterable[str]) -> bool:
    """Whether a Host header may name the console: an IP address, localhost, or one of these.

    A neighbour in the network can answer for a name without a dot and for local domains (mDNS, LLMNR).
    """
    name = _name_of(host)
    return is_local_host(host) or (bool(name) and name in {each.lower() for each in hosts})


def is_local_host(host: str) -> bool:
    """Whether a Host header names an IP address, or localhost, which other programs of this machine share."""
    name = _name_of(host)
    return name == "localhost" or Address(name).is_ip


def _name_of(host: str) -> str:
    """The name in a Host header, in lower case; "" if it is malformed."""
    try:
        parts = urlsplit(f"//{host}")
        return parts.hostname or "" if parts.port is None or parts.port else ""
    except ValueError:
        return ""


def is_trusted(peer: str, networks: Iterable[str]) -> bool:
    """Whether an address is in one of these networks; a UNIX socket, which has none, is."""
    if not peer:
        return True
    try:
        address = ipaddress.ip_address(peer)
    except ValueError:
        return False
    return any(address in ipaddress.ip_network(network) for network in networks)


def network_of(peer: str) -> str:
    """What is counted as one client: an IPv4 address, or the /64 that a provider gives to one IPv6 client."""
    try:
        address = ipaddress.IPv6Address(peer.partition("%")[0])
    except ValueError:
        return peer
    return str(address.ipv4_mapped or ipaddress.IPv6Network((int(address) >> 64 << 64, 64)))


class Forms:
    """Makes and checks the value that each form has: it belongs to the cookie of who got it."""

    def __init__(self) -> None:
        self._secret = secrets.token_bytes(32)

    def value(self, cookie: str) -> str:
        return hmac.new(self._secret, cookie.encode("utf-8", "replace"), hashlib.sha256).hexdigest()

    def fits(self, cookie: str, value: str) -> bool:
        given = value.encode("utf-8", "replace")
        return bool(cookie) and hmac.compare_digest(self.value(cookie).encode(), given)


def new_cookie() -> str:
    return secrets.token_urlsafe(32)


def set_cookie(path: str, value: str, *, secure: bool, life: float | None = None) -> str:
    """A Set-Cookie header: the cookie ends with the browser, or after some seconds."""
    age = "" if life is None else f"; Max-Age={life:.0f}"
    return f"{COOKIE}={value}; Path={path or '/'}; HttpOnly; SameSite=Strict{'; Secure' if secure else ''}{age}"


class Attempts:
    """Checks of tokens that run at a time. The others wait, and none is refused because of others.

    An address has few places, so that it does not take those of the other addresses. The answers to wrong tokens are
    spaced, so that clients which try one after the other leave time for others, however many they are.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._answered = 0.0  # when the last wrong token is answered
        self._all = asyncio.Semaphore(MAX_ATTEMPTS)
        self._checks = 0  # that run or wait
        self._by_address: weakref.WeakValueDictionary[str, asyncio.Semaphore] = weakref.WeakValueDictionary()

    def __len__(self) -> int:
        """The number of checks that run or wait."""
        return self._checks

    def pause(self) -> float:
        """Seconds until a token that is wrong is answered."""
        now = self._clock()
        self._answered = min(max(self._answered + SPACING, now + PAUSE), now + MAX_PAUSE)
        return self._answered - now

    @contextlib.asynccontextmanager
    async def place(self, address: str) -> AsyncIterator[None]:
        """Wait for a place, first come, first served, and hold it."""
        own = self._by_address.setdefault(address, asyncio.Semaphore(MAX_ATTEMPTS_OF_ADDRESS))
        self._checks += 1
        try:
            async with own, self._all:
                yield
        finally:
            self._checks -= 1


@dataclass(frozen=True, slots=True)
class Session:
    """A user who has signed in.

    Attributes:
        token: of the queue.
        name: the user's name in the log.
        expires: when it ends, by the clock of the sessions.
    """

    token: str = field(repr=False)
    name: str
    expires: float

    @property
    def owner(self) -> str:
        """A digest of the token: the log keeps it for longer than the token."""
        return _digest(self.token).hex()


class Sessions:
    """The sessions, in memory."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._sessions: dict[bytes, Session] = {}  # by the digest of the cookie, the oldest first

    def __len__(self) -> int:
        return len(self._sessions)

    def begin(self, token: str, name: str = "") -> tuple[str, Session]:
        """Sign in; return the cookie, and the session."""
        self.tokens()
        while len(self._sessions) >= MAX_SESSIONS:
            most = who_has_most(each.token for each in self._sessions.values())
            del self._sessions[next(cookie for cookie, each in self._sessions.items() if each.token == most)]
        cookie = new_cookie()
        session = Session(token, name or fingerprint(token), self._clock() + LIFE)
        self._sessions[_digest(cookie)] = session
        return cookie, session

    def find(self, cookie: str) -> Session | None:
        """The session of a cookie, if it has not ended."""
        session = self._sessions.get(_digest(cookie))
        if session is not None and session.expires <= self._clock():
            del self._sessions[_digest(cookie)]
            return None
        return session

    def end(self, cookie: str) -> None:
        """Sign out."""
        self._sessions.pop(_digest(cookie), None)

    def tokens(self) -> set[str]:
        """The tokens of all sessions that have not ended; the others are forgotten."""
        now = self._clock()
        self._sessions = {cookie: each for cookie, each in self._sessions.items() if each.expires > now}
        return {each.token for each in self._sessions.values()}


def who_has_most(owners: Iterable[str]) -> str:
    """The owner with the most entries of something full. Evicting theirs protects those of the others."""
    return Counter(owners).most_common(1)[0][0]


def fingerprint(token: str) -> str:
    """A short digest that identifies a token without revealing it: the name of a user without a name in the log."""
    return f"token {_digest(token).hex()[:8]}"


def _digest(secret: str) -> bytes:
    """The digest of a cookie or a token: the time of a search for it reveals nothing of the secret."""
    return hashlib.sha256(secret.encode("utf-8", "replace")).digest()
